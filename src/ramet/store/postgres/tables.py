"""Changes of documents, blobs and trees within a transaction of the writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ramet.core.errors import Conflict
from ramet.store.contract import Document, DocumentWrite

if TYPE_CHECKING:
    from ramet.store.postgres.dsn import Connection, Place
    from ramet.store.postgres.sql import Queries


def put(
    queries: Queries, kind: str, key: str, data: bytes, expected: int | None
) -> Callable[[Connection], Document | Conflict]:
    """Return a change that writes a document if it has the expected version."""
    name = "put" if expected is None else "put_over" if expected else "put_new"
    values = {"kind": kind, "key": key, "data": data, "expected": expected}

    def make(connection: Connection) -> Document | Conflict:
        row = connection.execute(queries[name], values).fetchone()
        if row is not None:
            return Document(kind, key, row[0], data)
        assert expected is not None
        return _conflict(connection, queries, kind, key, expected)

    return make


def delete(queries: Queries, kind: str, key: str, expected: int | None) -> Callable[[Connection], bool | Conflict]:
    """Return a change that deletes a document if it has the expected version."""
    values = {"kind": kind, "key": key}

    def make(connection: Connection) -> bool | Conflict:
        if expected is not None:
            # No one can change it in between: every writer has the row of the journal locked.
            row = connection.execute(queries["version"], values).fetchone()
            if (row[0] if row else 0) != expected:
                return _conflict(connection, queries, kind, key, expected)
        return connection.execute(queries["delete"], values).fetchone() is not None

    return make


def put_blob(queries: Queries, name: str, data: bytes) -> Callable[[Connection], str]:
    """Return a change that stores bytes under their name."""

    def make(connection: Connection) -> str:
        connection.execute(queries["put_blob"], {"name": name, "data": data})
        return name

    return make


def put_together(
    queries: Queries, blobs: Sequence[tuple[str, bytes]], documents: Sequence[DocumentWrite]
) -> Callable[[Connection], Sequence[Document] | Conflict]:
    """Return a change that stores blobs under their names, and writes documents if all have their expected versions."""

    def make(connection: Connection) -> Sequence[Document] | Conflict:
        from ramet.store.postgres.types import Blobs, Texts  # psycopg is an extra

        # No one can change one in between: every writer has the row of the journal locked.
        for kind, key, _, expected, expected_data in documents:
            if expected is None and expected_data is None:
                continue
            row = connection.execute(queries["get"], {"kind": kind, "key": key}, binary=True).fetchone()
            current = row[2] if row else 0
            if current != (current if expected is None else expected) or expected_data not in (None, row and row[3]):
                return Conflict(kind, key, expected=current if expected is None else expected, found=current)
        if blobs:
            names, data = Texts([name for name, _ in blobs]), Blobs([data for _, data in blobs])
            connection.execute(queries["put_blobs"], {"names": names, "data": data})
        stored_documents = []
        for kind, key, content, *_ in documents:
            row = connection.execute(queries["put"], {"kind": kind, "key": key, "data": content}).fetchone()
            assert row is not None
            stored_documents.append(Document(kind, key, row[0], content))
        return stored_documents

    return make


def announce(place: Place, kernel: str, address: str) -> Callable[[Connection], None]:
    """Return a change that publishes a kernel's address."""

    def make(connection: Connection) -> None:
        connection.execute(place.queries["announce"], {"kernel": kernel, "address": address})
        connection.execute(place.queries["tell_kernels"], {"channel": place.schema})

    return make


def delete_blob(queries: Queries, name: str) -> Callable[[Connection], bool]:
    """Return a change that deletes a blob."""
    return lambda connection: connection.execute(queries["delete_blob"], {"name": name}).fetchone() is not None


def rewrite(queries: Queries, cursor: int, data: bytes) -> Callable[[Connection], None]:
    """Return a change that replaces the data of an event."""

    def make(connection: Connection) -> None:
        connection.execute(queries["rewrite"], {"cursor": cursor, "data": data})

    return make


def forget(queries: Queries, tree: str) -> Callable[[Connection], int]:
    """Return a change that removes the events of a tree, and the names that nothing else uses."""

    def make(connection: Connection) -> int:
        row = connection.execute(queries["forget"], {"tree": tree}).fetchone()
        assert row is not None
        if row[0]:
            connection.execute(queries["forget_names"], {"ids": row[1]})
        return int(row[0])

    return make


def _conflict(connection: Connection, queries: Queries, kind: str, key: str, expected: int) -> Conflict:
    row = connection.execute(queries["version"], {"kind": kind, "key": key}).fetchone()
    return Conflict(kind, key, expected=expected, found=row[0] if row else 0)
