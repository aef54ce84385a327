"""Isolated agents as a program starts them: a handle while they run, an `AgentResult` when they have ended."""

from __future__ import annotations

import asyncio
import pathlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Callable, Sequence

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import Gone, Unknown
from ramet.core.events import CommandRun, Event
from ramet.core.outcome import AgentResult, Result
from ramet.host.sandbox.workspace_files import file_of
from ramet.isolation.contract import Metrics, Ran, Sandbox
from ramet.spawn.handle import Handle
from ramet.spawn.served_ports import Ports
from ramet.tools.context import StopReceipt

#: What `run_command` gives a command, and keeps of each of its streams, unless told otherwise.
COMMAND_TIMEOUT_S = 60.0
COMMAND_BYTES = 1024 * 1024


class AgentHandle:
    """One isolated agent, for its owner: wait for it, look at it, run a command beside it, end it."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def id(self) -> str:
        """The run's id, which is the `session_id` of its result."""
        return self._handle.id

    @property
    def path(self) -> str:
        """Names from the root down."""
        return self._handle.path

    async def result(self) -> AgentResult:
        """Wait for its end, however long that takes. Never raises for what the agent did."""
        return agent_result(await self._handle.result(), self.id)

    async def cancel(self, reason: str = "cancelled by its owner") -> StopReceipt:
        """End it and all below it; when this returns no process of it is left."""
        return await self._handle.cancel(reason)

    async def events(self) -> AsyncGenerator[Event]:
        """Follow it from its birth to its end."""
        async for event in self._handle.events():
            yield event

    async def metrics(self) -> Metrics:
        """What it uses now. Raises Gone when no process of it lives."""
        return await self._box().metrics()

    async def run_command(
        self, argv: Sequence[str], *, timeout_s: float = COMMAND_TIMEOUT_S, max_bytes: int = COMMAND_BYTES
    ) -> Ran:
        """Run a command in its sandbox, under its limits; recorded as `CommandRun`. Raises Gone, TimeoutError."""
        ran = await self._box().run_command(argv, timeout_s=timeout_s, max_bytes=max_bytes)
        self._handle.run.context.emit(CommandRun, argv=tuple(argv), code=ran.code)
        return ran

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file of its workspace, by its name below it, while the agent is at work.

        Plain files only, of at most the policy's `max_output_bytes`. Raises Gone after its end, InvalidValue, Unknown,
        OutputTooLarge.
        """
        return await file_of(self._handle.run, path)

    async def port(self, name: str) -> pathlib.Path:
        """Return a Unix socket that leads to a port of its policy, as long as its sandbox lives.

        Waits until there is a sandbox, not until somebody listens in it: till then a connection is closed at once. Only
        this user may connect. Raises Unknown, Gone after its end, InvalidValue where the path is too long for a
        socket's address.
        """
        return (await self._ports(name)).path(name)

    async def connect(self, name: str) -> tuple[StreamReader, StreamWriter]:
        """Open a connection to a port of its policy; it is cut at its end.

        Waits likewise. Raises Unknown, Gone, PortRefused where nobody listens or too many connections are open.
        """
        return await (await self._ports(name)).connect(name)

    async def loopback_port(self, name: str) -> int:
        """Have a port of its policy reached at 127.0.0.1, too, at a port that the machine chooses, and return that.

        Every user of this machine may connect to it: `port` is for one only. Raises Unknown, Gone, SandboxFailed.
        """
        return await (await self._ports(name)).loopback_port(name)

    async def _ports(self, name: str) -> Ports:
        run = self._handle.run
        declared = run.grant.ports if run.grant is not None else {}
        if name not in declared:
            raise Unknown("port", name, tuple(declared))
        return await run.serving.ports(run.ended())

    def _box(self) -> Sandbox:
        box = self._handle.run.box
        if box is None:
            raise Gone(f"no process of {self.path} lives now")
        return box


def output_callback(
    on_stdout: Callable[[str], None] | None, on_stderr: Callable[[str], None] | None
) -> Callable[[str, str], None] | None:
    """What is told of each piece of output and its stream, for who listens to either; None for who does not."""
    if on_stdout is None and on_stderr is None:
        return None
    listeners = {"stdout": on_stdout, "stderr": on_stderr}

    def on_output(stream: str, text: str) -> None:
        listener = listeners[stream]
        if listener is not None:
            listener(text)

    return on_output


async def wait_or_cancel(handle: AgentHandle) -> AgentResult:
    """Its result; whoever gives up waiting ends it first."""
    try:
        return await handle.result()
    except asyncio.CancelledError:
        await run_shielded(handle.cancel("whoever waited for it was cancelled"))
        raise


def agent_result(result: Result, session_id: str) -> AgentResult:
    """A run's result as `run_agent` returns it."""
    return AgentResult(
        exit_code=result.exit_code,
        status=result.status,
        output=result.value,
        error=result.error,
        artifacts=result.files,
        usage=result.usage_subtree,
        session_id=session_id,
        stdout=result.stdout,
        stderr=result.stderr,
    )
