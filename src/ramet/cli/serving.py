"""`ramet serve`: the services of a folder for other programs, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from argparse import Namespace

from ramet.cli.clean import one_line
from ramet.cli.interrupts import Interrupts
from ramet.cli.places import nearby, user_dir
from ramet.cli.problems import set_up_logging
from ramet.services.server import TOKEN, Server

FORMAT = "%(levelname)s %(name)s: %(message)s"
#: Where an operator's key is taken from, else it is in a file of the folder.
TOKEN_VARIABLE = "RAMET_OPERATOR_TOKEN"


def serve(options: Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit status is 0 then."""
    if not set_up_logging():
        logging.basicConfig(level=logging.WARNING, format=FORMAT, stream=sys.stderr, force=True)
    asyncio.run(_serve(options))
    return 0


async def _serve(options: Namespace) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_: str) -> None:
        loop.call_soon_threadsafe(stopping.set)

    token = os.environ.get(TOKEN_VARIABLE) or None
    server = Server(
        options.dir,
        socket=options.socket,
        listen=options.listen,
        backend=options.backend,
        token=token,
        user_dir=user_dir(),
    )
    with Interrupts(stop, lambda: None):
        async with server:
            key = f"${TOKEN_VARIABLE}" if token else nearby(server.folder / TOKEN)
            print(one_line(f"ramet serves {nearby(server.dir)} at {server.where} (operator's key: {key})", 1_000))
            sys.stdout.flush()
            await stopping.wait()
            await server.rest()
            # Not closed: a conversation that was closed is over, and these are to be gone on with. Whatever they have
            # started ends with this process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
