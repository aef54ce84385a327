"""The journal on PostgreSQL: `PostgresStore`, and its parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.store.postgres.store import PostgresStore as PostgresStore

__all__ = ["PostgresStore"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("ramet.store.postgres.store"), name)
    raise AttributeError(f"module 'ramet.store.postgres' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
