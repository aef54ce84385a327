"""The messages of a server at an address: streamable HTTP, by the transport of the package `mcp`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client

from ramet.core.mcp.entry_references import fill_references
from ramet.core.mcp.server_entry import McpServer
from ramet.core.mcp.server_url import check_header_value
from ramet.host.egress.addresses import look_up
from ramet.host.egress.dial import Dialer
from ramet.host.mcp.address_transport import MAX_MESSAGE_BYTES, AddressTransport, CheckedNetwork
from ramet.host.mcp.logins.login_auth import LoginAuth
from ramet.host.mcp.logins.login_store import LoginStore
from ramet.tools.mcp.connection_port import ServerRights

#: A server could fill a log with what is wrong with its lines.
_SDK_LOGGER: Final = logging.getLogger("mcp.client.streamable_http")
if _SDK_LOGGER.level == logging.NOTSET:
    _SDK_LOGGER.setLevel(logging.CRITICAL)


class AddressStreams(NamedTuple):
    """The two streams of messages."""

    incoming: Any
    outgoing: Any


@asynccontextmanager
async def address_streams(
    server: McpServer, rights: ServerRights, *, logins: LoginStore | None, on_violation: Callable[[str], None]
) -> AsyncGenerator[AddressStreams]:
    """Keep a connection to the address of a server. Raises InvalidValue for a header without its value."""
    tls = await asyncio.to_thread(httpx2.create_ssl_context) if urlsplit(server.url).scheme == "https" else None
    dialer = Dialer(rights.endpoints, lookup=look_up, private_networks=())
    transport = AddressTransport(CheckedNetwork(dialer, rights.on_endpoint), tls, on_violation)
    client = httpx2.AsyncClient(
        transport=transport,
        auth=LoginAuth(server, logins, on_violation),
        headers=filled_headers(server, rights),
        timeout=None,
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as (
            incoming,
            outgoing,
        ),
    ):
        yield AddressStreams(incoming, outgoing)


def filled_headers(server: McpServer, rights: ServerRights) -> dict[str, str]:
    """Return the headers with the values of their references. Raises InvalidValue."""
    filled: dict[str, str] = {}
    for name, text in server.headers.items():
        field = f"mcp.{server.name}.headers.{name}"
        filled[name] = fill_references(field, text, rights.value_of)
        check_header_value(field, filled[name])
    return filled
