"""The services and shared objects that the routes use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.services.http.body_budget import BodyBudget
from ramet.services.http.sse import Streams
from ramet.services.idempotency.ledger import Ledger
from ramet.services.operator.metrics import Metrics
from ramet.services.operator.service import KernelViews
from ramet.services.packaging.service import PackagingService
from ramet.services.rules import Rules
from ramet.services.teams.service import AgentSpawnerService
from ramet.services.turns.queue import TurnLimits
from ramet.services.turns.service import AgentService


class KernelRouting(Protocol):
    """The routing to other kernels, if there may be some."""

    async def forward(self, call: Any, operation: Any) -> Any | None:
        """Return the answer of another kernel; None if this kernel must answer. Raises Refusal."""

    async def handle_locally(self, call: Any, operation: Any) -> Any:
        """Return the answer of this kernel. Raises TakenOver for an object that moved to another kernel meanwhile."""

    async def team_of(self, key: str) -> str:
        """Return the id of the team, of any kernel, that has this key; "" if there is none."""

    async def knows_key(self, call: Any) -> bool:
        """Return whether the key of a request opens anything of another kernel.

        Raises Refusal while that is unknown.
        """


@dataclass(frozen=True, kw_only=True)
class AppDependencies:
    """The three services, the operator's view of the kernel, and shared objects."""

    spawner: AgentSpawnerService
    agents: AgentService
    packaging: PackagingService
    views: KernelViews  #: opened by `RequestContext.kernel`
    metrics: Metrics
    bodies: BodyBudget
    ledger: Ledger
    rules: Rules = field(default_factory=Rules)  #: the operator's rules
    message_bytes: int = TurnLimits().body_bytes  #: the largest message to an agent
    streams: Streams = field(default_factory=Streams)
    router: KernelRouting | None = None
    unready: Callable[[], str] = lambda: ""  #: returns why no new work is accepted; empty if it is

    def agent_of(self, key: str) -> str:
        """Return the agent that a key may talk to.

        Raises NotYours, also for the operator's key, which names no single agent.
        """
        return self.spawner.agents.find_by_key(key, "turn").id
