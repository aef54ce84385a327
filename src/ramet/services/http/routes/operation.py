"""The type of an operation. A table of operations defines the routes and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ramet.services.http.endpoints import Endpoint
from ramet.services.http.request import RequestContext

#: The effect of repeating a POST with an `Idempotency-Key` after the first one's server was killed in the middle. It
#: returns the created object, or creates it; or is executed again, as it is idempotent; or is refused.
Repetition = Literal["found", "again", "refused"]

#: The kernel that answers: the owner of the agent, team or run of the path, of the team of the body or the query, or of
#: the agent of the key; all kernels together; the one that knows the object; or the one that received the request.
Of = Literal["here", "agent", "team", "run", "body", "query", "key", "everyone", "whoever"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of the HTTP API. `handle` returns a structure, None for no content, or a response of its own."""

    endpoint: Endpoint[Any]
    summary: str
    handle: Callable[[RequestContext], Awaitable[Any]]
    status: int = 200
    stream: bool = False  #: whether it may answer with server-sent events
    resumes: bool = False  #: whether Last-Event-ID resumes its stream
    needs_key: bool = True
    refuses: Sequence[int] = ()  #: statuses of its errors, except those that `openapi` derives
    own_error_form: bool = False  #: whether some refusals, also of keys, have the form of its clients
    repetition: Repetition = "refused"
    look_at: str = "what it was for"  #: where a client can see whether a request was executed
    ends_key: bool = False  #: whether the operation may end the rights of its key
    begins: bool = False  #: whether it is new work, which a kernel that is about to end refuses
    of: Of = "here"
    merge: Callable[[RequestContext, Sequence[Any]], Any] | None = None  #: merges all answers, for `everyone`
    unpaged_query: bytes = b""  #: the query that asks each kernel for all items, if the answer is paged


Handle = Callable[[RequestContext], Awaitable[Any]]


class Operations(list[Operation]):
    """The operations of one module of routes, in the order of their definitions."""

    def add(self, endpoint: Endpoint[Any], summary: str, **options: Any) -> Callable[[Handle], Handle]:
        """Return a decorator that makes a function the `handle` of a new operation. See `Operation` for the options."""

        def add(handle: Handle) -> Handle:
            self.append(Operation(endpoint=endpoint, summary=summary, handle=handle, **options))
            return handle

        return add
