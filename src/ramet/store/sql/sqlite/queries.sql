-- name: head
SELECT coalesce(max(cursor), 0) FROM events;

-- name: last_forgotten
SELECT coalesce(max(value), 0) FROM marks WHERE name = 'forgotten';

-- name: mark_forgotten
INSERT INTO marks (name, value) VALUES ('forgotten', ?)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value);

-- name: epoch
SELECT coalesce(max(value), 0) FROM marks WHERE name = 'epoch';

-- name: put_epoch
INSERT INTO marks (name, value) VALUES ('epoch', ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: changes
SELECT coalesce(max(value), 0) FROM marks WHERE name = 'changes';

-- name: put_changes
INSERT INTO marks (name, value) VALUES ('changes', ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: find_tree
SELECT id FROM trees WHERE name = ?;

-- name: add_tree
INSERT INTO trees (name) VALUES (?);

-- name: find_run
SELECT id FROM runs WHERE name = ? AND tree = ?;

-- name: add_run
INSERT INTO runs (name, tree) VALUES (?, ?);

-- name: find_type
SELECT id FROM types WHERE name = ?;

-- name: add_type
INSERT INTO types (name) VALUES (?);

-- name: add_events
INSERT INTO events (cursor, tree, run, seq, type, data, checksum) VALUES {rows};

-- name: add_events_in_epoch
INSERT INTO events (cursor, tree, run, seq, type, data, checksum)
SELECT * FROM (VALUES {rows}) WHERE (SELECT value FROM marks WHERE name = 'epoch') = ?;

-- name: runs_named
SELECT runs.id FROM runs JOIN trees ON trees.id = runs.tree
WHERE runs.name = :run AND (:tree IS NULL OR trees.name = :tree);

-- name: names_of_runs
SELECT runs.id, trees.name, runs.name FROM runs JOIN trees ON trees.id = runs.tree
WHERE runs.id IN (SELECT value FROM json_each(?));

-- name: names_of_types
SELECT id, name FROM types;

-- name: page
SELECT cursor, run, seq, type, data, checksum FROM events WHERE cursor > :after {only} ORDER BY cursor LIMIT :limit;

-- name: numbers_of_event
SELECT run, seq, type FROM events WHERE cursor = ?;

-- name: rewrite_event
UPDATE events SET data = ?, checksum = ? WHERE cursor = ?;

-- name: forget_events
DELETE FROM events WHERE tree = ?;

-- name: forget_runs
DELETE FROM runs WHERE tree = ?;

-- name: forget_tree
DELETE FROM trees WHERE id = ?;

-- name: document
SELECT version, data FROM documents WHERE kind = ? AND key = ?;

-- name: version
SELECT version FROM documents WHERE kind = ? AND key = ?;

-- name: documents
SELECT key, version, data FROM documents
WHERE kind = :kind AND key >= :prefix AND substr(key, 1, length(:prefix)) = :prefix
ORDER BY key;

-- name: put_document
INSERT INTO documents (kind, key, version, data) VALUES (:kind, :key, :version, :data)
ON CONFLICT (kind, key) DO UPDATE SET version = excluded.version, data = excluded.data;

-- name: delete_document
DELETE FROM documents WHERE kind = ? AND key = ?;

-- name: put_blob
INSERT OR IGNORE INTO blobs (name, data) VALUES (?, ?);

-- name: put_blobs
INSERT OR IGNORE INTO blobs (name, data) VALUES;

-- name: blob
SELECT data FROM blobs WHERE name = ?;

-- name: blobs
SELECT lower(hex(name)) FROM blobs ORDER BY name;

-- name: delete_blob
DELETE FROM blobs WHERE name = ?;
