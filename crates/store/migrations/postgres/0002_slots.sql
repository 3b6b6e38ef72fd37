-- Slots: what operators approved of what nodes found on themselves.

CREATE TABLE slots (
    id          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version     BIGINT NOT NULL,
    node_id     TEXT COLLATE "C" NOT NULL REFERENCES nodes (id),
    slot_index  BIGINT NOT NULL,
    spec        TEXT NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    reason      TEXT NOT NULL,
    proposed_by TEXT COLLATE "C" NOT NULL REFERENCES tasks (id),
    approved_by TEXT NOT NULL,
    approved_at BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    seal        TEXT NOT NULL,
    UNIQUE (node_id, slot_index)
);
CREATE INDEX slots_by_state ON slots (state, id);

-- The newest proposal of a node, next to any number of other ended tasks.
CREATE INDEX tasks_proposals ON tasks (node_id, id) WHERE task_type = 'slice.topology_discover' AND state = 'succeeded';
