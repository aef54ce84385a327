"""The modules of a program that go along, as source, into the sandbox of an agent whose code may use them.

Only a program can say so, by `.module`, `.fn` and `.cls` of an agent: whoever asks a server for an agent names modules,
too, and gets none of the host's. An agent that another one wrote down has those of the agent at the top.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ramet.agent.definition import Agent
from ramet.core.policy.capabilities import Capability


def source_modules(agent: Agent) -> frozenset[str]:
    """Return the names of the modules that an agent's capabilities are found in, of those that a program declared.

    A package comes with the modules of it that this process has loaded, as far as the capability shows them.
    """
    declared = frozenset(agent.source_modules)
    found = set[str]()
    for each in agent.capabilities:
        if each.module in declared:
            found |= {each.module, *_loaded_below(each)}
    return frozenset(found)


def _loaded_below(capability: Capability) -> Iterable[str]:
    if capability.type != "module":
        return ()
    start = f"{capability.name}."
    below = [name for name in list(sys.modules) if name.startswith(start)]
    return [name for name in below if _is_shown(capability, name.removeprefix(start).split("."))]


def _is_shown(capability: Capability, parts: Sequence[str]) -> bool:
    """Whether code is shown a module of the package: each part on the way, those within another one as all of it."""
    inner = replace(capability, include=None)
    return capability.has(parts[0]) and all(map(inner.has, parts[1:]))
