"""The contract of a provider's wire: requests to models as data, refusals in its form, usage of replies.

Nothing here does I/O. A request comes from a program in a sandbox and is hostile. It passes as it is, but for the
maximum of its output, which is lowered, or added. Its body is decoded to the members of its top level and encoded
again, so that a member that occurs twice means the same here and at the provider. Values below stay byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:  # LangChain takes 0.4 s to import, and only its type is needed
    from langchain_core.messages.ai import UsageMetadata

#: The largest body of a request. The providers accept 20 to 32 MB.
MAX_REQUEST_BYTES: Final = 32 * 1024 * 1024
MAX_MODEL_NAME: Final = 200  #: characters
#: The largest number that a request may state for its output, or a reply as its usage; more is nonsense.
MAX_TOKENS: Final = 100_000_000


class Operation(Enum):
    """The kind of a request."""

    GENERATE = "generate"  #: costs tokens
    COUNT = "count"  #: counts the tokens of a prompt; costs nothing
    MODELS = "models"  #: lists or describes models; costs nothing


class RefusalKind(Enum):
    """The reasons to refuse a request."""

    BUDGET = "budget"  #: a limit of the tree
    BUSY = "busy"  #: too many requests at once, or of those that cost nothing
    DENIED = "denied"  #: the model, or a member of the request, is not allowed
    INVALID = "invalid"  #: the request cannot be understood
    KEY = "key"  #: the host has no key
    PATH = "path"  #: the path is not forwarded
    TOO_LARGE = "too_large"
    UPSTREAM = "upstream"  #: the provider cannot be reached, or answers what is not accepted


class RequestRefused(Exception):
    """A request that is not forwarded."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        self.kind, self.reason = kind, reason[:1_000]
        super().__init__(f"{kind.value}: {self.reason}")


@dataclass(frozen=True, kw_only=True, slots=True)
class WireRequest:
    """A request that may be forwarded."""

    operation: Operation
    path: str  #: with the query, as it is sent
    model: str = ""
    streams: bool = False
    max_tokens: int | None = None  #: of output, as the request states it
    thinking_tokens: int = 0  #: of output, which it wants for thinking at least
    choices: int = 1  #: number of replies
    #: Members that may cost more than the tokens of this body: refused where a limit binds.
    unbounded: tuple[str, ...] = ()
    members: Mapping[str, msgspec.Raw] = field(default_factory=dict)  #: of the body
    body: bytes = b""


class WireReply(NamedTuple):
    """A whole reply that is made here."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


class UsageReader(Protocol):
    """A reader of a reply's bytes as they arrive. Never raises, and holds a bounded part of them."""

    def feed(self, data: bytes) -> None:
        """Read the next bytes, cut anywhere."""

    def finish(self) -> UsageMetadata | None:
        """Return the usage that the complete reply reports; None if it reports none that can be believed."""


class Wire(Protocol):
    """The wire of one provider."""

    name: str  #: in paths inside a sandbox
    model_prefix: str  #: before the names of its models, where they are written with it
    key_variables: tuple[str, ...]  #: environment variables of its key, the first that is set
    base_url_variable: str
    base_url: str
    output_limit: int  #: tokens that a request may use which states no maximum
    request_headers: frozenset[str]  #: of a program, which are forwarded

    def parse(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> WireRequest:
        """Return what a request asks for. Raises RequestRefused."""

    def limited_body(self, request: WireRequest, max_tokens: int) -> bytes:
        """Return the body with this maximum of output."""

    def usage_reader(self, request: WireRequest, *, is_stream: bool) -> UsageReader:
        """Return a reader of the reply to a generation."""

    def key_headers(self, key: str) -> Mapping[str, str]:
        """Return the headers that carry the key."""

    def refuse(self, refusal: RequestRefused) -> WireReply:
        """Return a refusal in the provider's form. A program that reads it asks no more for what stays refused."""
