"""A request as the routes read it: its key, path, query and body, each checked and limited."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Coroutine, Sequence
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ramet.core.errors import InvalidValue, NotYours, Unknown
from ramet.services.contract import Right, decode
from ramet.services.errors import BodyTooLarge, UnknownKey
from ramet.services.http.body_budget import BodyHold
from ramet.services.http.responses import Refusal, wait_disconnect
from ramet.services.idempotency.attempts import HEADER, Attempt, Sender, checked_key
from ramet.services.validation_errors import invalid_value_of

if TYPE_CHECKING:
    from ramet.services.http.dependencies import AppDependencies
    from ramet.services.operator.service import KernelViews

JSON_BYTES = 4 * 1024 * 1024
PIECE_S, BODY_S = 30.0, 600.0  #: the time for a piece of a body, and for the whole body
#: How much of a refused body is read and discarded, so that its sender then reads the refusal.
_SPILL_BYTES, _SPILL_S = 16 * 1024 * 1024, 2.0

T = TypeVar("T")


class RequestContext:
    """A request, and the services that answer it."""

    def __init__(self, request: Request, parts: AppDependencies) -> None:
        self.request, self.parts = request, parts
        self.has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        self._is_read = not self.has_body
        self._is_abandoned = False  #: set if the rest of the body is too slow or too large
        self._restored_pieces: list[bytes] = []
        self.attempt: Attempt | None = None  #: set for a request with an `Idempotency-Key`
        self.sender: Sender | None = None  #: the sender whose revoked key is still valid for a repetition
        self.hasher: hmac.HMAC | None = None  #: updated with the body as it arrives
        self._hold = BodyHold(parts.bodies, lambda: parts.spawner.owner_of(self.key))

    @property
    def key(self) -> str:
        """Return the key of the request. Raises Refusal if there is none."""
        if key_text := key_of(self.request):
            return key_text
        detail = "a key is needed: the header Authorization with Bearer and a key, or x-api-key"
        raise Refusal(HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": "Bearer"})

    def idempotency_sender(self) -> Sender | None:
        """Return the sender of a POST with an `Idempotency-Key`; None for other requests. Raises InvalidValue."""
        keys = self.request.headers.getlist(HEADER)
        if not keys or self.request.method != "POST":
            return None
        if len(keys) > 1:
            raise InvalidValue(HEADER, keys, "one header of this name")
        return Sender(self.key, f"POST {self.request.scope['path']}", checked_key(keys[0]))

    async def check_key(self) -> None:
        """Check the key. Raises UnknownKey if it opens nothing of any kernel, and Refusal if there is none."""
        agent = self.request.path_params.get("agent", "")
        if self.parts.spawner.knows_key(self.key, agent):
            return
        if self.sender is not None and await self.parts.ledger.is_known(self.sender):
            return  # The repeated request itself ended the rights of the key.
        if self.parts.router is None or not await self.parts.router.knows_key(self):
            raise UnknownKey

    async def team(self) -> str:
        """Return the id of the key's team, "" for the operator. Call it before reading a body from an unknown sender.

        Raises UnknownKey if the key opens nothing, and NotYours if it has no team.
        """
        await self.check_key()
        spawner = self.parts.spawner
        if spawner.agents.is_operator(self.key):
            return ""
        if teams := await spawner.list_teams(self.key):
            return teams[0].id
        if self.parts.router is None or not (team_id := await self.parts.router.team_of(self.key)):
            raise NotYours("team", "")
        return team_id

    def kernel(self, kind: str, part: str = "") -> KernelViews:
        """Return the views of the kernel for the operator's key. `part` is the part of the path with an object's name.

        For other keys, raise NotYours, as if no object of this kind existed.
        """
        name = self.request.path_params.get(part or kind, "")
        if not self.parts.spawner.agents.is_operator(self.key):
            raise NotYours(kind, name)
        if "\0" in name:  # No object has such a name, and not every store can search for it.
            raise Unknown(kind, name)
        return self.parts.views

    def path(self, name: str) -> str:
        value: str = self.request.path_params[name]
        return value

    def query(self, kind: type[T]) -> T:
        """Return the query as a structure. Fields that are sequences may be given more than once.

        Raises InvalidValue.
        """
        return query_of(self.request, kind)

    def after(self, query_after: int, of: str = "") -> int:
        """Return the position to resume from: Last-Event-ID if given, otherwise `query_after`.

        With `of`, Last-Event-ID must begin with it. Raises InvalidValue.
        """
        return resume_position(self.request, query_after, of)

    async def json(self, kind: type[T], right: Right | None = None) -> T:
        """Return the body as a structure; no body is the default structure, if there is one.

        Raises Undecodable, InvalidValue, BodyTooLarge, Refusal. With a `right`, raises NotYours, like `body`.
        """
        data = await self._read(JSON_BYTES, right)  # Held until `release`: a structure may wait in a queue.
        if not data and is_optional_body(kind):  # type: ignore[arg-type]  # any class is hashable
            data = b"{}"
        value: T = decode(kind, data, "body", within="")
        return value

    async def body(self, limit: int, right: Right | None = None) -> bytes:
        """Return the body as bytes. Raises BodyTooLarge, and Refusal if it does not arrive or the budget is used up.

        With a `right`, raises NotYours before anything is read if the key does not have it on the agent of the path.
        The key may lose it while the body arrives, so the service checks it again.
        """
        data = await self._read(limit, right)
        self.release()  # The receiving conversation has its own limits.
        return data

    async def read_whole(self, limit: int) -> bytes:
        """Return the body, and keep it for the next reader; it is held until `release`. Raises like `body`."""
        data = await self._read(limit)
        self.restart_body(data)
        return data

    def release(self) -> None:
        """Return the bytes of the body to the budget of all bodies. Idempotent."""
        self._hold.release()

    async def _read(self, limit: int, right: Right | None = None) -> bytes:
        if right is not None:
            self.parts.spawner.agents.authorize(self.path("agent"), self.key, right)
        length = self.request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise BodyTooLarge("body", size=int(length), limit=limit)
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise BodyTooLarge("body", size=size, limit=limit)
            pieces.append(piece)
        return b"".join(pieces)

    def restore_body(self, pieces: Sequence[bytes]) -> None:
        """Put back pieces of the body; the next reader gets them before the rest."""
        self._restored_pieces = [*pieces, *self._restored_pieces]

    def restart_body(self, body: bytes) -> None:
        """Put back the whole body; the next reader gets only it."""
        self._restored_pieces = [body] if body else []

    async def pieces(self, *, is_held: bool = True) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives. Raises ClientDisconnect, and Refusal if it does not arrive in time.

        With `is_held`, the pieces count in the budget of all bodies, and Refusal is raised if that is used up.
        """
        is_first = not self._restored_pieces
        while self._restored_pieces:
            yield self._restored_pieces.pop(0)
        if self.has_body and self._is_read:
            return
        end = asyncio.get_running_loop().time() + BODY_S
        while True:
            try:
                async with asyncio.timeout_at(min(end, asyncio.get_running_loop().time() + PIECE_S)):
                    message = await self.request.receive()
            except TimeoutError:
                raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if not message.get("more_body"):
                self._is_read = True
            if piece := message.get("body"):
                if is_held:
                    self._hold.take(len(piece), is_whole=is_first and self._is_read)
                is_first = False
                if self.hasher is not None:
                    self.hasher.update(piece)
                yield piece
            if self._is_read:
                return

    async def or_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; cancel `work` if the client leaves. Raises ClientDisconnect.

        Use it for work that is worthless without its answer. The body must have been read.
        """
        work_task = asyncio.create_task(work)
        disconnect = asyncio.create_task(wait_disconnect(self.request.receive))
        try:
            await asyncio.wait({work_task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not work_task.done():
                raise ClientDisconnect
            return work_task.result()
        finally:
            work_task.cancel()
            disconnect.cancel()
            await asyncio.wait({work_task, disconnect})

    async def drain_body(self, seconds: float = _SPILL_S) -> bool:
        """Discard the unread rest of the body; return False if it is too large or does not arrive in time.

        A client that waits for `100 Continue` does not get it.
        """
        if self._is_read:
            return True
        if self._is_abandoned or "expect" in self.request.headers:
            return False
        size = 0
        try:
            async with asyncio.timeout(seconds):
                async for piece in self.pieces(is_held=False):
                    size += len(piece)
                    if size > _SPILL_BYTES:
                        self._is_abandoned = True
                        return False
        except (TimeoutError, Refusal):
            self._is_abandoned = seconds > 0
            return False
        return True


@cache
def is_optional_body(kind: Any) -> bool:
    """Return whether a structure needs no field, so that a request for it needs no body."""
    is_structure = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_structure and not any(field.required for field in msgspec.structs.fields(kind))


def key_of(request: Request) -> str:
    """Return the key of a request, "" if there is none."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")


def query_of(request: Request, kind: type[T]) -> T:
    """Return the query of a request as `RequestContext.query` does. Raises InvalidValue."""
    params = request.query_params
    sequence_fields = _sequences(kind)  # type: ignore[arg-type]  # any class is hashable
    values = {name: params.getlist(name) if name in sequence_fields else params[name] for name in params}
    for name in params:
        if name not in sequence_fields and len(params.getlist(name)) > 1:
            raise InvalidValue(name, params.getlist(name), "one value")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise invalid_value_of(problem, kind, values, "query") from None


def resume_position(request: Request, query_after: int, of: str = "") -> int:
    """Return the position to resume from as `RequestContext.after` does. Raises InvalidValue."""
    last_id = request.headers.get("last-event-id", "")
    if not last_id:
        return query_after
    prefix, _, number = last_id.rpartition(":")
    if prefix != of or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise InvalidValue("Last-Event-ID", last_id, f"an id that was sent: {f'{of}:' if of else ''}a number")
    return int(number)


@cache  # One per operation; reading the fields compiles annotations.
def _sequences(kind: Any) -> frozenset[str]:
    """Return the fields of a query that may be given more than once."""
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.default == ())
