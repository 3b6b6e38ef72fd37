-- The same three statements with the rows that gpuaas writes in the same transactions: envelope, receipt, outbox, audit. Without the
-- chain of the audit rows and without the counters, which every client would have to wait for.
WITH task AS (
    INSERT INTO tasks (id, version, node_id, node_epoch, task_type, params, state, requested_by, correlation_id, idempotency_key, intent,
        created_at, queue_until, timeout, dispatches, code, message, due_at)
    VALUES ('task_' || lpad(to_hex(nextval('bench_task')), 32, '0'), 0, 'node_019b76daa8007000800000000000000' || :client_id::text, 1,
        'diag.ping', '{"message":"mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm"}', 'queued', 'system',
        'bench-' || currval('bench_task')::text, NULL, repeat('i', 44), 1800000000000000, 1800000600000000, 300000000, 0, '', '',
        1800000600000000)
    RETURNING id
), event AS (
    INSERT INTO outbox (id, subject, kind, body, created_at)
    SELECT 'evt_' || lpad(to_hex(nextval('bench_event')), 32, '0'), id, 'gpuaas.task.queued.v1', repeat('b', 560), 1800000000000000 FROM task
)
INSERT INTO audit (seq, at, actor, action, target, correlation_id, body, prev_hash, hash)
SELECT nextval('bench_audit'), 1800000000000000, 'system', 'task.create', id, 'bench', repeat('b', 480), 'sha256:' || repeat('p', 64),
    'sha256:' || repeat('h', 64) FROM task;
WITH task AS (
    UPDATE tasks SET version = version + 1, state = 'dispatched', dispatches = dispatches + 1, lease_until = 1800000030000000,
        envelope_start_by = 1800000300000000, due_at = 1800000030000000
    WHERE id = (SELECT id FROM tasks WHERE node_id = 'node_019b76daa8007000800000000000000' || :client_id::text AND state = 'queued'
        AND cancel_requested_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
), envelope AS (
    INSERT INTO envelopes (task_id, digest, envelope, key_id, signed_at)
    SELECT id, 'sha256:' || repeat('e', 64), convert_to(repeat('e', 900), 'UTF8'), 'key_' || repeat('k', 32), 1800000000000000 FROM task
), event AS (
    INSERT INTO outbox (id, subject, kind, body, created_at)
    SELECT 'evt_' || lpad(to_hex(nextval('bench_event')), 32, '0'), id, 'gpuaas.task.dispatched.v1', repeat('b', 560), 1800000000000000
    FROM task
), entry AS (
    INSERT INTO audit (seq, at, actor, action, target, correlation_id, body, prev_hash, hash)
    SELECT nextval('bench_audit'), 1800000000000000, 'system', 'task.dispatch', id, 'bench', repeat('b', 480), 'sha256:' || repeat('p', 64),
        'sha256:' || repeat('h', 64) FROM task
)
SELECT id AS task FROM task \gset
WITH task AS (
    UPDATE tasks SET version = version + 1, state = 'succeeded', lease_until = NULL, accepted_at = 1800000001000000,
        started_at = 1800000001000000, ended_at = 1800000002000000, code = 'ok', receipt_digest = 'sha256:' || repeat('d', 64), due_at = NULL
    WHERE id = :task
    RETURNING id, node_id
), receipt AS (
    INSERT INTO receipts (task_id, node_id, node_epoch, sequence, digest, receipt, received_at)
    SELECT id, node_id, 1, currval('bench_task'), 'sha256:' || repeat('d', 64), convert_to(repeat('r', 1200), 'UTF8'), 1800000002000000
    FROM task
), event AS (
    INSERT INTO outbox (id, subject, kind, body, created_at)
    SELECT 'evt_' || lpad(to_hex(nextval('bench_event')), 32, '0'), id, 'gpuaas.task.succeeded.v1', repeat('b', 560), 1800000002000000
    FROM task
)
INSERT INTO audit (seq, at, actor, action, target, correlation_id, body, prev_hash, hash)
SELECT nextval('bench_audit'), 1800000002000000, 'system', 'task.receipt', id, 'bench', repeat('b', 480), 'sha256:' || repeat('p', 64),
    'sha256:' || repeat('h', 64) FROM task;
