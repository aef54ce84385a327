"""The tables of a journal in SQLite: named statements, numbered migrations, and the check of a file's origin."""

from __future__ import annotations

import functools
import pathlib
import re
import sqlite3
from collections.abc import Mapping
from zlib import crc32

from ramet.core.errors import Damaged

APPLICATION = 0x5241_4D45  #: "RAME": `file` and other programs see it in the header
_FOLDER = pathlib.Path(__file__).parent.parent / "sql" / "sqlite"


@functools.cache
def queries() -> Mapping[str, str]:
    """Return the statements of `queries.sql` by name; the page of events has one statement per kind of page."""
    text = (_FOLDER / "queries.sql").read_text()
    statements = {name: body.strip().removesuffix(";") for name, body in _NAMED.findall(text)}
    page = statements.pop("page")
    statements |= {f"page{only}": page.replace("{only}", clause) for only, clause in _ONLY.items()}
    return statements


@functools.cache
def queries_of(version: int) -> Mapping[str, str]:
    """Return the statements that read a journal of a version, the current or an older one, unchanged."""
    if version > 1:
        return queries()
    return {name: body.replace(", checksum FROM", ", NULL FROM") for name, body in queries().items()}


@functools.cache
def migrations() -> tuple[str, ...]:
    """Return the migrations: from version 0, an empty file, to 1, to 2, …"""
    files = sorted(_FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    assert [int(file.name[:4]) for file in files] == [*range(1, len(files) + 1)], "numbered without gaps"
    return tuple(file.read_text() for file in files)


def digest_of(name: str) -> bytes:
    """Return the key of a blob; a name that is not a hash in hex gives a key that no blob has."""
    return bytes.fromhex(name) if isinstance(name, str) and _HASH.fullmatch(name) else b""


def checksum_of(cursor: int, run: int, seq: int, kind: int, data: bytes) -> int:
    """Return the checksum of an event's row: of its bytes, and of the numbers in the same row.

    A reader detects corruption by a disk, or by a program that edits journals.
    """
    return crc32(data, (cursor ^ run << 8 ^ seq << 16 ^ kind << 24) & 0xFFFF_FFFF)


def version_of(connection: sqlite3.Connection, path: pathlib.Path) -> int:
    """Return the version of the journal in a file, 0 if empty. Raises Damaged if it is newer, or another program's."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != APPLICATION or version < 1:
        raise Damaged("the journal", path, "it is a database of another program")
    if version > len(migrations()):
        known = f"this ramet knows versions up to {len(migrations())}; nothing was changed"
        raise Damaged("the journal", path, f"it is newer, of version {version}, and {known}")
    if foreign := sorted(name for _, name, *_ in _objects(connection) ^ _own_objects(int(version))):
        raise Damaged("the journal", path, f"ramet did not create {', '.join(foreign)[:200]}; nothing was changed")
    return int(version)


#: kind (table, index, view or trigger), name, table, and the statement that created it
_Object = tuple[str, str, str, str]


def _objects(connection: sqlite3.Connection) -> frozenset[_Object]:
    """Return the objects of a database, except SQLite's own, which have no statement."""
    return frozenset(
        connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    )


@functools.cache
def _own_objects(version: int) -> frozenset[_Object]:
    """Return the objects that a journal of a version contains."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript("\n".join(migrations()[:version]))
        return _objects(connection)
    finally:
        connection.close()


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Migrate a journal from a version to the newest, all or nothing."""
    steps = migrations()[version:]
    if not steps:
        return
    marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {len(migrations())};"
    try:
        connection.executescript("\n".join(["BEGIN IMMEDIATE;", *steps, marks, "COMMIT;"]))
    finally:
        if connection.in_transaction:
            connection.rollback()


_HASH = re.compile("[0-9a-f]{64}")
_NAMED = re.compile(r"^-- name: (\w+)\n(.*?)(?=^--|\Z)", re.MULTILINE | re.DOTALL)
_ONLY = {
    "": "",
    " tree": "AND tree = (SELECT id FROM trees WHERE name = :tree)",
    " run": "AND run = :run",
    " runs": "AND run IN (SELECT value FROM json_each(:runs))",  # one name in several trees
}
