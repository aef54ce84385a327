"""Requests between kernels: each contains a pass, which only kernels of the same store can create."""

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
    """Both directions of requests between this kernel and others."""

    def __init__(self, auth: PeerAuth, forwarder: Forwarder) -> None:
        self._auth, self._forwarder = auth, forwarder

    def sender_of(self, headers: Mapping[str, str]) -> str:
        """Return the kernel that forwarded the request, "" if none did. Raises Refusal if the pass is invalid."""
        try:
            return self._auth.check(headers)
        except Denied as error:
            _log.error("a request has a pass that no kernel of this store issued; do all kernels have the same token?")
            raise Refusal(HTTPStatus.FORBIDDEN, str(error), {PASS_REFUSED: "refused"}) from None

    async def send(
        self, call: RequestContext, body: Body, kernel: KernelInfo, target: bytes | None = None
    ) -> ForwardedResponse:
        """Return another kernel's answer to a request.

        Raises Unreachable, and Refusal if that kernel refuses our pass.
        """
        headers = self._auth.headers(kernel.name)
        response = await self._forwarder.send(call, body, kernel.name, kernel.address, headers, target)
        if response.header(PASS_REFUSED):
            await response.close()
            _log.error(
                "kernel %s refuses the pass of this kernel: all kernels of a store have the same token", kernel.name
            )
            raise unavailable()
        return response

    async def knows_key(self, key: str, kernel: KernelInfo) -> bool:
        """Return whether another kernel has the agent of that key; False if that kernel cannot be asked."""
        headers = {**self._auth.headers(kernel.name), "authorization": f"Bearer {key}"}
        try:
            return await self._forwarder.ask(kernel.name, kernel.address, _PROBE, headers) == HTTPStatus.OK
        except Unreachable:
            return False
