"""Agents of functions, and agents of agents: `from ramet.compose import agent, policy, chain, parallel, StateGraph, …`.

All but `agent` are in `ramet`, too; there, `ramet.agent` is a package. Loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

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

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "agent.composition.chain": ("chain",),
        "agent.composition.graph": ("END", "START"),
        "agent.composition.parallel": ("parallel",),
        "agent.composition.state_graph": ("StateGraph",),
        "agent.decorators": ("agent", "cache", "policy", "resources", "retry", "timeout"),
        "core.outcome": ("StepFailure",),
    },
)
