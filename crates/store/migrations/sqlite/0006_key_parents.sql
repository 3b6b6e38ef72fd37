-- The key that an API key was made with: a key counts only as long as the one it was made with does.
ALTER TABLE api_tokens ADD COLUMN parent TEXT;
