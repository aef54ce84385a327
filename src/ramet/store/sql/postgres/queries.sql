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
ON CONFLICT (name) DO UPDATE SET epoch = k.epoch + 1, address = ''
RETURNING epoch, batch

-- name: where_we_are
SELECT epoch, batch, losses FROM {schema}.kernels WHERE name = %(kernel)s

-- The oid makes it unlike the locks of other schemas of this database.
-- name: take_lock
SELECT lock, pg_advisory_lock(lock) FROM (
    SELECT (%(locks)s::regclass::oid::bigint << 32) + nextval(%(locks)s) AS lock OFFSET 0
) AS fresh

-- name: see_server
UPDATE {schema}.server SET began = pg_postmaster_start_time(), since = clock_timestamp()
WHERE began <> pg_postmaster_start_time()

-- name: hold_journal
SELECT cursor FROM {schema}.journal FOR UPDATE

-- name: sit_down
UPDATE {schema}.kernels SET lock = %(lock)s, server = pg_postmaster_start_time()
WHERE name = %(kernel)s AND epoch = %(epoch)s RETURNING epoch, batch, losses

-- name: stand_up
UPDATE {schema}.kernels SET lock = 0, address = '' WHERE name = %(kernel)s AND epoch = %(epoch)s

-- name: tell_kernels
SELECT pg_notify(%(channel)s, 'kernels')

-- name: has_left
SELECT FROM {schema}.kernels WHERE name = %(kernel)s AND epoch = %(epoch)s AND lock = 0

-- name: announce
UPDATE {schema}.kernels SET address = %(address)s WHERE name = %(kernel)s

-- A shared lock can be had, for the time of this statement, once the session that held it alone has ended. A server that
-- began anew lost all locks: then a kernel has its time to come back, by the server's clock, and nobody's else.
-- name: only_fallen
(k.lock = 0 OR (pg_try_advisory_xact_lock_shared(k.lock)
  AND (k.server IS NOT DISTINCT FROM pg_postmaster_start_time() OR (s.began = pg_postmaster_start_time()
       AND s.since + make_interval(secs => %(grace_s)s) < clock_timestamp()))))

-- name: kernels
SELECT k.name, k.epoch, k.address, NOT {fallen}, k.lock,
       CASE WHEN k.lock <> 0 AND k.server IS DISTINCT FROM pg_postmaster_start_time()
            THEN extract(epoch FROM s.since + make_interval(secs => %(grace_s)s) - clock_timestamp())::float8 END,
       EXISTS (SELECT FROM {schema}.trees t WHERE t.kernel = k.name)
FROM {schema}.kernels k, {schema}.server s ORDER BY k.name

-- name: owner
SELECT k.name, k.epoch, k.address, NOT {fallen}
FROM {schema}.trees t JOIN {schema}.kernels k ON k.name = t.kernel, {schema}.server s WHERE t.name = %(tree)s

-- name: owners
SELECT t.name, t.kernel, t.epoch, k.address
FROM {schema}.trees t JOIN {schema}.kernels k ON k.name = t.kernel WHERE t.name = ANY (%(trees)s)

-- name: own
INSERT INTO {schema}.trees (name, kernel, epoch) VALUES (%(tree)s, %(kernel)s, 1)
ON CONFLICT (name) DO NOTHING RETURNING epoch

-- name: lives
SELECT FROM {schema}.kernels k, {schema}.server s WHERE k.name = %(kernel)s AND NOT {fallen}

-- Both claims come behind `append` in their transaction: nobody else writes then.
-- name: claim
WITH asked AS (
    SELECT DISTINCT unnest(%(trees)s) AS name
), fallen AS (
    UPDATE {schema}.kernels k SET losses = k.losses + 1 FROM {schema}.server s
    WHERE k.name <> %(kernel)s AND k.name IN (SELECT t.kernel FROM {schema}.trees t JOIN asked USING (name))
      AND {fallen}
    RETURNING k.name
), taken AS (
    UPDATE {schema}.trees t SET kernel = %(kernel)s, epoch = t.epoch + 1 FROM asked, fallen
    WHERE t.name = asked.name AND t.kernel = fallen.name RETURNING t.name, t.epoch
), fresh AS (
    INSERT INTO {schema}.trees (name, kernel, epoch) SELECT name, %(kernel)s, 1 FROM asked
    ON CONFLICT (name) DO NOTHING RETURNING name, epoch
)
SELECT name, epoch FROM taken UNION ALL SELECT name, epoch FROM fresh UNION ALL
SELECT t.name, t.epoch FROM {schema}.trees t JOIN asked USING (name) WHERE t.kernel = %(kernel)s

-- name: claim_fallen
WITH fallen AS (
    UPDATE {schema}.kernels k SET losses = k.losses + 1 FROM {schema}.server s
    WHERE k.name <> %(kernel)s AND EXISTS (SELECT FROM {schema}.trees t WHERE t.kernel = k.name) AND {fallen}
    RETURNING k.name
), chosen AS (
    SELECT t.name FROM {schema}.trees t JOIN fallen ON t.kernel = fallen.name ORDER BY t.name LIMIT %(limit)s
)
UPDATE {schema}.trees t SET kernel = %(kernel)s, epoch = t.epoch + 1 FROM chosen
WHERE t.name = chosen.name RETURNING t.name, t.epoch

-- name: let_go
DELETE FROM {schema}.trees WHERE name = %(tree)s AND kernel = %(kernel)s

-- name: forgets
SELECT forgets FROM {schema}.journal

-- name: add_names
INSERT INTO {schema}.names (name) SELECT unnest(%(names)s::text[]) ON CONFLICT (name) DO NOTHING

-- name: ids_of_names
SELECT name, id FROM {schema}.names WHERE name = ANY (%(names)s::text[])

-- name: names_of_ids
SELECT id, name FROM {schema}.names WHERE id = ANY (%(ids)s)

-- Every transaction of a kernel begins with this, also one without events. The row of `journal` stays locked until the
-- commit is visible: so cursors become visible in their order, and kernels cannot deadlock each other. Whoever takes trees
-- from a kernel counts that in its row, in `losses`: so no event needs to look whose its tree is.
-- name: append
WITH place AS (
    UPDATE {schema}.journal SET cursor = cursor + %(count)s WHERE forgets = %(forgets)s RETURNING cursor
), mark AS (
    UPDATE {schema}.kernels k SET batch = %(batch)s FROM place
    WHERE k.name = %(kernel)s AND k.epoch = %(epoch)s AND k.batch = %(batch)s - 1 AND k.losses = %(losses)s
    RETURNING place.cursor
), owned AS (
    INSERT INTO {schema}.trees (name, kernel, epoch)
    SELECT fresh.name, %(kernel)s, 1 FROM mark, unnest(%(fresh)s) AS fresh(name)
    ON CONFLICT (name) DO NOTHING RETURNING name
), written AS (
    INSERT INTO {schema}.events (cursor, seq, tree, run, type, data)
    SELECT mark.cursor - %(count)s + e.n, e.seq, e.tree, e.run, e.type, e.data
    FROM mark, unnest(%(seqs)s, %(trees)s, %(runs)s, %(types)s, %(data)s)
         WITH ORDINALITY AS e(seq, tree, run, type, data, n)
)
SELECT (SELECT cursor FROM place), (SELECT cursor FROM mark), (SELECT count(*) FROM owned),
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

-- name: rewrite
UPDATE {schema}.events SET data = %(data)s WHERE cursor = %(cursor)s

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
