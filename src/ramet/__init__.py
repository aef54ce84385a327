"""ramet: agents that spawn agents, isolated, bounded, stoppable, durable, visible.

Everything here is loaded on first use: `import ramet` itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.agent.definition import Agent as Agent
    from ramet.agent.loop import QueryParams as QueryParams
    from ramet.agent.loop import query as query
    from ramet.concurrency.cancel import AbortController as AbortController
    from ramet.core.budget import Limits as Limits
    from ramet.core.limits import SpawnLimits as SpawnLimits
    from ramet.core.outcome import Result as Result
    from ramet.core.outcome import Status as Status
    from ramet.core.outcome import Usage as Usage
    from ramet.host.registry import AGENT_REGISTRY as AGENT_REGISTRY
    from ramet.host.runtime import AgentRuntime as AgentRuntime
    from ramet.host.session import Session as Session
    from ramet.host.standalone import standalone_context as standalone_context
    from ramet.models.resolve import resolve as resolve
    from ramet.models.scripted import ScriptedModel as ScriptedModel
    from ramet.tools.context import SpawnRequest as SpawnRequest
    from ramet.tools.context import ToolUseContext as ToolUseContext
    from ramet.tools.workspace import workspace_tools as workspace_tools

_WHERE = {
    "AGENT_REGISTRY": "host.registry",
    "AbortController": "concurrency.cancel",
    "Agent": "agent.definition",
    "AgentRuntime": "host.runtime",
    "Limits": "core.budget",
    "QueryParams": "agent.loop",
    "Result": "core.outcome",
    "ScriptedModel": "models.scripted",
    "Session": "host.session",
    "SpawnLimits": "core.limits",
    "SpawnRequest": "tools.context",
    "Status": "core.outcome",
    "ToolUseContext": "tools.context",
    "Usage": "core.outcome",
    "query": "agent.loop",
    "resolve": "models.resolve",
    "standalone_context": "host.standalone",
    "workspace_tools": "tools.workspace",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"ramet.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ramet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
