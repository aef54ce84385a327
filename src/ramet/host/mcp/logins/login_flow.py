"""The login of a person at a server: authorization code with PKCE, by the client of the package `mcp`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from ramet.core.errors import InvalidValue, McpServerFailed
from ramet.core.mcp.server_entry import McpServer
from ramet.core.mcp.server_url import check_header_value, checked_url
from ramet.host.mcp.logins.login_auth import login_client
from ramet.host.mcp.logins.login_store import Login

WAIT_S: Final = 300.0  #: for the person
_READ_S: Final = 10.0
_MAX_HEAD: Final = 16 * 1024
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PAGE: Final = b"You are logged in, or not: the terminal says so. This page can be closed.\n"
#: The library's log would show what the authorization server answers.
logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL)

#: Shows a link to the person.
ShowLink = Callable[[str], Awaitable[None]]
#: Waits for the address to which the person was redirected.
ReceiveRedirect = Callable[[], Awaitable[str]]


class Redirect(NamedTuple):
    """The place to which the authorization server sends the person."""

    uri: str
    receive: ReceiveRedirect


async def log_in(server: McpServer, redirect: Redirect, show: ShowLink) -> Login:
    """Log the person in. Raises McpServerFailed for a server that needs no login, or gives none."""
    storage = _Storage()

    async def show_checked(link: str) -> None:
        # The token endpoint, which gets the code, is named by the metadata of the authorization server, and known here.
        for name, url in (("page for logins", link), ("token endpoint", provider._get_token_endpoint())):
            if urlsplit(url).scheme != "https" and urlsplit(url).hostname not in _LOOPBACK:
                raise OAuthFlowError(f"its {name} is not at an https address")
        try:
            await show(checked_url("link", link))
        except InvalidValue:
            raise OAuthFlowError("the address of its page for logins is none") from None

    async def receive() -> AuthorizationCodeResult:
        fields = parse_qs(urlsplit(await redirect.receive()).query)
        if "error" in fields:
            raise OAuthFlowError(f"the authorization server refused it: {fields['error'][0][:100]}")
        code, state, issuer = (fields.get(name, [""])[0] for name in ("code", "state", "iss"))
        return AuthorizationCodeResult(code=code, state=state or None, iss=issuer or None)

    metadata = OAuthClientMetadata(
        client_name="ramet",
        redirect_uris=[AnyUrl(redirect.uri)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    provider = OAuthClientProvider(server.url, metadata, storage, show_checked, receive)
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"accept": "application/json, text/event-stream"}
    try:
        async with asyncio.timeout(2 * WAIT_S), login_client({server.endpoint}, provider) as client:
            async with client.stream("POST", server.url, json=message, headers=headers) as response:
                status = response.status_code
    except TimeoutError:
        raise McpServerFailed(server.name, f"nobody has logged in within {2 * WAIT_S:g} s") from None
    except Exception as error:
        raise McpServerFailed(server.name, f"the login failed: {str(error)[:500] or type(error).__name__}") from None
    client_info, token = storage.client_info, storage.token
    if token is None or client_info is None:
        raise McpServerFailed(server.name, f"it asked for no login (HTTP {status})")
    if status == 401:
        raise McpServerFailed(server.name, "it does not take the token that its authorization server gave")
    check_header_value("access_token", token.access_token)
    return Login(
        url=server.url,
        token_endpoint=checked_url("token_endpoint", provider._get_token_endpoint()),
        client_id=client_info.client_id or "",
        client_secret=client_info.client_secret or "",
        auth_method=client_info.token_endpoint_auth_method or "none",
        resource=provider.context.get_resource_url(),
        access_token=token.access_token,
        refresh_token=token.refresh_token or "",
        expires_at=None if token.expires_in is None else time.time() + token.expires_in,
    )


class _Storage:
    """The results of a login."""

    def __init__(self) -> None:
        self.token: OAuthToken | None = None
        self.client_info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.token = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client_info = client_info


@asynccontextmanager
async def loopback_redirect() -> AsyncGenerator[Redirect]:
    """Listen on this machine for the redirect of a browser.

    Its path is secret: another page in the browser cannot end the login by a request of its own.
    """
    expected = f"/callback/{secrets.token_urlsafe(16)}"
    target: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, path, *_ = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")
            is_redirect = method == "GET" and urlsplit(path).path == expected
            page = _PAGE if is_redirect else b"Not found.\n"
            status = b"200 OK" if is_redirect else b"404 Not Found"
            fields = b"content-type: text/plain\r\nconnection: close\r\ncache-control: no-store"
            writer.write(b"HTTP/1.1 %b\r\n%b\r\ncontent-length: %d\r\n\r\n%b" % (status, fields, len(page), page))
            await writer.drain()
            if is_redirect and not target.done():
                target.set_result(path)
        except (TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def receive() -> str:
        async with asyncio.timeout(WAIT_S):
            return await target

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, limit=_MAX_HEAD)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        yield Redirect(f"http://127.0.0.1:{port}{expected}", receive)
