"""An LLM agent inside its sandbox: the same loop as in the host, with ports that use the channel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import langchain_core.tracers.context
import langchain_core.tracers.langchain
import langchain_core.tracers.run_collector
import langchain_core.tracers.stdout  # noqa: F401 - these, too: the first call of a tool would import them
import msgspec
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from ramet.agent.capabilities import task_runner
from ramet.agent.history.compaction import Compaction
from ramet.agent.loop import QueryParams, query, record_message
from ramet.agent.output import OutputContract
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.mailbox import Mail, Mailbox
from ramet.core.budget import Budget
from ramet.core.errors import Aborted, MailRefused, ProtocolError, TaskFailed
from ramet.core.ids import Path, RunId
from ramet.core.limits import NO_LIMITS, Limits
from ramet.core.mcp.server_entry import as_servers
from ramet.core.recipe import capability
from ramet.guest import thread_channel
from ramet.guest.async_channel import AsyncChannel
from ramet.guest.authoring import set_wait_context
from ramet.guest.interpreter import Interpreter
from ramet.guest.mcp.server_processes import running_servers
from ramet.guest.mcp.server_tools import server_tools
from ramet.guest.namespace import namespace
from ramet.guest.ports import ChannelHooks, ChannelModel, ChannelRecord, ResultFiles, approve, ask_safety_gate
from ramet.guest.state import AgentState, ChannelState
from ramet.guest.task_result import conclusions
from ramet.guest.tree import ChannelTree
from ramet.models.messages import decode
from ramet.models.request_codec import SharedHistory
from ramet.tools.agents.task_result import find_declared_result
from ramet.tools.builtins import builtin_tools
from ramet.tools.context import ToolUseContext
from ramet.tools.python import NAME as PYTHON
from ramet.tools.run_info import RunInfo
from ramet.tools.shell import background_commands
from ramet.tools.workers import image_tools
from ramet.wire.code import capsule
from ramet.wire.error_codec import encode_error
from ramet.wire.guest_protocol.guest_to_host import Done
from ramet.wire.guest_protocol.host_to_guest import IncomingMail, StartConversation
from ramet.wire.values import values

#: Seconds that code before a turn may take.
SETUP_S = 120.0
NEW_TURN = "[this is a new namespace: the names of earlier turns were lost with their process]"

_READY = builtin_tools({})  # Created in the process that guests are forked from: the guests share them.


def serve(channel: socket.socket, start: StartConversation, body: bytes) -> None:
    """Work as an agent until its answer is complete or it must end; the last message to the host is `Done`.

    `channel` is connected, and nothing after the first frame has been read from it. SIGTERM ends the work as the host's
    `Stop` does: partial results are still reported.
    """
    asyncio.run(_serve(channel, start, body))


async def _serve(channel: socket.socket, start: StartConversation, body: bytes) -> None:
    work = Work(start, body)
    async with _open_channel(channel, work) as link:
        with contextlib.suppress(Aborted):  # The host has ended.
            task_runner.use_runner("ramet.guest.authoring", "GUEST")
            image_tools.allow_imports()
            thread_channel.override_channel(thread_channel.ThreadOverAsync(link))
            link.send(*await work.execute(link))
            await link.flush()  # Without a time limit: if a kernel was killed, another one reads it.


@asynccontextmanager
async def _open_channel(channel: socket.socket, work: Work) -> AsyncGenerator[AsyncChannel]:
    loop, link = asyncio.get_running_loop(), AsyncChannel(work)
    has_signals = True
    try:
        loop.add_signal_handler(signal.SIGTERM, work.stop, "it received SIGTERM")
    except (ValueError, RuntimeError):  # not the main thread
        has_signals = False
    await link.open(channel)
    try:
        yield link
    finally:
        await link.close()
        if has_signals:
            loop.remove_signal_handler(signal.SIGTERM)


class Work:
    """The work of one turn, and the ways to end it."""

    def __init__(self, start: StartConversation, body: bytes) -> None:
        self._start, self._body = start, body
        self._abort = AbortController()
        self._mailbox = Mailbox(start.path)
        self._task: asyncio.Task[Any] | None = None

    def mail(self, mail: IncomingMail, text: str) -> None:
        """Receive mail for this run, which is read at the next step.

        Mail that does not fit stays unread with the host.
        """
        with contextlib.suppress(MailRefused):
            self._mailbox.push(
                Mail(id=mail.mail_id, sender=mail.sender, text=text, kind=mail.kind)  # type: ignore[arg-type]  # the host's word
            )

    def stop(self, reason: str) -> None:
        if not self._abort.aborted:
            self._abort.abort(reason)
            if self._task is not None:
                self._task.cancel()

    async def execute(self, link: AsyncChannel) -> tuple[Done, bytes]:
        """Do the work; return the last message, and the value that the agent's code gave, if it did."""
        self._task = asyncio.current_task()
        try:
            self._abort.raise_if_aborted()
            return await self._converse(link)
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.uncancel()
            return _failure(Aborted(self._abort.reason or "its event loop was stopped"))
        except MemoryError:
            return Done(ok=False, oom=True), b""
        except (Exception, SystemExit) as error:
            return _failure(error)
        finally:
            self._task = None

    async def _converse(self, link: AsyncChannel) -> tuple[Done, bytes]:
        start = self._start
        payload = msgspec.json.decode(self._body[: start.json_size])
        context = _context(start, payload, self._body[start.json_size :], link)
        context.abort, context.mailbox = self._abort, self._mailbox
        async with (
            _interpreter(context, payload),
            _spill_results(context),
            background_commands(context),
            _servers(context, start, link),
        ):
            params = QueryParams(
                context=context,
                max_turns=start.max_turns,
                compaction=Compaction(**msgspec.structs.asdict(start.room)) if start.room is not None else None,
                output=OutputContract(start.output_schema) if start.output_schema is not None else None,
                resumes=start.resumes,
                replies=start.replied,
                objections=start.objected,
            )
            try:
                async with aclosing(query(params)) as pieces:
                    async for _ in pieces:
                        pass
            finally:
                for answer in list(context.answers.values()):  # Answers of a turn that was cut off.
                    record_message(context, answer)
        conclusion = context.declared_result
        if (
            conclusion is None or find_declared_result(context.history) is not None
        ):  # The host has received that itself.
            return Done(ok=True), b""
        json_size, body = values.encode_result(conclusion.value)
        return Done(ok=True, conclusion=True, json_size=json_size), body


