-- A join token enrolls one host or several: how many at most, and when which nodes joined (JSON).
ALTER TABLE join_tokens ADD COLUMN uses INTEGER;
ALTER TABLE join_tokens ADD COLUMN joined TEXT;
