-- Statements by name; {schema} is the store's own.

-- name: newest_version
SELECT coalesce(max(version), 0) FROM {schema}.schema_version

-- name: make_versions
CREATE TABLE IF NOT EXISTS {schema}.schema_version (version integer NOT NULL PRIMARY KEY)

-- name: note_version
INSERT INTO {schema}.schema_version (version) VALUES (%(version)s)

-- name: holder
SELECT a.pid, a.backend_start, a.application_name
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.classid::bigint << 32 | l.objid::bigint) = %(lock)s

-- name: end_session
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %(pid)s AND backend_start = %(began)s

-- name: begin_epoch
INSERT INTO {schema}.kernels AS k (name, epoch, batch) VALUES (%(kernel)s, 1, 0)
ON CONFLICT (name) DO UPDATE SET epoch = k.epoch + 1
RETURNING epoch, batch

-- name: where_we_are
SELECT epoch, batch FROM {schema}.kernels WHERE name = %(kernel)s

-- name: forgets
SELECT forgets FROM {schema}.journal

-- name: add_names
INSERT INTO {schema}.names (name) SELECT unnest(%(names)s::text[]) ON CONFLICT (name) DO NOTHING

-- name: ids_of_names
SELECT name, id FROM {schema}.names WHERE name = ANY (%(names)s::text[])

-- name: names_of_ids
SELECT id, name FROM {schema}.names WHERE id = ANY (%(ids)s)

-- Every transaction of a kernel begins with this, also one without events. The row of `journal` stays locked until the
-- commit is visible: so cursors become visible in their order, and kernels cannot deadlock each other.
-- name: append
WITH place AS (
    UPDATE {schema}.journal SET cursor = cursor + %(count)s WHERE forgets = %(forgets)s RETURNING cursor
), mark AS (
    UPDATE {schema}.kernels k SET batch = %(batch)s FROM place
    WHERE k.name = %(kernel)s AND k.epoch = %(epoch)s AND k.batch = %(batch)s - 1
    RETURNING place.cursor
), written AS (
    INSERT INTO {schema}.events (cursor, seq, tree, run, type, data)
    SELECT mark.cursor - %(count)s + e.n, e.seq, e.tree, e.run, e.type, e.data
    FROM mark, unnest(%(seqs)s, %(trees)s, %(runs)s, %(types)s, %(data)s)
         WITH ORDINALITY AS e(seq, tree, run, type, data, n)
)
SELECT (SELECT cursor FROM place), (SELECT cursor FROM mark),
       CASE WHEN %(count)s > 0 THEN pg_notify(%(channel)s, '') END

-- name: read
SELECT cursor, tree, run, seq, type, data FROM {schema}.events
WHERE cursor > %(after)s {only} ORDER BY cursor LIMIT %(limit)s

-- name: only_tree
AND tree = (SELECT id FROM {schema}.names WHERE name = %(tree)s)

-- name: only_run
AND run = (SELECT id FROM {schema}.names WHERE name = %(run)s)

-- name: head
SELECT coalesce(max(cursor), 0) FROM {schema}.events

-- name: forget
WITH gone AS (
    DELETE FROM {schema}.events
    WHERE tree = (SELECT id FROM {schema}.names WHERE name = %(tree)s) RETURNING tree, run
)
SELECT count(*), array_agg(DISTINCT tree) || array_agg(DISTINCT run) FROM gone

-- name: forget_names
WITH told AS (UPDATE {schema}.journal SET forgets = forgets + 1)
DELETE FROM {schema}.names n WHERE id = ANY (%(ids)s)
  AND NOT EXISTS (SELECT FROM {schema}.events WHERE tree = n.id)
  AND NOT EXISTS (SELECT FROM {schema}.events WHERE run = n.id)

-- name: get
SELECT kind, key, version, data FROM {schema}.documents WHERE kind = %(kind)s AND key = %(key)s

-- name: list
SELECT kind, key, version, data FROM {schema}.documents
WHERE kind = %(kind)s AND starts_with(key, %(prefix)s) AND key >= %(prefix)s ORDER BY key

-- name: version
SELECT version FROM {schema}.documents WHERE kind = %(kind)s AND key = %(key)s

-- name: put
INSERT INTO {schema}.documents AS d (kind, key, version, data) VALUES (%(kind)s, %(key)s, 1, %(data)s)
ON CONFLICT (kind, key) DO UPDATE SET version = d.version + 1, data = EXCLUDED.data
RETURNING version

-- name: put_new
INSERT INTO {schema}.documents (kind, key, version, data) VALUES (%(kind)s, %(key)s, 1, %(data)s)
ON CONFLICT (kind, key) DO NOTHING RETURNING version

-- name: put_over
UPDATE {schema}.documents SET version = version + 1, data = %(data)s
WHERE kind = %(kind)s AND key = %(key)s AND version = %(expected)s RETURNING version

-- name: delete
DELETE FROM {schema}.documents WHERE kind = %(kind)s AND key = %(key)s RETURNING version

-- name: put_blob
INSERT INTO {schema}.blobs (name, data) VALUES (%(name)s, %(data)s) ON CONFLICT (name) DO NOTHING

-- name: put_blobs
INSERT INTO {schema}.blobs (name, data)
SELECT DISTINCT ON (b.name) b.name, b.data FROM unnest(%(names)s, %(data)s) AS b(name, data) ON CONFLICT (name) DO NOTHING

-- name: get_blobs
SELECT name, data FROM {schema}.blobs WHERE name = ANY (%(names)s)

-- name: get_blob
SELECT data FROM {schema}.blobs WHERE name = %(name)s

-- name: list_blobs
SELECT name FROM {schema}.blobs ORDER BY name

-- name: delete_blob
DELETE FROM {schema}.blobs WHERE name = %(name)s RETURNING true
