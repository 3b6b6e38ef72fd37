-- The first schema. Ids are their prefixed text, times are microseconds since 1970, JSON is text.

CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE servers (
    id      TEXT NOT NULL PRIMARY KEY,
    seen_at INTEGER NOT NULL
) STRICT;

CREATE TABLE nodes (
    id                TEXT NOT NULL PRIMARY KEY,
    version           INTEGER NOT NULL,
    name              TEXT NOT NULL,
    fingerprint       TEXT NOT NULL UNIQUE,
    epoch             INTEGER NOT NULL,
    receipt_key       BLOB NOT NULL,
    tls_key_digest    TEXT NOT NULL,
    record            BLOB NOT NULL,
    service           TEXT NOT NULL,
    service_reason    TEXT NOT NULL,
    session_id        TEXT,
    session_instance  TEXT,
    session_boot      TEXT,
    session_transport TEXT,
    session_since     INTEGER,
    session_server    TEXT,
    last_seen_at      INTEGER,
    facts             TEXT NOT NULL,
    rejoins           INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    enrolled_at       INTEGER NOT NULL
) STRICT;
CREATE INDEX nodes_online ON nodes (session_server, id) WHERE session_id IS NOT NULL;

CREATE TABLE certificates (
    serial     TEXT NOT NULL PRIMARY KEY,
    node_id    TEXT NOT NULL REFERENCES nodes (id),
    node_epoch INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    not_after  INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;
CREATE INDEX certificates_counting ON certificates (node_id, node_epoch) WHERE revoked_at IS NULL;
CREATE INDEX certificates_revoked ON certificates (not_after, serial) WHERE revoked_at IS NOT NULL;

CREATE TABLE join_tokens (
    id            TEXT NOT NULL PRIMARY KEY,
    version       INTEGER NOT NULL,
    secret_digest TEXT NOT NULL UNIQUE,
    note          TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    used_at       INTEGER,
    used_by       TEXT REFERENCES nodes (id),
    revoked_at    INTEGER
) STRICT;

CREATE TABLE enrollments (
    id                 TEXT NOT NULL PRIMARY KEY,
    version            INTEGER NOT NULL,
    state              TEXT NOT NULL,
    email              TEXT NOT NULL,
    fingerprint        TEXT NOT NULL,
    csr_pem            TEXT NOT NULL,
    receipt_key        BLOB NOT NULL,
    facts              TEXT NOT NULL,
    poll_secret_digest TEXT NOT NULL,
    reason             TEXT NOT NULL,
    node_id            TEXT REFERENCES nodes (id),
    created_at         INTEGER NOT NULL,
    expires_at         INTEGER NOT NULL
) STRICT;
CREATE INDEX enrollments_by_state ON enrollments (state, id);
CREATE INDEX enrollments_pending ON enrollments (expires_at) WHERE state = 'pending';
CREATE INDEX enrollments_open ON enrollments (fingerprint, id) WHERE state IN ('pending', 'approved');

CREATE TABLE api_tokens (
    id            TEXT NOT NULL PRIMARY KEY,
    version       INTEGER NOT NULL,
    name          TEXT NOT NULL,
    role          TEXT NOT NULL,
    secret_digest TEXT NOT NULL UNIQUE,
    created_at    INTEGER NOT NULL,
    revoked_at    INTEGER
) STRICT;

CREATE TABLE tasks (
    id                  TEXT NOT NULL PRIMARY KEY,
    version             INTEGER NOT NULL,
    node_id             TEXT NOT NULL REFERENCES nodes (id),
    node_epoch          INTEGER NOT NULL,
    task_type           TEXT NOT NULL,
    params              TEXT NOT NULL,
    state               TEXT NOT NULL,
    requested_by        TEXT NOT NULL,
    correlation_id      TEXT NOT NULL,
    idempotency_key     TEXT,
    intent              TEXT NOT NULL,
    created_at          INTEGER NOT NULL,
    queue_until         INTEGER NOT NULL,
    timeout             INTEGER NOT NULL,
    dispatches          INTEGER NOT NULL,
    lease_until         INTEGER,
    envelope_start_by   INTEGER,
    cancel_requested_at INTEGER,
    accepted_at         INTEGER,
    started_at          INTEGER,
    ended_at            INTEGER,
    code                TEXT NOT NULL,
    message             TEXT NOT NULL,
    receipt_digest      TEXT,
    -- When time alone changes the task next; follows from the columns above.
    due_at              INTEGER
) STRICT;
-- Ended tasks pile up by the million; what looks for work reads only the indexes that forget them.
CREATE INDEX tasks_queued ON tasks (node_id, id) WHERE state = 'queued';
CREATE INDEX tasks_outstanding ON tasks (node_id, id) WHERE ended_at IS NULL AND dispatches > 0;
CREATE INDEX tasks_open_of_node ON tasks (node_id, id) WHERE ended_at IS NULL;
CREATE INDEX tasks_open ON tasks (id) WHERE ended_at IS NULL;
CREATE INDEX tasks_due ON tasks (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX tasks_ended ON tasks (state, id) WHERE ended_at IS NOT NULL;
CREATE INDEX tasks_of_node ON tasks (node_id, id);
CREATE INDEX tasks_of_request ON tasks (correlation_id, id);
CREATE UNIQUE INDEX tasks_idempotency ON tasks (requested_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- How many tasks are in each state, kept by every commit, so that nobody has to count millions of rows.
CREATE TABLE task_count (
    state TEXT NOT NULL PRIMARY KEY,
    count INTEGER NOT NULL
) STRICT;

CREATE TABLE envelopes (
    task_id   TEXT NOT NULL REFERENCES tasks (id),
    digest    TEXT NOT NULL,
    envelope  BLOB NOT NULL,
    key_id    TEXT NOT NULL,
    signed_at INTEGER NOT NULL,
    PRIMARY KEY (task_id, digest)
) STRICT;

-- One receipt per task. The sequence is the node's own word, so it is not unique here.
CREATE TABLE receipts (
    task_id     TEXT NOT NULL PRIMARY KEY REFERENCES tasks (id),
    node_id     TEXT NOT NULL REFERENCES nodes (id),
    node_epoch  INTEGER NOT NULL,
    sequence    INTEGER NOT NULL,
    digest      TEXT NOT NULL,
    previous    TEXT,
    receipt     BLOB NOT NULL,
    received_at INTEGER NOT NULL
) STRICT;
CREATE INDEX receipts_of_node ON receipts (node_id, node_epoch, sequence, received_at);

CREATE TABLE task_log (
    task_id  TEXT NOT NULL REFERENCES tasks (id),
    sequence INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    stream   TEXT NOT NULL,
    text     TEXT NOT NULL,
    dropped  INTEGER NOT NULL,
    PRIMARY KEY (task_id, sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    position     INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    subject      TEXT NOT NULL,
    kind         TEXT NOT NULL,
    body         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    published_at INTEGER
) STRICT;

CREATE TABLE audit (
    seq            INTEGER NOT NULL PRIMARY KEY,
    at             INTEGER NOT NULL,
    actor          TEXT NOT NULL,
    action         TEXT NOT NULL,
    target         TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    body           TEXT NOT NULL,
    prev_hash      TEXT NOT NULL,
    hash           TEXT NOT NULL
) STRICT;
CREATE INDEX audit_of_target ON audit (target, seq);
CREATE INDEX audit_of_actor ON audit (actor, seq);

-- One row: the end of the chain. Whoever appends holds it until the commit.
CREATE TABLE audit_head (
    id   INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    seq  INTEGER NOT NULL,
    hash TEXT NOT NULL
) STRICT;
INSERT INTO audit_head (id, seq, hash) VALUES (1, 0, 'sha256:0000000000000000000000000000000000000000000000000000000000000000');
