-- The key that an API key was made with: a key counts only as long as the one it was made with does.
ALTER TABLE api_tokens ADD COLUMN parent TEXT;

-- Where a host that asks to be enrolled comes from: no address may fill the queue.
ALTER TABLE enrollments ADD COLUMN address TEXT NOT NULL DEFAULT '';
