"""The paths of the page itself: its files, and `about.json`, for the server that shows it.

The files are no secret. Everything else needs the key of the page, in `Authorization`: never in a cookie, which a
browser would send to other servers of this machine as well.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope, Send

from ramet.services.http import responses
from ramet.services.http.request import key_of
from ramet.services.http.responses import Refusal
from ramet.web.browser_checks import AllowedHosts, check_host, check_origin
from ramet.web.static_files import INDEX, static_files

ROOT: Final = "/ui"
ABOUT: Final = "about.json"
#: Of every answer to a browser, unless the answer has its own.
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class About(Struct, kw_only=True):
    """The description of a server for its page."""

    read_only: bool
    kernel: bool  #: whether a kernel is at work: otherwise the page shows what is recorded
    version: str
    idle_minutes: int  #: the time without a request after which the page must log out; 0: none
    dir: str  #: the working directory, or the address of the server


class PageHost(Protocol):
    """The server of a page."""

    def authorize(self, key: str) -> None:
        """Check the key of a page. Raises Refusal."""

    async def about(self) -> About:
        """Describe the server."""


def is_page(path: str) -> bool:
    """Return whether a path is of the page itself."""
    return path == ROOT or path.startswith(f"{ROOT}/")


async def answer_page(scope: Scope, host: PageHost, hosts: AllowedHosts) -> Response:
    """Answer a request to a path of the page. Raises Refusal."""
    headers, path = Headers(scope=scope), scope["path"]
    check_host(headers, hosts)
    if scope["method"] not in ("GET", "HEAD"):
        allow = {"allow": "GET, HEAD"}
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{scope['method']!a} is not possible here; GET is", allow)
    if path == ROOT:
        return RedirectResponse(f"{ROOT}/", HTTPStatus.TEMPORARY_REDIRECT)
    name = path.removeprefix(f"{ROOT}/") or INDEX
    if name == ABOUT:
        check_origin(headers, hosts)
        host.authorize(page_key(scope))
        return responses.json(await host.about())
    if (file := static_files().get(name)) is None:
        raise Refusal(HTTPStatus.NOT_FOUND, "the page has no such file")
    return file.answer(headers.get("if-none-match", ""), headers.get("accept-encoding", ""))


def page_key(scope: Scope) -> str:
    """Return the key of a request from a page. Raises Refusal if there is none."""
    if key := key_of(Request(scope)):
        return key
    raise refuse_key("a key is needed: the header Authorization with Bearer and the token of the page's link")


def refuse_key(detail: str) -> Refusal:
    """Return the refusal of a request without a valid key."""
    return Refusal(HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": "Bearer"})


def with_security_headers(send: Send) -> Send:
    """Return a `send` that adds the headers of every answer to a browser."""

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": list(message.get("headers", ()))}
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
