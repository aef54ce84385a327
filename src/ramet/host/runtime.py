"""`AgentRuntime`: owns trees and everything they share. Each tree gets its services here, and only here."""

from __future__ import annotations

import asyncio
import os
import pathlib
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from langchain_core.messages import HumanMessage

from ramet.agent.compaction import Compaction
from ramet.agent.definition import Agent
from ramet.agent.hook_config import HookConfig
from ramet.agent.hooks import HookRunner
from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.budget import Limits
from ramet.core.errors import RametError, Unknown
from ramet.core.ids import RunId, run_id
from ramet.core.limits import SpawnLimits
from ramet.host.approvals import Inbox
from ramet.host.gateway import Gateway
from ramet.host.prompts import Prompts
from ramet.host.recorder import Recorder
from ramet.host.spill import Spill
from ramet.spawn.handle import Handle
from ramet.spawn.plan import as_agent
from ramet.spawn.run import Run
from ramet.spawn.services import GRACE_S, Services
from ramet.spawn.tree import RunTree
from ramet.tools.agents import agent_tool, companion_tools
from ramet.tools.context import RunInfo, SpawnRequest

if TYPE_CHECKING:
    from langchain_core.messages import AIMessageChunk
    from langchain_core.tools import BaseTool

    from ramet.models.gate import RetryPolicy
    from ramet.models.prices import Price

#: Runtimes that live in this process. An index for those who look things up; it owns nothing.
_living: weakref.WeakSet[AgentRuntime] = weakref.WeakSet()


#: Tokens that a model is taken to read where it does not say how many.
UNKNOWN_WINDOW = 128_000
#: Trees of `spawn` that have ended and whose handles can still be asked for by id.
KEPT_TREES = 256


def living() -> list[AgentRuntime]:
    """The runtimes that live in this process."""
    return list(_living)


class OpenTree(NamedTuple):
    """A tree with the parts that belong to it alone."""

    tree: RunTree
    recorder: Recorder
    inbox: Inbox
    spill: Spill

    def close(self) -> None:
        """Let readers and questions end, and remove what was temporary."""
        self.inbox.close()
        self.recorder.close()
        self.spill.close()


