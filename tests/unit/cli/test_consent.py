"""Approvals before an agent changes the folder."""

from __future__ import annotations

import pytest

from ramet.cli.ask.consent import require_approval_for_writes
from tests.support.context import make_context


@pytest.mark.parametrize(("tool", "verdict"), [("Bash", "ask"), ("Write", "ask"), ("Edit", "ask"), ("Grep", "allow")])
async def test_a_tool_that_changes_files_needs_approval(tool: str, verdict: str) -> None:
    """A reading tool does not."""
    hooks = require_approval_for_writes()

    decision = await hooks.fire("PreToolUse", make_context(), {"tool_name": tool, "tool_input": {}})

    assert decision.verdict == verdict
