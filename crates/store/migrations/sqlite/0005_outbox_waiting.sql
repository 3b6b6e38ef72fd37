-- Which events wait to be published. Apart from the events: taking a small row out is a fraction of the work of writing an event anew
-- with the time when it was published, with all that finds it.
CREATE TABLE outbox_waiting (
    lane     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (lane, position)
) STRICT, WITHOUT ROWID;
INSERT INTO outbox_waiting (lane, position) SELECT lane, position FROM outbox WHERE published_at IS NULL;

DROP INDEX outbox_unpublished;
DROP INDEX outbox_published;
ALTER TABLE outbox DROP COLUMN published_at;
