"""Requests that go from kernel to kernel: each bears a pass, which only kernels of one store can give."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from ramet.core.errors import Denied
from ramet.services.cluster.auth import PeerAuth
from ramet.services.cluster.errors import PASS_REFUSED, unavailable
from ramet.services.cluster.forward import Body, ForwardedResponse, Forwarder, Unreachable
from ramet.services.http.request import RequestContext
from ramet.services.http.responses import Refusal
from ramet.store.contract import KernelInfo

_log = logging.getLogger("ramet.serve")
_PROBE: Final = "/v1/models"


class PeerRequests:
    """Both ends of that, of one kernel."""

    def __init__(self, passes: PeerAuth, forwarder: Forwarder) -> None:
        self._passes, self._forwarder = passes, forwarder

    def came_from(self, headers: Mapping[str, str]) -> str:
        """The kernel that passed this on, "" if none did. Raises Refusal for one that only says so."""
        try:
            return self._passes.check(headers)
        except Denied as refused:
            _log.error("a request bears a pass that no kernel of this store gave; do all have the same token?")
            raise Refusal(HTTPStatus.FORBIDDEN, str(refused), {PASS_REFUSED: "refused"}) from None

    async def on(
        self, call: RequestContext, body: Body, seat: KernelInfo, target: bytes | None = None
    ) -> ForwardedResponse:
        """What another kernel answers to a request. Raises Unreachable, and Refusal where it does not know us."""
        headers = self._passes.headers(seat.name)
        answer = await self._forwarder.send(call, body, seat.name, seat.address, headers, target)
        if answer.header(PASS_REFUSED):
            await answer.close()
            _log.error("kernel %s refuses the pass of this one: all kernels of a store have the same token", seat.name)
            raise unavailable()
        return answer

    async def knows(self, key: str, seat: KernelInfo) -> bool:
        """Whether another kernel has the agent of that key; False where it cannot be asked."""
        headers = {**self._passes.headers(seat.name), "authorization": f"Bearer {key}"}
        try:
            return await self._forwarder.ask(seat.address, _PROBE, headers) == HTTPStatus.OK
        except Unreachable:
            return False
