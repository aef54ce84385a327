"""Decide which agents may run in the host: those that use nothing of the machine."""

from __future__ import annotations

from typing import Final

from ramet.agent.definition import Agent
from ramet.agent.tool_entry import parse_entry
from ramet.core.policy.capabilities import is_code
from ramet.tools.agents.task_result import CLARIFY, FAIL, SUCCESS

#: Tools that only end a task. Every other tool counts as using the machine.
HARMLESS: Final = frozenset({SUCCESS, FAIL, CLARIFY})


def needs_sandbox(agent: Agent) -> bool:
    """Return whether an agent of this definition uses files, processes, the network or foreign code.

    An agent that leads others counts too (`tools=None` is every tool of its root), because they may use these.
    """
    if agent.function is not None or agent.memory is not None or agent.isolation is not None or agent.setup:
        return True
    if agent.tools is None or any(map(is_code, agent.capabilities)):
        return True
    return any(not isinstance(each, str) or parse_entry(each).name not in HARMLESS for each in agent.tool_entries or ())