@asynccontextmanager
async def _spill_results(context: ToolUseContext) -> AsyncGenerator[None]:
    with contextlib.closing(ResultFiles(context)) as context.spill:
        yield


@asynccontextmanager
async def _servers(context: ToolUseContext, start: StartConversation, link: AsyncChannel) -> AsyncGenerator[None]:
    """Keep the run's MCP servers running while the context is open, and add their tools to the run's."""
    if not start.has_servers:
        yield
        return
    async with running_servers(link, as_servers(start.mcp), context.environ or {}, context.cwd):
        context.tools = (*context.tools, *await server_tools(link))
        yield


@asynccontextmanager
async def _interpreter(context: ToolUseContext, payload: Mapping[str, Any]) -> AsyncGenerator[None]:
    """Provide an interpreter while the context is open, if the run has the tool for it.

    Raises AgentNotResolved for a missing capability.
    """
    if not any(tool.name == PYTHON for tool in context.tools):
        yield
        return
    capabilities = [capability(each) for each in payload["capabilities"]]
    has_run = any(isinstance(each, ToolMessage) and each.name == PYTHON for each in context.history)
    extra = {**conclusions(context), "state": AgentState(ChannelState())}
    names = partial(namespace, context.run.agent, capabilities, extra)
    code_interpreter = Interpreter(names, note=NEW_TURN if has_run else "")
    try:
        await code_interpreter.open()
        context.interpreter = code_interpreter
        set_wait_context(code_interpreter.waiting)
        if setup := payload.get("setup"):
            result = await code_interpreter.run(setup, timeout_s=SETUP_S)
            if not result.ok:
                raise TaskFailed(f"its setup failed: {result.text}")
        yield
    finally:
        code_interpreter.close()


def _context(
    start: StartConversation, payload: Mapping[str, Any], packed_tools: bytes, link: AsyncChannel
) -> ToolUseContext:
    """Build the context of the run: tools are built here, everything else uses the channel."""
    system, history = ([decode(message) for message in payload[part]] for part in ("system", "history"))
    model = ChannelModel(link, SharedHistory([*system, *history]))
    limits = NO_LIMITS if start.granted is None else Limits(tool_calls=start.granted)
    context = ToolUseContext(
        run=RunInfo(
            id=RunId(start.run),
            root=RunId(start.root),
            path=Path(start.path),
            agent=start.agent,
            depth=start.depth,
            parent=RunId(start.parent) if start.parent is not None else None,
        ),
        ask=model,
        tools=_tools(start, payload["types"], packed_tools),
        system_messages=tuple(system),
        history=history,
        cwd=pathlib.Path(start.cwd),
        environ=dict(os.environ),  # It holds only what the policy says.
        budget=Budget(limits, scope=start.scope or start.path),  # The host counts usage.
        tree=ChannelTree(link, payload["types"]),
        hooks=ChannelHooks(link, start.hooks) if start.hooks else None,
        approve=partial(approve, link),
        safety=partial(ask_safety_gate, link) if start.gated else None,
        permissions=start.permissions,
        permissions_after_plan=start.permissions_after_plan,
        steps=start.steps,
        read_roots=tuple(map(pathlib.Path, start.read_roots)),
    )
    context.record = ChannelRecord(link, model, context)
    return context


def _tools(start: StartConversation, types: Mapping[str, str], packed_tools: bytes) -> tuple[BaseTool, ...]:
    """Return the tools by name: those that were packed, and ramet's own.

    Raises NotShippable or ProtocolError.
    """
    custom_tools: Mapping[str, BaseTool] = {}
    if start.tools_tag:
        packed_call = capsule.unpack(packed_tools, start.tools_tag)
        custom_tools = {tool.name: tool for tool in packed_call.function(*packed_call.args, **packed_call.kwargs)}
    available = {**builtin_tools(types), **custom_tools}
    missing = [name for name in start.tools if name not in available]
    if missing:
        raise ProtocolError(f"tools that are not here: {', '.join(missing)}")
    return tuple(available[name] for name in start.tools)


def _failure(error: BaseException) -> tuple[Done, bytes]:
    info, fields = encode_error(error)
    return Done(ok=False, error=info, fields=fields), b""
