-- A join token enrolls one host or several: how many at most, and when which nodes joined (JSON).
ALTER TABLE join_tokens ADD COLUMN uses BIGINT;
ALTER TABLE join_tokens ADD COLUMN joined TEXT;
CREATE TYPE join_tokens_row_2 AS (id text, version bigint, secret_digest text, note text, created_at bigint, expires_at bigint, used_at bigint, used_by text, revoked_at bigint, replace_node text, uses bigint, joined text);
