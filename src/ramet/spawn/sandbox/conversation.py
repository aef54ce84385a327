"""The host's side of a conversation whose loop runs in a sandbox: its requests, and the checks of its reports.

The guest is hostile. The host takes nothing from the guest that it can know itself. A reply is recorded and added to
the conversation when the gateway has it; mail when its own text leaves the mailbox; a call's tool and arguments are
those of the reply. The guest adds only its own knowledge: results of tools, and the messages of its loop to the model.
All of it is bounded, and stamped with the run of its channel. So `run.context.history` is always a real conversation of
the model. The run can be forked from it, woken, or asked for its answer.

Tool calls are charged here, from the replies that pass (`ramet.spawn.tool_calls`). A violation of a rule is a
ProtocolError: the channel closes, the run fails, and no other run is affected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.tools import BaseTool

from ramet.agent.context import calls_of, with_call_ids, without_calls
from ramet.agent.hooks.config import EVENTS
from ramet.agent.loop import record_message
from ramet.agent.output import OutputContract
from ramet.agent.source_modules import source_modules
from ramet.core import errors
from ramet.core.errors import Aborted, BudgetExceeded, InvalidValue, ModelFailed, ProtocolError, RametError
from ramet.core.events import RunResumed
from ramet.core.ids import StepId
from ramet.core.outcome import Usage
from ramet.core.replay.run_replay import RunReplay
from ramet.models.errors import is_overflow
from ramet.models.json_values import to_json_value
from ramet.models.relay import encode_chunk
from ramet.models.request_codec import as_data, decode_request, redact_for_guest, schema_only_tool
from ramet.spawn.final_answer import checked_answer
from ramet.spawn.forwarding.mail_forwarding import forward_mail
from ramet.spawn.forwarding.request_context import context_of_request
from ramet.spawn.mcp.tool_list import without_server_tools
from ramet.spawn.run import Run
from ramet.spawn.sandbox.approvals import Gates
from ramet.spawn.sandbox.guest_events import Records
from ramet.spawn.sandbox.pausing import ConversationPause
from ramet.spawn.sandbox.transcript import Mirror
from ramet.spawn.tool_calls import PastCalls, ToolCallLedger, charge_aside, step_number
from ramet.spawn.verdict import recorded_refusal
from ramet.tools.builtins import builtin_tools, by_name, is_builtin
from ramet.tools.context import DeclaredResult, ToolUseContext
from ramet.tools.model_request import ModelRequest
from ramet.tools.python import NAME as PYTHON
from ramet.wire.code import capsule
from ramet.wire.code.bundle import has_user_modules
from ramet.wire.error_codec import decode_error
from ramet.wire.frames import MAX_BODY
from ramet.wire.guest_protocol import host_to_guest
from ramet.wire.guest_protocol.answer_data import Reply
from ramet.wire.guest_protocol.guest_to_host import AskModel, Done, Record
from ramet.wire.guest_protocol.host_to_guest import StartConversation
from ramet.wire.values import values

#: Number of tool lists of a guest's own that one conversation may show to a model: each stays bound for a while.
MAX_TOOL_LISTS = 64
#: The text that a guest receives about a provider that failed.
NO_ANSWER = "it did not answer"

_HOST_ERRORS = frozenset(kind.__name__ for kind in (Aborted, BudgetExceeded, ModelFailed, errors.Bug))


class SandboxedConversation:
    """A turn of a run whose loop works in a sandbox; made once per turn, `start`ed once per attempt."""

    def __init__(self, run: Run, messages: Sequence[BaseMessage]) -> None:
        self._run, self._messages = run, messages
        self._transcript = Mirror(run)
        self._records = Records(run, self._transcript)
        self.gates = Gates(run.context)
        self.calls = run.sandbox.inherited_calls or ToolCallLedger(run.context)  #: calls of the newest reply
        run.sandbox.inherited_calls = None
        self._has_started = False  #: the messages of the turn are recorded, or an earlier kernel recorded them
        self._is_asking = False  #: a request of the conversation is in progress; requests of tools may run concurrently
        self._steps: set[int] = set()
        self._schema_tools: dict[bytes, BaseTool] = {}
        self._tool_lists: set[tuple[int, ...]] = set()
        self._last_refusal: BudgetExceeded | None = None  #: the last budget refusal that the guest received
        self._last_failure: ModelFailed | None = None  #: the last model failure that the guest received
        self._inherited_step = ""  #: the step of the newest reply that another kernel recorded
        self._replies = 0  #: that were recorded here
        self.pause = ConversationPause(run)

    # ---- the beginning

    async def start(self) -> tuple[StartConversation, bytes]:
        """Return the first message to the guest.

        The messages of the turn are recorded, after those that existed when it began. Raises InvalidValue if the agent
        has a part that cannot work in a sandbox, NotShippable if a tool cannot be transferred.
        """
        run, context = self._run, self._run.context
        context.tools = without_server_tools(context.tools)  # The servers of this attempt list their own.
        tools = _capsule_of(run)
        self.close()
        self.calls, self._is_asking, self._inherited_step = ToolCallLedger(context), False, ""
        self._records.start_after()
        context.declared_result = context.final_refusal = None
        run.sandbox.on_start()
        run.activity.streamed_text.clear()
        self._has_started = True
        system, history = self._transcript.start_turn(self._messages)
        await self._reserve_repeated()
        tree, compaction = context.tree, run.compaction
        types = dict(tree.spawnable(context)) if tree is not None else {}
        capabilities = [each.data() for each in run.agent.capabilities]
        payload = {"system": system, "history": history, "types": types, "capabilities": capabilities}
        body = msgspec.json.encode({**payload, "setup": run.agent.setup})
        start = StartConversation(
            run=run.info.id,
            root=run.info.root,
            path=run.info.path,
            agent=run.info.agent,
            depth=run.info.depth,
            cwd=str(run.visible_cwd),
            json_size=len(body),
            read_roots=run.grant.mounts.paths if run.grant is not None else (),
            parent=run.info.parent,
            tools=tuple(tool.name for tool in context.tools),
            tools_tag=tools.tag if tools is not None else "",
            max_turns=run.max_turns,
            room=host_to_guest.CompactionSettings(
                window_tokens=compaction.window_tokens, at=compaction.at, keep_last=compaction.keep_last
            )
            if compaction
            else None,
            output_schema=dict(OutputContract(run.agent.output).schema) if run.agent.output is not None else None,
            hooks=_reported_events(context),
            gated=context.safety is not None,
            permissions=context.permissions,
            permissions_after_plan=context.permissions_after_plan,
            steps=context.steps,
            mcp=tuple(
                run.sandbox.mcp_programs.get(each.name, each).as_guest_data()
                for each in run.agent.mcp_servers
                if each.runs_with_agent
            ),
            has_servers=bool(run.agent.mcp),
            resumes=run.turn.resumes,
            replied=run.turn.replies if run.turn.resumes else 0,
            objected=run.turn.objections if run.turn.resumes else 0,
            granted=self.calls.granted_count,
            scope=self.calls.refusal.scope if self.calls.refusal is not None else "",
        )
        return start, body + (tools.data if tools is not None else b"")

    async def _reserve_repeated(self) -> None:
        """Reserve the interrupted calls that begin again; wait while they may not begin."""
        tools, run = self._transcript.repeated_tools, self._run
        if not tools:
            return
        history = run.context.history
        reply = next(each for each in reversed(history) if isinstance(each, AIMessage))
        others = frozenset(each["id"] or "" for each in calls_of(reply)) - tools.keys()
        step = next(run.sandbox.interrupted_calls[each].step for each in tools)
        self.calls = ToolCallLedger(run.context, step, reply, PastCalls(answered_ids=others, repeated_tools=tools))
        await self.calls.wait_to_run()
        self._last_refusal = self.calls.refusal or self._last_refusal

    async def continue_after_pause(self) -> None:
        """Wait until the request of the process that was given up fits; the next process goes on from the record."""
        await self.pause.wait_granted()
        run, turn = self._run, self._run.turn
        base = (turn.replies, turn.objections) if turn.resumes else (0, 0)
        turn.replies, turn.objections = base[0] + self._replies, base[1] + self._records.objections
        turn.resumes, self._messages = True, ()
        self._replies = self._records.objections = 0
        self._transcript.continue_here()
        run.context.emit(RunResumed, turn=run.turns)

    def record_unsent(self) -> None:
        """Record the messages of a turn for which no guest could be started: the next turn begins with them."""
        if not self._has_started:
            for message in self._messages:
                record_message(self._run.context, message)

    def adopt(self, replay: RunReplay) -> None:
        """Continue with a guest that an earlier kernel started; the record is what both know.

        Raises ProtocolError if the conversation is too large for a guest.
        """
        context = self._run.context
        self._has_started = True
        self._transcript.adopt()
        self._records.start_after(replay.recorded_reports)
        self._inherited_step = replay.reply_step
        self._last_refusal = context.final_refusal or self.calls.refusal or recorded_refusal(replay)
        context.refusal = self._last_refusal if replay.refusal is not None else None

    async def forward_mail(self, tell: Callable[..., Awaitable[None]]) -> None:
        """Send new mail and a stop to the guest.

        Runs concurrently with the guest, and is cancelled when the guest has ended.
        """
        try:
            outlives = self._run.sandbox.can_outlive_kernel
            await forward_mail(self._run.context, tell, lambda mail: mail.text, outlives_kernel=outlives)
        finally:
            self.close()

    def close(self) -> None:
        """Release all holds of the budget. Idempotent."""
        self.calls.close()

    # ---- requests of the guest

    async def ask_model(
        self, request: AskModel, body: bytes, send_piece: Callable[[bytes], Awaitable[None]]
    ) -> tuple[Reply, bytes]:
        """Send a request to the run's model.

        Raises BudgetExceeded and ModelFailed, which the guest receives, and ProtocolError. A recorded reply that did
        not reach the guest before its kernel ended is not requested again.
        """
        if self._inherited_step and request.step == self._inherited_step and not request.aside:
            recorded = as_data(self._newest_reply())
            await self.calls.wait_to_run()
            return self._reply_to_guest(recorded)
        question = self._model_request(request, body)
        if not request.aside:
            if self._is_asking:
                raise ProtocolError("a second model request of the conversation came before the first was answered")
            self._is_asking = True
            self.close()
        try:
            reply, request_context = await self._ask(request, question, send_piece)
            if not request.aside:
                recorded = self._record_reply(request, reply, request_context)
                await self.calls.wait_to_run()
                return self._reply_to_guest(recorded, request_context.last_usage)
            await charge_aside(self._run.context, request.step, reply)
            return Reply(usage=request_context.last_usage), msgspec.json.encode(redact_for_guest(as_data(reply)))
        except BudgetExceeded as refusal:
            self._last_refusal = refusal
            if not request.last_word:  # Recorded before the guest receives it: a resuming kernel owes it a last answer.
                self._run.context.record_refusal(refusal)
            raise
        except ModelFailed as failure:
            self._last_failure = failure
            if is_overflow(failure):  # The guest can help: it shortens its conversation.
                return Reply(is_too_long=True), b""
            # A provider's text may hold addresses and keys; the run's own end reports it.
            raise ModelFailed("the model", NO_ANSWER, status=failure.status, retryable=failure.retryable) from failure
        finally:
            if not request.aside:
                self._is_asking = False
                self.pause.release()

    def record(self, report: Record, body: bytes, *, lasts: bool = False, content: Sequence[Any] | None = None) -> None:
        """Record an event that the guest reports, with the stored `content` of its message: see `Records.record`.

        Raises ProtocolError.
        """
        self._records.record(report, body, self.calls, self._last_refusal, lasts=lasts, content=content)

    # ---- one question

    def _model_request(self, request: AskModel, body: bytes) -> ModelRequest:
        run, refusal = self._run, self._last_refusal
        run.context.abort.raise_if_aborted()
        self._take_step(request.step)
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ProtocolError("max_tokens is at least 1")
        if request.last_word and (refusal is None or refusal.scope != run.info.path):
            raise ProtocolError("a last answer that was not granted: no budget of the run is exhausted")
        question = decode_request(self._transcript.history, body)
        return ModelRequest(
            messages=question.messages,
            tools=self._tools(question.tools),
            step=StepId(request.step),
            max_tokens=request.max_tokens,
            is_final_answer=request.last_word,
            is_side_request=request.aside,
        )

    def _take_step(self, step: str) -> None:
        """Check that each step is requested once.

        Raises ProtocolError if it was requested before.
        """
        number = step_number(self._run.context, step)
        if number in self._steps:
            raise ProtocolError(f"step {step!r} was requested before")
        self._steps.add(number)

    def _tools(self, definitions: Sequence[str | dict[str, Any]]) -> tuple[BaseTool, ...]:
        """Return the run's own tools by name, and stand-ins for others.

        The objects are the same each time, so that a model stays bound.
        """
        own_tools = {tool.name: tool for tool in self._run.context.tools}
        tools: list[BaseTool] = []
        for each in definitions:
            if isinstance(each, str):
                if each not in own_tools:
                    raise ProtocolError(f"a tool that this run does not have: {each[:100]!r}")
                tools.append(own_tools[each])
            else:
                key = msgspec.json.encode(each)
                tools.append(self._schema_tools.get(key) or self._schema_tools.setdefault(key, schema_only_tool(each)))
        ids = tuple(map(id, tools))
        if ids != tuple(map(id, self._run.context.tools)):  # That list grows with the tools that its model finds.
            self._tool_lists.add(ids)
        if len(self._tool_lists) > MAX_TOOL_LISTS:
            raise ProtocolError(f"more than {MAX_TOOL_LISTS} different lists of tools")
        return tuple(tools)

    async def _ask(
        self, request: AskModel, question: ModelRequest, send_piece: Callable[[bytes], Awaitable[None]]
    ) -> tuple[AIMessage, ToolUseContext]:
        """Return the reply, and the context of the request, which holds its usage."""
        run = self._run
        request_context = context_of_request(run.context)
        if not request.aside:
            request_context.wait_at_limit, request_context.pauses = self.pause.wait_at_limit, self.pause
        async with aclosing(run.context.ask(request_context, question)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, AIMessageChunk):
                    return piece, request_context
                if not request.aside:
                    run.activity.feed(piece, question.step)
                if request.stream:
                    await send_piece(encode_chunk(piece))
        raise ModelFailed(run.model, "it sent an empty answer")

    def _record_reply(self, request: AskModel, reply: AIMessage, request_context: ToolUseContext) -> dict[str, Any]:
        """Record a reply, add it to the conversation, and return it as data."""
        context = self._run.context
        context.last_usage = request_context.last_usage
        if request.last_word:
            context.final_refusal, reply = self._last_refusal, without_calls(reply)
        recorded = self._transcript.record(with_call_ids(reply, request.step), request.step)
        self._replies += 1
        self._run.sandbox.interrupted_calls.clear()
        self.calls = ToolCallLedger(context, request.step, self._newest_reply())
        return recorded.message

    def _newest_reply(self) -> AIMessage:
        """Return the newest reply.

        Raises ProtocolError if another message follows it.
        """
        history = self._run.context.history
        if not history or not isinstance(history[-1], AIMessage):
            raise ProtocolError("a model request was repeated after its reply was received")
        return history[-1]

    def _reply_to_guest(self, reply: dict[str, Any], usage: Usage | None = None) -> tuple[Reply, bytes]:
        """Return the newest reply in the form that the guest receives."""
        self._last_refusal = refusal = self.calls.refusal or self._last_refusal
        scope = refusal.scope if refusal is not None else ""
        response = Reply(usage=usage, granted=self.calls.granted_count, scope=scope)
        return response, msgspec.json.encode(redact_for_guest(reply))

    # ---- the end

    def finish(self, done: Done, body: bytes) -> Any:
        """Return the answer as the agent's contract requires: the model's last reply, whatever the guest reports.

        An agent that writes code may give a value by its code instead; that value is data, and is checked against the
        contract. Raises the error that ended the turn: the host's own error if the guest received it from the host.
        """
        self.close()
        run = self._run
        if not done.ok:
            raise self._failure(done)
        if done.conclusion:
            run.context.declared_result = self._declared_result(done, body)
        value = checked_answer(run)
        if isinstance(value, str) and not value.strip() and run.agent.output is None:
            raise ProtocolError("it ended with an empty answer")
        return value

    def _declared_result(self, done: Done, body: bytes) -> DeclaredResult:
        """Return the value that the agent's code gave.

        Raises OutputTooLarge if it is too large; ProtocolError if the run has no code, or if the value is invalid.
        """
        run = self._run
        if not any(tool.name == PYTHON for tool in run.context.tools):
            raise ProtocolError("a value returned by code: this run has no code")
        max_bytes = run.grant.max_output_bytes if run.grant is not None else MAX_BODY
        if len(body) > max_bytes:
            raise values.result_too_large(len(body), max_bytes)
        value = values.decode(body, done.json_size)
        try:
            return DeclaredResult("success", value=to_json_value(value, "result"))
        except InvalidValue as refusal:
            raise ProtocolError(f"a result that is not JSON data: {refusal}") from None

    def _failure(self, done: Done) -> RametError:
        """Return the error that ended the turn.

        Exhausted budgets, failed providers, stops and bugs are taken from the host's own knowledge.
        """
        context, error_info = self._run.context, done.error
        kind = error_info.type if error_info is not None else ""
        if kind == Aborted.__name__ and context.abort.reason is not None:
            return Aborted(context.abort.reason)
        if kind == BudgetExceeded.__name__ and done.fields.get("resource") == "max_turns":
            return BudgetExceeded("max_turns", asked=self._run.max_turns + 1, left=0, scope=self._run.info.path)
        known = {type(each).__name__: each for each in (self._last_refusal, self._last_failure) if each is not None}
        if kind in known:
            return known[kind]
        if error_info is None or kind in _HOST_ERRORS:
            return ProtocolError(f"it ended with {kind or 'nothing'}, which the host did not report")
        return decode_error(error_info, done.fields)


def _reported_events(context: ToolUseContext) -> tuple[str, ...]:
    """Return the events that a guest reports to the host; if rules apply, each call before it begins."""
    hooks = context.hooks
    reported = tuple(event for event in EVENTS if hooks.listens(event)) if hooks is not None else ()
    return reported if not context.permissions or "PreToolUse" in reported else ("PreToolUse", *reported)


def _capsule_of(run: Run) -> capsule.PackedCall | None:
    """Pack the tools that are not ramet's own, with the modules that its code may use; all of it runs inside.

    Raises InvalidValue or NotShippable.
    """
    if run.agent.memory is not None:
        raise InvalidValue("memory", run.agent.memory, "None for an agent in a sandbox: its memory is stored outside")
    if run.compaction is not None and run.compaction.summarise is not None:
        raise InvalidValue("compaction.summarise", run.compaction.summarise, "None for an agent in a sandbox")
    stock = builtin_tools({})
    custom_tools = [tool for tool in run.context.tools if tool.name not in stock or not is_builtin(tool)]
    modules = source_modules(run.agent) if any(tool.name == PYTHON for tool in run.context.tools) else frozenset()
    if not custom_tools and not has_user_modules(modules):
        return None
    secrets = tuple(run.grant.secrets.values()) if run.grant is not None else ()
    return capsule.pack(by_name, tuple(custom_tools), secrets=secrets, modules=modules)
