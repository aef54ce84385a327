"""An agent of the type "function": a conversation in which each answer is one call, as a tree of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from msgspec.structs import replace

from ramet.agent.definition import Agent, as_agent
from ramet.concurrency.cancel import is_being_cancelled
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import Aborted, Bug, BusyError, DefinitionMissing, Expired, MailRefused, RametError, Unknown
from ramet.core.events import Notice
from ramet.core.outcome import NO_USAGE, ErrorInfo, Result, Status
from ramet.core.policy.decision import clamp_grant
from ramet.core.policy.policy import Policy, resolve_root_policy, secrets_of, variables_of
from ramet.host.safety.gate import SafetyGate
from ramet.services.agent_types import bundle_operations
from ramet.services.agent_types.bundle_operations import LoadBundle, UnloadBundle
from ramet.services.agent_types.conversation_log import HISTORY_BYTES, ConversationLog, ConversationTurn
from ramet.services.agent_types.function import invoke
from ramet.services.agent_types.function.call import RunningCall
from ramet.services.agent_types.imports import FunctionReference
from ramet.services.agent_types.outcome import remaining_limits, resource_amounts
from ramet.services.contract import AgentSpec
from ramet.services.formats.registry import AnswerWriter
from ramet.services.formats.request import read_text
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.services")

#: The errors for which a call cannot be continued; its function is not called again.
_NOT_RESUMABLE = (DefinitionMissing, BusyError, Expired)


class FunctionAgent:
    """A conversation with a function. The calls share only the conversation: each call has a new sandbox."""

    tree = ""  #: it has no tree of its own, since each turn is a tree

    def __init__(
        self,
        spec: AgentSpec,
        function: Callable[..., Any] | FunctionReference,
        policy: Policy | None,
        isolation: str,
        turns: ConversationLog,
        gate: SafetyGate | None = None,
    ) -> None:
        """Serve a function, which is a reference if only its sandbox can import it. `turns` are not read yet."""
        self.isolation, self.run, self._gate = isolation, spec.run, gate
        self._spec, self._function, self._policy = spec, function, policy
        self._turns = turns
        self._takes_history = isinstance(function, FunctionReference) or invoke.takes_history(function)
        self._has_warned = False  #: whether the log has warned about omitted history
        self._usage = NO_USAGE
        self._begin_task: asyncio.Task[None] | None = None  #: of the newest turn
        self._call: RunningCall | None = None  #: the newest call
        self._resumed_call: RunningCall | None = None  #: begun by another kernel, until its turn is continued
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()

    async def restore(self) -> None:
        """Resume where another kernel stopped: an active call continues in its sandbox or from its beginning.

        A call that cannot be continued has ended: its function is not called again. Raises StoreFailed, Damaged.
        """
        for turn in await self._turns.read():
            self._usage += turn.used
            self.run = turn.run
        if self._turns.active_turn is not None:
            self._call = self._resumed_call = await self._resume_call(self._turns.active_turn)

    # ---- turns

    def turn(self, body: bytes, format: str) -> AsyncGenerator[bytes]:
        """Answer the last message of a body; see `RunningAgent.turn`.

        After the text that was sent, raises Aborted if the turn was interrupted, TaskFailed with the turn's status if
        the turn failed, and OutputTooLarge if the answer is too long.
        """
        return self._new_turn(body, format, ())

    @property
    def turns_taken(self) -> int:
        return self._turns.newest_number

    @property
    def restarts_turn(self) -> bool:
        """Return whether another kernel would begin the active turn again.

        False if its sandbox outlives this kernel.
        """
        return self._call is None or not self._call.survives_kernel

    async def resume_turn(
        self, number: int, body: bytes, format: str, sent_chunks: Sequence[bytes]
    ) -> AsyncGenerator[bytes]:
        """Continue a turn that another kernel began: its function continues, is called again, or had ended.

        Yields the chunks after those of `sent_chunks`. Leaving the iteration interrupts the turn. Raises like `turn`.
        Raises Aborted if the turn cannot be continued, and Damaged, StoreFailed.
        """
        resumed_call, self._resumed_call = self._resumed_call, None
        if number > self._turns.newest_number:  # Its call was not recorded.
            reply = self._new_turn(body, format, sent_chunks)
        elif resumed_call is not None and resumed_call.turn.number == number:
            reply = self._reply(resumed_call, format, sent_chunks)
        elif (ended_turn := await self._turns.of(number)) is not None:
            reply = self._reply(RunningCall.of_ended_turn(ended_turn), format, sent_chunks)
        else:
            raise Bug(f"turn {number} is not recorded, but later turns are")
        async with aclosing(reply) as chunks:
            async for chunk in chunks:
                yield chunk

    async def interrupt(self) -> None:
        if self._call is not None:
            await self._call.cancel("it was interrupted")

    async def mail(self, text: str) -> None:
        raise MailRefused(self._spec.path, "it is a function and reads no mail")

    async def close(self, reason: str) -> None:
        if not self.end.done():
            self.end.set_result(None)
        if self._begin_task is not None:
            self._begin_task.cancel()
            await asyncio.wait({self._begin_task})
        if self._call is not None:
            await self._call.cancel(reason)
        self._turns.close()

    # ---- state

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Return `role` (user, assistant) and `content` of each message. Raises Damaged, StoreFailed."""
        return await self._turns.history()

    def usage(self) -> Mapping[str, float]:
        """Return the usage of all calls and of their runs: tokens, usd, model_calls, tool_calls, agents."""
        return resource_amounts(self._usage)

    async def control(self, operation: Any) -> Any:
        """Load or unload a bundle. Calls, including an active one, may import its code."""
        if isinstance(operation, LoadBundle | UnloadBundle):
            return await bundle_operations.change(self._spec, operation)
        raise Bug(f"an operation that was not declared: {type(operation).__name__}")

    # ---- a turn

    async def _new_turn(self, body: bytes, format: str, sent_chunks: Sequence[bytes]) -> AsyncGenerator[bytes]:
        text = read_text(body).encode("utf-8", "replace").decode()
        self._resumed_call = None
        if self._call is not None:  # A turn that an earlier server began, without a reader.
            await self._call.wait_ended()
        if self.end.done():
            raise _ended_error()
        turn = ConversationTurn(number=self._turns.newest_number + 1, run=self._spec.runtime.mint(), asked=text)
        call = RunningCall(turn, self._keep)
        self._begin_task = asyncio.create_task(self._begin(call), name=f"ramet begins {turn.run}")
        try:
            await self._begin_task
        except asyncio.CancelledError:
            await call.cancel("its reader disconnected")  # The call may already be active.
            if is_being_cancelled():
                raise
            raise _ended_error() from None
        async with aclosing(self._reply(call, format, sent_chunks)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _begin(self, call: RunningCall) -> None:
        """Record a turn and start its call. Nothing of the turn remains if this raises or is cancelled."""
        try:
            await run_shielded(self._turns.write(call.turn))
            handle = await self._start(call)
        except BaseException:
            with suppress(RametError):
                await run_shielded(self._turns.forget(call.turn))
            raise
        self._note_omission(handle)
        call.attach(handle)
        self._call, self.run = call, call.turn.run

    async def _reply(self, call: RunningCall, format: str, sent_chunks: Sequence[bytes]) -> AsyncGenerator[bytes]:
        """Yield the answer of a call after those of `sent_chunks`. Raises the error that the call ends with."""
        created = int(self._spec.runtime.clock.now().timestamp())
        answer = AnswerWriter(format, call.turn.run, _name_of(self._function), created, sent_chunks)
        sent_text, pieces_text = answer.sent_text, list[str]()
        try:
            for chunk in answer.begin():
                yield chunk
            async with aclosing(call.text(sent_text)) as pieces:
                async for piece in pieces:
                    if sent_text:
                        pieces_text.append(piece)
                    for chunk in answer.text(piece):
                        yield chunk
        finally:
            if not call.is_over:
                await call.cancel("its reader disconnected")
        full_text = "".join((sent_text, *pieces_text))
        # The call may have ended before this kernel read its output.
        if sent_text and call.place != "from the beginning" and full_text != call.turn.said:
            await self._turns.write(replace(call.turn, said=full_text))
        call.check()
        for chunk in answer.end(call.turn.used):
            yield chunk

    async def _start(self, call: RunningCall) -> Handle:
        spawn, function, run = self._spec.runtime.spawn, self._function, call.turn.run
        limits = remaining_limits(self._spec.limits, self._usage)  # Each turn is a tree with its own budget.
        text, late_args = call.turn.asked, self._late_args
        if self._policy is None:
            host_agent = self._host_agent(call)
            return await spawn(
                host_agent, args=(text,), late_args=late_args, limits=limits, run=run, state_owner=self._spec.id
            )
        is_reference = isinstance(function, FunctionReference)
        return await spawn(
            invoke.call_named if is_reference else invoke.call_inside,
            args=(*function, text) if isinstance(function, FunctionReference) else (function, text),
            late_args=late_args,
            policy=self._policy,
            limits=limits,
            on_output=call.pieces.put_output,
            import_dir=self._spec.loaded_bundles.folder if self._spec.loaded_bundles is not None else None,
            gate=self._gate,
            run=run,
            state_owner=self._spec.id,
        )

    async def _resume_call(self, turn: ConversationTurn) -> RunningCall | None:
        """Return the turn's call, active or ended; None if the call never began. Raises StoreFailed."""
        call, runtime = RunningCall(turn, self._keep), self._spec.runtime
        self.run = turn.run
        await self._turns.write(turn)  # After this, the previous owner can no longer write the turn.
        try:
            for handle in await runtime.resume(
                only=turn.run,
                agents=[self._host_agent(call)] if self._policy is None else (),
                secrets=secrets_of(self._policy),
                env_vars=variables_of(self._policy),
                gate=self._gate,
                prepare=lambda run: self._prepare(run, call),
            ):
                call.attach(handle, was_begun=True)
                return call
            await call.set_result(await runtime.result(turn.run), in_the_host=self._policy is None)
        except Unknown:
            await self._turns.forget(turn)
            return None
        except _NOT_RESUMABLE as problem:
            error = Aborted(
                f"its kernel was lost in the middle of this turn, and the turn cannot be resumed: {problem}"
            )
            result = Result(status=Status.CANCELLED, error=ErrorInfo(type="Aborted", message=str(error)))
            await call.set_result(result, in_the_host=self._policy is None)
        return call

    def _prepare(self, run: Run, call: RunningCall) -> None:
        """Connect a resumed run to this kernel's reader and folders: other kernels have other folders.

        A run of an older ramet has its history in its arguments.
        """
        if run.request.late_args is not None:
            run.request = dataclasses.replace(run.request, late_args=self._late_args)
        if self._policy is not None and run.grant is not None:
            bundle_folder = self._spec.loaded_bundles.folder if self._spec.loaded_bundles is not None else None
            run.grant = resolve_root_policy(self._policy)
            if run.policy_ceiling is not None:  # A policy adapter narrowed the grant when the run was spawned.
                run.grant = clamp_grant(run.grant, run.policy_ceiling)
            placement = self._spec.runtime.sandboxes.placement()
            run.sandbox.mount_roots = placement.mount_roots(run.grant.mounts.paths)
            run.request = dataclasses.replace(run.request, on_output=call.pieces.put_output, import_dir=bundle_folder)

    def _late_args(self) -> tuple[invoke.History]:
        """Return the history to call the function with. The journal of each turn's tree does not repeat it."""
        return (self._turns.recent_history() if self._takes_history else [],)

    def _note_omission(self, handle: Handle) -> None:
        """Record a notice of the turn, and log once, if the function does not get the whole history."""
        omitted_count = self._turns.omitted_count if self._takes_history else 0
        if not omitted_count:
            return
        total = omitted_count + len(self._turns.recent_history())
        limit = f"the newest that fit into {HISTORY_BYTES} bytes"
        text = f"its function gets {total - omitted_count} of {total} messages of its history, {limit}"
        handle.run.context.emit(Notice, text=text)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("agent %s (%s): %s", self._spec.id, self._spec.path, text)

    def _host_agent(self, call: RunningCall) -> Agent:
        assert not isinstance(self._function, FunctionReference), "the code of an image is called in a sandbox"
        return as_agent(_bind(self._function, call.pieces.put))

    async def _keep(self, turn: ConversationTurn) -> None:
        """Store a turn that has ended, and add its usage, however it ended."""
        self._usage += turn.used
        await self._turns.write(turn)


def _ended_error() -> RametError:
    return RametError("this agent has ended")


def _bind(function: Callable[..., Any], out: Callable[[str], None]) -> Callable[..., Any]:
    """Bind the output to the function. A synchronous function then runs in a thread; an async function does not."""

    def call(text: str, history: invoke.History) -> Any:
        return invoke.call(function, text, history, out)

    async def wait(text: str, history: invoke.History) -> Any:
        return await invoke.finish(invoke.begin(function, text, history), out)

    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    bound: Callable[..., Any] = wait if is_async else call
    bound.__name__ = _name_of(function)
    return bound


def _name_of(function: Callable[..., Any] | FunctionReference) -> str:
    return function.name if isinstance(function, FunctionReference) else str(getattr(function, "__name__", "function"))