class AgentRuntime:
    """Keeps trees of agents until `stop`, which ends every one and waits for that.

    Transcripts are kept where `transcripts` says, else in `<working_dir>/.ramet/transcripts`; without either, all is in
    memory.
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
        grace_s: float = GRACE_S,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.working_dir = pathlib.Path(working_dir).absolute() if working_dir is not None else None
        if transcripts is None and self.working_dir is not None:
            transcripts = self.working_dir / ".ramet" / "transcripts"
        self._transcripts = pathlib.Path(transcripts).absolute() if transcripts is not None else None
        self.clock: Clock = clock or SystemClock()
        self.gateway = Gateway(self.clock, prices=prices, retry=retry)
        self.user_dir, self.grace_s = user_dir, grace_s
        self._entropy = entropy
        self._trees: dict[RunId, OpenTree] = {}
        self._closing: dict[RunId, asyncio.Task[None]] = {}
        self._finished: OrderedDict[RunId, OpenTree] = OrderedDict()  #: of `spawn`, for `get`
        self._running = self._stopped = False

    @property
    def durable(self) -> bool:
        """Whether a run can be resumed by another process. Not yet: transcripts are a record, not a journal."""
        return False

    async def start(self) -> Self:
        """Begin; idempotent."""
        self._running, self._stopped = True, False
        _living.add(self)
        return self

    async def stop(self) -> None:
        """End every agent of every tree and wait until they are gone; idempotent."""
        self._running, self._stopped = False, True
        _living.discard(self)
        await asyncio.gather(*(self.close_tree(root, "the runtime stopped") for root in list(self._trees)))
        self._finished.clear()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def get_status(self) -> dict[str, Any]:
        """What is true now: whether it runs, and the living runs of each tree."""
        sessions = {
            root: [view._asdict() for view in opened.tree.list_runs() if view.state not in _OVER]
            for root, opened in self._trees.items()
        }
        return {"state": "running" if self._running else "stopped", "sessions": sessions}

    def get(self, run: str) -> Handle:
        """A handle on any run of this runtime, by id. Raises Unknown."""
        for opened in (*self._trees.values(), *self._finished.values()):
            found = opened.tree.register.runs.get(RunId(run))
            if found is not None:
                return opened.tree.handle(found)
        raise Unknown("run", run)

    @property
    def trees(self) -> Mapping[RunId, OpenTree]:
        """The open trees by the id of their root; read only."""
        return dict(self._trees)

    async def spawn(
        self,
        agent: Agent | Mapping[str, Any] | Callable[..., Any],
        prompt: str = "",
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool] = (),
        agents: Mapping[str, Agent] | None = None,
        cwd: pathlib.Path | None = None,
        limits: Limits | None = None,
        spawn_limits: SpawnLimits | None = None,
    ) -> Handle:
        """Start a tree of one agent or function and return at once; the tree closes when its last run has ended."""
        definition = as_agent(agent)
        opened = self.open_tree(definitions=agents or {}, cwd=cwd, spawn_limits=spawn_limits or SpawnLimits())
        request = SpawnRequest(prompt=prompt, name="main", args=args, kwargs=kwargs or {})
        run = opened.tree.spawner.root(
            definition,
            tools=(*tools, *spawning_tools()),
            cwd=cwd or pathlib.Path.cwd(),
            limits=limits or definition.limits,
            persistent=False,
            request=request,
        )
        self.keep(opened, run)
        opened.tree.supervisor.prompt(run, HumanMessage(content=prompt) if prompt else None)
        run.ended().add_done_callback(lambda _: self._root_over(run.info.id))
        return opened.tree.handle(run)

    def open_tree(
        self,
        *,
        definitions: Mapping[str, Agent],
        cwd: pathlib.Path | None,
        spawn_limits: SpawnLimits,
        hooks: Sequence[HookRunner | HookConfig] = (),
        session: str | None = None,
        approver: Any = None,
        unattended: bool = False,
        omitted_type: Literal["fork", "general-purpose"] = "fork",
        compaction: Compaction | Literal[False] | None = None,
    ) -> OpenTree:
        """A tree without a root yet, with services of its own. Raises RametError once the runtime was stopped."""
        if self._stopped:
            raise RametError("this runtime was stopped; start() it again, or make another")
        number = self._entropy(8).hex()
        folder = self._transcripts / number if self._transcripts is not None else None
        recorder = Recorder(self.clock, folder)
        inbox = Inbox(clock=self.clock, mint=lambda: self._entropy(6).hex(), approver=approver, unattended=unattended)
        prompts = Prompts(cwd, self.user_dir, session)
        runner = _merged(hooks, cwd, recorder)
        spill = Spill(folder, number)

        def feed(run: RunInfo, chunk: AIMessageChunk, step: str) -> None:
            recorder.feed(run, chunk, step)

        def hooks_of(agent: Agent, gates: tuple[HookConfig, ...], is_child: bool) -> HookRunner | None:
            merged = runner
            for gate in gates:
                merged = merged.extended(gate)
            if agent.hooks:
                merged = merged.extended(agent.hooks, child=is_child)
            return merged if len(merged) else None

        services = Services(
            model=self.gateway.port,
            record=recorder.append,
            feed=feed,
            clock=self.clock,
            mint=lambda: run_id(self._entropy(8)),
            definitions=definitions,
            instructions=prompts.system,
            own_tools=prompts.tools,
            spill=spill.of,
            read_roots=spill.roots,
            follow=recorder.follow,
            hooks=hooks_of,
            approve=inbox.ask,
            compaction=lambda window: (
                Compaction(window_tokens=window or UNKNOWN_WINDOW) if compaction is None else compaction or None
            ),
            grace_s=self.grace_s,
            omitted_type=omitted_type,
        )
        return OpenTree(RunTree(services, spawn_limits), recorder, inbox, spill)

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own a tree from now on."""
        _living.add(self)
        self._trees[root.info.id] = opened

    async def close_tree(self, root: RunId, reason: str) -> None:
        """End a tree, wait until it is gone, and let its readers end. Whoever gives up waiting does not stop that."""
        closing = self._closing.get(root)
        if closing is None:
            opened = self._trees.get(root)
            if opened is None:
                return
            closing = self._closing[root] = asyncio.create_task(self._close(root, opened, reason), name="ramet close")
        await asyncio.shield(closing)

    async def _close(self, root: RunId, opened: OpenTree, reason: str) -> None:
        try:
            await opened.tree.supervisor.close(reason)
        finally:
            opened.close()
            self._trees.pop(root, None)
            self._closing.pop(root, None)

    def _root_over(self, root: RunId) -> None:
        """Let go of a spawned tree in which nobody lives any more; the newest stay to be asked for."""
        opened = self._trees.get(root)
        if opened is None or root in self._closing:
            return
        detached = next(iter(opened.tree.register.living()), None)
        if detached is not None:  # It outlives its root: look again when it is over.
            detached.ended().add_done_callback(lambda _: self._root_over(root))
            return
        opened.close()
        self._finished[root] = self._trees.pop(root)
        while len(self._finished) > KEPT_TREES:
            self._finished.popitem(last=False)


def _merged(configured: Sequence[HookRunner | HookConfig], cwd: pathlib.Path | None, recorder: Recorder) -> HookRunner:
    """All hooks of a tree in one runner, each knowing where transcripts are."""
    runner = HookRunner(project_dir=cwd, transcript=recorder.transcript_of)
    for each in configured:
        runner = runner.extended(each)
    return runner


_OVER = frozenset({"completed", "failed", "cancelled", "timeout", "budget_exhausted", "oom", "crashed", "lost"})


@cache
def spawning_tools() -> tuple[BaseTool, ...]:
    """The tools by which a model leads other agents: the same for all, since they keep nothing."""
    return (agent_tool({}), *companion_tools())
