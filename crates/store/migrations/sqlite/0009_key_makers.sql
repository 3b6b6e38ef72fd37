-- A key ends with the person who made it.
ALTER TABLE api_tokens ADD COLUMN created_by TEXT;
CREATE INDEX api_tokens_of_maker ON api_tokens (created_by, id) WHERE created_by IS NOT NULL;
