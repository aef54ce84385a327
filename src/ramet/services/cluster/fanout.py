"""Requests that concern no single kernel: all kernels answer them together, or the one kernel that knows the object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.core.errors import NotYours, RametError, Unknown
from ramet.services.cluster.directory import Directory, LocalOwnership
from ramet.services.cluster.errors import outcome_unknown, unavailable
from ramet.services.cluster.forward import Body, Unreachable
from ramet.services.cluster.peer_requests import PeerRequests
from ramet.services.http.request import JSON_BYTES, RequestContext
from ramet.services.idempotency.attempts import HEADER
from ramet.store.contract import KernelInfo

if TYPE_CHECKING:
    from ramet.services.http.routes.operation import Operation

_log = logging.getLogger("ramet.serve")
_POLL_S: Final = 0.05
#: The statuses for an unknown object, and for a key that is known here but not there.
_UNKNOWN_STATUSES: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED})


class FanOut:
    """Requests from this kernel to all kernels of a store.

    `wait_s` limits the wait for the takeover of a lost kernel's teams.
    """

    def __init__(self, directory: Directory, peers: PeerRequests, local: LocalOwnership, *, wait_s: float) -> None:
        self._directory, self._peers, self._local, self._wait_s = directory, peers, local, wait_s

    async def ask_all(self, call: RequestContext, operation: Operation, is_forwarded: bool) -> Any | None:
        """Return the merged answers of all kernels, without the kernels that have nothing for this key.

        Returns None for a request that another kernel forwarded: that kernel merges the answers. Raises Refusal after
        `wait_s`.
        """
        assert operation.merge is not None
        await self._wait_until(self._is_settled if is_forwarded else self.are_all_settled)
        if is_forwarded:
            return None
        await call.check_key()

        async def ask_own_kernel() -> Any | RametError:
            scope = {
                **call.request.scope,
                **({"query_string": operation.unpaged_query} if operation.unpaged_query else {}),
            }
            try:
                return await operation.handle(RequestContext(Request(scope, call.request.receive), call.parts))
            except NotYours as error:
                return error

        answers = await asyncio.gather(
            ask_own_kernel(), *(self._ask_kernel(call, operation, each) for each in self._directory.reachable_kernels())
        )
        results = [each for each in answers if each is not None and not isinstance(each, RametError)]
        if not results and isinstance(answers[0], RametError):
            raise answers[0]
        return operation.merge(call, results)

    async def _ask_kernel(self, call: RequestContext, operation: Operation, kernel: KernelInfo) -> Any | None:
        try:
            target = (
                call.request.scope["raw_path"] + b"?" + operation.unpaged_query if operation.unpaged_query else None
            )
            async with asyncio.timeout(self._wait_s):  # A stopped process keeps its lock, and does not answer.
                response = await self._peers.send(call, Body(call), kernel, target)
                data = await response.read()
        except (Unreachable, TimeoutError) as problem:
            _log.warning(
                "kernel %s does not answer a request to all kernels: %s",
                kernel.name,
                str(problem) or "it does not answer",
            )
            raise unavailable() from None
        if response.status in _UNKNOWN_STATUSES:
            return None
        if response.status != HTTPStatus.OK:
            raise unavailable()
        return msgspec.json.decode(data, type=operation.endpoint.answers)

    async def ask_each(self, call: RequestContext, operation: Operation) -> Any:
        """Return the answer of the kernel that knows the object: this one, or another one.

        Raises Unknown or NotYours only after all kernels were asked.
        """
        await call.check_key()
        body = await call.body(JSON_BYTES)
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            is_known = await self.are_all_settled()  # Check before asking: a takeover meanwhile may change the owner.
            call.restart_body(body)
            try:
                answer = await operation.handle(call)
                return Response(status_code=HTTPStatus.NO_CONTENT) if answer is None else answer
            except (Unknown, NotYours) as error:
                unknown = error
            for kernel in self._directory.reachable_kernels():
                call.restart_body(body)
                try:
                    response = await self._peers.send(call, Body(call), kernel)
                except Unreachable as problem:
                    is_repeatable = HEADER in call.request.headers
                    if problem.was_sent and not is_repeatable and not await self._directory.has_left(kernel):
                        raise outcome_unknown() from None
                    is_known = False
                    continue
                if response.status not in _UNKNOWN_STATUSES:
                    return response
                await response.close()
            if is_known:
                raise unknown
            if asyncio.get_running_loop().time() >= deadline:
                raise unavailable()
            await asyncio.sleep(_POLL_S)

    async def _is_settled(self) -> bool:
        """Return whether everything that this kernel has taken over is open."""
        return not self._local.spawner.is_taking_over("")

    async def are_all_settled(self) -> bool:
        """Return whether this kernel is settled, and no team of a lost kernel waits for its takeover."""
        # By the teams, not by the kernels: an owner that joined just now is not in the directory yet.
        return not await self._directory.orphans() and await self._is_settled()

    async def _wait_until(self, is_met: Callable[[], Awaitable[bool]]) -> None:
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while not await is_met():
            if asyncio.get_running_loop().time() >= deadline:
                raise unavailable()
            await asyncio.sleep(_POLL_S)
