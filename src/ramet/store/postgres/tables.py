"""Changes of documents, blobs and events within a transaction of the writer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ramet.core.errors import Conflict
from ramet.store.contract import Document, DocumentWrite
from ramet.store.operations import check_version
from ramet.store.postgres.dsn import Connection, Place
from ramet.store.postgres.ownership import TreeOwnership
from ramet.store.postgres.types import Blobs, Texts


class PostgresTables:
    """The tables of one schema in a transaction; see `ramet.store.operations`.

    Every writer has the row of the journal locked: no one changes a document between two statements.
    """

    def __init__(self, connection: Connection, place: Place, ownership: TreeOwnership) -> None:
        self.connection, self.ownership = connection, ownership
        self._place, self._queries = place, place.queries

    def put(self, kind: str, key: str, data: bytes, expected: int | None) -> Document:
        name = "put" if expected is None else "put_over" if expected else "put_new"
        values = {"kind": kind, "key": key, "data": data, "expected": expected}
        row = self.connection.execute(self._queries[name], values).fetchone()
        if row is None:
            raise Conflict(kind, key, expected=expected or 0, found=self._version(kind, key))
        return Document(kind, key, row[0], data)

    def delete(self, kind: str, key: str, expected: int | None) -> bool:
        if expected is not None:
            check_version(DocumentWrite(kind, key, b"", expected), self._version(kind, key), None)
        return self.connection.execute(self._queries["delete"], {"kind": kind, "key": key}).fetchone() is not None

    def put_blob(self, data: bytes, name: str = "") -> str:
        """Store bytes; `name` is their hash, computed before the transaction if that takes long."""
        name = name or hashlib.sha256(data).hexdigest()
        self.connection.execute(self._queries["put_blob"], {"name": name, "data": data})
        return name

    def delete_blob(self, name: str) -> bool:
        return self.connection.execute(self._queries["delete_blob"], {"name": name}).fetchone() is not None

    def put_together(
        self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite], names: Sequence[str] = ()
    ) -> Sequence[Document]:
        """Store blobs and write documents; `names` are the hashes of the blobs, as in `put_blob`."""
        for write in documents:
            if write.expected is not None or write.over is not None:
                values = {"kind": write.kind, "key": write.key}
                row = self.connection.execute(self._queries["get"], values, binary=True).fetchone()
                check_version(write, *(row[2:4] if row else (0, None)))
        if blobs:
            names = names or [hashlib.sha256(data).hexdigest() for data in blobs]
            self.connection.execute(self._queries["put_blobs"], {"names": Texts(names), "data": Blobs(blobs)})
        return [self.put(kind, key, data, None) for kind, key, data, *_ in documents]

    def rewrite(self, cursor: int, data: bytes) -> None:
        """Replace the data of an event."""
        self.connection.execute(self._queries["rewrite"], {"cursor": cursor, "data": data})

    def forget(self, tree: str) -> int:
        """Remove the events of a tree, and the names that nothing else uses."""
        row = self.connection.execute(self._queries["forget"], {"tree": tree}).fetchone()
        assert row is not None
        if row[0]:
            self.connection.execute(self._queries["forget_names"], {"ids": row[1]})
        return int(row[0])

    def announce(self, kernel: str, address: str) -> None:
        """Publish a kernel's address."""
        self.connection.execute(self._queries["announce"], {"kernel": kernel, "address": address})
        self.connection.execute(self._queries["tell_kernels"], {"channel": self._place.schema})

    def _version(self, kind: str, key: str) -> int:
        row = self.connection.execute(self._queries["version"], {"kind": kind, "key": key}).fetchone()
        return int(row[0]) if row else 0
