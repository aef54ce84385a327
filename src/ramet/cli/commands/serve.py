"""`ramet serve`: offer the services of a folder to other programs until the process is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ramet.cli.errors import FAILURE, print_error
from ramet.cli.paths import display_path, user_dir
from ramet.cli.render.sanitize import one_line
from ramet.cli.settings_file import settings_file
from ramet.cli.signals import Interrupts
from ramet.core.errors import StoreInUse
from ramet.host.observability.logs import setup_logging
from ramet.host.observability.stalls import StallWatch
from ramet.services.config.build import audit_of, server_of
from ramet.services.config.load import Config, load
from ramet.services.config.settings import TcpAddress
from ramet.services.http.sockets import listening_pid
from ramet.services.server.operator_token import TOKEN
from ramet.services.server.server import SOCKET, Server

if TYPE_CHECKING:
    from starlette.types import ASGIApp

#: Seconds after the start of a server until it reads the files of the page: first it answers requests that wait.
_PAGE_FILES_AFTER_S = 2.0


def serve(options: Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C, and return exit status 0. A permanently lost store ends the process with 1."""
    config = load(settings_file(options.config, options.dir or Path()), os.environ, _flags(options))
    logging.basicConfig(handlers=[], force=True)
    setup_logging(structured=config.log_format == "json", level=config.log_level or logging.WARNING)
    # INFO covers requests to the server; the many requests that it sends itself are excluded.
    if config.log_level == "INFO":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no stderr
        faulthandler.enable()  # Where each thread was when C code crashed, or when somebody sent SIGABRT.
    return asyncio.run(_serve(config))


async def _serve(config: Config) -> int:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_: str) -> None:
        loop.call_soon_threadsafe(stopping.set)

    audit = audit_of(config)
    server = server_of(config, os.environ, user_dir=user_dir(), audit=audit)
    server.wrap_application = partial(_with_page, server, config)
    with Interrupts(stop, lambda: None), _watch_stalls(server, config.stall_s):
        try:
            await server.start()
        except StoreInUse as refusal:
            print_error(_in_use(server, refusal))
            return FAILURE
        async with server:
            key = display_path(server.folder / TOKEN) if config.token is None else str(config.token)
            print(
                one_line(
                    f"ramet serves {display_path(server.dir)} at {server.listen_address} (operator's key: {key})", 1_000
                )
            )
            sys.stdout.flush()
            waiters = [asyncio.create_task(each.wait()) for each in (stopping, server.store_loss)]
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            if server.store_loss.is_set():
                # As after a kill: readers of a turn are cut off, and continue on the kernel that takes over.
                print_error(f"{server.store_error}; the server exits and can be started again")
                os._exit(FAILURE)
            if server.kernels is not None:
                await server.drain()
            else:
                await server.settle(ends_process=True)
            # Not closed: closing would end the conversations, which will be continued.
            await server.terminate()
            if audit is not None:
                audit.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def _in_use(server: Server, refusal: StoreInUse) -> str:
    """Return the line about a folder that another kernel has, with the address of its server if that is known."""
    socket = server.folder / SOCKET
    is_server = refusal.holder == f"pid {listening_pid(socket)}"
    address = f", which serves at {display_path(socket)}" if is_server else ""
    return f"{refusal}{address}; a folder has one kernel at a time: stop that process, ask it, or serve another --dir"


def _with_page(server: Server, config: Config, application: ASGIApp) -> ASGIApp:
    """Return the application of a server with the page at `/ui`."""
    from ramet.web.browser_checks import AllowedHosts
    from ramet.web.server_page import ServerPage
    from ramet.web.static_files import prepare_files

    given = [config.listen.host] if isinstance(config.listen, TcpAddress) else []
    if config.address is not None:
        given.append(urlsplit(config.address).netloc)
    prepare_files(_PAGE_FILES_AFTER_S)
    return ServerPage(
        application=application,
        hosts=AllowedHosts(names=frozenset({*map(str.lower, given), *config.page_hosts}), addresses=True),
        is_operator=server.spawner.agents.is_operator,
        dir=str(server.dir),
    )


def _watch_stalls(server: Server, stall_s: int) -> AbstractContextManager[object]:
    """Watch the loop for stalls while this is open."""
    if not stall_s:
        return nullcontext()
    server.runtime.stalls = StallWatch(after_s=stall_s)
    return server.runtime.stalls


def _flags(options: Namespace) -> dict[str, Any]:
    """Return the command line options as settings."""
    listen = None
    if options.socket is not None:
        listen = str(Path(options.socket).absolute())
    elif options.listen is not None:
        listen = str(TcpAddress(*options.listen))
    return {
        "address": options.address,
        "backend": options.backend,
        "kernel": options.kernel,
        "listen": listen,
        "working_dir": None if options.dir is None else str(options.dir),
    }
