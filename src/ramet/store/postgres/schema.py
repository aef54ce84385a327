"""Create and migrate the tables of a journal on PostgreSQL by numbered migrations; newer schemas are left unchanged."""

from __future__ import annotations

import hashlib

import psycopg

from ramet.core.errors import Damaged, StoreFailed
from ramet.store.postgres.dsn import Connection, Place
from ramet.store.postgres.sql import migrations

NEWEST = max(migrations())


def key_of(*words: str) -> int:
    """Return the number of an advisory lock: a hash of the words, in the range of a bigint."""
    return int.from_bytes(hashlib.sha256("\0".join(("ramet", *words)).encode()).digest()[:8], signed=True)


def version(connection: Connection, database: Place) -> int:
    """Return the current version of the schema, 0 if there is none. Raises Damaged if it is newer than this program."""
    try:
        row = connection.execute(database.queries["newest_version"]).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    assert row is not None
    if row[0] > NEWEST:
        reason = f"it is of version {row[0]}, and this ramet knows versions up to {NEWEST}; nothing was changed"
        raise Damaged("the journal", database.location, reason)
    return int(row[0])


def require(connection: Connection, database: Place) -> None:
    """Check that a reader finds the schema it expects.

    Raises StoreFailed if a kernel must migrate first, and Damaged.
    """
    current = version(connection, database)
    if current < NEWEST:
        problem = f"its journal is of version {current}" if current else "there is no journal yet"
        raise StoreFailed(database.location, f"{problem}; open it once for writing")


def migrate(connection: Connection, database: Place, *, upto: int = NEWEST) -> None:
    """Create the tables or migrate them to a version, all or nothing. Raises Damaged, without any change."""
    if version(connection, database) >= upto:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [key_of("schema", database.schema)])
        if connection.execute("SELECT to_regnamespace(%s)", [database.queries.schema.as_string(None)]).fetchone() == (
            None,
        ):
            connection.execute(database.queries.create_schema)
        connection.execute(database.queries["make_versions"])
        for number in range(version(connection, database) + 1, upto + 1):
            connection.execute(database.queries.migration(number))
            connection.execute(database.queries["note_version"], {"version": number})
