"""The API of a working directory: of the server that runs in it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Self

from starlette.types import Receive, Scope, Send

from ramet.disk.state_folder import state_folder
from ramet.services.http.responses import Refusal
from ramet.services.server.server import SOCKET
from ramet.web.forwarding_api import ForwardingApi


class FolderApi:
    """An ASGI application that answers for a folder, between `async with`."""

    def __init__(self, folder: Path, name: str, *, on_kernel: Callable[[str], None] = lambda _: None) -> None:
        self.name, self._folder = name, folder
        self._socket = state_folder(folder) / SOCKET
        self._server = ForwardingApi(str(self._socket))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def has_kernel(self) -> bool:
        """Return whether a kernel is at work."""
        return self._has_server()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Refusal."""
        if not self._has_server():
            raise Refusal(HTTPStatus.BAD_GATEWAY, f"no server runs in {self.name}")
        await self._server(scope, receive, send)

    def _has_server(self) -> bool:
        """Return whether a server listens at the folder's socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self._socket))
            except BlockingIOError:  # its backlog is full
                return True
            except OSError:
                return False
        return True
