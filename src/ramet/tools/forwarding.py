"""Model requests that a program in a sandbox makes by itself, and how they are forwarded to its provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ramet.core.errors import BudgetExceeded

if TYPE_CHECKING:
    from ramet.tools.context import ToolUseContext


@dataclass(frozen=True, kw_only=True)
class ForwardRights:
    """The right of a run to have model requests forwarded."""

    models: tuple[str, ...]  #: as `Policy.models`
    #: reserve estimated input tokens; False: their certain bound, the bytes of the request, which then has only text
    estimate: bool = True


class ForwardedRequest(NamedTuple):
    """An HTTP request of a program. All of it is the program's own word."""

    wire: str  #: name of the provider's wire (`ramet.models.wires`)
    method: str
    path: str
    query: str
    headers: Mapping[str, str]  #: by name in lower case
    body: bytes


class ReplyStream(Protocol):
    """The way of one reply back to the program."""

    @property
    def is_started(self) -> bool:
        """Return whether the head was sent: after that there is no other answer."""

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Send the head of the reply."""

    async def write(self, data: bytes) -> None:
        """Send a part of the body; wait until the program has read enough of the parts before."""


class RequestForwarding(Protocol):
    """The forwarding of the requests of one run."""

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The refusal of the newest request for a generation, if a limit refused it."""

    async def forward(self, request: ForwardedRequest, reply: ReplyStream) -> None:
        """Forward a request, and send the provider's reply, or a refusal in its form.

        Raises ModelFailed for a reply that broke off, and Unknown for an unknown wire.
        """

    async def refuse(self, request: ForwardedRequest, reply: ReplyStream, reason: str) -> None:
        """Refuse a request because there are too many. Raises Unknown for an unknown wire."""


OpenForwarding: TypeAlias = "Callable[[ToolUseContext, ForwardRights], RequestForwarding]"
