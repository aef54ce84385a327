"""ramet: agents that spawn agents, isolated, bounded, stoppable, durable, visible.

Everything here is loaded on first use: `import ramet` itself costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ramet.agent.adopted.adopt import adopt as adopt
    from ramet.agent.composition.chain import chain as chain
    from ramet.agent.composition.graph import END as END
    from ramet.agent.composition.graph import START as START
    from ramet.agent.composition.parallel import parallel as parallel
    from ramet.agent.composition.state_graph import StateGraph as StateGraph
    from ramet.agent.decorators import cache as cache
    from ramet.agent.decorators import policy as policy
    from ramet.agent.decorators import resources as resources
    from ramet.agent.decorators import retry as retry
    from ramet.agent.decorators import timeout as timeout
    from ramet.agent.definition import Agent as Agent
    from ramet.agent.external.external import External as External
    from ramet.agent.loop import QueryParams as QueryParams
    from ramet.agent.loop import query as query
    from ramet.concurrency.cancel import AbortController as AbortController
    from ramet.core.limits import Limits as Limits
    from ramet.core.limits import SpawnLimits as SpawnLimits
    from ramet.core.liveness.watch_settings import Watch as Watch
    from ramet.core.media.attachment import Attachment as Attachment
    from ramet.core.outcome import AgentResult as AgentResult
    from ramet.core.outcome import Artifact as Artifact
    from ramet.core.outcome import Result as Result
    from ramet.core.outcome import Status as Status
    from ramet.core.outcome import StepFailure as StepFailure
    from ramet.core.outcome import Usage as Usage
    from ramet.core.policy.policy import Isolation as Isolation
    from ramet.core.policy.policy import Policy as Policy
    from ramet.core.policy.session_access import SessionAddress as SessionAddress
    from ramet.host.observability.logs import setup_logging as setup_logging
    from ramet.host.registry import AGENT_REGISTRY as AGENT_REGISTRY
    from ramet.host.runtime import AgentRuntime as AgentRuntime
    from ramet.host.schedules.scheduler import AgentScheduler as AgentScheduler
    from ramet.host.session import Session as Session
    from ramet.host.standalone import standalone_context as standalone_context
    from ramet.host.sync_session import SyncSession as SyncSession
    from ramet.models.resolve import resolve as resolve
    from ramet.models.scripted.model import ScriptedModel as ScriptedModel
    from ramet.services.client.connect import connect as connect
    from ramet.tools.agents.authoring import authoring_tools as authoring_tools
    from ramet.tools.context import ToolUseContext as ToolUseContext
    from ramet.tools.python import python_tool as python_tool
    from ramet.tools.spawn_request import SpawnRequest as SpawnRequest
    from ramet.tools.workspace import workspace_tools as workspace_tools

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "agent.adopted.adopt": ("adopt",),
        "agent.composition.chain": ("chain",),
        "agent.composition.graph": ("END", "START"),
        "agent.composition.parallel": ("parallel",),
        "agent.composition.state_graph": ("StateGraph",),
        "agent.decorators": ("cache", "policy", "resources", "retry", "timeout"),
        "agent.definition": ("Agent",),
        "agent.external.external": ("External",),
        "agent.loop": ("QueryParams", "query"),
        "concurrency.cancel": ("AbortController",),
        "core.limits": ("Limits", "SpawnLimits"),
        "core.liveness.watch_settings": ("Watch",),
        "core.media.attachment": ("Attachment",),
        "core.outcome": ("AgentResult", "Artifact", "Result", "Status", "StepFailure", "Usage"),
        "core.policy.policy": ("Isolation", "Policy"),
        "core.policy.session_access": ("SessionAddress",),
        "host.observability.logs": ("setup_logging",),
        "host.registry": ("AGENT_REGISTRY",),
        "host.runtime": ("AgentRuntime",),
        "host.schedules.scheduler": ("AgentScheduler",),
        "host.session": ("Session",),
        "host.standalone": ("standalone_context",),
        "host.sync_session": ("SyncSession",),
        "models.resolve": ("resolve",),
        "models.scripted.model": ("ScriptedModel",),
        "services.client.connect": ("connect",),
        "tools.agents.authoring": ("authoring_tools",),
        "tools.context": ("SpawnRequest", "ToolUseContext"),
        "tools.python": ("python_tool",),
        "tools.workspace": ("workspace_tools",),
    },
)
