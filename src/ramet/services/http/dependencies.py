"""What the routes answer with: the services, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.services.http.body_budget import BodyBudget
from ramet.services.http.sse import Streams
from ramet.services.idempotency.ledger import Ledger
from ramet.services.operator.metrics import Metrics
from ramet.services.operator.service import OperatorsView
from ramet.services.packaging.service import PackagingService
from ramet.services.rules import Rules
from ramet.services.teams.service import AgentSpawnerService
from ramet.services.turns.queue import TurnLimits
from ramet.services.turns.service import AgentService


class KernelRouting(Protocol):
    """The way to other kernels, where there may be some."""

    async def elsewhere(self, call: Any, operation: Any) -> Any | None:
        """The answer of whoever a request is for; None where it is to be answered here. Raises Refusal."""

    async def here(self, call: Any, operation: Any) -> Any:
        """What is answered here; TakenOver is raised for what went to another kernel meanwhile."""

    async def team_of(self, key: str) -> str:
        """The id of the team of any kernel whose key this is; "" if there is none."""

    async def knows_key(self, call: Any) -> bool:
        """Whether the key of a request opens anything of another kernel. Raises Refusal where that is not settled."""


@dataclass(frozen=True, kw_only=True)
class AppDependencies:
    """The three services, and the operator's view of the kernel below them."""

    spawner: AgentSpawnerService
    agents: AgentService
    packaging: PackagingService
    kernel: OperatorsView
    metrics: Metrics
    bodies: BodyBudget
    ledger: Ledger
    rules: Rules = field(default_factory=Rules)  #: of the operator
    message_bytes: int = TurnLimits().body_bytes  #: of what is said to an agent
    streams: Streams = field(default_factory=Streams)
    desk: KernelRouting | None = None
    unready: Callable[[], str] = lambda: ""  #: why no new work is taken; empty where it is

    def agent_of(self, key: str) -> str:
        """The agent that a key may talk with. Raises NotYours; so for the operator's, which is of none and of all."""
        return self.spawner.roster.find(key, "turn").id
