-- A key ends with the person who made it.
ALTER TABLE api_tokens ADD COLUMN created_by TEXT COLLATE "C";
CREATE INDEX api_tokens_of_maker ON api_tokens (created_by, id) WHERE created_by IS NOT NULL;
CREATE TYPE api_tokens_row_2 AS (id text, version bigint, name text, role text, secret_digest text, created_at bigint, revoked_at bigint, service_account text, project text, scopes text, expires_at bigint, parent text, created_by text);
