"""Values of variables that older versions recorded are replaced in every store that can rewrite events."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.host.retention.scrubbing import scrub
from ramet.store.contract import Rewritable
from tests.conformance.stores import STORES
from tests.security.test_values_at_rest import VALUE, write_older


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
async def test_recorded_values_of_variables_are_replaced(name: str, tmp_path: Path) -> None:
    """Scrubbed events are read without the value, and a second call finds nothing to replace."""
    async with STORES[name](tmp_path).open() as store:
        assert isinstance(store, Rewritable)
        await write_older(store, "r" * 16)
        assert VALUE.encode() in b"".join(each.data for each in await store.read())

        assert await scrub(store, tmp_path / "transcripts") == (1, [])

        lines = b"".join(each.data for each in await store.read())
        assert VALUE.encode() not in lines
        assert b"DATABASE_URL" in lines
        assert await scrub(store, tmp_path / "transcripts") == (0, [])
