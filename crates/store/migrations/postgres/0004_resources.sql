-- Resources: what the control plane keeps as sealed documents, found by a few keys. The relay of the outbox. Keys of service accounts.

CREATE TABLE resources (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version    BIGINT NOT NULL,
    kind       TEXT COLLATE "C" NOT NULL,
    parent     TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C",
    lookup     TEXT COLLATE "C",
    owner      TEXT COLLATE "C",
    state      TEXT COLLATE "C" NOT NULL,
    due_at     BIGINT,
    expires_at BIGINT,
    body       TEXT NOT NULL,
    seal       TEXT NOT NULL
);
CREATE UNIQUE INDEX resources_by_name ON resources (kind, parent, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX resources_by_lookup ON resources (kind, lookup) WHERE lookup IS NOT NULL;
CREATE INDEX resources_of_kind ON resources (kind, id);
CREATE INDEX resources_of_parent ON resources (kind, parent, id);
CREATE INDEX resources_of_owner ON resources (kind, owner, id) WHERE owner IS NOT NULL;
CREATE INDEX resources_by_state ON resources (kind, state, id);
CREATE INDEX resources_due ON resources (kind, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX resources_expiring ON resources (expires_at) WHERE expires_at IS NOT NULL;

-- Events of one subject are published in their order, those of different lanes at the same time. The lane of an event is the FNV-1a
-- hash (32 bits) of the bytes of its subject, modulo 16. Whoever publishes a lane holds its row until then.
CREATE TABLE outbox_lanes (
    lane BIGINT NOT NULL PRIMARY KEY CHECK (lane BETWEEN 0 AND 15)
);
INSERT INTO outbox_lanes (lane) SELECT lane FROM generate_series(0, 15) AS lane;

ALTER TABLE outbox ADD COLUMN lane BIGINT NOT NULL DEFAULT 0;

-- Events from before get the lane that later ones of their subject get: otherwise these could overtake them.
WITH RECURSIVE hashed (position, bytes, at, hash) AS (
    SELECT position, convert_to(subject, 'UTF8'), 0, 2166136261 FROM outbox
    UNION ALL
    SELECT position, bytes, at + 1, ((hash # get_byte(bytes, at)) * 16777619) & 4294967295 FROM hashed WHERE at < length(bytes)
)
UPDATE outbox SET lane = hashed.hash % 16 FROM hashed WHERE hashed.at = length(hashed.bytes) AND hashed.position = outbox.position;

-- The project that an event concerns, if it concerns one: who watches a project reads its events alone.
ALTER TABLE outbox ADD COLUMN project TEXT COLLATE "C";
CREATE INDEX outbox_of_project ON outbox (project, position) WHERE project IS NOT NULL;
CREATE INDEX outbox_of_subject ON outbox (subject, position);

CREATE INDEX outbox_unpublished ON outbox (lane, position) WHERE published_at IS NULL;
CREATE INDEX outbox_published ON outbox (published_at) WHERE published_at IS NOT NULL;

-- A token without a role is a key of a service account: it may do what the account may, within its scopes.
ALTER TABLE api_tokens ALTER COLUMN role DROP NOT NULL;
UPDATE api_tokens SET role = 'support' WHERE role = 'viewer';
ALTER TABLE api_tokens ADD COLUMN service_account TEXT COLLATE "C";
ALTER TABLE api_tokens ADD COLUMN project TEXT COLLATE "C";
ALTER TABLE api_tokens ADD COLUMN scopes TEXT;
ALTER TABLE api_tokens ADD COLUMN expires_at BIGINT;
CREATE INDEX api_tokens_of_service_account ON api_tokens (service_account, id) WHERE service_account IS NOT NULL;
CREATE INDEX api_tokens_of_project ON api_tokens (project, id) WHERE project IS NOT NULL;
