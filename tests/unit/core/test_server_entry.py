"""Tests of the entries of MCP servers: which tools are repeatable."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.mcp.entry_references import fill_references
from ramet.core.mcp.server_entry import as_server

ENTRY: dict[str, Any] = {"name": "calc", "command": "calc"}


@pytest.mark.parametrize("repeatable", ["annotated", ["add", "a.b"]])
def test_repeatable_tools_are_recorded_and_stay_in_the_host(repeatable: Any) -> None:
    """The entry is the same after its record was read; a sandbox does not see which tools are repeatable."""
    server = as_server({**ENTRY, "repeatable": repeatable})
    assert server.as_record()["repeatable"] == repeatable
    assert as_server(server.as_record()) == server
    assert "repeatable" not in server.as_guest_data()
    assert "repeatable" not in as_server(ENTRY).as_record()


@pytest.mark.parametrize("repeatable", ["all", "", 1, None, ["add", 1], ["x"] * 201, {"annotated": True}])
def test_other_values_of_repeatable_are_refused(repeatable: Any) -> None:
    """The error names the field, and what it accepts."""
    with pytest.raises(InvalidValue, match=r"mcp\.calc\.repeatable"):
        as_server({**ENTRY, "repeatable": repeatable})


def test_annotations_of_a_server_count_only_if_its_entry_says_so() -> None:
    """A list of names holds for these tools alone, and annotations for those of this server alone."""
    listed, annotated = (as_server({**ENTRY, "repeatable": each}) for each in (["a.b"], "annotated"))
    assert listed.may_repeat("mcp__calc__a_b", is_annotated=False)
    assert not listed.may_repeat("mcp__calc__other", is_annotated=True)
    assert not as_server(ENTRY).may_repeat("mcp__calc__other", is_annotated=True)
    assert annotated.may_repeat("mcp__calc__other", is_annotated=True)
    assert not annotated.may_repeat("mcp__calc__other", is_annotated=False)
    assert not annotated.may_repeat("mcp__calculator__other", is_annotated=True)


def test_references_without_an_end_are_read_once() -> None:
    """An entry of a hostile file or recipe is filled in the host, too."""
    beginnings = "${A:-" * 20_000
    start_s = time.thread_time()

    assert fill_references("mcp", f"${{B:-x}}{beginnings}", lambda name: None) == f"x{beginnings}"
    assert time.thread_time() - start_s < 1.0
