"""Tests of the plain data that a schedule stores."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import Agent, External
from ramet.core.errors import InvalidValue
from ramet.core.schedules.schedule import AgentTarget
from ramet.host.schedules.target import load, plain, target_of


def nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Return lists or dicts inside each other."""
    value: Any = "x"
    for _ in range(levels):
        value = [value] if kind is list else {"key": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_data_is_at_most_50_levels_deep(kind: type[list[Any]] | type[dict[str, Any]]) -> None:
    """The error names the part that is too deep."""
    assert plain("args", nested(50, kind)) == nested(50, kind)

    with pytest.raises(InvalidValue) as refusal:
        plain("args", nested(51, kind))
    part = "[0]" if kind is list else "['key']"
    assert refusal.value.field == f"args{part * 50}"


def test_an_external_agent_is_stored_as_data() -> None:
    """The program is found again when the schedule fires."""
    agent = Agent(name="coder", external=External(preset="codex", permission_mode="allow"), model="openai:gpt-5.5")
    target = target_of(agent, dict)

    assert isinstance(target, AgentTarget)
    assert load(target, dict).agent == agent
