"""The journal on PostgreSQL: `PostgresStore`, and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ramet.store.postgres.store import PostgresStore as PostgresStore

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "store.postgres.store": ("PostgresStore",),
    },
)
