-- Slots: what operators approved of what nodes found on themselves.

CREATE TABLE slots (
    id          TEXT NOT NULL PRIMARY KEY,
    version     INTEGER NOT NULL,
    node_id     TEXT NOT NULL REFERENCES nodes (id),
    slot_index  INTEGER NOT NULL,
    spec        TEXT NOT NULL,
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    proposed_by TEXT NOT NULL REFERENCES tasks (id),
    approved_by TEXT NOT NULL,
    approved_at INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    seal        TEXT NOT NULL,
    UNIQUE (node_id, slot_index)
) STRICT;
CREATE INDEX slots_by_state ON slots (state, id);

-- The newest proposal of a node, next to any number of other ended tasks.
CREATE INDEX tasks_proposals ON tasks (node_id, id) WHERE task_type = 'slice.topology_discover' AND state = 'succeeded';
