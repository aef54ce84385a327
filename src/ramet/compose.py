"""Agents of functions, and agents of agents: `from ramet.compose import agent, policy, chain, parallel, StateGraph, …`.

All but `agent` are in `ramet`, too; there, `ramet.agent` is a package. Loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.agent.composition.chain import chain as chain
    from ramet.agent.composition.graph import END as END
    from ramet.agent.composition.graph import START as START
    from ramet.agent.composition.parallel import parallel as parallel
    from ramet.agent.composition.state_graph import StateGraph as StateGraph
    from ramet.agent.decorators import agent as agent
    from ramet.agent.decorators import cache as cache
    from ramet.agent.decorators import policy as policy
    from ramet.agent.decorators import resources as resources
    from ramet.agent.decorators import retry as retry
    from ramet.agent.decorators import timeout as timeout
    from ramet.core.outcome import StepFailure as StepFailure

_WHERE = {
    "END": "agent.composition.graph",
    "START": "agent.composition.graph",
    "StateGraph": "agent.composition.state_graph",
    "StepFailure": "core.outcome",
    "agent": "agent.decorators",
    "cache": "agent.decorators",
    "chain": "agent.composition.chain",
    "parallel": "agent.composition.parallel",
    "policy": "agent.decorators",
    "resources": "agent.decorators",
    "retry": "agent.decorators",
    "timeout": "agent.decorators",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"ramet.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ramet.compose' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
