"""The page of `ramet serve`: at `/ui` of the server itself, beside its API, which keeps its own check of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ramet.services.http import responses
from ramet.services.http.responses import Refusal
from ramet.services.version import ramet_version
from ramet.web.browser_checks import AllowedHosts, check_host, check_origin, is_from_browser
from ramet.web.page import About, answer_page, is_page, refuse_key, with_security_headers


@dataclass(frozen=True, kw_only=True)
class ServerPage:
    """An ASGI application that shows the page, and passes all other requests on to the server's application.

    A request that says that it comes from a browser must come from the page of this server.
    """

    application: ASGIApp
    hosts: AllowedHosts
    is_operator: Callable[[str], bool]
    dir: str
    idle_minutes: int = 60  #: the page logs out by itself: an operator's key does not end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        send, headers = with_security_headers(send), Headers(scope=scope)
        try:
            if is_page(scope["path"]):
                await (await answer_page(scope, self, self.hosts))(scope, receive, send)
                return
            if is_from_browser(headers):
                check_host(headers, self.hosts)
                check_origin(headers, self.hosts)
        except Refusal as refusal:
            await responses.problem(refusal)(scope, receive, send)
            return
        await self.application(scope, receive, send)

    def authorize(self, key: str) -> None:
        """Check that this is the operator's key. Raises Refusal."""
        if not self.is_operator(key):
            raise refuse_key("this is not the operator's key of this server")

    async def about(self) -> About:
        """Describe the server: its page may do all that the operator's key may do."""
        return About(
            read_only=False, kernel=True, version=ramet_version(), idle_minutes=self.idle_minutes, dir=self.dir
        )
