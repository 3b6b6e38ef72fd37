-- The first schema. Ids are their prefixed text, times are microseconds since 1970, JSON is text. Texts that are sorted
-- by have the order of their bytes, as on SQLite.

CREATE TABLE meta (
    name  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE servers (
    id      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    seen_at BIGINT NOT NULL
);

CREATE TABLE nodes (
    id                TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version           BIGINT NOT NULL,
    name              TEXT COLLATE "C" NOT NULL,
    fingerprint       TEXT COLLATE "C" NOT NULL UNIQUE,
    epoch             BIGINT NOT NULL,
    receipt_key       BYTEA NOT NULL,
    tls_key_digest    TEXT COLLATE "C" NOT NULL,
    record            BYTEA NOT NULL,
    service           TEXT COLLATE "C" NOT NULL,
    service_reason    TEXT NOT NULL,
    session_id        TEXT COLLATE "C",
    session_instance  TEXT COLLATE "C",
    session_boot      TEXT COLLATE "C",
    session_transport TEXT COLLATE "C",
    session_since     BIGINT,
    session_server    TEXT COLLATE "C",
    last_seen_at      BIGINT,
    facts             TEXT NOT NULL,
    rejoins           BIGINT NOT NULL,
    created_at        BIGINT NOT NULL,
    enrolled_at       BIGINT NOT NULL
);
CREATE INDEX nodes_online ON nodes (session_server, id) WHERE session_id IS NOT NULL;

CREATE TABLE certificates (
    serial     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    node_id    TEXT COLLATE "C" NOT NULL REFERENCES nodes (id),
    node_epoch BIGINT NOT NULL,
    not_before BIGINT NOT NULL,
    not_after  BIGINT NOT NULL,
    revoked_at BIGINT
);
CREATE INDEX certificates_counting ON certificates (node_id, node_epoch) WHERE revoked_at IS NULL;
CREATE INDEX certificates_revoked ON certificates (not_after, serial) WHERE revoked_at IS NOT NULL;

CREATE TABLE join_tokens (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version       BIGINT NOT NULL,
    secret_digest TEXT COLLATE "C" NOT NULL UNIQUE,
    note          TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT NOT NULL,
    used_at       BIGINT,
    used_by       TEXT COLLATE "C" REFERENCES nodes (id),
    revoked_at    BIGINT
);

CREATE TABLE enrollments (
    id                 TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version            BIGINT NOT NULL,
    state              TEXT COLLATE "C" NOT NULL,
    email              TEXT COLLATE "C" NOT NULL,
    fingerprint        TEXT COLLATE "C" NOT NULL,
    csr_pem            TEXT NOT NULL,
    receipt_key        BYTEA NOT NULL,
    facts              TEXT NOT NULL,
    poll_secret_digest TEXT COLLATE "C" NOT NULL,
    reason             TEXT NOT NULL,
    node_id            TEXT COLLATE "C" REFERENCES nodes (id),
    created_at         BIGINT NOT NULL,
    expires_at         BIGINT NOT NULL
);
CREATE INDEX enrollments_by_state ON enrollments (state, id);
CREATE INDEX enrollments_pending ON enrollments (expires_at) WHERE state = 'pending';
CREATE INDEX enrollments_open ON enrollments (fingerprint, id) WHERE state IN ('pending', 'approved');

CREATE TABLE api_tokens (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version       BIGINT NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    role          TEXT COLLATE "C" NOT NULL,
    secret_digest TEXT COLLATE "C" NOT NULL UNIQUE,
    created_at    BIGINT NOT NULL,
    revoked_at    BIGINT
);

CREATE TABLE tasks (
    id                  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version             BIGINT NOT NULL,
    node_id             TEXT COLLATE "C" NOT NULL REFERENCES nodes (id),
    node_epoch          BIGINT NOT NULL,
    task_type           TEXT COLLATE "C" NOT NULL,
    params              TEXT NOT NULL,
    state               TEXT COLLATE "C" NOT NULL,
    requested_by        TEXT COLLATE "C" NOT NULL,
    correlation_id      TEXT COLLATE "C" NOT NULL,
    idempotency_key     TEXT COLLATE "C",
    intent              TEXT COLLATE "C" NOT NULL,
    created_at          BIGINT NOT NULL,
    queue_until         BIGINT NOT NULL,
    timeout             BIGINT NOT NULL,
    dispatches          BIGINT NOT NULL,
    lease_until         BIGINT,
    envelope_start_by   BIGINT,
    cancel_requested_at BIGINT,
    accepted_at         BIGINT,
    started_at          BIGINT,
    ended_at            BIGINT,
    code                TEXT COLLATE "C" NOT NULL,
    message             TEXT NOT NULL,
    receipt_digest      TEXT COLLATE "C",
    -- When time alone changes the task next; follows from the columns above.
    due_at              BIGINT
);
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
    state TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    count BIGINT NOT NULL
);

CREATE TABLE envelopes (
    task_id   TEXT COLLATE "C" NOT NULL REFERENCES tasks (id),
    digest    TEXT COLLATE "C" NOT NULL,
    envelope  BYTEA NOT NULL,
    key_id    TEXT COLLATE "C" NOT NULL,
    signed_at BIGINT NOT NULL,
    PRIMARY KEY (task_id, digest)
);

-- One receipt per task. The sequence is the node's own word, so it is not unique here.
CREATE TABLE receipts (
    task_id     TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES tasks (id),
    node_id     TEXT COLLATE "C" NOT NULL REFERENCES nodes (id),
    node_epoch  BIGINT NOT NULL,
    sequence    BIGINT NOT NULL,
    digest      TEXT COLLATE "C" NOT NULL,
    previous    TEXT COLLATE "C",
    receipt     BYTEA NOT NULL,
    received_at BIGINT NOT NULL
);
CREATE INDEX receipts_of_node ON receipts (node_id, node_epoch, sequence, received_at);

CREATE TABLE task_log (
    task_id  TEXT COLLATE "C" NOT NULL REFERENCES tasks (id),
    sequence BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    stream   TEXT COLLATE "C" NOT NULL,
    text     TEXT NOT NULL,
    dropped  BIGINT NOT NULL,
    PRIMARY KEY (task_id, sequence)
);

CREATE TABLE outbox (
    position     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT COLLATE "C" NOT NULL UNIQUE,
    subject      TEXT COLLATE "C" NOT NULL,
    kind         TEXT COLLATE "C" NOT NULL,
    body         TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    published_at BIGINT
);

CREATE TABLE audit (
    seq            BIGINT NOT NULL PRIMARY KEY,
    at             BIGINT NOT NULL,
    actor          TEXT COLLATE "C" NOT NULL,
    action         TEXT COLLATE "C" NOT NULL,
    target         TEXT COLLATE "C" NOT NULL,
    correlation_id TEXT COLLATE "C" NOT NULL,
    body           TEXT NOT NULL,
    prev_hash      TEXT COLLATE "C" NOT NULL,
    hash           TEXT COLLATE "C" NOT NULL
);
CREATE INDEX audit_of_target ON audit (target, seq);
CREATE INDEX audit_of_actor ON audit (actor, seq);

-- One row: the end of the chain. Whoever appends holds it until the commit.
CREATE TABLE audit_head (
    id   BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    seq  BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL
);
INSERT INTO audit_head (id, seq, hash) VALUES (1, 0, 'sha256:0000000000000000000000000000000000000000000000000000000000000000');
