"""The API of a working directory: of its server if one runs there, else of its journal and of its kernel, if any."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ramet.core.errors import Damaged, StoreFailed
from ramet.disk.state_folder import state_folder
from ramet.host.control.run_queries import NoJournal, journal_in
from ramet.services.http import endpoints
from ramet.services.http.responses import Refusal
from ramet.web.control_api import ActTarget, answer_act, check_route, target_of
from ramet.web.folder_activity import FolderActivity
from ramet.web.forwarding_api import ForwardingApi
from ramet.web.started_kernel import StartedKernel

if TYPE_CHECKING:
    from ramet.web.journal_api import JournalApi
    from ramet.web.journal_views import JournalViews

SOCKET: Final = "serve.sock"  #: as in `ramet.services.server.server`, which is slow to import


class FolderApi:
    """An ASGI application that answers for a folder, between `async with`.

    A server in the folder answers everything. Without one, reading is answered from the journal, and acts by the kernel
    at work. If there is no kernel, an act starts one, and `on_start` is told of it.
    """

    def __init__(self, folder: Path, *, on_start: Callable[[str], None] = lambda _: None) -> None:
        self.name, self._folder = str(folder), folder
        self._socket = state_folder(folder) / SOCKET
        self._server = ForwardingApi(str(self._socket))
        self._activity = FolderActivity(folder)
        self._journal_api: JournalApi | None = None  #: of the views that are open
        self._kernel = StartedKernel(folder, on_start)
        self._views: JournalViews | None = None
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._server)
        self._stack.push_async_callback(self._kernel.stop)
        self._stack.push_async_callback(self._close_views)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def open_streams(self) -> int:
        """The number of streams that are read from the journal."""
        return self._journal_api.open_streams if self._journal_api is not None else 0

    async def has_kernel(self) -> bool:
        """Return whether a kernel is at work."""
        return self._has_server() or self._activity.has_kernel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Refusal, RametError."""
        is_act = scope["method"] != "GET"
        if is_act and not await self.has_kernel():
            target = target_of(scope)
            if target is not None and target.endpoint is endpoints.RESUME_RUN:
                return await self._resume(target.name, scope, receive, send)
            if target is not None and target.endpoint is not endpoints.KEEP_RUN:
                raise Refusal(HTTPStatus.CONFLICT, await self._advice(target))
            check_route(scope)
            await self._kernel.serve(self._is_served)
        if self._has_server():
            await self._server(scope, receive, send)
        elif is_act:
            await answer_act(self._folder, scope, receive, send)
        else:
            try:
                views = await self._open_views()
                assert self._journal_api is not None, "it comes with the views"
                await self._journal_api.answer(views, scope, receive, send)
            except (Damaged, StoreFailed) as problem:  # A server hides its store from clients; this reader owns it.
                raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem)) from None

    async def _open_views(self) -> JournalViews:
        """Return the views of the journal that is there now. Raises Refusal if there is none."""
        from ramet.web.journal_api import (
            JournalApi,  # They import all of the host, which a server's page does not need.
        )
        from ramet.web.journal_views import JournalViews

        async with self._opening:
            try:
                if self._views is None or journal_in(self._folder).stat().st_ino != self._views.inode:
                    await self._close_views()  # Its readers ask again, and get the new ones.
                    views = JournalViews(self._folder, self._activity)
                    await views.__aenter__()
                    self._views, self._journal_api = views, JournalApi()
            except (NoJournal, FileNotFoundError):
                raise Refusal(HTTPStatus.NOT_FOUND, f"no run was recorded in {self.name} yet") from None
            return self._views

    async def _close_views(self) -> None:
        """Close the journal that is open, if there is one, and break off the streams of it."""
        views, api, self._views, self._journal_api = self._views, self._journal_api, None, None
        if views is not None and api is not None:
            api.close()
            await views.__aexit__()

    async def _resume(self, run: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Continue the tree of an interrupted run in a kernel of its own. Raises Refusal, Unknown."""
        row = await (await self._open_views()).runs.run(run)
        if row.is_over:
            raise Refusal(HTTPStatus.GONE, f"run {run!r} has ended ({row.state})")

        async def is_resumed() -> bool:
            return await self._activity.is_elsewhere(row.root)

        await self._kernel.resume(row.root, is_resumed)
        await Response(status_code=HTTPStatus.NO_CONTENT)(scope, receive, send)

    async def _advice(self, target: ActTarget) -> str:
        """Return why nothing can be done now. Raises Refusal, Unknown."""
        views, run = await self._open_views(), target.name
        if target.endpoint is endpoints.ANSWER_APPROVAL:
            run = await views.run_of_approval(target.name)
        if (row := await views.runs.run(run)).is_over:
            return f"run {run!r} has ended ({row.state})"
        return f"no kernel runs {row.path}, which was interrupted: first resume it, here or with `ramet resume {run}`"

    async def _is_served(self) -> bool:
        return self._has_server()

    def _has_server(self) -> bool:
        """Return whether a server of this user listens at the folder's socket, which is no link to another one."""
        try:
            status = self._socket.lstat()
        except OSError:
            return False
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self._socket))
            except BlockingIOError:  # its backlog is full
                return True
            except OSError:
                return False
        return True
