"""Routing: each request is answered here, or is forwarded, once, to the kernel that owns its object.

Another kernel takes over the teams of a lost kernel. A request for such a team waits for the takeover, and is refused
with a retry hint if that takes too long. An object is never reported as unknown because its kernel is away.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from ramet.core.errors import Gone, MailRefused, NotYours, OwnedElsewhere, RametError, StoreFailed, Unknown
from ramet.services.cluster.auth import FROM, PeerAuth
from ramet.services.cluster.directory import Directory, LocalOwnership, Owner
from ramet.services.cluster.errors import MISDIRECTED, misdirected_request, outcome_unknown, unavailable
from ramet.services.cluster.fanout import FanOut
from ramet.services.cluster.forward import Body, ForwardedResponse, Forwarder, Unreachable
from ramet.services.cluster.peer_requests import PeerRequests
from ramet.services.errors import TakenOver
from ramet.services.http.request import JSON_BYTES, RequestContext
from ramet.services.idempotency.attempts import HEADER
from ramet.services.problems import MEDIA_TYPE, to_problem
from ramet.services.teams.keys import hash_of
from ramet.store.contract import KernelInfo

if TYPE_CHECKING:
    from ramet.services.http.routes.operation import Operation

_log = logging.getLogger("ramet.serve")
#: How long a request waits for the takeover of a team or tree of a lost kernel.
WAIT_S: Final = 15.0
_POLL_S: Final = 0.05


class _ProblemType(Struct):
    """The type of a problem document."""

    type: str = ""


class _Spawn(Struct):
    team: str = ""


class KernelRouter:
    """The routing of one kernel's requests to other kernels."""

    def __init__(
        self,
        directory: Directory,
        auth: PeerAuth,
        forwarder: Forwarder,
        local: LocalOwnership,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self._directory, self._local, self._wait_s = directory, local, wait_s
        self._peers = PeerRequests(auth, forwarder)
        self._fan_out = FanOut(directory, self._peers, local, wait_s=wait_s)

    async def forward(self, call: RequestContext, operation: Operation) -> Any | None:
        """Return the answer of another kernel, or of several; None if this kernel must answer.

        Raises Refusal for a request with an invalid pass, and if no kernel can answer now.
        """
        sender = self._peers.sender_of(call.request.headers)
        match operation.of:
            case "here":
                if self._local.is_draining() and operation.begins:
                    raise unavailable()
                return None
            case "everyone":
                return await self._fan_out.ask_all(call, operation, bool(sender))
            case "whoever":
                return None if sender else await self._fan_out.ask_each(call, operation)
            case "key":
                return None if sender else await self._forward_by_key(call, operation)
        body = Body(call)
        name = await self._name(call, operation, body)
        if name is not None:
            return await self._forward_to_owner(call, operation, name, body, bool(sender))
        if operation.of == "query":
            return await self._fan_out.ask_all(call, operation, bool(sender))
        body.restore()
        return None

    async def handle_locally(self, call: RequestContext, operation: Operation) -> Any:
        """Return the answer of this kernel.

        Raises UnknownKey, and TakenOver for an object that moved to another kernel meanwhile. A forwarding kernel gets
        a refusal instead, and then asks the new owner.
        """
        try:
            if not operation.own_error_form:
                await call.check_key()
            return await operation.handle(call)
        except (TakenOver, OwnedElsewhere) as error:
            problem: RametError = error
        except StoreFailed as store_error:
            if not isinstance(store_error.__cause__, OwnedElsewhere):
                raise
            problem = store_error.__cause__
        except (NotYours, Gone, MailRefused):
            if operation.of not in ("agent", "team", "run") or not await self._has_moved(operation, call):
                raise
            problem = TakenOver(operation.of, call.path(operation.of))
        raise misdirected_request() if call.request.headers.get(FROM) else problem

    async def _has_moved(self, operation: Operation, call: RequestContext) -> bool:
        name, is_run = call.path(operation.of), operation.of == "run"
        # A tree is here until it has ended. A tree that moved elsewhere does not end here.
        if (not is_run and self._is_here(operation, name)) or (owner := await self._owner(operation, name)) is None:
            return False
        self._directory.forget(owner)
        owner = await self._owner(operation, name)
        if owner is None or owner.kernel == self._directory.me:
            return False
        return not is_run or self._directory.is_alive(owner.kernel)

    async def team_of(self, key: str) -> str:
        """Return the id of the team, of any kernel, that has this key; "" if there is none."""
        return await self._directory.team_of(hash_of(key))

    async def knows_key(self, call: RequestContext) -> bool:
        """Return whether a key that opens nothing here opens something of another kernel.

        Raises Refusal while objects of a lost kernel are being taken over, since the answer is unknown then.
        """
        hash = hash_of(call.key)
        if await self._directory.team_of(hash) or await self._holder(call) is not None:
            return True
        if not await self._fan_out.are_all_settled():
            raise unavailable()
        return self._local.spawner.knows_key(call.key)  # It may have moved here meanwhile.

    # ---- requests for one object

    async def _name(self, call: RequestContext, operation: Operation, body: Body) -> str | None:
        """Return the id or name of the request's object; None if the request names none."""
        match operation.of:
            case "body":
                await call.team()  # Check the key before reading bytes of a stranger.
                try:
                    return msgspec.json.decode(await body.read_start(JSON_BYTES), type=_Spawn).team or None
                except (msgspec.DecodeError, UnicodeError, RecursionError):
                    return None
            case "query":
                return call.request.query_params.get("team") or None
        return call.path(operation.of)

    async def _forward_to_owner(
        self, call: RequestContext, operation: Operation, name: str, body: Body, is_forwarded: bool
    ) -> Any | None:
        deadline = asyncio.get_running_loop().time() + self._wait_s
        may_be_gone = False  #: set once a removal was sent and not answered
        while True:
            owner = None if self._is_here(operation, name) else await self._owner(operation, name)
            if owner is not None and await self._is_owned_here(operation, owner):
                self._directory.forget(owner)  # The cached owner may be outdated.
                owner = await self._owner(operation, name)
            if owner is None or await self._is_owned_here(operation, owner):
                # It is here, or it does not exist: then this kernel's handler reports that.
                if not (self._local.is_draining() and operation.begins):
                    body.restore()
                    return await self._removed_here(call, operation) if may_be_gone else None
                raise misdirected_request() if is_forwarded else unavailable()
            if owner.kernel != self._directory.me:
                try:
                    response = await self._forward(call, owner, body, is_forwarded)
                except Unreachable:
                    may_be_gone, response = operation.endpoint.method == "DELETE", None
                if response is not None:
                    return response if not may_be_gone else await self._removed_there(call, operation, response)
            self._directory.forget(owner)
            if not body.can_be_sent_again:
                raise unavailable()
            if operation.of == "run" and await self._is_abandoned(name, owner):
                body.restore()
                return None
            if asyncio.get_running_loop().time() >= deadline:
                if operation.of == "run" and operation.endpoint.method == "GET":  # Its journal can be read here.
                    return None
                raise unavailable()
            await asyncio.sleep(_POLL_S)

    async def _removed_here(self, call: RequestContext, operation: Operation) -> Any:
        try:
            return await self.handle_locally(call, operation) or Response(status_code=HTTPStatus.NO_CONTENT)
        except (NotYours, Unknown) as error:
            if await self._is_gone(call, operation, isinstance(error, Unknown)):
                return Response(status_code=HTTPStatus.NO_CONTENT)
            raise

    async def _removed_there(self, call: RequestContext, operation: Operation, response: ForwardedResponse) -> Any:
        if response.status not in (
            HTTPStatus.NOT_FOUND,
            HTTPStatus.UNAUTHORIZED,
        ):  # Its key may have been removed, too.
            return response
        body = await response.read()
        is_part = msgspec.json.decode(body, type=_ProblemType).type == to_problem(Unknown("", "")).type
        if await self._is_gone(call, operation, is_part):
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return Response(body, response.status, media_type=MEDIA_TYPE)

    async def _is_gone(self, call: RequestContext, operation: Operation, is_part: bool) -> bool:
        """Return whether the object of a removal is gone. For a part of an object, its owner's answer counts."""
        return is_part or await self._directory.is_gone(operation.of, call.path(operation.of))

    async def _forward(
        self, call: RequestContext, owner: Owner, body: Body, is_forwarded: bool
    ) -> ForwardedResponse | None:
        """Return the answer of the owning kernel; None if there is no such kernel yet, or it is no longer the owner.

        Raises Unreachable if that kernel may have executed a request that can be repeated, as with an Idempotency-Key.
        """
        if is_forwarded:
            raise misdirected_request()
        kernel = self._directory.kernels.get(owner.kernel)
        if kernel is None or not kernel.alive or not kernel.address:
            return None
        try:
            response = await self._peers.send(call, body, kernel)
        except Unreachable as problem:
            _log.info("kernel %s cannot be reached at %s: %s", kernel.name, kernel.address, problem)
            if not problem.was_sent or await self._directory.has_left(kernel):
                return None
            if call.request.method == "POST" and HEADER not in call.request.headers:
                raise outcome_unknown() from None
            raise
        if response.status != MISDIRECTED:
            return response
        await response.close()
        return None

    async def _is_owned_here(self, operation: Operation, owner: Owner) -> bool:
        """Return whether this kernel owns the object completely: nothing of it is still being taken over.

        A run's tree is taken over with its team, or alone.
        """
        is_run = operation.of == "run"
        if owner.kernel != self._directory.me or self._local.spawner.is_taking_over("" if is_run else owner.id):
            return False
        return not (is_run and await self._directory.is_scheduled(owner.id))

    async def _is_abandoned(self, run: str, owner: Owner) -> bool:
        """Return whether the kernel of a run is lost, and no kernel takes the run over.

        Such a run has no team and no schedule.
        """
        if self._directory.is_alive(owner.kernel) or await self._directory.orphans():
            return False
        if await self._directory.is_scheduled(owner.id):
            return False
        self._directory.forget(owner)  # Its team may have a new owner.
        return await self._directory.of_run(run) == owner

    def _is_here(self, operation: Operation, name: str) -> bool:
        match operation.of:
            case "agent":
                return self._local.spawner.agents.has(name)
            case "run":
                return name in self._local.journal.living
        return self._local.spawner.has_team(name)

    async def _owner(self, operation: Operation, name: str) -> Owner | None:
        match operation.of:
            case "agent":
                return await self._directory.of_agent(name)
            case "run":
                owner = await self._directory.of_run(name)
                return owner if owner is not None and owner.kernel else None  # Any kernel can answer for an ended run.
        return await self._directory.of_team(name)

    # ---- requests by key

    async def _forward_by_key(self, call: RequestContext, operation: Operation) -> ForwardedResponse | None:
        """Forward the request to the kernel that has the agent of the key; None if this kernel must answer."""
        hash, body = hash_of(call.key), Body(call)
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while not self._local.spawner.agents.has_right(call.key, "turn"):
            kernel = self._directory.kernels.get(self._directory.by_key.get(hash) or "") or await self._holder(call)
            response = None
            if kernel is not None:
                self._directory.by_key.put(hash, kernel.name)
                with suppress(Unreachable):
                    response = await self._forward(call, Owner("", kernel.name), body, False)
                if response is not None:
                    if response.status != HTTPStatus.UNAUTHORIZED:
                        return response
                    await response.close()
                self._directory.by_key.drop(hash)
            elif not self._local.spawner.is_taking_over("") and not await self._directory.orphans():
                break
            if asyncio.get_running_loop().time() >= deadline or not body.can_be_sent_again:
                raise unavailable()
            await asyncio.sleep(_POLL_S)
        if self._local.is_draining() and operation.begins:
            raise unavailable()
        body.restore()
        return None

    async def _holder(self, call: RequestContext) -> KernelInfo | None:
        """Return the other kernel that has the agent of the key; None if no kernel says so."""

        kernels = list(self._directory.reachable_kernels())
        answers = await asyncio.gather(*(self._peers.knows_key(call.key, each) for each in kernels))
        return next((each for each, has_key in zip(kernels, answers, strict=True) if has_key), None)
