-- The three statements of a task queue and nothing else: enqueue, claim, receipt. One transaction each, as in gpuaas.
INSERT INTO tasks (id, version, node_id, node_epoch, task_type, params, state, requested_by, correlation_id, idempotency_key, intent,
    created_at, queue_until, timeout, dispatches, code, message, due_at)
VALUES ('task_' || lpad(to_hex(nextval('bench_task')), 32, '0'), 0, 'node_019b76daa8007000800000000000000' || :client_id::text, 1,
    'diag.ping', '{"message":"mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm"}', 'queued', 'system',
    'bench-' || currval('bench_task')::text, NULL, repeat('i', 44), 1800000000000000, 1800000600000000, 300000000, 0, '', '',
    1800000600000000);
UPDATE tasks SET version = version + 1, state = 'dispatched', dispatches = dispatches + 1, lease_until = 1800000030000000,
    envelope_start_by = 1800000300000000, due_at = 1800000030000000
WHERE id = (SELECT id FROM tasks WHERE node_id = 'node_019b76daa8007000800000000000000' || :client_id::text AND state = 'queued'
    AND cancel_requested_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id AS task \gset
UPDATE tasks SET version = version + 1, state = 'succeeded', lease_until = NULL, accepted_at = 1800000001000000,
    started_at = 1800000001000000, ended_at = 1800000002000000, code = 'ok', receipt_digest = 'sha256:' || repeat('d', 64), due_at = NULL
WHERE id = :task;
