"""What the routes answer with: the services, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.services.app.sse import Streams
from ramet.services.packaging.service import PackagingService
from ramet.services.spawning.spawner import AgentSpawnerService
from ramet.services.talking.agents import AgentService
from ramet.services.talking.conversation import TalkLimits
from ramet.services.views.metrics import Metrics
from ramet.services.views.operators import OperatorsView


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The three services, and the operator's view of the kernel below them."""

    spawner: AgentSpawnerService
    agents: AgentService
    packaging: PackagingService
    kernel: OperatorsView
    metrics: Metrics
    message_bytes: int = TalkLimits().body_bytes  #: of what is said to an agent
    streams: Streams = field(default_factory=Streams)

    def agent_of(self, key: str) -> str:
        """The agent that a key may talk with. Raises NotYours; so for the operator's, which is of none and of all."""
        return self.spawner.roster.find(key, "turn").id
