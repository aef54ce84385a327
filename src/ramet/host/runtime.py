"""`AgentRuntime`: starts agents, and owns their trees."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Self

from langchain_core.messages import BaseMessage

from ramet.agent.composition.steps import nesting_depth
from ramet.agent.definition import Agent, as_agent
from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue
from ramet.core.ids import ROOT_NAME, Path, RunId
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.media.attachment import Attachment
from ramet.core.media.blocks import attachment_blocks
from ramet.core.outcome import AgentResult
from ramet.core.policy.policy import Policy, resolve_root_policy
from ramet.host.arguments import check_messages, check_prompt_attachments
from ramet.host.dynamic.agents import ref_of
from ramet.host.dynamic.state import HostState
from ramet.host.journal.ttl import checked_keep
from ramet.host.loop_thread import refuse_in_loop
from ramet.host.recorded_runtime import RecordedRuntime
from ramet.host.recovery.fork_points import share_files
from ramet.host.recovery.resume import resolve_inputs
from ramet.host.runtime_base import active_runtimes
from ramet.host.safety.gate import SafetyGate
from ramet.host.sandbox.handle import AgentHandle, output_callback, wait_or_cancel
from ramet.host.trees.factory import TreeOptions
from ramet.models.messages import prompt_message
from ramet.spawn.birth.forked_request import forked_request
from ramet.spawn.birth.plan import Plan, check_prompt
from ramet.spawn.handle import Handle
from ramet.spawn.ports import TreePorts
from ramet.tools.agents.agents import spawning_tools
from ramet.tools.functions import as_tools
from ramet.tools.run_info import RunInfo
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool


def running_runtimes() -> list[AgentRuntime]:
    """Return the runtimes of this process that have not stopped."""
    return [each for each in active_runtimes if isinstance(each, AgentRuntime)]


def reachable() -> list[AgentRuntime]:
    """Return the runtimes whose event loop runs in this thread; if no loop runs here, those whose loop runs elsewhere.

    These are the candidates when a caller names no runtime.
    """
    return [each for each in running_runtimes() if each.is_reachable]


class AgentRuntime(RecordedRuntime):
    """The owner of trees of agents, until `stop` ends every tree and waits for that.

    Transcripts are kept in `transcripts`, else in `<working_dir>/.ramet/transcripts`; without either, all is in memory.
    With a working directory, or a `store`, the events of its agents are recorded durably; a working directory has them
    in `<dir>/.ramet/journal.db`. The trees of a runtime that was killed are resumed by `resume`, in another process. A
    tree stays recorded for `keep_results_seconds` after its end, or without that until `ramet gc` removes old trees.

    `notify` has the targets of notifications by their names (`ramet.host.notifications`), or functions of one. `watch`
    says when a run counts as silent or looping, for every root that does not say so itself. A cancelled run has
    `grace_s` seconds (5) to end by itself. Handles of the `keep_trees` (256) newest trees that ended stay in memory.

    A `policy_adapter` is asked about every spawn, for at most `policy_timeout_s` seconds (10). Without its answer
    nothing is spawned.

    `user_dir` is the user's folder: its settings and its list of trusted folders apply to every agent. Without
    `user_texts` its definitions, skills and memory are given to no agent. `home` is searched for the user's agents and
    skills of other programs (`.claude`, `.agents`), and `plugin_dirs` are the folders of plugins, with `agents` and
    `skills`. Definitions in `agents` of an administrator's `managed_dir` take precedence over all others.
    """

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
        watch: Watch = NO_WATCH,
        policy: Policy | None = None,
        returns: Any = None,
        on_output: Callable[[str, str], None] | None = None,
        history: Sequence[BaseMessage] = (),
        keep_results_seconds: float | None = None,
        gate: SafetyGate | None = None,
        import_dir: pathlib.Path | None = None,
        run: str = "",
        repeatable: bool = True,
        state_owner: str = "",
        stdio: tuple[int, ...] = (),
        fork_of: str = "",
        fork_at: int | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Handle:
        """Start a tree of one agent or function and return at once; the tree closes when its last run has ended.

        With a policy the root works in a sandbox, which imports from `import_dir`, too. `history` is a conversation
        that the root continues. `late_args` (of `SpawnRequest`) are not recorded. Every tool call of the tree must pass
        the `gate`, if there is one. `run` is the id of the root, made by `mint`. A function that is not `repeatable`
        ends as lost if it was cut off with its process. With a `state_owner`, an agent of a server, the states of the
        tree belong to that owner, whatever the names of its agents are. `stdio` has the descriptors of a program that
        the root starts in its sandbox: see `ramet.guest.terminal.program_process`. `attachments` are images, PDFs and
        texts that come with the prompt.

        With `fork_of`, a recorded run of any tree, the root begins with the messages and the state of that run, as of
        the event numbered `fork_at`, or of the newest. The state is a branch, which has the id of the new run, so that
        the other run and its state do not change. The new tree has the other tree's `state_owner`, and needs a gate if
        the other tree has one.

        Raises InvalidValue, NotShippable, IsolationUnavailable, SpawnRefused if the policy adapter refuses, and
        NoWorktree for a root that is to work in a clone of a repository if that cannot be made. With `fork_of` raises
        Unknown for a run that is not recorded, and DefinitionMissing for a missing gate.
        """
        definition = as_agent(agent)
        if definition.ref is None and (definition.capabilities or definition.tasks):
            # The limits may change here; the ref identifies the definition, so that what it makes is found again.
            definition = definition.replace(ref=ref_of(definition))
        check_messages("history", history)
        if check_prompt_attachments(definition, prompt, attachments):
            run = run or self.mint()
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
            watch=watch,
            policy=policy,
            returns=returns,
            on_output=on_output,
            import_dir=import_dir,
            state_owner=state_owner,
            stdio=stdio,
            agent=definition if fork_of else None,
            fork_of=fork_of,
            fork_at=fork_at,
        )
        if fork_of:
            if history:
                raise InvalidValue("history", f"{len(history)} messages", "none with fork_of, whose messages it is")
            gate, run = gate or self._gate_of(fork_of), run or self.mint()
            request = await self._forked(request, run, is_gated=gate is not None)
            if definition.function is None and definition.external is None:
                history = request.history
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
        plan = await opened.tree.spawner.plan_root(
            definition,
            request,
            limits or definition.limits,
            tools=(*as_tools(tools, "tools"), *spawning_tools()),
            cwd=cwd or pathlib.Path.cwd(),
            isolation=definition.isolation,
        )
        self.check_open()  # The runtime may have been stopped while the policy adapter was asked.
        if attachments:
            plan = await self._with_attachments(plan, attachments, opened.tree.register.services, RunId(run))
        root = opened.tree.spawner.root(plan, persistent=False, history=history)
        self.keep(opened, root)
        opened.tree.supervisor.prompt(root, prompt_message(prompt, plan.request.attachments) if prompt else None)
        self._close_with(root)
        if request.begins_at:
            await HostState(self.dynamic.registries).branch(root)  # The root's own requests create it, too.
        return opened.tree.handle(root)

    async def _with_attachments(
        self, plan: Plan, attachments: Sequence[Attachment], services: TreePorts, run: RunId
    ) -> Plan:
        """Store the attachments of a root's prompt before the root is recorded, which names them."""
        await self.open_store()
        info = RunInfo(id=run, root=run, path=Path(ROOT_NAME), agent=plan.agent.name)
        blocks = await attachment_blocks(attachments, services.store_blob(info))
        self.check_open()
        return dataclasses.replace(plan, request=dataclasses.replace(plan.request, attachments=tuple(blocks)))

    async def _forked(self, request: SpawnRequest, root: str, *, is_gated: bool) -> SpawnRequest:
        source = await self._fork_source(root, request.fork_of, request.fork_at)
        if not request.state_owner:
            request = dataclasses.replace(request, state_owner=source.owner)
        return forked_request(request, source, owner=request.state_owner, is_gated=is_gated)

    async def start_agent(
        self,
        agent: Agent | Mapping[str, Any] | Callable[..., Any],
        policy: Policy | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        prompt: str = "",
        agents: Mapping[str, Agent] | None = None,
        cwd: pathlib.Path | None = None,
        limits: Limits | None = None,
        spawn_limits: SpawnLimits | None = None,
        watch: Watch = NO_WATCH,
        returns: Any = None,
        on_stdout: Callable[[str], None] | None = None,
        on_stderr: Callable[[str], None] | None = None,
        gate: SafetyGate | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> AgentHandle:
        """Start an agent in a sandbox of its own and return at once; no policy means the defaults of `Policy`.

        Raises InvalidValue, NotShippable for a function that cannot be sent to a sandbox, IsolationUnavailable.
        """
        definition = as_agent(agent)
        handle = await self.spawn(
            definition,
            prompt,
            args=args,
            kwargs=kwargs,
            agents=agents,
            cwd=cwd,
            limits=limits,
            spawn_limits=spawn_limits,
            watch=watch,
            policy=policy or definition.policy or Policy(),
            returns=returns,
            on_output=output_callback(on_stdout, on_stderr),
            gate=gate,
            attachments=attachments,
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
        branch: bool = False,
        policy: Policy | None = None,
        root: str = "",
    ) -> Handle:
        """Start a tree with the messages of an old run up to the event numbered `at`, or with all of them.

        The old run, active or ended, is not affected. Both runs then work on the newest state of their agent; with
        `branch`, the new run works on a branch of the state as of that event, as with `fork_of` of `spawn`. With a
        `policy`, the new run works in a sandbox. `root` is the id of the new run, made by `mint`.

        A fork of a tree with a gate has a gate: the given `gate`, or the gate of the tree, if the tree is here. Raises
        Unknown for a run that is not recorded, DefinitionMissing for a needed object that is not supplied, InvalidValue
        for a run without a conversation.
        """
        gate = gate or self._gate_of(run)
        supplied = resolve_inputs(llm=llm, tools=tools, agents=agents, gate=gate)
        point, root = await self._fork_point(run, at, supplied), root or self.mint()
        if self.journal is not None and not branch:
            await share_files(self.journal, root, point.messages)
        return await self.spawn(
            point.agent,
            prompt,
            tools=point.tools,
            agents=self.open_project(point.cwd, supplied.agents),
            cwd=point.cwd,
            limits=limits,
            policy=policy,
            history=() if branch else point.messages,
            gate=gate,
            state_owner=point.state_owner,
            run=root,
            fork_of=run if branch else "",
            fork_at=at if branch else None,
        )

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


def _spawn_limits_for(policy: Policy | None, agent: Agent) -> SpawnLimits:
    """Return the spawn limits of a tree: its root's policy depth or the default, plus nested compositions."""
    depth = resolve_root_policy(policy).max_sub_agent_depth if policy is not None else 0
    return SpawnLimits(depth=max(depth, SpawnLimits().depth) + nesting_depth(agent.function))
