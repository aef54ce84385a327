"""`AgentRuntime`: owns trees and all that they share. The services of each tree are created here, and only here."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import secrets
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from langchain_core.messages import BaseMessage, HumanMessage

from ramet.agent.composition.steps import nesting_depth
from ramet.agent.definition import Agent
from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.arguments import check_instance
from ramet.core.budget import Limits
from ramet.core.errors import OwnedElsewhere, StoreFailed, Unknown
from ramet.core.ids import RunId, run_id
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import AgentResult, Result
from ramet.core.policy.decision import clamp_grant
from ramet.core.policy.policy import Policy, resolve_root_policy
from ramet.disk.state_folder import checked_state_folder, state_folder
from ramet.host.arguments import check_messages, check_runtime
from ramet.host.control.socket import ControlSocket
from ramet.host.dynamic.agents import DynamicAgents, ref_of
from ramet.host.dynamic.time_travel import memory_events, recorded_events, state_at
from ramet.host.gateway import Gateway
from ramet.host.journal.blobs import read_blob
from ramet.host.journal.journal import journal_of
from ramet.host.journal.result_cache import KeptResults
from ramet.host.journal.ttl import checked_keep, set_keep
from ramet.host.loop_thread import RuntimeLoop, refuse_in_loop
from ramet.host.observability.audit import Audit
from ramet.host.observability.library_logs import show_logs
from ramet.host.observability.stalls import StallWatch
from ramet.host.observability.telemetry import Telemetry
from ramet.host.policy_adapters.adapter import TIMEOUT_S, PolicyAdapter, PolicyDecider
from ramet.host.recovery.failover import FailoverTask
from ramet.host.recovery.resume import (
    ForkPoint,
    ResolvedInputs,
    ResumeOptions,
    fork_point,
    orphaned_trees,
    point_of_run,
    resolve_inputs,
)
from ramet.host.recovery.takeover import Takeover, claim_orphans, resume_all
from ramet.host.retention.janitor import RetentionJob
from ramet.host.retention.results import check_not_expired, recorded_result
from ramet.host.safety.gate import SafetyGate
from ramet.host.sandbox.handle import AgentHandle, output_callback, wait_or_cancel
from ramet.host.sandbox.sandboxes import BackendName, Sandboxes
from ramet.host.trees.factory import OpenTree, TreeFactory, TreeOptions
from ramet.host.trees.manager import KEPT_TREES, Trees
from ramet.host.trees.project import Project
from ramet.isolation.contract import Backend
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.spawn.birth.plan import as_agent, check_prompt
from ramet.spawn.handle import Handle
from ramet.spawn.ports import GRACE_S
from ramet.spawn.run.run import Run
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.state.versioned import Versioned
from ramet.tools.agents.agents import spawning_tools
from ramet.tools.functions import as_tools
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from ramet.models.prices import Price
    from ramet.models.rate_limit import RetryPolicy

T = TypeVar("T")
_log = logging.getLogger("ramet.runtime")
#: The runtimes of this process that have not stopped. An index for lookups; it owns nothing.
_living: weakref.WeakSet[AgentRuntime] = weakref.WeakSet()


def running_runtimes() -> list[AgentRuntime]:
    """Return the runtimes of this process that have not stopped."""
    return list(_living)


def reachable() -> list[AgentRuntime]:
    """Return the runtimes whose event loop runs in this thread; if no loop runs here, those whose loop runs elsewhere.

    These are the candidates when a caller names no runtime.
    """
    return [each for each in _living if each.is_reachable]


class AgentRuntime:
    """The owner of trees of agents, until `stop` ends every tree and waits for that.

    Transcripts are kept in `transcripts`, else in `<working_dir>/.ramet/transcripts`; without either, all is in memory.
    With a working directory, or a `store`, the events of its agents are recorded durably; a working directory has them
    in `<dir>/.ramet/journal.db`. The trees of a runtime that was killed are resumed by `resume`, in another process. A
    tree stays recorded for `keep_results_seconds` after its end, or without that until `ramet gc` removes old trees.

    A `policy_adapter` is asked about every spawn, for at most `policy_timeout_s` seconds; without its answer nothing is
    spawned.

    `user_dir` is the user's folder: its settings and its list of trusted folders apply to every agent. Without
    `user_texts` its definitions, skills and memory are given to no agent.
    """

    def __init__(
        self,
        working_dir: str | os.PathLike[str] | None = None,
        *,
        transcripts: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        prices: Mapping[str, Price] | None = None,
        retry: RetryPolicy | None = None,
        user_dir: pathlib.Path | None = None,
        user_texts: bool = True,
        grace_s: float = GRACE_S,
        backend: BackendName | Backend | None = None,
        store: Store | None = None,
        audit: Audit | None = None,
        policy_adapter: PolicyAdapter | None = None,
        policy_timeout_s: float = TIMEOUT_S,
        keep_results_seconds: float | None = None,
        keep_folders: FolderLimits | None = None,
        keep_trees: int = KEPT_TREES,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        check_runtime(working_dir, clock, prices, retry, grace_s, store, audit, keep_folders, keep_trees)
        show_logs()
        self.working_dir = pathlib.Path(working_dir).absolute() if working_dir is not None else None
        if transcripts is None and self.working_dir is not None:
            transcripts_dir: pathlib.Path | None = state_folder(self.working_dir) / "transcripts"
        else:
            transcripts_dir = pathlib.Path(transcripts).resolve() if transcripts is not None else None
        self.clock: Clock = clock or SystemClock()
        self._decide = (
            PolicyDecider(policy_adapter, self.clock, timeout_s=policy_timeout_s)
            if policy_adapter is not None
            else None
        )
        self.gateway = Gateway(self.clock, prices=prices, retry=retry)
        self.user_dir, self.grace_s = user_dir, grace_s
        self._user_texts = user_texts
        self._entropy = entropy
        self._loop = RuntimeLoop("this runtime was not started")
        self.telemetry = Telemetry()
        self.sandboxes = Sandboxes(
            self.working_dir, backend, self.telemetry.traceparent, folder_limits=keep_folders, clock=self.clock
        )
        self.journal = journal_of(self.working_dir, store)
        self.dynamic = DynamicAgents(self.open_store)
        self._memory: Store | None = None  #: the store of a runtime without a journal, as long as the runtime lives
        if (journal := self.journal) is not None:
            if journal.folder is not None and journal.control_socket is None:
                journal.control_socket = ControlSocket(journal.users, journal.folder, journal.store)
            if not journal.users:
                journal.retention_job = retention_job = RetentionJob(
                    journal.store,
                    journal.living,
                    self.clock,
                    self.working_dir,
                    transcripts_dir,
                    folders=self.sandboxes.folders if self.working_dir is not None else None,
                    can_continue=journal.can_continue,
                )
                if isinstance(journal.control_socket, ControlSocket):
                    journal.control_socket.on_collect = retention_job.sweep
        factory = TreeFactory(
            dynamic=self.dynamic,
            journal=self.journal,
            telemetry=self.telemetry,
            audit=audit,
            results=KeptResults(self.journal, self.clock),
            decide=self._decide,
            gateway=self.gateway,
            sandboxes=self.sandboxes,
            clock=self.clock,
            transcripts=transcripts_dir,
            user_dir=user_dir,
            user_texts=user_texts,
            grace_s=grace_s,
            entropy=entropy,
            keep_s=checked_keep(keep_results_seconds),
        )
        self._trees = Trees(factory, self.journal, self.clock, keep_trees)
        self._failover: FailoverTask | None = None
        self._running = False
        self.stalls: StallWatch | None = None  #: of its event loop, if one is running

    @property
    def durable(self) -> bool:
        """Return whether another process can resume a run of this runtime."""
        return self.journal is not None and self.journal.store.durable_across_processes

    async def start(self) -> Self:
        """Start the runtime; idempotent."""
        self._running = True
        self._trees.is_stopped = False
        self._loop.use_running_loop()
        _living.add(self)
        return self

    async def stop(self) -> None:
        """End every agent of every tree and wait until all have ended; idempotent."""
        self._running = False
        self._trees.is_stopped = True
        _living.discard(self)
        await self.stop_adopting()
        await self._trees.close_all("the runtime stopped")
        await self.sandboxes.close()
        self._trees.fenced = None
        if self.journal is not None:
            await self.journal.release(self)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def has_policy_adapter(self) -> bool:
        """Return whether a policy adapter is asked about each spawn."""
        return self._decide is not None

    @property
    def is_fenced(self) -> bool:
        """Return whether the runtime is fenced: another kernel may own the recorded trees.

        A fenced runtime begins nothing more.
        """
        return self._trees.fenced is not None

    @property
    def is_away(self) -> bool:
        """Return whether the store is away, and may come back: until then nothing begins."""
        return self.journal is not None and self.journal.store.is_away

    def get_status(self) -> dict[str, Any]:
        """Return the status: `running`, `stopped` or `fenced`, the living runs of each tree, and stalls if watched."""
        state = "stopped" if not self._running else "running" if self._trees.fenced is None else "fenced"
        stalls = {} if self.stalls is None else {"stalls": dataclasses.asdict(self.stalls.so_far)}
        return {"state": state, "sessions": self._trees.active_runs(), **stalls}

    def get(self, run: str) -> Handle:
        """Return a handle on any run of this runtime, by id. Raises Unknown."""
        return self._trees.handle(run)

    @property
    def trees(self) -> Mapping[RunId, OpenTree]:
        """The open trees by the id of their root; read only."""
        return self._trees.open_trees()

    async def spawn(
        self,
        agent: Agent | Mapping[str, Any] | Callable[..., Any],
        prompt: str = "",
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        late_args: Callable[[], tuple[Any, ...]] | None = None,
        tools: Sequence[BaseTool | Callable[..., Any] | str] = (),
        agents: Mapping[str, Agent] | None = None,
        cwd: pathlib.Path | None = None,
        limits: Limits | None = None,
        spawn_limits: SpawnLimits | None = None,
        policy: Policy | None = None,
        returns: Any = None,
        on_output: Callable[[str, str], None] | None = None,
        history: Sequence[BaseMessage] = (),
        keep_results_seconds: float | None = None,
        gate: SafetyGate | None = None,
        shelf: pathlib.Path | None = None,
        run: str = "",
        repeatable: bool = True,
        state_owner: str = "",
    ) -> Handle:
        """Start a tree of one agent or function and return at once; the tree closes when its last run has ended.

        With a policy the root works in a sandbox, which imports from the `shelf`, too. `history` is a conversation that
        the root continues. `late_args` (of `SpawnRequest`) are not recorded. Every tool call of the tree must pass the
        `gate`, if there is one. `run` is the id of the root, made by `mint`. A function that is not `repeatable` ends
        as lost if it was cut off with its process. With a `state_owner`, an agent of a server, the states of the tree
        belong to that owner, whatever the names of its agents are.

        Raises InvalidValue, NotShippable, IsolationUnavailable, and SpawnRefused if the policy adapter refuses.
        """
        definition = as_agent(agent)
        if definition.ref is None and (definition.capabilities or definition.tasks):
            # The limits may change here; the ref identifies the definition, so that what it makes is found again.
            definition = definition.replace(ref=ref_of(definition))
        check_messages("history", history)
        check_instance("policy", policy, (Policy, NoneType), "ramet.Policy")
        check_instance("limits", limits, (Limits, NoneType), "ramet.Limits")
        check_instance("agents", agents, (Mapping, NoneType), "a mapping of names to ramet.Agent")
        policy = policy or definition.policy
        request = SpawnRequest(
            prompt=prompt,
            name="main",
            args=args,
            kwargs=kwargs or {},
            late_args=late_args,
            policy=policy,
            returns=returns,
            on_output=on_output,
            shelf=shelf,
            state_owner=state_owner,
        )
        if not history:
            check_prompt(definition, prompt)
        opened = self.open_tree(
            TreeOptions(
                definitions=agents or {},
                cwd=cwd,
                spawn_limits=spawn_limits or _spawn_limits_for(policy, definition),
                keep_s=checked_keep(keep_results_seconds),
                gate=gate,
                root=run,
                repeatable=repeatable,
            )
        )
        asked_limits = limits or definition.limits
        decided_request = await opened.tree.spawner.decide_root(definition, request, asked_limits)
        if (wanted_policy := decided_request.request.policy) is not None:
            grant = resolve_root_policy(wanted_policy)
            await self.sandboxes.placement().backend(
                grant if decided_request.ceiling is None else clamp_grant(grant, decided_request.ceiling)
            )
        self.check_open()  # The runtime may have been stopped while the policy adapter was asked.
        root = opened.tree.spawner.root(
            definition,
            tools=(*as_tools(tools, "tools"), *spawning_tools()),
            cwd=cwd or pathlib.Path.cwd(),
            limits=asked_limits,
            persistent=False,
            request=decided_request,
            history=history,
        )
        self.keep(opened, root)
        opened.tree.supervisor.prompt(root, HumanMessage(content=prompt) if prompt else None)
        self._close_with(root)
        return opened.tree.handle(root)

    def mint(self) -> RunId:
        """Return an id for a root that will be spawned, for a caller that records the id before calling `spawn`."""
        return run_id(self._entropy(8))

    async def start_agent(
        self,
        agent: Agent | Mapping[str, Any] | Callable[..., Any],
        policy: Policy | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        prompt: str = "",
        agents: Mapping[str, Agent] | None = None,
        limits: Limits | None = None,
        spawn_limits: SpawnLimits | None = None,
        returns: Any = None,
        on_stdout: Callable[[str], None] | None = None,
        on_stderr: Callable[[str], None] | None = None,
        gate: SafetyGate | None = None,
    ) -> AgentHandle:
        """Start an agent in a sandbox of its own and return at once; no policy means the defaults of `Policy`.

        Raises InvalidValue, NotShippable for a function that cannot be sent to a sandbox, IsolationUnavailable.
        """
        handle = await self.spawn(
            agent,
            prompt,
            args=args,
            kwargs=kwargs,
            agents=agents,
            limits=limits,
            spawn_limits=spawn_limits,
            policy=policy or as_agent(agent).policy or Policy(),
            returns=returns,
            on_output=output_callback(on_stdout, on_stderr),
            gate=gate,
        )
        return AgentHandle(handle)

    async def run_agent(
        self,
        agent: Agent | Mapping[str, Any] | Callable[..., Any],
        policy: Policy | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AgentResult:
        """Run an agent in a sandbox of its own to its end; `options` are those of `start_agent`.

        Never raises for the agent's own failures. Raises like `start_agent`. Cancelling the call ends the agent and all
        below it.
        """
        return await wait_or_cancel(await self.start_agent(agent, policy, args, kwargs, **options))

    # ---- for programs without an event loop

    def start_sync(self) -> Self:
        """Call `start`, for code without an event loop; idempotent. Raises RametError inside an event loop."""
        refuse_in_loop("start_sync()", "await start() instead")
        self._loop.start(self.start, is_running=self._running)
        return self

    def run_agent_sync(
        self,
        agent: Agent | Mapping[str, Any] | Callable[..., Any],
        policy: Policy | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AgentResult:
        """Call `run_agent`, for code without an event loop; start the runtime if needed.

        Raises RametError in an event loop.
        """
        refuse_in_loop("run_agent_sync()", "await run_agent() instead")
        self.start_sync()
        return self._loop.call(self.run_agent(agent, policy, args, kwargs, **options))

    def stop_sync(self) -> None:
        """Call `stop`, after `start_sync`; idempotent. Raises RametError inside an event loop."""
        refuse_in_loop("stop_sync()", "await stop() instead")
        self._loop.stop(self.stop)

    @property
    def is_reachable(self) -> bool:
        """Return whether the runtime's event loop runs in this thread, or, if no loop runs here, elsewhere."""
        return self._loop.is_reachable

    def call_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this runtime's event loop, from a thread without a loop, and wait for its result."""
        return self._loop.call(work)

    # ---- versioned states of agents

    async def state(self, name: str, branch: str = "main", **options: Any) -> Versioned:
        """Open the versioned state of that name, kept with the journal, else in memory.

        Raises InvalidValue, StoreFailed.
        """
        return await Versioned.open(await self.open_store(), name, branch=branch, **options)

    async def state_at(self, run: str, seq: int) -> Versioned:
        """Return the agents' state at an event of a run's tree, for reading. Raises Unknown, InvalidValue.

        `Namespaced(state, "architect")` (`ramet.store.state.namespaced`) is the state of one agent.
        """
        if self.journal is None:
            trees = self._trees.of(run)
            events = memory_events([each for opened in trees for each in opened.recorder.recent_events])
        else:
            with suppress(Unknown):
                await self.get(run).run.context.wait_persisted()
            events = recorded_events(self.journal, run)
        return await state_at(self.dynamic.registries, events, run, seq)

    async def open_store(self) -> Store:
        """Return the journal's store, open; without a journal, a store in memory that ends with the runtime."""
        if self.journal is not None:
            self.journal.users.add(self)  # Another runtime that stops must not close the store.
            await self.journal.open()
            return self.journal.store
        if self._memory is None:
            self._memory = await MemoryStore().open()
        return self._memory

    # ---- trees of other processes

    async def resume(
        self,
        *,
        only: str | None = None,
        prepare: Callable[[Run], None] | None = None,
        **brought: Unpack[ResumeOptions],
    ) -> list[Handle]:
        """Resume every tree that a killed process left, or `only` one, and return handles on their roots.

        The caller supplies the objects that a journal can only name: model objects (`llm` stands for all that `models`
        does not name), tools of a root, definitions that hold objects, hooks, a safety gate, values of secrets and of
        variables. `env_vars` has a variable by its name, or, for one run alone, by `path:NAME`. `only` is a root's id,
        or a session's; a closed conversation is then opened again, and waits for its next prompt. `prepare` is called
        with each root before the root starts to work. Raises DefinitionMissing for an object that is not supplied; the
        trees before it continue. A tree that cannot be read is logged and left unchanged; as the `only` one it raises
        DamagedTree.
        """
        if self.journal is not None:
            self.journal.users.add(self)
        takeover = Takeover(self, resolve_inputs(**brought), self._close_with, prepare, reopens=only is not None)
        return await resume_all(takeover, self.journal, only=only)

    async def adopt(
        self,
        adopted: Callable[[Handle], None] | None = None,
        *,
        prepare: Callable[[Run], None] | None = None,
        **brought: Unpack[ResumeOptions],
    ) -> list[Handle]:
        """Resume like `resume`; then, until this runtime stops, take over the trees of every kernel that fails.

        For several kernels on one database. The objects that the trees need are supplied as for `resume`. A tree that
        needs others is named in the log, and stays for a `resume` that supplies them. `adopted` is called with each
        root that is taken over later; the roots that continue at once are returned. If several kernels adopt, exactly
        one gets a tree.
        """
        handles: list[Handle] = []
        takeover = Takeover(self, resolve_inputs(**brought), self._close_with, prepare)
        if (journal := self.journal) is None:
            return handles
        journal.users.add(self)
        await self.stop_adopting()
        await takeover.resume_each(await claim_orphans(journal), handles.append)

        async def take(roots: Sequence[str]) -> None:
            await takeover.resume_each(await orphaned_trees(journal, roots), adopted or (lambda handle: None))

        self._failover = FailoverTask(journal, take)
        await self._failover.start()
        return handles

    async def stop_adopting(self) -> None:
        """Stop adopting; the adopted trees continue. Idempotent."""
        adoption, self._failover = self._failover, None
        if adoption is not None:
            await adoption.stop()

    async def result(self, run: str) -> Result:
        """Return the result of a run that ended in any process; wait for a run that is active here.

        A value from the journal is plain data. Raises Unknown for a run that is not recorded, BusyError for a run that
        another process left active and `resume` has not resumed, Expired for a run whose retention time has ended.
        """
        with suppress(Unknown):
            handle = self.get(run)
            await check_not_expired(self.journal, handle.run.info.root, run, self.clock.now())
            return await handle.result()
        return await recorded_result(self.journal, run, self.clock.now())

    async def blob(self, name: str) -> bytes:
        """Return the bytes of a tool result's artifact, by the recorded name. Raises Unknown."""
        if self.journal is not None:
            await self.journal.open()
            if (data := await read_blob(self.journal.store, name)) is not None:
                return data
        raise Unknown("blob", name)

    async def retain(self, run: str, on: bool = True) -> None:
        """Keep the tree of a run recorded until further notice (`on=False`), whatever its retention time is.

        Raises Unknown.
        """
        if self.journal is None:
            raise Unknown("run", run)
        await self.journal.open()
        with suppress(Unknown):
            await self.get(run).run.context.wait_persisted()
        await set_keep(self.journal.store, run, on)

    async def fork(
        self,
        run: str,
        prompt: str,
        *,
        at: int | None = None,
        llm: BaseChatModel | None = None,
        tools: Sequence[BaseTool | Callable[..., Any] | str] = (),
        agents: Sequence[Agent | Mapping[str, Any]] = (),
        limits: Limits | None = None,
        gate: SafetyGate | None = None,
    ) -> Handle:
        """Start a tree with the messages of an old run up to the event numbered `at`, or with all of them.

        The old run, active or ended, is not affected. A fork of a tree with a gate has a gate: the given `gate`, or the
        gate of the tree, if the tree is here. Raises Unknown for a run that is not recorded, DefinitionMissing for a
        needed object that is not supplied, InvalidValue for a run without a conversation.
        """
        gate = gate or self._gate_of(run)
        supplied = resolve_inputs(llm=llm, tools=tools, agents=agents, gate=gate)
        point = await self._fork_point(run, at, supplied)
        return await self.spawn(
            point.agent,
            prompt,
            tools=point.tools,
            agents=self.open_project(point.cwd, supplied.agents),
            cwd=point.cwd,
            limits=limits,
            history=point.messages,
            gate=gate,
            state_owner=point.state_owner,
        )

    async def _fork_point(self, run: str, at: int | None, supplied: ResolvedInputs) -> ForkPoint:
        """Return the fork point of a run at an event's number. Raises like `fork`."""
        if self.journal is None:
            return point_of_run(self.get(run).run, at)
        with suppress(Unknown):
            await self.get(run).run.context.wait_persisted()
        return await fork_point(self.journal, run, at, supplied)

    def _gate_of(self, run: str) -> SafetyGate | None:
        """Return the gate of a run's tree, if the tree is here."""
        return next((opened.gate for opened in self._trees.of(run)), None)

    def open_project(self, folder: pathlib.Path | None, call: Sequence[Agent] = ()) -> Project:
        """Read a folder's definitions and settings, and those texts of the user that this runtime gives to its agents.

        Raises Unreadable or InvalidValue for settings that cannot be understood.
        """
        return Project.open(folder, user_dir=self.user_dir, user_texts=self._user_texts, call=call)

    def open_tree(self, plan: TreeOptions) -> OpenTree:
        """Open a tree without a root, with services of its own.

        Raises RametError once the runtime was stopped, StoreFailed once its journal may belong to another kernel, and
        InvalidValue if an entry of its state folder leads outside.
        """
        if self.working_dir is not None:
            checked_state_folder(self.working_dir)
        opened = self._trees.open(plan)
        if self.journal is not None:
            self.journal.users.add(self)
        return opened

    def check_open(self) -> None:
        """Raise RametError once the runtime was stopped, and StoreFailed once its journal may belong to another kernel.

        A caller that has waited checks again before a root is spawned: only from the spawn on does `stop` end its tree.
        """
        self._trees.check_open()

    @property
    def finished_trees(self) -> int:
        """The number of ended trees whose runs can still be looked up here by their ids."""
        return self._trees.finished

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own a tree from now on."""
        _living.add(self)
        with suppress(RuntimeError):  # The runtime is only constructed here, and works in a loop that begins later.
            self._loop.use_running_loop()
        self._trees.keep(opened, root)

    def _fence(self, error: StoreFailed) -> None:
        """Begin nothing more, and end all trees: another kernel may own the recorded trees. Called by the journal."""
        self._trees.fence(error)

    def _fence_tree(self, root: str, error: OwnedElsewhere) -> None:
        """End the work on a tree here: another kernel owns and continues the tree. Called by the journal."""
        self._trees.fence_tree(root, error)

    def _can_continue(self, root: str, run: str) -> bool | None:
        """Return whether a run of an open tree can have another turn; None for a tree that is not here.

        Called by the journal.
        """
        return self._trees.can_continue(RunId(root), RunId(run))

    async def close_tree(self, root: RunId, reason: str) -> None:
        """End a tree, wait until the tree has ended, and end its readers.

        Cancelling the wait does not stop the closing.
        """
        await self._trees.close(root, reason)

    def _close_with(self, root: Run, last: Run | None = None) -> None:
        """Close a tree when its last run has ended.

        Until then the callback keeps this runtime alive without other references.
        """

        def over(_: object) -> None:
            living_run = self._trees.close_if_idle(root.info.id)
            if living_run is not None:  # The tree outlives its root: check again when that run has ended.
                self._close_with(root, living_run)

        (last or root).ended().add_done_callback(over)


def _spawn_limits_for(policy: Policy | None, agent: Agent) -> SpawnLimits:
    """Return the spawn limits of a tree: its root's policy depth or the default, plus nested compositions."""
    depth = resolve_root_policy(policy).max_sub_agent_depth if policy is not None else 0
    return SpawnLimits(depth=max(depth, SpawnLimits().depth) + nesting_depth(agent.function))
