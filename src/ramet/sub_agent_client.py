"""Functions that agents call inside their sandboxes; see `ramet.guest.client`. Loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.guest.client import SubAgent as SubAgent
    from ramet.guest.client import agent_state as agent_state
    from ramet.guest.client import load_checkpoint as load_checkpoint
    from ramet.guest.client import map_sub_agents as map_sub_agents
    from ramet.guest.client import read_artifact as read_artifact
    from ramet.guest.client import save_checkpoint as save_checkpoint
    from ramet.guest.client import send_message as send_message
    from ramet.guest.client import spawn_sub_agent as spawn_sub_agent
    from ramet.guest.client import start_sub_agent as start_sub_agent

__all__ = (
    "SubAgent",
    "agent_state",
    "load_checkpoint",
    "map_sub_agents",
    "read_artifact",
    "save_checkpoint",
    "send_message",
    "spawn_sub_agent",
    "start_sub_agent",
)


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("ramet.guest.client"), name)
    raise AttributeError(f"module 'ramet.sub_agent_client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
