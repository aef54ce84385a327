"""The servers of the Model Context Protocol of an agent, as processes in its sandbox.

Each server is a program at two pipes, or at an address to which the host connects for as long as the guest asks for it.
The messages of a program are carried to the host, which has the session, one at a time: the next one is read once the
host has taken the one before. Of notifications, only some reports of progress are. All processes of a server end with
the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from ramet.core.errors import Aborted, RametError, TaskFailed
from ramet.core.mcp.entry_references import fill_references
from ramet.core.mcp.server_entry import McpServer
from ramet.guest.async_channel import AsyncChannel, RawAnswer
from ramet.guest.external.json_lines import MessageReader
from ramet.guest.external.process import ProgramProcess, started_program
from ramet.guest.mcp.progress_limit import ProgressLimit
from ramet.isolation.assignment import SECRETS
from ramet.wire.guest_protocol.guest_to_host import ConnectMcpServer, PassMcpMessage

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_MAX_REASON: Final = 4_000  #: characters of the reason for an end, which has the end of its standard error


@asynccontextmanager
async def running_servers(
    link: AsyncChannel, servers: Sequence[McpServer], environ: Mapping[str, str], cwd: Path
) -> AsyncGenerator[None]:
    """Keep servers running while the context is open; the host is told of a server that fails, and no turn ends."""
    tasks = [asyncio.create_task(_Relay(link, each).run(environ, cwd)) for each in servers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def run_server(link: AsyncChannel, server: McpServer, environ: Mapping[str, str], cwd: Path) -> None:
    """Run one server until it, or its session in the host, has ended; the host is told of a failure."""
    await _Relay(link, server).run(environ, cwd)


class _Relay:
    """The relay of one server: it carries messages between the program and the host."""

    def __init__(self, link: AsyncChannel, server: McpServer) -> None:
        self._link, self._server = link, server
        self._progress = ProgressLimit()

    async def run(self, environ: Mapping[str, str], cwd: Path) -> None:
        """Run the server until it, or its session in the host, has ended."""
        connection = asyncio.create_task(self._connect(inbox := asyncio.Queue[bytes]()))
        try:
            if self._server.url:  # The host connects to it: here is only the time for which it does.
                await asyncio.wait((connection,))
            else:
                await self._run_program(_expanded(self._server, environ), environ, cwd, connection, inbox)
            reason = ""
        except RametError as error:
            reason = str(error)
        finally:
            connection.cancel()
            with suppress(asyncio.CancelledError, RametError):
                await connection
        if reason:
            with suppress(RametError):
                await self._link.ask(PassMcpMessage, server=self._server.name, end=reason[:_MAX_REASON])

    async def _connect(self, inbox: asyncio.Queue[bytes]) -> None:
        """Receive the host's messages until its session ends. Raises the error that ended it."""
        async for piece in self._link.pieces(ConnectMcpServer, server=self._server.name):
            if not isinstance(piece, RawAnswer):
                inbox.put_nowait(piece)

    async def _run_program(
        self,
        server: McpServer,
        environ: Mapping[str, str],
        cwd: Path,
        connection: asyncio.Task[None],
        inbox: asyncio.Queue[bytes],
    ) -> None:
        """Run the program. Raises TaskFailed if it ends before its session, or breaks the rules of its output."""
        command = (server.command, *server.args)
        env = {**environ, **server.env}
        async with started_program(command, env=env, cwd=cwd, has_input=True) as program:
            output = asyncio.create_task(self._pass_output(program))
            feeding = asyncio.create_task(_feed(program, inbox))
            try:
                await asyncio.wait((output, connection), return_when=asyncio.FIRST_COMPLETED)
                if output.done():
                    output.result()
            finally:
                for task in (output, feeding):
                    task.cancel()
                await asyncio.wait((output, feeding))

    async def _pass_output(self, program: ProgramProcess) -> None:
        reader = MessageReader(program.stdout)
        try:
            while (message := await reader.read()) is not None:
                if "method" in message and "id" not in message and not self._progress.is_passed(message):
                    continue  # A notification: the host would drop it.
                body = msgspec.json.encode(message)
                if len(body) > MAX_MESSAGE_BYTES:
                    raise TaskFailed(f"it wrote a message of more than {MAX_MESSAGE_BYTES} bytes")
                await self._link.ask(PassMcpMessage, body, server=self._server.name)
        except Aborted:
            raise
        raise await program.early_end()


async def _feed(program: ProgramProcess, inbox: asyncio.Queue[bytes]) -> None:
    """Write the host's messages. A program that does not read them is stopped by the limits of its calls."""
    while True:
        message = await inbox.get()
        with suppress(ConnectionError):
            program.stdin.write(message + b"\n")
            await program.stdin.drain()


def _expanded(server: McpServer, environ: Mapping[str, str]) -> McpServer:
    """Return the server with the values of its variables and secrets. Raises InvalidValue for one that is not here."""

    def value_of(name: str) -> str | None:
        if name in environ:
            return environ[name]
        with suppress(OSError, UnicodeError):
            return Path(SECRETS, name).read_text().rstrip("\n")
        return None

    def fill(text: str) -> str:
        return fill_references(f"mcp.{server.name}", text, value_of)

    return McpServer(
        name=server.name,
        command=fill(server.command),
        args=[fill(each) for each in server.args],
        env={name: fill(each) for name, each in server.env.items()},
        timeout_s=server.timeout_s,
    )
