"""One request as the routes read it: its key, path, query and body, each checked and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ramet.core.errors import InvalidValue, NotYours
from ramet.services.errors import BodyTooLarge, Undecodable, UnknownKey
from ramet.services.http.body_budget import BodyHold
from ramet.services.http.responses import Refusal, no_key
from ramet.services.idempotency.attempts import Attempt, Sender
from ramet.services.validation_errors import hidden, invalid_value_of

if TYPE_CHECKING:
    from ramet.services.http.dependencies import AppDependencies

JSON_BYTES = 4 * 1024 * 1024
PIECE_S, BODY_S = 30.0, 600.0  #: for a piece of a body, and for all of it
#: What is read and thrown away of a body that is refused, so that its sender comes to read why.
_SPILL_BYTES, _SPILL_S = 16 * 1024 * 1024, 2.0

T = TypeVar("T")


class Hasher(Protocol):
    """A digest in the making, as hashlib has it."""

    def update(self, data: bytes, /) -> None:
        """Take in more."""

    def hexdigest(self) -> str:
        """The digest so far."""


class RequestContext:
    """A request, and what answers it."""

    def __init__(self, request: Request, parts: AppDependencies) -> None:
        self.request, self.parts = request, parts
        self.has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        self._is_read = not self.has_body
        self._is_given_up = False  #: what is left of the body came too slowly, or is too much
        self._put_back: list[bytes] = []
        self.attempt: Attempt | None = None  #: of a request with an `Idempotency-Key`
        self.sender: Sender | None = None  #: whose dead key is good for a repetition
        self.hasher: Hasher | None = None  #: is fed with the body as it comes
        self._hold = BodyHold(parts.bodies, self._owner) if parts is not None else None

    @property
    def key(self) -> str:
        """The key that is shown. Raises Refusal if there is none."""
        if found := key_of(self.request):
            return found
        raise no_key()

    async def check_key(self) -> None:
        """Raise UnknownKey for a key that opens nothing of any kernel, and Refusal where there is none."""
        agent = self.request.path_params.get("agent", "")
        if self.parts.spawner.knows_key(self.key, agent):
            return
        if self.sender is not None and await self.parts.ledger.is_known(self.sender):
            return  # It has lost its rights by the request that is repeated.
        if self.parts.desk is None or not await self.parts.desk.knows_key(self):
            raise UnknownKey

    async def team(self) -> str:
        """The id of the key's team, "" for the operator: asked before a stranger's bytes are taken in.

        Raises NotYours, and UnknownKey for a key that opens nothing.
        """
        await self.check_key()
        spawner = self.parts.spawner
        if spawner.roster.is_operator(self.key):
            return ""
        if teams := await spawner.list_teams(self.key):
            return teams[0].id
        if self.parts.desk is None or not (found := await self.parts.desk.team_of(self.key)):
            raise NotYours("team", "")
        return found

    def path(self, name: str) -> str:
        """A part of the path."""
        value: str = self.request.path_params[name]
        return value

    def query(self, kind: type[T]) -> T:
        """The query, as a structure; fields that are sequences may be given more than once. Raises InvalidValue."""
        given = self.request.query_params
        lists = _sequences(kind)  # type: ignore[arg-type]  # any class is hashable
        values = {name: given.getlist(name) if name in lists else given[name] for name in given}
        for name in given:
            if name not in lists and len(given.getlist(name)) > 1:
                raise InvalidValue(name, given.getlist(name), "one value")
        try:
            return msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as problem:
            raise invalid_value_of(problem, kind, values, "query") from None

    def after(self, query_after: int, of: str = "") -> int:
        """What is read on from: Last-Event-ID, which begins with `of` if that is given, or what the query says."""
        given = self.request.headers.get("last-event-id", "")
        if not given:
            return query_after
        prefix, _, number = given.rpartition(":")
        if prefix != of or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise InvalidValue("Last-Event-ID", given, f"an id that was sent: {f'{of}:' if of else ''}a number")
        return int(number)

    async def json(self, kind: type[T]) -> T:
        """The body, as a structure. Raises Undecodable, InvalidValue, BodyTooLarge, Refusal."""
        data = await self._read(JSON_BYTES)  # Held until `release`: a structure may wait in a line.
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as problem:
            raise invalid_value_of(problem, kind, data, "body") from None
        except (msgspec.DecodeError, RecursionError, UnicodeError) as problem:
            raise Undecodable("body", hidden(data), f"JSON ({problem})") from None

    async def body(self, most: int) -> bytes:
        """The body, byte for byte. Raises BodyTooLarge, and Refusal where it does not come, or has no room."""
        data = await self._read(most)
        self.release()  # The conversation that it goes to has limits of its own.
        return data

    async def whole(self, most: int) -> bytes:
        """The body, which comes again to whoever reads it next; held until `release`. Raises like `body`."""
        data = await self._read(most)
        self.begin_again(data)
        return data

    def release(self) -> None:
        """Give back what the body holds of the budget of all bodies. Idempotent."""
        if self._hold is not None:
            self._hold.release()

    async def _read(self, most: int) -> bytes:
        given = self.request.headers.get("content-length", "")
        if given.isdigit() and int(given) > most:
            raise BodyTooLarge("body", size=int(given), limit=most)
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > most:
                raise BodyTooLarge("body", size=size, limit=most)
            pieces.append(piece)
        return b"".join(pieces)

    def put_back(self, pieces: Sequence[bytes]) -> None:
        """Have pieces of the body that were read come again, before the rest of it."""
        self._put_back = [*pieces, *self._put_back]

    def begin_again(self, body: bytes) -> None:
        """Have the whole body, which was read, come again, and nothing else."""
        self._put_back = [body] if body else []

    async def pieces(self, *, is_held: bool = True) -> AsyncGenerator[bytes]:
        """The body as it comes. Raises Refusal where it does not, and ClientDisconnect.

        What `is_held` counts in the budget of all bodies, and Refusal is raised where that is used up.
        """
        is_first = not self._put_back
        while self._put_back:
            yield self._put_back.pop(0)
        if self.has_body and self._is_read:
            return
        end = asyncio.get_running_loop().time() + BODY_S
        while True:
            try:
                async with asyncio.timeout_at(min(end, asyncio.get_running_loop().time() + PIECE_S)):
                    message = await self.request.receive()
            except TimeoutError:
                raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time") from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if not message.get("more_body"):
                self._is_read = True
            if piece := message.get("body"):
                if is_held and self._hold is not None:
                    self._hold.take(len(piece), is_whole=is_first and self._is_read)
                is_first = False
                if self.hasher is not None:
                    self.hasher.update(piece)
                yield piece
            if self._is_read:
                return

    async def unless_left(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, unless its asker leaves: then it is cancelled. Raises ClientDisconnect.

        For what is worth nothing without its answer. The body has been read.
        """

        async def leaves() -> None:
            while (await self.request.receive())["type"] != "http.disconnect":
                pass

        answering, leaving = asyncio.create_task(work), asyncio.create_task(leaves())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            return answering.result()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})

    async def spill(self, seconds: float = _SPILL_S) -> bool:
        """Throw away what was not read of the body; False if there is more of it than one waits for.

        A client that waits to be told to send its body is not told so.
        """
        if self._is_read:
            return True
        if self._is_given_up or "expect" in self.request.headers:
            return False
        size = 0
        try:
            async with asyncio.timeout(seconds):
                async for piece in self.pieces(is_held=False):
                    size += len(piece)
                    if size > _SPILL_BYTES:
                        self._is_given_up = True
                        return False
        except (TimeoutError, Refusal):
            self._is_given_up = seconds > 0
            return False
        return True

    def _owner(self) -> str:
        """Whose share of the budget of bodies is used: the key's team; "" for the operator's key."""
        return self.parts.spawner.owner_of(self.key)


def key_of(request: Request) -> str:
    """The key of a request, "" if it shows none."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")


@cache  # There are as many as operations, and to look at one compiles its annotations.
def _sequences(kind: Any) -> frozenset[str]:
    """The fields of a query that may be given more than once."""
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.default == ())
