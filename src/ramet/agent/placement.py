"""Decides which agents may work in the host: those that touch nothing of the machine."""

from __future__ import annotations

from typing import Final

from ramet.agent.definition import Agent
from ramet.agent.tool_entry import parse_entry
from ramet.core.policy.capabilities import is_code
from ramet.tools.agents.task_result import CLARIFY, FAIL, SUCCESS

#: Tools that end a task and do nothing else. Whatever is not among them counts as touching the machine.
HARMLESS: Final = frozenset({SUCCESS, FAIL, CLARIFY})


def needs_sandbox(agent: Agent) -> bool:
    """Whether files, processes, the network or code of others are touched by an agent of this definition.

    So does an agent that leads others (`tools=None` is every tool of its root), since they may.
    """
    if agent.function is not None or agent.memory is not None or agent.isolation is not None or agent.setup:
        return True
    if agent.tools is None or any(map(is_code, agent.capabilities)):
        return True
    return any(not isinstance(each, str) or parse_entry(each).name not in HARMLESS for each in agent.tool_entries or ())
