-- A host at a door may become the next epoch of a node that exists only if an operator named that node.
ALTER TABLE join_tokens ADD COLUMN replace_node TEXT;
ALTER TABLE enrollments ADD COLUMN replace_node TEXT;
