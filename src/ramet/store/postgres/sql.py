"""The SQL statements of the PostgreSQL store, by name, and its migrations, by number: `sql/postgres/`."""

from __future__ import annotations

import pathlib
import re

from psycopg import sql

_FOLDER = pathlib.Path(__file__).parent.parent / "sql" / "postgres"


class Queries:
    """The statements for one schema, ready to send."""

    def __init__(self, schema: str) -> None:
        self.schema = sql.Identifier(schema)
        self.locks = sql.Identifier(schema, "locks").as_string(None)  #: the sequence of locks, as a value
        text = (_FOLDER / "queries.sql").read_text()
        pairs = re.findall(r"^-- name: (\w+)\n(.*?)(?=^--|\Z)", text, re.MULTILINE | re.DOTALL)
        statements: dict[str, str] = dict(pairs)
        conditions = {name: statements.pop(f"only_{name}").strip() for name in ("tree", "run")}
        read = statements.pop("read")
        for names in ("", "tree", "run", "tree run"):
            clauses = " ".join(conditions[name] for name in names.split())
            statements["_".join(["read", *names.split()])] = read.replace("{only}", clauses)
        self.create_schema = self._encode("CREATE SCHEMA {schema}")
        fallen_condition = statements.pop("only_fallen").strip()
        self._ready = {
            name: self._encode(body.replace("{fallen}", fallen_condition)) for name, body in statements.items()
        }

    def __getitem__(self, name: str) -> bytes:
        return self._ready[name]

    def migration(self, number: int) -> bytes:
        """Return the statements that migrate a schema from the previous version to this one."""
        return self._encode(migrations()[number].read_text())

    def _encode(self, text: str) -> bytes:
        # Only our own files: no caller's input is in them, and the schema is quoted.
        return sql.SQL(text.strip()).format(schema=self.schema).as_bytes(None)


def migrations() -> dict[int, pathlib.Path]:
    """Return the files of all migrations by number: the version that each leads to, 1, 2, 3, …"""
    return {int(file.name[:4]): file for file in sorted(_FOLDER.glob("[0-9]*.sql"))}
