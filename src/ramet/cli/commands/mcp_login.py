"""`ramet mcp login|logout`: the user's logins at MCP servers."""

from __future__ import annotations

import asyncio
import importlib
import sys
import webbrowser
from typing import Any

from rich.text import Text

from ramet.cli.paths import user_dir
from ramet.cli.render.console import console
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.logins.login_store import LoginStore
from ramet.host.mcp.mcp_client import SdkClient


def login(server: McpServer, *, has_browser: bool) -> int:
    """Log the user in, and store the login. Raises McpServerFailed, InvalidValue, MissingExtra."""
    _check(server)
    SdkClient(None).check()
    flow: Any = importlib.import_module("ramet.host.mcp.logins.login_flow")  # It takes half a second.
    store = LoginStore(user_dir())
    store.write(asyncio.run(_log_in(flow, server, has_browser=has_browser)))
    _print(f"logged in at {server.url}")
    return 0


def logout(server: McpServer) -> int:
    """Remove the login at a server's address. Raises InvalidValue."""
    _check(server)
    was_there = LoginStore(user_dir()).remove(server.url)
    _print(f"logged out of {server.url}" if was_there else f"there is no login at {server.url}")
    return 0


def _check(server: McpServer) -> None:
    if not server.url:
        raise InvalidValue("NAME", server.name, "a server with a url: a program needs no login")


async def _log_in(flow: Any, server: McpServer, *, has_browser: bool) -> Any:
    async with flow.loopback_redirect() as redirect:

        async def show(link: str) -> None:
            _print("Log in at:")
            _print(link)
            if has_browser:
                in_thread(lambda: webbrowser.open(link), name="ramet-browser")
            else:
                _print("and paste the address to which the browser is sent, also if it cannot show that page:")

        async def receive() -> str:
            if has_browser:
                return str(await redirect.receive())
            listening = asyncio.ensure_future(redirect.receive())
            pasting = in_thread(sys.stdin.readline, name="ramet-paste")
            try:
                await asyncio.wait({listening, pasting}, return_when=asyncio.FIRST_COMPLETED)
                return str(listening.result() if listening.done() else pasting.result().strip())
            finally:
                listening.cancel()

        return await flow.log_in(server, flow.Redirect(redirect.uri, receive), show)


def _print(text: str) -> None:
    console(sys.stdout).print(Text(text), soft_wrap=True)
    sys.stdout.flush()
