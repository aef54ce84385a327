"""Where a request is answered: here, or by the kernel that has what it is about, to which it is passed on, once.

A kernel that is lost has its teams taken over by another; who asks for one meanwhile waits for that, and is told to
come again when it takes too long. Nothing is said not to be there because its kernel is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.errors import Denied, Gone, NotYours, OwnedElsewhere, RametError, Unknown
from ramet.services.app.answers import Refusal
from ramet.services.app.calls import JSON_BYTES, Call
from ramet.services.kernels.directory import Directory, Whose, hash_of
from ramet.services.kernels.forwarding import Answer, Body, Forwarder, Unreachable
from ramet.services.kernels.passes import FROM, Passes
from ramet.services.problems import MEDIA_TYPE, problem_of
from ramet.services.refusals import TakenOver
from ramet.store.contract import Seat

if TYPE_CHECKING:
    from ramet.services.app.operations import Operation

_log = logging.getLogger("ramet.serve")
#: For a team or a tree whose kernel is lost to be taken over by another one.
WAIT_S: Final = 15.0
_LOOK_S: Final = 0.05
#: Says that a kernel has not, or has no more, what it was asked for: the one that forwards looks again who has.
NOT_MINE: Final = HTTPStatus.MISDIRECTED_REQUEST
#: Says so where it is not for its client: that a pass was refused.
REFUSED: Final = "ramet-pass"
_PROBE: Final = "/v1/models"


class Home(Protocol):
    """What this kernel has."""

    @property
    def leaves(self) -> bool:
        """Whether it takes no new work, since it is about to end."""

    def has_agent(self, agent: str) -> bool:
        """Whether it has an agent of that id, open."""

    def has_team(self, team: str) -> bool:
        """Whether it has a team of that id or name, with all its agents."""

    @property
    def teams(self) -> Collection[str]:
        """The ids of all teams that it has."""

    def has_tree(self, tree: str) -> bool:
        """Whether a tree is at work here."""

    def is_taking_up(self, team: str) -> bool:
        """Whether a team, or any for "", is this kernel's, and its agents are being opened."""

    def opens_an_agent(self, key: str) -> bool:
        """Whether this is a key of one of its agents."""


class _Said(Struct):
    """What a problem document says that it is."""

    type: str = ""


class _Spawn(Struct):
    team: str = ""


