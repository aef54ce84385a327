"""`ramet ui`: show trees of agents in a browser, until the process is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import os
import sys
import tempfile
import webbrowser
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from ramet.cli.paths import user_dir
from ramet.cli.render.sanitize import one_line
from ramet.cli.signals import Interrupts
from ramet.cli.sources.choose import SERVER
from ramet.cli.sources.server import key_in
from ramet.cli.terminal_lines import InputLines
from ramet.core.errors import InvalidValue
from ramet.disk.installation import missing_extra
from ramet.wire.authority import checked_authority

try:
    from ramet.web.folder_api import FolderApi
    from ramet.web.forwarding_api import ForwardingApi
    from ramet.web.ui_server import UiServer
except ModuleNotFoundError as missing:
    if missing.name is None or not missing.name.startswith("starlette"):
        raise
    raise missing_extra("the page", "server") from None


async def ui(options: Namespace) -> int:
    """Serve the page until SIGTERM or Ctrl-C, and return exit status 0."""
    names = [checked_authority("--allow-host", each) for each in options.hosts]
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_: str) -> None:
        loop.call_soon_threadsafe(stopping.set)

    async with AsyncExitStack() as stack:
        api = _api(options)
        server = UiServer(
            await stack.enter_async_context(api),
            api.name,
            port=options.port,
            read_only=options.read_only,
            idle_minutes=options.idle,
            names=names,
            on_end=lambda: _print(f"logged out, since no request came for {options.idle} min: {server.new_link()}"),
        )
        stack.enter_context(Interrupts(stop, lambda: None))
        await stack.enter_async_context(server)
        mode = " read-only" if options.read_only else ""
        _print(f"ramet shows {api.name}{mode} at {server.new_link()}")
        stack.enter_context(InputLines(lambda: _print(f"another link, which works once: {server.new_link()}")))
        if options.browser and _has_browser():
            stack.enter_context(_browser(server.new_link()))
        await stopping.wait()
    return 0


def _api(options: Namespace) -> ForwardingApi | FolderApi:
    """Return the API of the server or folder of the options. Raises InvalidValue."""
    option, variable = options.server, os.environ.get(SERVER, "").strip()
    if option is None and (options.dir is not None or not variable):
        return FolderApi(options.dir or Path.cwd(), on_start=_print)
    field, address = ("--server", option) if option is not None else (SERVER, variable)
    try:
        return ForwardingApi(address if "://" in address else str(Path(address).expanduser()), key_in(os.environ))
    except RuntimeError:  # no such user
        raise InvalidValue(field, address, "the path of a socket, or a URL of http or https") from None
    except InvalidValue as problem:
        if problem.field != "address":
            raise
        raise InvalidValue(field, address, problem.accepted) from None


def _print(line: str) -> None:
    print(one_line(line, 1_000), flush=True)


def _has_browser() -> bool:
    """Return whether a person at a terminal can see a browser that is opened here."""
    has_display = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return has_display and sys.stdin is not None and sys.stdin.isatty()


@contextlib.contextmanager
def _browser(link: str) -> Iterator[None]:
    """Open a link in the user's browser. Its token is in no command line, which other users could read.

    The browser opens a file that only this user can read, and that leads it to the link.
    """
    folder = user_dir() / "pages"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix="ui-", suffix=".html", dir=folder)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor
        file.write(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(link)}"><title>ramet</title>'
        )
    try:
        webbrowser.open(Path(path).as_uri())
        yield
    finally:
        Path(path).unlink(missing_ok=True)
