"""Authentication of requests to a server by the user's login, which is refreshed before it expires.

No run begins a login: without one that is valid, the session ends with an error that names the command.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

import httpx2
import msgspec

from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer
from ramet.core.mcp.server_url import check_header_value, endpoint_of
from ramet.host.egress.addresses import look_up
from ramet.host.egress.dial import Dialer
from ramet.host.mcp.address_transport import AddressTransport, CheckedNetwork
from ramet.host.mcp.logins.login_store import Login, LoginStore

REFRESH_S: Final = 30.0  #: for all of the answer: other sessions wait for it
EARLY_S: Final = 30.0  #: before the end of a token, it is replaced
_refreshes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: by address: a refresh token works once


class _TokenAnswer(msgspec.Struct, frozen=True):
    access_token: str
    token_type: str = "Bearer"
    refresh_token: str = ""
    expires_in: float | None = None


class LoginAuth(httpx2.Auth):
    """The authentication of requests to one server. `on_violation` takes the reason for which its session ends."""

    def __init__(self, server: McpServer, store: LoginStore | None, on_violation: Callable[[str], None]) -> None:
        self._server, self._store, self._on_violation = server, store, on_violation
        self._has_own_header = any(name.lower() == "authorization" for name in server.headers)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with the token, and once more with a new one if the server does not take the first."""
        login = await self._login()
        if login is not None:
            request.headers["authorization"] = f"Bearer {login.access_token}"
        response = yield request
        if response.status_code == 401 and login is not None:
            login = await self._refreshed(login)
            if login is not None:
                request.headers["authorization"] = f"Bearer {login.access_token}"
                response = yield request
        if response.status_code == 401:
            advice = f"mcp.{self._server.name}.headers" if self._has_own_header else self._command
            self._on_violation(f"it refused the connection (HTTP 401): see {advice}")

    @property
    def _command(self) -> str:
        return f"ramet mcp login {self._server.name}"

    async def _login(self) -> Login | None:
        if self._store is None or self._has_own_header:
            return None
        login = await asyncio.to_thread(self._store.read, self._server.url)
        if login is not None and login.expires_at is not None and login.expires_at - EARLY_S < time.time():
            return await self._refreshed(login)
        return login

    async def _refreshed(self, login: Login) -> Login | None:
        """Return the login with a new token; None if the authorization server gives none."""
        assert self._store is not None, "a login comes from a store"
        lock = _refreshes.setdefault(login.url, asyncio.Lock())
        async with lock:
            current = await asyncio.to_thread(self._store.read, login.url)
            if current is None or current.access_token != login.access_token:
                return current  # Another session was first, or the user has logged out.
            if not login.refresh_token:
                return None
            try:
                async with asyncio.timeout(REFRESH_S):
                    refreshed = await refresh(login)
            except (TimeoutError, httpx2.StreamError):
                return None
            if refreshed is not None:
                await asyncio.to_thread(self._store.write, refreshed)
            return refreshed


async def refresh(login: Login) -> Login | None:
    """Ask the authorization server for a new token; None if it gives none."""
    endpoint = login.token_endpoint
    data: dict[str, Any] = {"grant_type": "refresh_token", "refresh_token": login.refresh_token}
    data |= {"client_id": login.client_id}
    data |= {"resource": login.resource} if login.resource else {}
    headers: dict[str, str] = {}
    if login.auth_method == "client_secret_post":
        data["client_secret"] = login.client_secret
    elif login.auth_method == "client_secret_basic":
        pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"
        headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    async with login_client({endpoint_of(endpoint)}) as client:
        response = await client.post(endpoint, data=data, headers=headers)
        if response.status_code != 200:
            return None
        try:
            answer = msgspec.json.decode(await response.aread(), type=_TokenAnswer)
            check_header_value("access_token", answer.access_token)
        except (msgspec.DecodeError, httpx2.StreamError, InvalidValue):
            return None
    return msgspec.structs.replace(
        login,
        access_token=answer.access_token,
        refresh_token=answer.refresh_token or login.refresh_token,
        expires_at=None if answer.expires_in is None else time.time() + answer.expires_in,
    )


def login_client(endpoints: set[str], auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """Return a client for an authorization server: at one of these endpoints, or at a public address."""
    dialer = Dialer({"*", *endpoints}, lookup=look_up, private_networks=())
    network = CheckedNetwork(dialer, lambda host, port, is_allowed, reason: None)
    is_encrypted = not all(urlsplit(f"//{each}").hostname in ("127.0.0.1", "::1") for each in endpoints)
    tls = httpx2.create_ssl_context() if is_encrypted else None
    transport = AddressTransport(network, tls, lambda reason: None)
    return httpx2.AsyncClient(transport=transport, auth=auth, timeout=None, trust_env=False)
