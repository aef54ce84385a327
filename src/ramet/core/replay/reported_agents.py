"""Agents that a program of another maker runs by itself: as it reports them, until its process ends.

They are no runs: they work in the sandbox of the program's run, under its budget, and cannot be stopped one by one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ramet.core.events import SubAgentReported

RUNNING: Final = "running"
_ENDS: Final = ("completed", "failed", "cancelled")
#: Agents of one run that are known by name: a program is hostile, and may report any number.
MAX_REPORTED: Final = 200


class ReportedAgent(Struct, frozen=True, kw_only=True):
    """An agent that a program runs by itself."""

    id: str  #: its id with the program
    title: str
    state: str  #: running | completed | failed | cancelled
    born: datetime | None
    ended: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self.state != RUNNING

    @property
    def name(self) -> str:
        """The name for people."""
        return self.title or self.id


def apply_report(agents: dict[str, ReportedAgent], event: SubAgentReported) -> ReportedAgent | None:
    """Add a report to the agents of a run, by their ids; return the agent.

    Return None for a new agent beyond MAX_REPORTED, which is left out.
    """
    agent = agents.get(event.sub_agent)
    if agent is None:
        if len(agents) >= MAX_REPORTED:
            return None
        agent = ReportedAgent(id=event.sub_agent, title=event.title, state=RUNNING, born=event.at)
    is_over = event.state in _ENDS
    agents[event.sub_agent] = agent = replace(
        agent,
        title=event.title or agent.title,
        state=event.state if is_over else RUNNING,
        ended=event.at if is_over else None,
    )
    return agent


def end_reported(agents: dict[str, ReportedAgent], at: datetime | None) -> list[ReportedAgent]:
    """Cancel the agents that were running when the process of their program ended; return these."""
    ended_agents = [replace(each, state="cancelled", ended=at) for each in agents.values() if not each.is_over]
    agents.update((each.id, each) for each in ended_agents)
    return ended_agents
