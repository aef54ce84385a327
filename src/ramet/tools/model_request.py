"""A request to a model, and the reservation for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ramet.core.ids import StepId

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.tools import BaseTool


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """A request to a model."""

    messages: Sequence[BaseMessage]
    tools: Sequence[BaseTool] = ()
    step: StepId
    max_tokens: int | None = None
    is_final_answer: bool = False  #: uses the reserve that the scope keeps for its owner's last answer
    is_side_request: bool = (
        False  #: not part of the conversation, such as a summary of it: its chunks are not published
    )


class ForeignRequest(NamedTuple):
    """A model request of another framework, with the facts known before it is sent."""

    model: str  #: its name, for events and prices
    messages: Sequence[BaseMessage]
    step: StepId
    schema_bytes: int = 0  #: of the tools that the model is shown
    max_tokens: int | None = None  #: maximum length of the reply, if the model states it
    requests: int = 1  #: number of provider requests that the call may make


class Charge(Protocol):
    """The reservation for a request of another framework. Only the first call has an effect."""

    def settle(self, reply: AIMessage) -> None:
        """Book the reply's usage, or the whole reservation if it has none."""

    def cancel(self) -> None:
        """Return the reservation: the request was not sent."""

    def fail(self, error: BaseException) -> None:
        """Book a request without a reply."""
