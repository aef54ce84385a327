"""Functions that agents call inside their sandboxes; see `ramet.guest.client`. Loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

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
    from ramet.guest.models.model_endpoint import ModelEndpoint as ModelEndpoint
    from ramet.guest.models.model_endpoint import model_endpoint as model_endpoint

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "guest.client": (
            "SubAgent",
            "agent_state",
            "load_checkpoint",
            "map_sub_agents",
            "read_artifact",
            "save_checkpoint",
            "send_message",
            "spawn_sub_agent",
            "start_sub_agent",
        ),
        "guest.models.model_endpoint": ("ModelEndpoint", "model_endpoint"),
    },
)
