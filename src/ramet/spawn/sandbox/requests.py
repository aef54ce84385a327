"""The requests of a guest, for its own run only: each is given to what executes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ramet.core.errors import BudgetExceeded, InvalidValue, ProtocolError, RametError
from ramet.core.events import Notice
from ramet.core.ids import CallId, StepId, checked_name
from ramet.core.recipe import MAX_BYTES, checked_task_name
from ramet.core.replay.run_replay import RunReplay
from ramet.spawn.external.program_requests import ProgramRequests
from ramet.spawn.forwarding.forwarded_requests import ForwardedRequests
from ramet.spawn.masking import masked_text
from ramet.spawn.mcp.server_connections import McpConnections
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import GuestChannel, LargeReply, Reply
from ramet.spawn.sandbox.conversation import SandboxedConversation
from ramet.spawn.sandbox.guest_files import may_have_files, stored_content
from ramet.spawn.sandbox.guest_requests.child_requests import ChildRequests
from ramet.spawn.sandbox.guest_requests.file_requests import FileRequests
from ramet.spawn.sandbox.guest_requests.intentions import MAX_ARGUMENTS, IntentionGate
from ramet.tools.context import CurrentCall, Tree, current_call
from ramet.tools.decisions import PeerRequest
from ramet.tools.run_info import MonitorReport
from ramet.wire.guest_protocol import answer_data, guest_to_host, host_to_guest
from ramet.wire.guest_protocol.guest_to_host import GuestMessage, Request
from ramet.wire.values.json_object import json_object

#: The number of characters of a text that is sent to a guest in one piece.
MAX_TEXT = 100_000
MAX_DEFINITIONS = 100  #: agents in a listing of those that may be spawned
MAX_REF = 64 * 200  #: characters of a handle
#: Bytes that a guest may record before it waits until all of them are on disk.
MAX_UNSETTLED = 1024 * 1024
MAX_NOTE = 2_000  #: characters of a guest's note
REPORT_BYTES = 2_000  #: as which a report of a program counts among what is not on disk yet


class GuestRequests:
    """The requests of one sandbox, executed for its run."""

    def __init__(self, run: Run, step: StepId, conversation: SandboxedConversation | None = None) -> None:
        self._run, self._conversation = run, conversation
        self.call = CurrentCall(run.context, CallId(""), step)
        self._children = ChildRequests(run, self.call)
        files = FileRequests(run, self._children)
        self._unsettled_bytes = 0  #: bytes that the guest recorded and that are not on disk yet
        self._forwarded = ForwardedRequests(run)
        self._program = ProgramRequests(run) if run.agent.external is not None else None
        self.mcp = McpConnections(run)
        self._intention_gate = IntentionGate(run, step) if conversation is None else None  #: for functions only
        self.channel: GuestChannel | None = None
        self.sandbox = ""  #: globally unique id of the sandbox, if it can outlive its kernel
        self._handlers: dict[type[Request], Callable[[Any, bytes], Coroutine[Any, Any, Reply | LargeReply]]] = {
            guest_to_host.Spawn: self._children.spawn,
            guest_to_host.MoveToBackground: self._children.move_to_background,
            guest_to_host.Cancel: self._cancel,
            guest_to_host.Send: self._send,
            guest_to_host.AskPeer: self._ask_peer,
            guest_to_host.ReportMonitor: self._report_monitor,
            guest_to_host.Output: self._output,
            guest_to_host.ListRuns: self._list,
            guest_to_host.ListDefinitions: self._list_definitions,
            guest_to_host.CreateAgent: self._create_agent,
            guest_to_host.PerformTask: self._perform_task,
            guest_to_host.UseState: self._use_state,
            guest_to_host.ReadArtifact: files.read_artifact,
            guest_to_host.SaveCheckpoint: files.save_checkpoint,
            guest_to_host.LoadCheckpoint: files.load_checkpoint,
            guest_to_host.AskModel: self._ask_model,
            guest_to_host.Approve: self._approve,
            guest_to_host.ProposeCall: self._intend,
            guest_to_host.FireHook: self._fire_hook,
            guest_to_host.ForwardRequest: self._forward,
            guest_to_host.StartToolCall: self._start_call,
            guest_to_host.AskPermission: self._ask_permission,
            guest_to_host.ConnectMcpServer: self._connect_mcp_server,
            guest_to_host.PassMcpMessage: self._pass_mcp_message,
            guest_to_host.ListMcpTools: self._list_mcp_tools,
            guest_to_host.CallMcpTool: self._call_mcp_tool,
        }

    def adopt(self, replay: RunReplay) -> None:
        """Continue with a sandbox that outlived a kernel; `replay` is the recorded state.

        The sandbox knows the children that it had there, and does not request them again. Raises ProtocolError.
        """
        if self._conversation is not None:
            self._conversation.adopt(replay)
        self._children.adopt()

    @property
    def will_give_up(self) -> bool:
        """True if the process is about to be ended: its conversation only waits at a limit."""
        pause = self._conversation.pause if self._conversation is not None else None
        channel = self.channel
        return pause is not None and channel is not None and channel.requests_in_progress == 1 and pause.is_waiting

    # ---- called by the channel

    async def answer(self, request: Request, body: bytes) -> Reply | LargeReply:
        """Execute a request and return its reply."""
        request_key = f"{self.sandbox}.{request.id}" if self.sandbox else ""
        current_call.set(
            self.call._replace(request_key=request_key)
        )  # The channel gives each request a task of its own.
        if self._intention_gate is not None:
            await self._intention_gate.pass_gate(request, body)
        try:
            reply = await self._handlers[type(request)](request, body)
            if _precedes_call(request):
                await self._run.context.wait_unpaused()
            return reply
        finally:
            if self.sandbox and isinstance(
                request, guest_to_host.DURABLE_REQUESTS
            ):  # Once it is answered, it is never sent again.
                await self._run.context.wait_persisted()

    def receive(self, message: GuestMessage, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Accept a message that needs no answer.

        Raises ProtocolError if the message is not allowed.
        """
        if isinstance(message, guest_to_host.Watch):
            assert self.channel is not None
            return self._children.watch(message.run, self.channel)
        if isinstance(message, guest_to_host.Record) and may_have_files(body):
            return self._record_with_files(message, body)
        self._take(message, body)
        return self._settle() if self._unsettled_bytes >= MAX_UNSETTLED else None

    async def _record_with_files(self, message: guest_to_host.Record, body: bytes) -> None:
        """Record a result of a tool whose images and documents are stored first: the record has their hashes alone."""
        conversation = self._require_conversation()
        content = await stored_content(body, self._run.context.store_blob)
        conversation.record(message, body, lasts=bool(self.sandbox), content=content)
        await self._settle()

    def _take(self, message: GuestMessage, body: bytes) -> None:
        match message:
            case guest_to_host.Record():
                self._require_conversation().record(message, body, lasts=bool(self.sandbox))
                self._unsettled_bytes += len(body)
            case guest_to_host.Note():
                self._run.context.emit(Notice, text=masked_text(self._run, message.text, MAX_NOTE))
                self._unsettled_bytes += len(message.text)
            case guest_to_host.WindowUpdate():
                self._forwarded.update_window(message)
            case guest_to_host.ResetStream() if self._program is not None and self._program.withdraw(message.request):
                pass
            case guest_to_host.ResetStream() if self.mcp.abandon(message.request):
                pass
            case guest_to_host.ResetStream():
                self._forwarded.reset(message)
            case _ if self._program is not None and self._program.receive(message):
                self._unsettled_bytes += REPORT_BYTES
            case _:
                raise ProtocolError(f"{type(message).__name__} is not expected here")

    async def _settle(self) -> None:
        """Pause reading of this guest's messages until its records are on disk: before that they are in memory."""
        self._unsettled_bytes = 0
        with contextlib.suppress(RametError):  # The store failed: the runtime ends this run, and reports why.
            await self._run.context.wait_persisted()

    # ---- other runs

    @property
    def _tree(self) -> Tree:
        tree = self._run.context.tree
        assert tree is not None, "a spawned run has a tree"
        return tree

    async def _cancel(self, request: guest_to_host.Cancel, _: bytes) -> Reply:
        receipt = await self._tree.stop(self._run.context, request.target, request.reason[:1_000])
        return Reply(answer_data.StopReply(stopped=receipt.stopped, left=receipt.left))

    async def _send(self, request: guest_to_host.Send, _: bytes) -> Reply:
        receipt = await self._tree.send(
            self._run.context,
            request.to,
            request.text,
            notify_when_idle=request.notify_when_idle,
            dedupe_s=request.dedupe_s,
        )
        return Reply(answer_data.Text(text=receipt))

    async def _ask_peer(self, request: guest_to_host.AskPeer, _: bytes) -> Reply:
        self._require_conversation()
        call_id = CallId(request.call_id) if request.call_id else None
        asked = PeerRequest(request.do, request.target, request.text, request.is_approved, request.timeout_s, call_id)
        wait = self._tree.ask_peer(self._run.context, asked)
        if asked.do != "plan":
            return Reply(answer_data.Text(text=await wait))
        return Reply(answer_data.Text(text=await self._run.context.slot.while_waiting(wait, key=self.call.step_id)))

    async def _report_monitor(self, request: guest_to_host.ReportMonitor, _: bytes) -> Reply:
        self._require_conversation()
        report = MonitorReport(request.do, request.monitor, request.text)
        return Reply(answer_data.Text(text=await self._tree.report_monitor(self._run.context, report)))

    async def _output(self, request: guest_to_host.Output, _: bytes) -> LargeReply:
        seconds = max(0.0, min(request.timeout_s, 600.0))
        if request.block:
            wait = self._tree.output(self._run.context, request.target, block=True, timeout_s=seconds)
            await self._run.context.slot.while_waiting(wait, key=self.call.step_id)
        return LargeReply(lambda: self._output_reply(request.target))

    async def _output_reply(self, target: str) -> Reply:
        text = await self._tree.output(self._run.context, target, block=False, timeout_s=0.0)
        return Reply(answer_data.Text(text=text[:MAX_TEXT]))

    async def _list(self, request: guest_to_host.ListRuns, _: bytes) -> LargeReply:
        return LargeReply(lambda: self._runs_reply(request.below))

    async def _runs_reply(self, below: bool) -> Reply:
        views = await self._tree.list_runs(self._run.context, below=below)
        names = answer_data.RunSummary.__struct_fields__
        summaries = (answer_data.RunSummary(**{name: getattr(each, name) for name in names}) for each in views[:1_000])
        return Reply(answer_data.Runs(runs=tuple(summaries)))

    async def _list_definitions(self, _request: guest_to_host.ListDefinitions, _: bytes) -> Reply:
        spawnable = list(self._tree.spawnable(self._run.context).items())[:MAX_DEFINITIONS]
        summaries = (answer_data.DefinitionSummary(name=name, description=text[:1_000]) for name, text in spawnable)
        return Reply(answer_data.Definitions(definitions=tuple(summaries)))

    async def _create_agent(self, _request: guest_to_host.CreateAgent, body: bytes) -> Reply:
        entry = json_object(body, "recipe", max_bytes=MAX_BYTES)
        created = await self._tree.create(self._run.context, entry)
        return Reply(answer_data.CreateReply(ref=created.ref, dropped=created.dropped_names))

    async def _perform_task(self, request: guest_to_host.PerformTask, body: bytes) -> Reply:
        if len(request.ref) > MAX_REF:
            raise InvalidValue("handle", request.ref, f"at most {MAX_REF} characters")
        handle = await self._tree.call_task(
            self._run.context,
            request.ref,
            checked_task_name(request.task),
            json_object(body, "arguments", max_bytes=MAX_ARGUMENTS),
            name=checked_name("name", request.name) if request.name is not None else None,
            branch=request.branch,
            call_id=CallId(request.call_id) if request.call_id else None,
        )
        return self._children.add(handle)

    async def _use_state(self, request: guest_to_host.UseState, body: bytes) -> LargeReply:
        async def use() -> Reply:
            return Reply(*await self._tree.use_state(self._run.context, request, body))

        return LargeReply(use)

    # ---- forwarded model requests

    async def _forward(self, request: guest_to_host.ForwardRequest, body: bytes) -> Reply:
        assert self.channel is not None
        await self._forwarded.forward(request, body, self.channel.send)
        return Reply()

    # ---- requests of a program of another maker

    def _require_program(self) -> ProgramRequests:
        if self._program is None:
            raise ProtocolError("this run is no program of another maker")
        return self._program

    async def _start_call(self, request: guest_to_host.StartToolCall, _: bytes) -> Reply:
        await self._require_program().start_call(request)
        return Reply()

    async def _ask_permission(self, request: guest_to_host.AskPermission, _: bytes) -> Reply:
        return Reply(await self._require_program().ask_permission(request))

    # ---- servers of the Model Context Protocol

    async def _connect_mcp_server(self, request: guest_to_host.ConnectMcpServer, _: bytes) -> Reply:
        async def send(message: bytes) -> None:
            assert self.channel is not None
            await self.channel.send(host_to_guest.StreamChunk(id=request.id), message)

        await self.mcp.connect(request, send)
        return Reply()

    async def _pass_mcp_message(self, request: guest_to_host.PassMcpMessage, body: bytes) -> Reply:
        await self.mcp.receive(request, body)
        return Reply()

    async def _list_mcp_tools(self, _request: guest_to_host.ListMcpTools, _: bytes) -> Reply:
        self._require_conversation()
        return Reply(None, await self.mcp.list_tools())

    async def _call_mcp_tool(self, request: guest_to_host.CallMcpTool, _: bytes) -> Reply:
        # Whoever sends this: what the gates let begin is what is called, with the arguments that they saw.
        arguments = self._require_conversation().calls.take_host_work(request.call_id, request.tool)
        await self._run.context.wait_persisted()
        result, definitions = await self.mcp.call(request, arguments)
        text = result.text.encode("utf-8", "replace")
        files = msgspec.json.encode(result.files) if result.files and not result.is_error else b""
        if not definitions and not files:
            return Reply(answer_data.McpCallReply(is_error=result.is_error), text)
        reply = answer_data.McpCallReply(
            is_error=result.is_error, text_size=len(text), has_definitions=bool(definitions)
        )
        return Reply(reply, text + (definitions or files))

    @property
    def refused_model_request(self) -> BudgetExceeded | None:
        """The refusal of the newest forwarded model request, if a limit refused it."""
        return self._forwarded.refusal

    def close(self) -> None:
        """Record the end of what a program left open. Idempotent."""
        if self._program is not None:
            self._program.close()

    # ---- requests of a conversation

    def _require_conversation(self) -> SandboxedConversation:
        if self._conversation is None:
            raise ProtocolError("this run is a function: it has no conversation")
        return self._conversation

    async def _ask_model(self, request: guest_to_host.AskModel, body: bytes) -> Reply:
        async def piece(data: bytes) -> None:
            assert self.channel is not None
            await self.channel.send(host_to_guest.StreamChunk(id=request.id), data)

        reply, message = await self._require_conversation().ask_model(request, body, piece)
        return Reply(reply, message)

    async def _approve(self, request: guest_to_host.Approve, _: bytes) -> Reply:
        conversation = self._require_conversation()
        return Reply(await conversation.gates.approve(request, conversation.calls))

    async def _intend(self, request: guest_to_host.ProposeCall, _: bytes) -> Reply:
        conversation = self._require_conversation()
        return Reply(await conversation.gates.propose(request, conversation.calls))

    async def _fire_hook(self, request: guest_to_host.FireHook, body: bytes) -> Reply:
        conversation = self._require_conversation()
        return Reply(await conversation.gates.fire(request, body, conversation.calls))


def _precedes_call(request: Request) -> bool:
    """Return whether a tool call of the guest may begin with the answer."""
    if isinstance(request, guest_to_host.FireHook):
        return request.event == "PreToolUse"
    return isinstance(
        request,
        guest_to_host.Approve | guest_to_host.ProposeCall | guest_to_host.StartToolCall | guest_to_host.AskPermission,
    )
