-- PostgreSQL gets the rows of a commit as arrays of these types. They are types of their own, not the tables' row types: a table may get
-- another column while servers that do not know it go on writing. A column that servers write gets a new type beside the old one
-- (`nodes_row_2`); the old one goes a version later.

CREATE TYPE api_tokens_row AS (id text, version bigint, name text, role text, secret_digest text, created_at bigint, revoked_at bigint, service_account text, project text, scopes text, expires_at bigint, parent text);
CREATE TYPE audit_row AS (seq bigint, at bigint, actor text, action text, target text, correlation_id text, body text, prev_hash text, hash text);
CREATE TYPE certificates_row AS (serial text, node_id text, node_epoch bigint, not_before bigint, not_after bigint, revoked_at bigint);
CREATE TYPE enrollments_row AS (id text, version bigint, state text, email text, fingerprint text, csr_pem text, receipt_key bytea, facts text, poll_secret_digest text, reason text, node_id text, created_at bigint, expires_at bigint, address text, replace_node text);
CREATE TYPE envelopes_row AS (task_id text, digest text, envelope bytea, key_id text, signed_at bigint);
CREATE TYPE join_tokens_row AS (id text, version bigint, secret_digest text, note text, created_at bigint, expires_at bigint, used_at bigint, used_by text, revoked_at bigint, replace_node text);
CREATE TYPE nodes_row AS (id text, version bigint, name text, fingerprint text, epoch bigint, receipt_key bytea, tls_key_digest text, record bytea, service text, service_reason text, session_id text, session_instance text, session_boot text, session_transport text, session_since bigint, session_server text, last_seen_at bigint, facts text, rejoins bigint, created_at bigint, enrolled_at bigint);
CREATE TYPE outbox_row AS (id text, subject text, kind text, body text, created_at bigint, lane bigint, project text);
CREATE TYPE receipts_row AS (task_id text, node_id text, node_epoch bigint, sequence bigint, digest text, previous text, receipt bytea, received_at bigint);
CREATE TYPE resources_row AS (id text, version bigint, kind text, parent text, name text, lookup text, owner text, state text, due_at bigint, expires_at bigint, body text, seal text);
CREATE TYPE servers_row AS (id text, seen_at bigint);
CREATE TYPE slots_row AS (id text, version bigint, node_id text, slot_index bigint, spec text, state text, reason text, proposed_by text, approved_by text, approved_at bigint, created_at bigint, seal text, quarantine text, allocation_id text, lease_epoch bigint, lease_task text, drive_used bigint, devices_used bigint);
CREATE TYPE task_log_row AS (task_id text, sequence bigint, at bigint, stream text, text text, dropped bigint);
CREATE TYPE tasks_row AS (id text, version bigint, node_id text, node_epoch bigint, task_type text, params text, state text, requested_by text, correlation_id text, idempotency_key text, intent text, created_at bigint, queue_until bigint, timeout bigint, dispatches bigint, lease_until bigint, envelope_start_by bigint, cancel_requested_at bigint, accepted_at bigint, started_at bigint, ended_at bigint, code text, message text, receipt_digest text, due_at bigint, allocation_id text);
