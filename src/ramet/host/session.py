"""`Session`: a conversation of many turns with the root of a tree, whose agents can spawn agents."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from langchain_core.messages import AIMessageChunk

from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import HookConfig
from ramet.agent.hooks.hooks import HookRunner
from ramet.agent.loop import MAX_TURNS
from ramet.concurrency.deadline import run_shielded
from ramet.core.arguments import check_bool
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import Event
from ramet.core.ids import ROOT_NAME
from ramet.core.lifecycle import State
from ramet.core.limits import DEFAULT_SPAWN_LIMITS, NO_LIMITS, Limits, SpawnLimits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.media.attachment import Attachment
from ramet.core.outcome import Result, Status, T, Usage
from ramet.core.policy.policy import Policy, secrets_of, variables_of
from ramet.core.policy.session_access import Inbound, SessionAddress, checked_inbound
from ramet.host.approvals import Inbox
from ramet.host.arguments import definitions_of
from ramet.host.observability.library_logs import show_logs
from ramet.host.recovery.resume import ResumeOptions, resolve_inputs
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.gate import SafetyGate
from ramet.host.sandbox.sandboxes import BackendName
from ramet.host.session_ids import checked_session_id
from ramet.host.sessions.session_arguments import (
    check_arguments,
    checked_folder,
    root_definition,
    sandboxed_children,
    tool_objects_of,
)
from ramet.host.sessions.trees import Beginning, Conversation, resume
from ramet.host.sessions.turn_start import begin_turn, check_free, check_prompt, check_readable
from ramet.host.trees.factory import OpenTree, SyncTools, TreeOptions
from ramet.host.trees.other_sessions import NO_SESSIONS, checked_sessions
from ramet.host.trees.pauses import wait_until_paused
from ramet.host.trees.project import Project
from ramet.host.trees.turn_stream import TurnStream
from ramet.isolation.contract import Backend
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.run_results import paused_result
from ramet.spawn.run import Run
from ramet.tools.agents.agents import spawning_tools
from ramet.tools.context import ToolUseContext
from ramet.tools.functions import as_tools
from ramet.tools.run_info import RunView, StopReceipt
from ramet.tools.spawn_request import SpawnRequest
from ramet.tools.workers.process_tools import check_tools

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool

_log = logging.getLogger("ramet.session")
#: True while a session is created for its definition alone: it does not begin, and records nothing.
definition_only: ContextVar[bool] = ContextVar("ramet_definition_only", default=False)


class Session(Generic[T]):
    """A conversation with one agent over many turns, one at a time. The agent remembers, and may spawn other agents.

    `llm` is any LangChain chat model, or `model` a string such as "anthropic:claude-sonnet-5-5". The agent sees `tools`
    (LangChain tools, functions with a docstring, names of ramet's own tools). Unless `spawn=False`, it also sees the
    tools that manage sub-agents. `limits` bound the usage of the whole tree, and `watch` notices silence and loops.

    With a `backend` ("bwrap", "local", or an object) or a `policy`, every agent below the root has a sandbox of its
    own. Without a `policy` it may read `cwd`, write to a folder of its own, and spawn others. With a `root_policy` the
    root works in a sandbox, too: in a new process for each turn, which finds the files of the turns before. It also
    imports from `import_dir`, a folder of the host that may be filled while the agent works.

    With `sync_tools="process"`, each call of a synchronous tool of an agent in this process has a process of its own,
    which a cancellation ends, and which may do what `policy` allows. Raises NotShippable for a tool that cannot run so.

    Every tool call of the tree must pass the `gate`, if there is one. A `history` begins a new session; with one, a
    `session_id` that is recorded is refused. With a `state_owner`, an agent of a server, the states of the tree belong
    to that owner, whatever the names of its agents are. With `mentions`, an agent type that a prompt mentions
    (`@reviewer`) is spawned in that turn, whatever the model says. `inbound` says what happens to messages of other
    sessions of the user; the root may write to those in `other_sessions`, by the names there.

    `verbose` prints on stderr what the agents do.
    """

    _paused_turn: asyncio.Future[Result[T]] | None = None  #: of a turn that `ask` left while it was paused

    def __init__(
        self,
        llm: BaseChatModel | None = None,
        tools: Sequence[BaseTool | Callable[..., Any] | str] = (),
        *,
        model: str | None = None,
        agent: Agent[T] | Mapping[str, Any] | str | None = None,
        agents: Sequence[Agent | Mapping[str, Any]] = (),
        system_prompt: str = "",
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits = NO_LIMITS,
        spawn_limits: SpawnLimits = DEFAULT_SPAWN_LIMITS,
        watch: Watch = NO_WATCH,
        spawn: bool = True,
        hooks: HookRunner | HookConfig = None,
        max_turns: int = MAX_TURNS,
        compaction: Compaction | Literal[False] | None = None,
        approver: Callable[..., Any] | None = None,
        unattended: bool = False,
        omitted_type: Literal["fork", "general-purpose"] = "fork",
        session_id: str | None = None,
        project: Project | None = None,
        runtime: AgentRuntime | None = None,
        backend: BackendName | Backend | None = None,
        policy: Policy | None = None,
        root_policy: Policy | None = None,
        import_dir: pathlib.Path | None = None,
        sync_tools: SyncTools = "thread",
        gate: SafetyGate | None = None,
        history: Sequence[BaseMessage] = (),
        state_owner: str = "",
        mentions: bool = False,
        inbound: Inbound = "refuse",
        other_sessions: Mapping[str, SessionAddress | str | os.PathLike[str]] = NO_SESSIONS,
        verbose: bool = False,
    ) -> None:
        check_arguments(llm, model, limits, runtime, root_policy, history)
        check_bool("mentions", mentions)
        inbound, addresses = checked_inbound(inbound), checked_sessions(other_sessions)
        self._mentions = mentions
        if verbose:
            show_logs(verbose=True)
        self._cwd = checked_folder(cwd)
        tools = as_tools(tools, "tools")
        self._own_runtime = runtime is None
        #: of its tree; its own if none was given
        self.runtime = runtime or AgentRuntime(self._cwd, backend=backend)
        if runtime is not None and backend is not None:
            raise InvalidValue("backend", backend, "None with a runtime, which has its own backend")
        if policy is None and backend is not None:
            policy = sandboxed_children(self._cwd)
        call = definitions_of(agents)
        #: definitions, `problems`, `hooks` and `notes` of its folder
        self.project = project or self.runtime.open_project(self._cwd, call)
        definitions = self.project.with_call(call) if project is not None else self.project
        root = root_definition(agent, definitions, llm if llm is not None else model, system_prompt, max_turns)
        given_hooks = (hooks,) if hooks else ()
        if sync_tools not in ("thread", "process"):
            raise InvalidValue("sync_tools", sync_tools, "'thread' or 'process'")
        if sync_tools == "process":
            check_tools([*tools, *tool_objects_of(root, *definitions.values())])
        self._beginning: Beginning | None = Beginning(
            runtime=self.runtime,
            plan=TreeOptions(
                definitions=definitions,
                cwd=self._cwd,
                spawn_limits=spawn_limits,
                hooks=(*given_hooks, *self.project.hooks),
                session=checked_session_id(session_id),
                approver=approver,
                unattended=unattended,
                omitted_type=omitted_type,
                compaction=compaction,
                children=policy,
                sync_tools=sync_tools,
                gate=gate,
                permissions=self.project.permissions,
                conversation=True,
                inbound=inbound,
                other_sessions=addresses,
            ),
            agent=root,
            tools=(*tools, *(spawning_tools() if spawn else ())),
            limits=root.limits.tighten(limits),
            request=SpawnRequest(
                name=ROOT_NAME,
                description=root.description,
                watch=watch,
                policy=root_policy,
                import_dir=import_dir,
                state_owner=state_owner,
            ),
            history=tuple(history),
            resume_options=ResumeOptions(
                llm=llm if llm is not None else root.model if not isinstance(root.model, str) else None,
                tools=tools,
                agents=(*call, root),
                secrets={**secrets_of(policy), **secrets_of(root_policy)},
                env_vars={**variables_of(policy), **variables_of(root_policy)},
                hooks=given_hooks,
                gate=gate,
                approver=approver,
                compaction=compaction,
                inbound=inbound,
                other_sessions=addresses,
            ),
        )
        self._conversation: Conversation | None = None
        self._starting = asyncio.Lock()
        self._closings = 0  #: number of `close` calls, also while the conversation begins
        if self._beginning.can_begin_now and not definition_only.get():
            self._conversation = self._beginning.begin()
        self._is_closed = False

    @classmethod
    async def resume(
        cls,
        session: str,
        llm: BaseChatModel | None = None,
        tools: Sequence[BaseTool | Callable[..., Any] | str] = (),
        *,
        agents: Sequence[Agent | Mapping[str, Any]] = (),
        cwd: str | os.PathLike[str] | None = None,
        runtime: AgentRuntime | None = None,
        secrets: Mapping[str, str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        hooks: Sequence[HookRunner | HookConfig] = (),
        gate: SafetyGate | None = None,
        approver: Callable[..., Any] | None = None,
        compaction: Compaction | Literal[False] | None = None,
        mentions: bool = False,
        inbound: Inbound | None = None,
        other_sessions: Mapping[str, SessionAddress | str | os.PathLike[str]] | None = None,
        prepare: Callable[[Run], None] | None = None,
    ) -> Self:
        """Resume a recorded conversation, by its `session_id` or its root's id.

        A conversation whose session was closed waits for its next prompt. A conversation whose process was killed
        continues in the middle of its turn at once: `send`, `events` and `wait_for_turn` work meanwhile. The recorded
        agent, limits and policies apply, and the recorded usage still counts; so do the recorded `inbound` and
        `other_sessions`, unless they are given. Before anything begins, `prepare` may
        change the properties of the root that are not recorded.

        Raises Unknown, which names similar ids; BusyError or OwnedElsewhere if the conversation is open already; and
        DefinitionMissing for an object that the journal can only name and the caller does not supply.
        """
        self = cls.__new__(cls)
        self._cwd, self._mentions = checked_folder(cwd), mentions
        self._own_runtime = runtime is None
        self.runtime = runtime or AgentRuntime(self._cwd)
        self._beginning, self._starting, self._closings = None, asyncio.Lock(), 0
        try:
            self._conversation = await resume(
                self.runtime,
                session,
                llm=llm,
                tools=tools,
                agents=agents,
                secrets=secrets or {},
                env_vars=env_vars or {},
                hooks=hooks,
                gate=gate,
                approver=approver,
                compaction=compaction,
                inbound=inbound,
                other_sessions=checked_sessions(other_sessions) if other_sessions is not None else None,
                prepare=prepare,
            )
        except BaseException:
            if self._own_runtime:
                await self.runtime.stop()
            raise
        self.project = self.runtime.open_project(self._cwd, definitions_of(agents))
        self._is_closed = False
        return self

    @classmethod
    async def fork(
        cls,
        run: str,
        llm: BaseChatModel | None = None,
        tools: Sequence[BaseTool | Callable[..., Any] | str] = (),
        *,
        runtime: AgentRuntime,
        at: int | None = None,
        agents: Sequence[Agent | Mapping[str, Any]] = (),
        gate: SafetyGate | None = None,
        session_id: str | None = None,
        **options: Any,
    ) -> Self:
        """Begin a conversation with the messages of an old run, up to the event numbered `at`.

        The old run, active or ended, is not affected. `options` are those of `Session`; the agent, the tools and the
        folder are those of the old run. Raises Unknown for a run that is not recorded, BusyError for a `session_id`
        that is recorded, DefinitionMissing for a needed object that is not supplied, InvalidValue for a run without a
        conversation.
        """
        gate = gate or runtime._gate_of(run)
        point = await runtime._fork_point(run, at, resolve_inputs(llm=llm, tools=tools, agents=agents, gate=gate))
        session = cls(
            llm,
            point.tools,
            agent=point.agent,
            agents=agents,
            cwd=point.cwd,
            runtime=runtime,
            gate=gate,
            session_id=session_id,
            history=point.messages,
            state_owner=point.state_owner,
            **options,
        )
        return await session.start()

    async def start(self) -> Self:
        """Begin the conversation, or resume the recorded conversation of this `session_id`; idempotent.

        `async with` and the first prompt do this, too. Raises BusyError or OwnedElsewhere if the conversation is open
        in this process or in another kernel, StoreInUse, DefinitionMissing, and SpawnRefused if the policy adapter
        refuses.
        """
        async with self._starting:
            if self._conversation is None:
                assert self._beginning is not None, "a session that was resumed has its conversation"
                closings = self._closings
                conversation = await self._beginning.open()
                if closings != self._closings:  # While this waited for a policy adapter, or for the journal.
                    await run_shielded(
                        self.runtime.close_tree(conversation.root.info.id, "the session was closed meanwhile")
                    )
                    raise RametError("the session was closed before its conversation had begun")
                self._conversation = conversation
            if self._beginning is not None:
                await self._beginning.share_files(self._require_conversation())
        return self

    @property
    def _open_tree(self) -> OpenTree:
        return self._require_conversation().open_tree

    @property
    def _root(self) -> Run:
        return self._require_conversation().root

    def _require_conversation(self) -> Conversation:
        if self._conversation is None:
            raise RametError("the conversation has not begun yet: use `async with` or start()")
        return self._conversation

    # ---- prompts and messages

    async def submit_message(
        self, text: str, attachments: Sequence[Attachment] = ()
    ) -> AsyncGenerator[AIMessageChunk | Event]:
        """Work on a prompt: yield the root's text as `AIMessageChunk`s, and its events, until the answer is complete.

        `attachments` are images, PDFs and texts, which the conversation has by their hash. Leaving the iteration early
        interrupts the turn. `result` holds the result of the turn; another turn can follow a failed turn. Raises
        BusyError while a turn is running, InvalidValue for an invalid prompt, Denied if a hook denies the prompt.
        """
        turn = await self._begin_turn(text, attachments)
        try:
            async with aclosing(turn.items()) as items:
                async for item in items:
                    yield item
        finally:
            await self._leave_turn(turn)

    async def _begin_turn(self, text: str, attachments: Sequence[Attachment]) -> TurnStream:
        """Begin a turn with a prompt, once the conversation has begun."""
        check_prompt(text, attachments)
        await self.start()
        conversation = self._require_conversation()
        check_free(conversation.root)
        check_readable(conversation.root, attachments)
        self._paused_turn = None
        return await begin_turn(
            conversation, self.runtime, text, attachments, mentions=self._mentions, on_end=self._turn_over
        )

    async def _leave_turn(self, turn: TurnStream) -> None:
        """Interrupt the turn if it is not over."""
        if turn.result is None:
            await self._open_tree.tree.supervisor.interrupt(self._root, "the reader left")
            turn.close()

    def listen(self) -> TurnStream | None:
        """Return a stream of the running turn that no prompt of this session started, if there is one.

        Returns None if there is no such turn, or if the turn has a reader. Such a turn continues after `resume`, or was
        started by mail or by a notice. `async for` yields the items that `submit_message` yields, from now on. Called
        at once after `resume`, it misses nothing that was not recorded by then. Leaving the iteration does not
        interrupt the turn.
        """
        run = self._root
        is_read = run.turn.on_result is not None and self._paused_turn is None
        if not run.is_living or run.state is State.IDLE or run.turns == 0 or is_read:
            return None
        return TurnStream(run, self._open_tree.recorder, self._turn_over)

    async def wait_for_turn(self) -> Result[T] | None:
        """Wait for the end of the running turn that no prompt of this session started.

        Returns the result of the turn, or None if there is none.
        """
        if (paused_turn := self._paused_turn) is not None:
            result = await asyncio.shield(paused_turn)
            if self._paused_turn is paused_turn:  # It is told once: the next turn is another one.
                self._paused_turn = None
            return result
        if (turn := self.listen()) is None:
            return None
        try:
            await turn.wait()
        finally:
            turn.close()
        return turn.result or self._root.result

    async def ask(
        self,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        on_pause: Literal["wait", "return"] = "wait",
    ) -> Result[T]:
        """Work on a prompt and return the result of the turn; `attachments` are those of `submit_message`.

        If the tree pauses at a limit, this waits until the limit is raised, and logs how. With `on_pause="return"` it
        returns a result with the status `paused`, which is not final: the turn goes on when the limit is raised, and
        `wait_for_turn` returns its result.
        """
        if on_pause not in ("wait", "return"):
            raise InvalidValue("on_pause", on_pause, "wait or return")
        if on_pause == "return":
            return await self._ask_until_pause(text, attachments)
        turn = await self._begin_turn(text, attachments)
        try:
            await turn.wait()
        finally:
            await self._leave_turn(turn)
        assert self.result is not None
        return self.result

    async def _ask_until_pause(self, text: str, attachments: Sequence[Attachment]) -> Result[T]:
        turn = await self._begin_turn(text, attachments)
        try:
            result = await wait_until_paused(turn, self._open_tree.tree.register)
        except BaseException:
            await self._open_tree.tree.supervisor.interrupt(self._root, "the reader left")
            turn.close()
            raise
        if (result := result or turn.result) is not None:  # It may have ended a moment later.
            return result
        turn.stop_reading()
        self._paused_turn = asyncio.get_running_loop().create_future()
        return paused_result(self._root, self._open_tree.tree.register.living())

    def _turn_over(self, result: Result) -> None:
        if self._paused_turn is not None and not self._paused_turn.done():
            self._paused_turn.set_result(result)
        if result.status is Status.FAILED and result.error is not None:  # A text-only reader would see nothing.
            _log.error("%s failed: %s: %s", self._root.info.path, result.error.type, result.error.message)

    def send(self, text: str, *, dedupe_s: float | None = None) -> str:
        """Put a user's message into the root's mailbox: the root reads it at its next step, or is woken by it.

        A message may also be sent before the first prompt. With `dedupe_s`, a message that equals one of the last
        `dedupe_s` seconds is not delivered again. Returns what happens to the message. Raises MailRefused, and
        InvalidValue if `dedupe_s` is not a valid time.
        """
        return self._open_tree.tree.post.deliver(self._root, text, sender="user", kind="user", dedupe_s=dedupe_s)

    async def raise_limits(self, add: Limits, *, key: str = "") -> Limits:
        """Add to the limits of the whole tree, and return the new ones: see `Handle.raise_limits`."""
        return await self._open_tree.tree.handle(self._root).raise_limits(add, key=key)

    async def interrupt(self, reason: str = "interrupted by the user") -> None:
        """End the running turn, keeping the agent, its history and its background children."""
        await self._open_tree.tree.supervisor.interrupt(self._root, reason)

    async def cancel(self, reason: str = "cancelled by the user") -> StopReceipt:
        """End the whole tree, and wait until it has ended.

        `left` of the receipt lists the runs that could not be ended.
        """
        receipt = await self._open_tree.tree.supervisor.stop_tree(reason)
        if self._root.result is not None:
            self._root.turn_result = self._root.result
        return receipt

    async def close(self, reason: str = "the session was closed") -> None:
        """End the running turn and all agents below the root, and end all readers; idempotent.

        The conversation stays recorded until it is removed: a session with its `session_id`, or `resume`, continues it
        in any process.
        """
        self._closings += 1
        try:
            if self._conversation is not None:
                await self._end_conversation(self._conversation.root, reason)
        finally:
            if self._own_runtime:
                await self.runtime.stop()

    async def _end_conversation(self, root: Run, reason: str) -> None:
        context = root.context
        if not self._is_closed and context.hooks is not None and context.hooks.listens("SessionEnd"):
            await context.hooks.fire("SessionEnd", context, {"reason": "other"}, matcher="other")
        self._is_closed = True
        await self.runtime.close_tree(root.info.id, reason)

    async def __aenter__(self) -> Self:
        await self.runtime.start()
        try:
            return await self.start()
        except BaseException:
            await self.close("it could not begin")
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- inspection

    @property
    def id(self) -> str:
        """The id of the root run."""
        return self._root.info.id

    @property
    def durable(self) -> bool:
        """Return whether another process could resume the session."""
        return self.runtime.durable

    @property
    def usage(self) -> Usage:
        """The usage of the whole tree so far."""
        return self._root.subtree

    @property
    def approvals(self) -> Inbox:
        """The inbox of calls that wait for a person's approval, from anywhere in the tree."""
        return self._open_tree.inbox

    @property
    def result(self) -> Result[T] | None:
        """The result of the newest turn that ended in this session, started by a prompt, mail or a notice."""
        return self._conversation.root.turn_result if self._conversation is not None else None

    @property
    def transcripts(self) -> pathlib.Path | None:
        """The folder with one file of JSON lines per run, if transcripts are kept."""
        return self._open_tree.recorder.transcripts

    @property
    def context(self) -> ToolUseContext:
        """The context of the root, for inspection.

        The session drives the root's turns: drive `query` with a standalone context.
        """
        return self._root.context

    @property
    def messages(self) -> list[Any]:
        """A copy of the root's conversation so far."""
        return list(self._root.context.history)

    async def read_blob(self, name: str) -> bytes | None:
        """Return the bytes of an image or a document of this tree, by the hash in a message; None if there is none."""
        load = self._root.context.load_blob
        return await load(name) if load is not None else None

    async def events(self, *, tree: bool = True, deltas: bool = False) -> AsyncGenerator[Event]:
        """Follow the tree, or the root alone: all kept events, then live events, until the session closes.

        `deltas` adds the text of every agent as it streams.
        """
        await self.start()
        run = None if tree else self._root.info.id
        reader = self._open_tree.recorder.subscribe(run=run, deltas=deltas)
        async with aclosing(reader.items()) as items:
            async for item in items:
                if isinstance(item, Event):
                    yield item

    def runs(self) -> Sequence[RunView]:
        """Return every run of the tree, in order of path."""
        return self._open_tree.tree.views()

    def handle(self, target: str = ROOT_NAME) -> Handle:
        """Return a handle on a run of the tree, its root by default, by id, path or name. Raises Unknown."""
        tree = self._open_tree.tree
        return tree.handle(tree.register.find(target))

    async def spawn(self, request: SpawnRequest) -> Handle:
        """Spawn a child of the root from code. Raises SpawnRefused, and Unknown for an unknown run to fork."""
        await self.start()
        return await self._open_tree.tree.spawn_below(self._root, request)

    def reload(self) -> bool:
        """Read changed definition files again; return True if any has changed. New spawns use the new definitions."""
        changed = self.project.reload()
        self._open_tree.tree.spawner.builder.show_types(self._root)
        return changed
