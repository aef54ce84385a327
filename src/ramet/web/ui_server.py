"""The server of `ramet ui`: the page at a port of this machine's loopback interface, with a token for one start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final, Protocol, Self

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from ramet.core.errors import RametError
from ramet.services.http import responses
from ramet.services.http.connections import Bounds, HttpServer
from ramet.services.http.responses import Refusal
from ramet.services.http.sockets import tcp_listener
from ramet.services.version import ramet_version
from ramet.web.browser_checks import AllowedHosts, check_host, check_origin
from ramet.web.forwarding_api import checked_path
from ramet.web.link_codes import HINT, LinkCodes, PageSession
from ramet.web.page import ROOT, About, answer_page, is_page, page_key, refuse_key, with_security_headers
from ramet.web.page_token import PageToken
from ramet.web.static_files import prepare_files

HOST: Final = "127.0.0.1"
SESSION: Final = f"{ROOT}/session"  #: exchanges the code of a link for the token
HEAD_BYTES: Final = 32 * 1024  #: of the path and all headers
_BOUNDS: Final = Bounds(connections=1_000)


class PageApi(Protocol):
    """The API of a page, as an ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Refusal, and RametError, before anything was sent."""

    async def has_kernel(self) -> bool:
        """Return whether a kernel is at work."""


class UiServer:
    """The server of one page, between `async with`. A link of `new_link` is the way in, once.

    After `idle_minutes` without a request the token ends, and `on_end` is called; 0 means no end. With
    `read_only`, the API takes no method but GET. `names` are further hosts of its address.
    """

    def __init__(
        self,
        api: PageApi,
        dir: str,
        *,
        port: int = 0,
        read_only: bool = False,
        idle_minutes: int = 0,
        names: Collection[str] = (),
        on_end: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._dir, self._port = api, dir, port
        self._read_only, self._idle_minutes = read_only, idle_minutes
        self._names = frozenset(names)
        self._codes, self._on_end = LinkCodes(now), on_end
        self._token = PageToken(idle_minutes * 60.0, now, self._log_out)

    def new_link(self) -> str:
        """Return an address of the page that works once, with a code in the fragment, which browsers send nowhere."""
        return f"{self.address}#code={self._codes.issue()}"

    @property
    def address(self) -> str:
        """The address of the page, without a way in."""
        return f"http://{HOST}:{self.port}{ROOT}/"

    @property
    def token(self) -> str:
        """The token that a page has instead of a code."""
        return self._token.text

    async def __aenter__(self) -> Self:
        """Listen. Raises InvalidValue for a port that is in use, and MissingExtra."""
        listener = tcp_listener(HOST, self._port)
        self.port: int = listener.socket.getsockname()[1]
        self._hosts = AllowedHosts(self.port, self._names)
        try:
            self._http = HttpServer(self, listener, _BOUNDS)
            await self._http.start()
        except BaseException:
            listener.close()
            raise
        self._watch_token()
        prepare_files()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._expiry.cancel()
        await self._http.stop(within_s=0)
        self._http.listener.close()

    def authorize(self, key: str) -> None:
        """Check the token of a page. Raises Refusal."""
        if not self._token.is_valid(key):
            raise refuse_key(f"this token is not valid: it is wrong, or it has ended; {HINT}")

    async def about(self) -> About:
        """Describe this server."""
        return About(
            read_only=self._read_only,
            kernel=await self._api.has_kernel(),
            version=ramet_version(),
            idle_minutes=self._idle_minutes,
            dir=self._dir,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: the ASGI application of this server."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        send = with_security_headers(send)
        try:
            await self._answer_checked(scope, receive, send)
        except (Refusal, RametError) as error:
            await responses.problem(error)(scope, receive, send)

    async def _answer_checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in headers.raw) + len(scope["raw_path"]) > HEAD_BYTES:
            raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"headers are at most {HEAD_BYTES} bytes")
        if scope["path"] == SESSION:
            check_host(headers, self._hosts)
            check_origin(headers, self._hosts)
            if scope["method"] != "POST":
                raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "POST is possible here", {"allow": "POST"})
            self._token.expire()
            self._codes.use(page_key(scope))  # Not in a body: nobody without a key can make this server wait for one.
            with self._token.use():
                await responses.json(PageSession(self._token.text))(scope, receive, send)
            return
        if is_page(scope["path"]):
            await (await answer_page(scope, self, self._hosts))(scope, receive, send)
            return
        check_host(headers, self._hosts)
        if scope["path"] == "/":
            await RedirectResponse(f"{ROOT}/", HTTPStatus.TEMPORARY_REDIRECT)(scope, receive, send)
            return
        check_origin(headers, self._hosts)
        checked_path(scope)
        self.authorize(page_key(scope))
        if self._read_only and scope["method"] != "GET":
            raise Refusal(HTTPStatus.FORBIDDEN, "this page is read-only: it was opened with --read-only")
        with self._token.use():
            await self._api(scope, receive, send)

    def _log_out(self) -> None:
        """End the links that lead to a token, too, before anybody is given a new one."""
        self._codes.end()
        self._on_end()

    def _watch_token(self) -> None:
        """Let the token end, and look again when it may be idle."""
        self._expiry = asyncio.get_running_loop().call_later(self._token.expire(), self._watch_token)
