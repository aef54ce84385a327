"""A table of operations makes the routes, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ramet.services.http.request import RequestContext

EVENT_STREAM, BYTES, TAR, JSON = (
    "text/event-stream",
    "application/octet-stream",
    "application/x-tar",
    "application/json",
)

#: What a repetition of a POST with an `Idempotency-Key` does where the first one's server was killed in the middle: it
#: finds what was made, or makes it; it is done again, as twice is the same as once; or it is refused.
Repetition = Literal["found", "again", "refused"]

#: Which of several kernels answers: the one that has the agent, team or run of the path, the team of the body or the
#: query, or the agent of the key; all of them together; whoever knows of it; or the one that is asked.
Of = Literal["here", "agent", "team", "run", "body", "query", "key", "everyone", "whoever"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing to ask. `handle` returns a structure, None for no content, or a response of its own."""

    id: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    summary: str
    handle: Callable[[RequestContext], Awaitable[Any]]
    takes: Any = None  #: structure of the body
    media: str = JSON  #: of the body, where it is no structure: bytes
    has_body: bool = False
    query: Any = None
    answers: Any = None
    status: int = 200
    stream: bool = False  #: answers with server-sent events, or may
    resumes: bool = False  #: by Last-Event-ID
    needs_key: bool = True
    refuses: Sequence[int] = ()  #: statuses of what it raises, beside those that `openapi` finds by itself
    own_refusals: bool = False  #: some, those of keys among them, are in the form that its clients read
    repetition: Repetition = "refused"
    look_at: str = "what it was for"  #: where it can be seen whether a request was done that is not repeated
    ends_key: bool = False  #: its key may have no rights behind it
    begins: bool = False  #: new work, which a kernel that is about to end takes no more
    of: Of = "here"
    merge: Callable[[RequestContext, Sequence[Any]], Any] | None = None  #: of what all kernels answer, for `everyone`
    whole: bytes = b""  #: the query by which each of them is asked for all, where pages are made of that
