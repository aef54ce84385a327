"""Isolated agents for programs: a handle while they run, an `AgentResult` when they have ended."""

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
from ramet.tools.run_info import StopReceipt

#: The default timeout of a command of `run_command`, and the default limit of each of its streams.
COMMAND_TIMEOUT_S = 60.0
COMMAND_BYTES = 1024 * 1024


class AgentHandle:
    """A handle on one isolated agent for its owner: wait for it, inspect it, run a command in its sandbox, end it."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def id(self) -> str:
        """The run's id, which is the `session_id` of its result."""
        return self._handle.id

    @property
    def path(self) -> str:
        """The names of the runs from the root down to this one."""
        return self._handle.path

    async def result(self) -> AgentResult:
        """Wait for the end of the agent, without a time limit. Never raises for the agent's own failures."""
        return agent_result(await self._handle.result(), self.id)

    async def cancel(self, reason: str = "cancelled by its owner") -> StopReceipt:
        """End the agent and all below it, and wait until none of its processes is left."""
        return await self._handle.cancel(reason)

    async def events(self) -> AsyncGenerator[Event]:
        """Follow the agent from its spawn to its end."""
        async for event in self._handle.events():
            yield event

    async def metrics(self) -> Metrics:
        """Return the present resource usage. Raises Gone if no process of the agent lives.

        `cpu_seconds` are those of its sandbox so far; `memory_mb` and `workspace_mb` are MiB.
        """
        return await self._require_sandbox().metrics()

    async def run_command(
        self, argv: Sequence[str], *, timeout_s: float = COMMAND_TIMEOUT_S, max_bytes: int = COMMAND_BYTES
    ) -> Ran:
        """Run a command in the agent's sandbox, under its limits, and record `CommandRun`.

        Raises Gone, and TimeoutError after `timeout_s` seconds (60).
        """
        result = await self._require_sandbox().run_command(argv, timeout_s=timeout_s, max_bytes=max_bytes)
        self._handle.run.context.emit(CommandRun, argv=tuple(argv), code=result.code)
        return result

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file of the workspace, by its name below it, while the agent is active.

        Plain files only, of at most the policy's `max_output_bytes`. Raises Gone after the agent's end, InvalidValue,
        Unknown, OutputTooLarge.
        """
        return await file_of(self._handle.run, path)

    async def port(self, name: str) -> pathlib.Path:
        """Return a Unix socket that leads to a port of the policy, as long as the sandbox lives.

        Waits for a sandbox, but not for a listener in it: before there is a listener, each connection is closed at
        once. Only this user may connect. Raises Unknown, Gone after the agent's end, InvalidValue if the path is too
        long for a socket's address.
        """
        return (await self._ports(name)).path(name)

    async def connect(self, name: str) -> tuple[StreamReader, StreamWriter]:
        """Open a connection to a port of the policy; it is cut when the sandbox ends.

        Waits for a sandbox, like `port`. Raises Unknown, Gone, PortRefused if there is no listener or too many
        connections are open.
        """
        return await (await self._ports(name)).connect(name)

    async def loopback_port(self, name: str) -> int:
        """Make a port of the policy reachable at 127.0.0.1, too, at a port that the machine chooses; return that port.

        Every user of this machine may connect to it; `port` is for this user only. Raises Unknown, Gone, SandboxFailed.
        """
        return await (await self._ports(name)).loopback_port(name)

    async def _ports(self, name: str) -> Ports:
        run = self._handle.run
        declared = run.grant.ports if run.grant is not None else {}
        if name not in declared:
            raise Unknown("port", name, tuple(declared))
        return await run.sandbox.served_ports.ports(run.recorded_end())

    def _require_sandbox(self) -> Sandbox:
        sandbox = self._handle.run.sandbox.current
        if sandbox is None:
            raise Gone(f"no process of {self.path} is running now")
        return sandbox


def output_callback(
    on_stdout: Callable[[str], None] | None, on_stderr: Callable[[str], None] | None
) -> Callable[[str, str], None] | None:
    """Return the callback for each piece of output and its stream; None if there is no listener."""
    if on_stdout is None and on_stderr is None:
        return None
    listeners = {"stdout": on_stdout, "stderr": on_stderr}

    def on_output(stream: str, text: str) -> None:
        listener = listeners[stream]
        if listener is not None:
            listener(text)

    return on_output


async def wait_or_cancel(handle: AgentHandle) -> AgentResult:
    """Return the result; if the wait is cancelled, end the agent first."""
    try:
        return await handle.result()
    except asyncio.CancelledError:
        await run_shielded(handle.cancel("the caller that waited for it was cancelled"))
        raise


def agent_result(result: Result, session_id: str) -> AgentResult:
    """Return a run's result in the form of `run_agent`."""
    return AgentResult(
        exit_code=result.exit_code,
        status=result.status,
        output=result.value,
        error=result.error,
        artifacts=result.files,
        usage=result.usage_subtree,
        session_id=session_id,
        branch=result.branch,
        stdout=result.stdout,
        stderr=result.stderr,
    )
