"""Select the modules of a program that are sent, as source, into the sandbox of an agent whose code may use them.

Only a program can declare them, by `.module`, `.fn` and `.cls` of an agent. A client of a server may also name modules,
but gets none of the host's. An agent that another agent created has those of the agent at the top.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ramet.agent.definition import Agent
from ramet.core.policy.capabilities import Capability


def source_modules(agent: Agent) -> frozenset[str]:
    """Return the modules of an agent's capabilities that a program declared.

    A package includes those of its modules that this process has loaded and the capability shows.
    """
    declared_names = frozenset(agent.source_modules)
    modules = set[str]()
    for each in agent.capabilities:
        if each.module in declared_names:
            modules |= {each.module, *_loaded_submodules(each)}
    return frozenset(modules)


def _loaded_submodules(capability: Capability) -> Iterable[str]:
    if capability.type != "module":
        return ()
    start = f"{capability.name}."
    module_names = [name for name in list(sys.modules) if name.startswith(start)]
    return [name for name in module_names if _is_shown(capability, name.removeprefix(start).split("."))]


def _is_shown(capability: Capability, parts: Sequence[str]) -> bool:
    """Return whether code may see a module: each part on its path, and everything in an included module."""
    inner = replace(capability, include=None)
    return capability.has(parts[0]) and all(map(inner.has, parts[1:]))