class Desk:
    """The way to other kernels, of the one that has a directory."""

    def __init__(
        self, directory: Directory, passes: Passes, forwarder: Forwarder, home: Home, *, wait_s: float = WAIT_S
    ) -> None:
        self._directory, self._passes, self._forwarder, self._home = directory, passes, forwarder, home
        self._wait_s = wait_s

    async def elsewhere(self, call: Call, operation: Operation) -> Any | None:
        """What another kernel answers to a request, or several do; None where it is to be answered here.

        Raises Refusal for a request that pretends to come from a kernel, and where nobody can answer now.
        """
        try:
            came_from = self._passes.check(call.request.headers)
        except Denied as refused:
            _log.error("a request bears a pass that no kernel of this store gave; do all have the same token?")
            raise Refusal(HTTPStatus.FORBIDDEN, str(refused), {REFUSED: "refused"}) from None
        match operation.of:
            case "here":
                if self._home.leaves and operation.begins:
                    raise away()
                return None
            case "everyone":
                return await self._of_everyone(call, operation, bool(came_from))
            case "whoever":
                return None if came_from else await self._of_whoever(call, operation)
            case "key":
                return None if came_from else await self._of_key(call, operation)
        body = Body(call)
        name = await self._name(call, operation, body)
        if name is not None:
            return await self._of_one(call, operation, name, body, bool(came_from))
        if operation.of == "query":
            return await self._of_everyone(call, operation, bool(came_from))
        body.give_back()
        return None

    async def here(self, call: Call, operation: Operation) -> Any:
        """What this kernel answers. Raises TakenOver for what went to another one meanwhile.

        Whoever passed the request on is told that it is not here, and asks there.
        """
        try:
            return await operation.handle(call)
        except (TakenOver, OwnedElsewhere) as refused:
            problem: RametError = refused
        except (NotYours, Gone):
            if operation.of not in ("agent", "team") or not await self._went_elsewhere(operation, call):
                raise
            problem = TakenOver(operation.of, call.path(operation.of))
        raise _not_mine() if call.request.headers.get(FROM) else problem

    async def _went_elsewhere(self, operation: Operation, call: Call) -> bool:
        name = call.path(operation.of)
        if self._is_here(operation, name) or (whose := await self._whose(operation, name)) is None:
            return False
        self._directory.forget(whose)
        whose = await self._whose(operation, name)
        return whose is not None and whose.kernel != self._directory.me

    async def opens_a_team(self, key: str) -> bool:
        """Whether this is the key of a team of any kernel."""
        return await self._directory.opens_a_team(hash_of(key))

    # ---- of one

    async def _name(self, call: Call, operation: Operation, body: Body) -> str | None:
        """What the request is about; None where it does not say."""
        match operation.of:
            case "body":
                await call.see_that_it_has_a_team()  # Before a stranger's bytes are taken in.
                try:
                    return msgspec.json.decode(await body.begin(JSON_BYTES), type=_Spawn).team or None
                except (msgspec.DecodeError, UnicodeError, RecursionError):
                    return None
            case "query":
                return call.request.query_params.get("team") or None
        return call.path(operation.of)

    async def _of_one(self, call: Call, operation: Operation, name: str, body: Body, is_forwarded: bool) -> Any | None:
        until = asyncio.get_running_loop().time() + self._wait_s
        may_be_gone = False  #: since a request to remove it was sent, and not answered
        while True:
            whose = None if self._is_here(operation, name) else await self._whose(operation, name)
            if whose is not None and whose.kernel == self._directory.me and not self._home.is_taking_up(whose.id):
                self._directory.forget(whose)  # What is known of it may be of a time before it went elsewhere.
                whose = await self._whose(operation, name)
            if whose is None or (whose.kernel == self._directory.me and not self._home.is_taking_up(whose.id)):
                # It is here; or nowhere, which is said in the words of whoever answers here.
                if not (self._home.leaves and operation.begins):
                    body.give_back()
                    return await self._removed_here(call, operation) if may_be_gone else None
                raise _not_mine() if is_forwarded else away()
            if whose.kernel != self._directory.me:
                try:
                    answer = await self._of_other(call, whose, body, is_forwarded)
                except Unreachable:
                    may_be_gone, answer = operation.method == "DELETE", None
                if answer is not None:
                    return answer if not may_be_gone else await self._removed_there(call, operation, answer)
            self._directory.forget(whose)
            if not body.can_be_sent_again:
                raise away()
            if asyncio.get_running_loop().time() >= until:
                if operation.of == "run" and operation.method == "GET":  # What is on record of it can be told.
                    return None
                raise away()
            await asyncio.sleep(_LOOK_S)

    async def _removed_here(self, call: Call, operation: Operation) -> Any:
        try:
            return await self.here(call, operation) or Response(status_code=HTTPStatus.NO_CONTENT)
        except (NotYours, Unknown) as refused:
            if await self._is_gone(call, operation, isinstance(refused, Unknown)):
                return Response(status_code=HTTPStatus.NO_CONTENT)
            raise

    async def _removed_there(self, call: Call, operation: Operation, answer: Answer) -> Any:
        if answer.status != HTTPStatus.NOT_FOUND:
            return answer
        said = await answer.read()
        is_part = msgspec.json.decode(said, type=_Said).type == problem_of(Unknown("", "")).type
        if await self._is_gone(call, operation, is_part):
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return Response(said, answer.status, media_type=MEDIA_TYPE)

    async def _is_gone(self, call: Call, operation: Operation, is_part: bool) -> bool:
        """Whether what was to be removed is not there; a part of something, by the word of whoever has that."""
        return is_part or await self._directory.is_gone(operation.of, call.path(operation.of))

    async def _of_other(self, call: Call, whose: Whose, body: Body, is_forwarded: bool) -> Answer | None:
        """What the kernel says that has it; None where there is none yet, or it has it no more.

        Raises Unreachable where it may have done what may be done again.
        """
        if is_forwarded:
            raise _not_mine()
        seat = self._directory.seats.get(whose.kernel)
        if seat is None or not seat.alive or not seat.address:
            return None
        try:
            answer = await self._passed_on(call, body, seat)
        except Unreachable as problem:
            _log.info("kernel %s cannot be reached at %s: %s", seat.name, seat.address, problem)
            if not problem.was_sent or await self._directory.has_left(seat):
                return None
            if call.request.method == "POST":
                raise lost() from None
            raise
        if answer.status != NOT_MINE:
            return answer
        await answer.close()
        return None

    def _is_here(self, operation: Operation, name: str) -> bool:
        match operation.of:
            case "agent":
                return self._home.has_agent(name)
            case "run":
                return self._home.has_tree(name)
        return self._home.has_team(name)

    async def _whose(self, operation: Operation, name: str) -> Whose | None:
        match operation.of:
            case "agent":
                return await self._directory.of_agent(name)
            case "run":
                found = await self._directory.of_run(name)
                return found if found is not None and found.kernel else None  # One that is over is anybody's.
        return await self._directory.of_team(name)

    async def _passed_on(self, call: Call, body: Body, seat: Seat, target: bytes | None = None) -> Answer:
        headers = self._passes.headers(seat.name)
        answer = await self._forwarder.send(call, body, seat.name, seat.address, headers, target)
        if answer.header(REFUSED):
            await answer.close()
            _log.error("kernel %s refuses the pass of this one: all kernels of a store have the same token", seat.name)
            raise away()
        return answer

    # ---- of a key

    async def _of_key(self, call: Call, operation: Operation) -> Answer | None:
        """Of the agent that the key is of, wherever that is."""
        hash, body = hash_of(call.key), Body(call)
        until = asyncio.get_running_loop().time() + self._wait_s
        while not self._home.opens_an_agent(call.key):
            seat = self._directory.seats.get(self._directory.by_key.get(hash) or "") or await self._holder(call)
            answer = None
            if seat is not None:
                self._directory.by_key.put(hash, seat.name)
                with suppress(Unreachable):
                    answer = await self._of_other(call, Whose("", seat.name), body, False)
                if answer is not None:
                    if answer.status != HTTPStatus.UNAUTHORIZED:
                        return answer
                    await answer.close()
                self._directory.by_key.drop(hash)
            elif not self._home.is_taking_up("") and not await self._directory.orphans():
                break
            if asyncio.get_running_loop().time() >= until or not body.can_be_sent_again:
                raise away()
            await asyncio.sleep(_LOOK_S)
        if self._home.leaves and operation.begins:
            raise away()
        body.give_back()
        return None

    async def _holder(self, call: Call) -> Seat | None:
        """The other kernel that has the agent of the key."""

        async def has(seat: Seat) -> Seat | None:
            headers = {**self._passes.headers(seat.name), "authorization": f"Bearer {call.key}"}
            try:
                status = await self._forwarder.ask(seat.address, _PROBE, headers)
            except Unreachable:
                return None
            return seat if status == HTTPStatus.OK else None

        return next(filter(None, await asyncio.gather(*map(has, self._directory.others()))), None)

    # ---- of several

    async def _of_everyone(self, call: Call, operation: Operation, is_forwarded: bool) -> Any | None:
        """What all kernels answer, as one: without those whose word is that there is nothing for this key.

        None where another kernel asks for what is here: it makes one of them. Raises Refusal where that takes too long.
        """
        assert operation.merge is not None
        await self._until(self._is_settled if is_forwarded else self._are_all_settled)
        if is_forwarded:
            return None

        async def here() -> Any | RametError:
            scope = {**call.request.scope, **({"query_string": operation.whole} if operation.whole else {})}
            try:
                return await operation.handle(Call(Request(scope, call.request.receive), call.parts))
            except NotYours as refused:
                return refused

        answers = await asyncio.gather(
            here(), *(self._told(call, operation, each) for each in self._directory.others())
        )
        found = [each for each in answers if each is not None and not isinstance(each, RametError)]
        if not found and isinstance(answers[0], RametError):
            raise answers[0]
        return operation.merge(call, found)

    async def _told(self, call: Call, operation: Operation, seat: Seat) -> Any | None:
        try:
            target = call.request.scope["raw_path"] + b"?" + operation.whole if operation.whole else None
            answer = await self._passed_on(call, Body(call), seat, target)
            data = await answer.read()
        except Unreachable:
            raise away() from None
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise away()
        return msgspec.json.decode(data, type=operation.answers)

    async def _of_whoever(self, call: Call, operation: Operation) -> Any:
        """Whoever knows of it: this kernel, or another one; that none does is said once all could be asked."""
        said = await call.body(JSON_BYTES)
        until = asyncio.get_running_loop().time() + self._wait_s
        while True:
            is_known = await self._are_all_settled()  # Before it is asked: whoever takes it up meanwhile may have it.
            call.begin_again(said)
            try:
                answer = await operation.handle(call)
                return Response(status_code=HTTPStatus.NO_CONTENT) if answer is None else answer
            except (Unknown, NotYours) as refused:
                unknown = refused
            for seat in self._directory.others():
                call.begin_again(said)
                try:
                    found = await self._passed_on(call, Body(call), seat)
                except Unreachable as problem:
                    if problem.was_sent and not await self._directory.has_left(seat):
                        raise lost() from None
                    is_known = False
                    continue
                if found.status != HTTPStatus.NOT_FOUND:
                    return found
                await found.close()
            if is_known:
                raise unknown
            if asyncio.get_running_loop().time() >= until:
                raise away()
            await asyncio.sleep(_LOOK_S)

    async def _is_settled(self) -> bool:
        """Whether all that this kernel has taken over is open."""
        return not self._home.is_taking_up("")

    async def _are_all_settled(self) -> bool:
        """Whether there are no teams of kernels that are lost, either."""
        is_one_lost = len(self._directory.others()) < len(self._directory.seats.keys() - {self._directory.me})
        return not (is_one_lost and await self._directory.orphans()) and await self._is_settled()

    async def _until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        until = asyncio.get_running_loop().time() + self._wait_s
        while not await is_so():
            if asyncio.get_running_loop().time() >= until:
                raise away()
            await asyncio.sleep(_LOOK_S)


def _not_mine() -> Refusal:
    return Refusal(NOT_MINE, "this kernel has it no more")


def lost() -> Refusal:
    """It was begun where it was to be done, perhaps; nobody knows."""
    return Refusal(HTTPStatus.BAD_GATEWAY, "the kernel that has it was lost meanwhile: this may have been done, or not")


def away() -> Refusal:
    """What is asked for is there, and nobody can answer for it just now."""
    detail = "the kernel that has it is away, and no other has taken over from it yet; try again soon"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "1"})
