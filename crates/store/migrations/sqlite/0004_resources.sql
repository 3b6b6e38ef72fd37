-- Resources: what the control plane keeps as sealed documents, found by a few keys. The relay of the outbox. Keys of service accounts.

CREATE TABLE resources (
    id         TEXT NOT NULL PRIMARY KEY,
    version    INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    parent     TEXT NOT NULL,
    name       TEXT,
    lookup     TEXT,
    owner      TEXT,
    state      TEXT NOT NULL,
    due_at     INTEGER,
    expires_at INTEGER,
    body       TEXT NOT NULL,
    seal       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX resources_by_name ON resources (kind, parent, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX resources_by_lookup ON resources (kind, lookup) WHERE lookup IS NOT NULL;
CREATE INDEX resources_of_kind ON resources (kind, id);
CREATE INDEX resources_of_parent ON resources (kind, parent, id);
CREATE INDEX resources_of_owner ON resources (kind, owner, id) WHERE owner IS NOT NULL;
CREATE INDEX resources_by_state ON resources (kind, state, id);
CREATE INDEX resources_due ON resources (kind, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX resources_expiring ON resources (expires_at) WHERE expires_at IS NOT NULL;

-- Events of one subject are published in their order, those of different lanes at the same time. The lane of an event is the FNV-1a
-- hash (32 bits) of the bytes of its subject, modulo 16.
CREATE TABLE outbox_lanes (
    lane INTEGER NOT NULL PRIMARY KEY CHECK (lane BETWEEN 0 AND 15)
) STRICT;
INSERT INTO outbox_lanes (lane) WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 15) SELECT n FROM n;

ALTER TABLE outbox ADD COLUMN lane INTEGER NOT NULL DEFAULT 0;

-- Events from before get the lane that later ones of their subject get: otherwise these could overtake them. There is no exclusive or
-- here: a ^ b = (a | b) - (a & b).
WITH RECURSIVE
    bytes (byte, digits) AS (SELECT 0, '00' UNION ALL SELECT byte + 1, printf('%02X', byte + 1) FROM bytes WHERE byte < 255),
    hashed (position, rest, hash) AS (
        SELECT position, hex(CAST(subject AS BLOB)), 2166136261 FROM outbox
        UNION ALL
        SELECT position, substr(rest, 3), (((hash | byte) - (hash & byte)) * 16777619) & 4294967295
        FROM hashed JOIN bytes ON bytes.digits = substr(rest, 1, 2) WHERE rest <> ''
    )
UPDATE outbox SET lane = hashed.hash % 16 FROM hashed WHERE hashed.rest = '' AND hashed.position = outbox.position;

-- The project that an event concerns, if it concerns one: who watches a project reads its events alone.
ALTER TABLE outbox ADD COLUMN project TEXT;
CREATE INDEX outbox_of_project ON outbox (project, position) WHERE project IS NOT NULL;
CREATE INDEX outbox_of_subject ON outbox (subject, position);

CREATE INDEX outbox_unpublished ON outbox (lane, position) WHERE published_at IS NULL;
CREATE INDEX outbox_published ON outbox (published_at) WHERE published_at IS NOT NULL;

-- A token without a role is a key of a service account: it may do what the account may, within its scopes.
CREATE TABLE new_api_tokens (
    id              TEXT NOT NULL PRIMARY KEY,
    version         INTEGER NOT NULL,
    name            TEXT NOT NULL,
    role            TEXT,
    secret_digest   TEXT NOT NULL UNIQUE,
    created_at      INTEGER NOT NULL,
    revoked_at      INTEGER,
    service_account TEXT,
    project         TEXT,
    scopes          TEXT,
    expires_at      INTEGER
) STRICT;
INSERT INTO new_api_tokens (id, version, name, role, secret_digest, created_at, revoked_at)
    SELECT id, version, name, CASE role WHEN 'viewer' THEN 'support' ELSE role END, secret_digest, created_at, revoked_at
    FROM api_tokens;
DROP TABLE api_tokens;
ALTER TABLE new_api_tokens RENAME TO api_tokens;
CREATE INDEX api_tokens_of_service_account ON api_tokens (service_account, id) WHERE service_account IS NOT NULL;
CREATE INDEX api_tokens_of_project ON api_tokens (project, id) WHERE project IS NOT NULL;
