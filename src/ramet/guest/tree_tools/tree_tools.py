"""The five tools of a run for its program, over the run's channel. Every decision is the host's.

A call waits in the endpoint's event loop, not in a thread of its own. The host may be slow: a spawn waits for room or
for the end of a pause. So each call has a bound, after which its program is told how to learn what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from ramet.core.errors import RametError, Unknown
from ramet.core.outcome import Status
from ramet.guest.async_channel import RawAnswer
from ramet.guest.thread_channel import StreamClient
from ramet.guest.tree_tools.tool_arguments import MAX_WAIT_S, WAIT_S, checked_arguments, tool_entries
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol.answer_data import Definitions, Runs, RunSummary, SpawnReply, StopReply, Text
from ramet.wire.guest_protocol.guest_to_host import Cancel, ListDefinitions, ListRuns, Output, Request, Send, Spawn
from ramet.wire.guest_protocol.host_to_guest import Answer, HostMessage

#: Calls of `result` that wait at the same time; other calls that the host has at the same time, more wait here.
MAX_WAITS, MAX_CALLS = 16, 8
#: Seconds for the answer of the host, so that a program does not give up on its call first.
CALL_S: Final = MAX_WAIT_S + 5.0
#: Characters of a report, and rows of a list, that a program gets.
MAX_REPORT, MAX_ROWS = 60_000, 200
#: The first line of an output: the state of a run, or the status with which it ended.
_ENDS: Final = frozenset(f"status: {each}" for each in Status if each is not Status.PAUSED)


class ToolResult(NamedTuple):
    """The text for a program's model, and whether it tells of a failure."""

    text: str
    is_error: bool = False


class TreeTools:
    """The tools of one run. `sender` writes to the channel, which may block."""

    def __init__(self, channel: StreamClient, sender: Executor) -> None:
        self._channel, self._sender = channel, sender
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._waits = 0

    async def entries(self) -> list[dict[str, Any]]:
        """Return the tools as MCP lists them. Raises RametError if the host refuses, or does not answer in time."""
        try:
            async with asyncio.timeout(CALL_S), self._calls:
                answer = await self._ask(ListDefinitions)
        except TimeoutError:
            raise RametError(f"the host has not answered within {CALL_S:g} s") from None
        return tool_entries(answer.as_(Definitions).definitions)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. A refusal of the host is a result. Raises Unknown, MissingValue or InvalidValue before that."""
        given = checked_arguments(tool, arguments)
        try:
            async with asyncio.timeout(CALL_S):
                if tool == "result":
                    return await self._result(**given)
                async with self._calls:
                    return await self._handle(tool, given)
        except TimeoutError:
            hint = "What it asked for may still be done: `tree` shows it then."
            return ToolResult(f"The host has not answered within {CALL_S:g} s. {hint}", is_error=True)
        except RametError as error:
            return ToolResult(_refusal(error), is_error=True)

    async def _handle(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        match tool:
            case "spawn_agent":
                return await self._spawn(**arguments)
            case "send":
                return ToolResult((await self._ask(Send, **arguments)).as_(Text).text)
            case "tree":
                return await self._list()
            case _:
                return await self._stop(**arguments)

    async def _spawn(self, *, agent: str, prompt: str, name: str = "", description: str = "") -> ToolResult:
        answer = await self._ask(
            Spawn, subagent_type=agent, prompt=prompt, name=name or None, description=description, mode="fresh"
        )
        spawned = answer.as_(SpawnReply)
        return ToolResult(json.dumps({"id": spawned.run, "path": spawned.path}))

    async def _result(self, *, id: str, wait_s: float = WAIT_S) -> ToolResult:
        if self._waits >= MAX_WAITS:
            return ToolResult(f"{MAX_WAITS} calls of `result` wait already: call it when one has ended.", is_error=True)
        self._waits += 1
        try:
            answer = await self._ask(Output, target=id, block=wait_s > 0, timeout_s=float(wait_s))
        finally:
            self._waits -= 1
        text = answer.as_(Text).text
        if len(text) > MAX_REPORT:
            text = f"{text[:MAX_REPORT]}\n[cut here: the report has {len(text)} characters or more]"
        if text.partition("\n")[0] not in _ENDS:
            text += "\n[still running: this is no result yet; call `result` again]"
        return ToolResult(text)

    async def _list(self) -> ToolResult:
        runs = (await self._ask(ListRuns, below=True)).as_(Runs).runs
        rows: dict[str, Any] = {"runs": [_row(each) for each in runs[:MAX_ROWS]]}
        if len(runs) > MAX_ROWS:
            rows["left_out"] = len(runs) - MAX_ROWS
        return ToolResult(json.dumps(rows, ensure_ascii=False))

    async def _stop(self, *, id: str, reason: str = "") -> ToolResult:
        fields = {"reason": reason} if reason else {}
        receipt = (await self._ask(Cancel, target=id, **fields)).as_(StopReply)
        return ToolResult(json.dumps({"stopped": receipt.stopped, "could_not_be_stopped": receipt.left}))

    async def _ask(self, kind: type[Request], **fields: Any) -> RawAnswer:
        """Send a request to the host, and wait for its answer. Raises the host's error, or RametError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RawAnswer] = loop.create_future()

        def receive(message: HostMessage | BaseException, body: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # The endpoint is closed.
                loop.call_soon_threadsafe(_settle, answer, message, body)

        await loop.run_in_executor(self._sender, lambda: self._channel.open_stream(kind, receive, **fields))
        return await answer


def _settle(answer: asyncio.Future[RawAnswer], message: HostMessage | BaseException, body: bytes) -> None:
    if answer.done():  # Its call has ended.
        return
    match message:
        case Answer(error=None):
            answer.set_result(RawAnswer(message.data, body))
        case Answer(error=error) if error is not None:
            answer.set_exception(decode_error(error, message.fields))
        case _:
            answer.set_exception(RametError(f"the host has left: {message}"))


def _row(run: RunSummary) -> dict[str, Any]:
    usage = run.usage
    row: dict[str, Any] = {"id": run.id, "path": run.path, "agent": run.agent, "state": run.state}
    row |= {"waits_for": run.waits_for} if run.waits_for else {}
    row |= {"description": run.description} if run.description else {}
    return row | {"model_calls": usage.model_calls, "tokens": usage.tokens, "usd": round(usage.usd, 6)}


def _refusal(error: RametError) -> str:
    """Return the host's reason. Names of agents elsewhere in the tree are not the program's business."""
    if isinstance(error, Unknown) and error.kind in ("agent", "running agent"):
        return f"unknown {error.kind} {error.name!r}; `tree` lists the agents below you"
    return str(error)
