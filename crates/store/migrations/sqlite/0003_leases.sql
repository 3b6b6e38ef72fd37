-- Who has a slot, and what is known to be on it.

-- The seal of a slot covers its lease from now on, and none that was made before does: what was approved is approved again.
DELETE FROM slots;

ALTER TABLE slots ADD COLUMN quarantine TEXT;
ALTER TABLE slots ADD COLUMN allocation_id TEXT;
ALTER TABLE slots ADD COLUMN lease_epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slots ADD COLUMN lease_task TEXT REFERENCES tasks (id);
ALTER TABLE slots ADD COLUMN drive_used INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slots ADD COLUMN devices_used INTEGER NOT NULL DEFAULT 0;
CREATE INDEX slots_of_allocation ON slots (allocation_id, slot_index) WHERE allocation_id IS NOT NULL;
CREATE INDEX slots_of_task ON slots (lease_task) WHERE lease_task IS NOT NULL;

-- The allocation on whose slots a task acts.
ALTER TABLE tasks ADD COLUMN allocation_id TEXT;
CREATE INDEX tasks_of_allocation ON tasks (allocation_id, id) WHERE allocation_id IS NOT NULL;
