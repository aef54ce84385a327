"""Read the tables, on a read-only connection in a separate thread, with short transactions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from ramet.core.errors import DamagedTree
from ramet.store.contract import Document, StoredEvent
from ramet.store.sqlite import schema
from ramet.store.sqlite.database import is_damage, plain
from ramet.store.sqlite.schema import checksum_of

_PAGE = 1_000  #: events of one statement
_REMEMBERED = 20_000  #: maximum number of cached run names


class SqliteReader:
    """The committed tables of one file; see `ramet.store.operations`. One thread at a time; errors are SQLite's own."""

    def __init__(self, connection: sqlite3.Connection, path: object = "the journal") -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        self._connection, self._queries, self._path = connection, schema.queries_of(version), path
        self._runs: dict[int, tuple[str, str]] = {}
        self._types: dict[int, str] = {}

    def events(self, after: int, tree: str | None, run: str | None, limit: int) -> list[StoredEvent]:
        """Return events in order of their cursors. Many are read in several transactions, so that none is long.

        Raises DamagedTree if an event of the requested tree or run is not as it was written. A read of all trees
        returns the events unchecked.
        """
        is_checked = run is not None or tree is not None
        parameters: dict[str, object] = {}
        if run is not None:
            numbers = [number for (number,) in self._all("runs_named", {"run": run, "tree": tree})]
            if len(numbers) == 1:
                condition, parameters["run"] = " run", numbers[0]
            else:
                condition, parameters["runs"] = " runs", json.dumps(numbers)
        elif tree is not None:
            condition, parameters["tree"] = " tree", tree
        else:
            condition = ""
        result = list[StoredEvent]()
        while len(result) < limit:
            page_limit = min(limit - len(result), _PAGE)
            try:
                page = self._all(f"page{condition}", {**parameters, "after": after, "limit": page_limit})
                self._learn(page)
            except sqlite3.Error as error:
                if tree is None or not is_damage(error):
                    raise
                raise DamagedTree(tree, self._path, plain(error)) from None
            runs, types = self._runs, self._types
            for cursor, number, seq, kind, data, checksum in page:
                if type(number) is not int and tree is not None:
                    raise DamagedTree(tree, self._path, "it is not an event", cursor=cursor)
                if (names := runs.get(number)) is None:
                    continue  # It was removed a moment ago.
                if is_checked:
                    if type(data) is not bytes or type(seq) is not int or kind not in types:
                        raise DamagedTree(names[0], self._path, "it is not an event", cursor=cursor)
                    # Events of version 1 have no checksum.
                    if checksum is not None and checksum != checksum_of(cursor, number, seq, kind, data):
                        reason = "its bytes differ from those that were written"
                        raise DamagedTree(names[0], self._path, reason, cursor=cursor)
                result.append(StoredEvent(cursor, *names, seq, types.get(kind, ""), data))
            if len(page) < page_limit:
                break
            after = page[-1][0]
        return result

    def head(self) -> int:
        """Return the newest cursor; 0 if there is none."""
        return int(self._connection.execute(self._queries["head"]).fetchone()[0])

    def document(self, kind: str, key: str) -> Document | None:
        row = self._connection.execute(self._queries["document"], (kind, key)).fetchone()
        return _document(kind, key, *row) if row else None

    def documents(self, kind: str, prefix: str) -> list[Document]:
        return [_document(kind, *row) for row in self._all("documents", {"kind": kind, "prefix": prefix})]

    def blob(self, name: str) -> bytes | None:
        row = self._connection.execute(self._queries["blob"], (schema.digest_of(name),)).fetchone()
        return row[0] if row else None

    def blobs_named(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: data for name in names if (data := self.blob(name)) is not None}

    def blobs(self) -> list[str]:
        return [name for (name,) in self._all("blobs")]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _learn(self, page: list[Any]) -> None:
        """Load the names of the runs and types on a page."""
        if len(self._runs) > _REMEMBERED:
            self._runs.clear()
        if missing_ids := {row[1] for row in page if type(row[1]) is int} - self._runs.keys():
            rows = self._all("names_of_runs", (json.dumps([*missing_ids]),))
            self._runs |= {number: (tree, run) for number, tree, run in rows}
        if {row[3] for row in page} - self._types.keys():
            self._types = dict(self._all("names_of_types"))

    def _all(self, query: str, parameters: Any = ()) -> list[Any]:
        return self._connection.execute(self._queries[query], parameters).fetchall()


def _document(kind: str, key: str, version: int, data: object) -> Document:
    """Return a document from its row. Data that is not bytes is damaged, and becomes empty, which cannot be decoded."""
    return Document(kind, key, version, data if type(data) is bytes else b"")
