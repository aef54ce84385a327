"""The factory of trees: each tree gets services of its own here, and only here."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any, Literal, NamedTuple

import msgspec

from ramet.agent.definition import Agent
from ramet.agent.files.permissions import find_permissions
from ramet.agent.files.skills import skill_search_paths
from ramet.agent.history.compaction import Compaction, check_compaction
from ramet.agent.hooks.config import HookConfig, gates_of
from ramet.agent.hooks.hooks import HookRunner
from ramet.concurrency.clock import Clock
from ramet.concurrency.timers import TimerQueue
from ramet.core.arguments import check_bool, check_callable, check_instance
from ramet.core.errors import InvalidValue
from ramet.core.ids import RunId, run_id
from ramet.core.limits import SpawnLimits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Policy, to_public_dict
from ramet.core.policy.session_access import Inbound, SessionAddress, checked_inbound
from ramet.host.approvals import Inbox
from ramet.host.dynamic.agents import DynamicAgents
from ramet.host.dynamic.authoring import HostAuthoring
from ramet.host.dynamic.state import HostState
from ramet.host.external.program_finder import ProgramFinder
from ramet.host.forwarding.forwarder import Forwarder
from ramet.host.gateway import Gateway
from ramet.host.journal.blobs import TreeBlobs
from ramet.host.journal.journal import Journal
from ramet.host.journal.recorder import Recorder
from ramet.host.journal.result_cache import KeptResults
from ramet.host.mcp.installed_packages import InstalledPackages
from ramet.host.mcp.mcp_client import SdkClient
from ramet.host.notifications.notifier import Notifier
from ramet.host.observability.audit import Audit
from ramet.host.observability.telemetry import Telemetry
from ramet.host.safety.gate import SafetyGate
from ramet.host.sandbox.sandboxes import Sandboxes
from ramet.host.sandbox.tool_processes import ToolProcesses
from ramet.host.serialize.recipes import recipe
from ramet.host.trees.inbound_messages import InboundMessages
from ramet.host.trees.other_sessions import OtherSessions, PassMessage, checked_sessions
from ramet.host.trees.project import git_of
from ramet.host.trees.prompts import Prompts
from ramet.host.trees.spill import Spill
from ramet.spawn.limits.limit_answers import LimitAnswers
from ramet.spawn.ports import Decide, ForkSource, TreePorts
from ramet.spawn.tree import RunTree

#: Assumed context window, in tokens, of a model that does not state one.
UNKNOWN_WINDOW = 128_000


SyncTools = Literal["thread", "process"]


@dataclass(frozen=True, kw_only=True)
class TreeOptions:
    """The options of a whole tree."""

    definitions: Mapping[str, Agent]
    cwd: pathlib.Path | None
    spawn_limits: SpawnLimits
    hooks: Sequence[HookRunner | HookConfig] = ()
    session: str | None = None
    approver: Any = None
    unattended: bool = False
    omitted_type: Literal["fork", "general-purpose"] = "fork"
    compaction: Compaction | Literal[False] | None = None
    children: Policy | None = None  #: of children of a run of the host; None: they run on the host, too
    sync_tools: SyncTools = "thread"  #: where the synchronous tools of a run of the host are run
    keep_s: float | None = None  #: how long the tree stays recorded after its end; None: the runtime's value
    gate: SafetyGate | None = None  #: every tool call of the tree must pass it
    permissions: Permissions | None = None  #: rules of settings files; None: those of `cwd` are read
    number: str = ""  #: of a tree that another process opened: the name of its transcripts' folder
    root: str = ""  #: the id of its root, if the caller had to know it before
    repeatable: bool = True  #: its root, a function, is called again if it was cut off
    conversation: bool = False  #: its root is that of a session, which can be opened again after its end
    inbound: Inbound = "refuse"  #: what happens to messages of other sessions
    other_sessions: Mapping[str, SessionAddress] = dataclasses.field(default_factory=dict)  #: its root may write to
    #: returns other ports for the tree, for a replay that answers from a journal; None: the usual ones
    replace_ports: Callable[[TreePorts], TreePorts] | None = None

    def __post_init__(self) -> None:
        check_instance("agents", self.definitions, Mapping, "a mapping of names to ramet.Agent")
        check_instance("spawn_limits", self.spawn_limits, SpawnLimits, "ramet.SpawnLimits")
        check_callable("approver", self.approver)
        check_bool("unattended", self.unattended)
        if self.omitted_type not in ("fork", "general-purpose"):
            raise InvalidValue("omitted_type", self.omitted_type, "'fork' or 'general-purpose'")
        checked_inbound(self.inbound)
        checked_sessions(self.other_sessions)
        check_compaction(self.compaction)
        check_instance("policy", self.children, (Policy, NoneType), "ramet.Policy")


class OpenTree(NamedTuple):
    """A tree with the parts that belong to it alone."""

    tree: RunTree
    recorder: Recorder
    inbox: Inbox
    spill: Spill
    inbound: InboundMessages
    processes: ToolProcesses | None = None
    gate: SafetyGate | None = None

    def close(self) -> None:
        """End readers and questions, and remove temporary files."""
        self.inbox.close()
        self.recorder.close()
        self.spill.close()
        if self.processes is not None:
            self.processes.close()


@dataclass(frozen=True, kw_only=True)
class TreeFactory:
    """The parts that the trees of one runtime share."""

    gateway: Gateway
    forwarder: Forwarder
    programs: ProgramFinder
    sandboxes: Sandboxes
    clock: Clock
    transcripts: pathlib.Path | None
    user_dir: pathlib.Path | None
    user_texts: bool  #: whether agents get the texts in `user_dir` and `home`: skills and memory
    home: pathlib.Path | None = None  #: the home directory, whose skills of other programs agents may use
    plugin_dirs: Sequence[pathlib.Path] = ()  #: whose skills agents may use
    grace_s: float
    entropy: Callable[[int], bytes]
    telemetry: Telemetry
    dynamic: DynamicAgents
    journal: Journal | None = None
    fork_source: Callable[[RunId, str, int | None], Awaitable[ForkSource]] | None = None  #: None: nothing is recorded
    audit: Audit | None = None
    notifier: Notifier | None = None
    keep_s: float | None = None
    results: KeptResults | None = None
    decide: Decide | None = None  #: asks the policy adapter
    pass_message: PassMessage | None = None  #: to another session of the user; None: no tree may write to one
    watch: Watch = NO_WATCH  #: of the roots, unless they have their own
    timers: TimerQueue | None = None  #: of the watches

    def _about(self, plan: TreeOptions, number: str) -> Callable[[], dict[str, Any]]:
        keep_s = plan.keep_s if plan.keep_s is not None else self.keep_s
        more = {} if self.notifier is None else self.notifier.tree_facts
        return lambda: {**tree_metadata(plan, number), "began": self.clock.now(), "keep_s": keep_s, **more}

    def open(self, plan: TreeOptions) -> OpenTree:
        """Open a tree without a root.

        Raises InvalidValue for a policy that the processes of its tools cannot keep, and for a gate that is not a
        SafetyGate; Unreadable and InvalidValue for permissions in its folder's settings that cannot be understood.
        """
        if plan.gate is not None and not isinstance(plan.gate, SafetyGate):
            raise InvalidValue("gate", plan.gate, "a ramet.host.safety.SafetyGate")
        if plan.permissions is None:
            settings = find_permissions(plan.cwd or pathlib.Path.cwd(), user_dir=self.user_dir)
            plan = dataclasses.replace(plan, permissions=settings.active)
        processes = None
        if plan.sync_tools == "process":
            processes = ToolProcesses(self.sandboxes, plan.children or read_only_policy(plan.cwd))
        number = plan.number or self.entropy(8).hex()
        folder = self.transcripts / number if self.transcripts is not None else None
        recorder = Recorder(self.clock, folder, self.journal, about=self._about(plan, number))
        self.telemetry.attach(recorder)
        if self.audit is not None:
            self.audit.attach(recorder)
        if self.notifier is not None:
            self.notifier.attach(recorder)
        inbox = Inbox(
            clock=self.clock,
            mint=lambda: self.entropy(6).hex(),
            approver=plan.approver,
            unattended=plan.unattended,
        )
        user_dir, home = (self.user_dir, self.home) if self.user_texts else (None, None)
        skills = skill_search_paths(plan.cwd, user_dir, home, self.plugin_dirs)
        prompts = Prompts(plan.cwd, user_dir, plan.session, skills)
        runner = _merge_hooks(plan.hooks, plan.cwd, recorder)
        spill = Spill(folder, number)
        blobs = TreeBlobs(self.journal.store if self.journal is not None else None)

        def hooks_of(agent: Agent, gates: tuple[HookConfig, ...], is_child: bool) -> HookRunner | None:
            merged, own_gates = runner, gates_of(agent.hooks)
            for gate in gates:
                if gate not in own_gates:  # A fork has the hooks of its parent's definition itself.
                    merged = merged.with_hooks(gate)
            if agent.hooks:
                merged = merged.with_hooks(agent.hooks, child=is_child)
            return merged if len(merged) else None

        def compaction_for(window: int | None) -> Compaction | None:
            if plan.compaction is None:
                return Compaction(window_tokens=window or UNKNOWN_WINDOW)
            return plan.compaction or None

        others = None
        if plan.other_sessions and self.pass_message is not None:
            others = OtherSessions(plan.other_sessions, plan.session, self.pass_message)
        ids = chain([RunId(plan.root)] if plan.root else (), iter(lambda: run_id(self.entropy(8)), None))
        services = TreePorts(
            model=self.gateway.port,
            record=recorder.append,
            feed=recorder.feed,
            clock=self.clock,
            mint=lambda: next(ids),
            definitions=plan.definitions,
            instructions=prompts.system,
            own_tools=prompts.tools,
            spill=spill.writer_for,
            read_roots=spill.roots,
            follow=recorder.follow,
            hooks=hooks_of,
            on_refusal=self.telemetry.count_refusal,
            meter=self.gateway.meter,
            forwarding=self.forwarder.open,
            programs=self.programs,
            mcp_client=SdkClient(user_dir),
            mcp_packages=InstalledPackages(plan.cwd or pathlib.Path.cwd()),
            approve=inbox.ask,
            withdraw_restored=inbox.withdraw_restored,
            safety=plan.gate,
            decide=self.decide,
            other_sessions=others,
            permissions=plan.permissions or NO_PERMISSIONS,
            compaction=compaction_for,
            watch=self.watch,
            timers=self.timers,
            grace_s=self.grace_s,
            omitted_type=plan.omitted_type,
            placement=self.sandboxes.placement(plan.children),
            processes=processes,
            recipe=recipe,
            durable=recorder.durable,
            confirm_ownership=recorder.confirm_ownership,
            store_blob=blobs.writer,
            load_blob=blobs.reader,
            memory=HostState(self.dynamic.registries),
            fork_source=self.fork_source,
            after=recorder.when_durable,
            authoring=HostAuthoring(self.dynamic),
            results=self.results,
            git=git_of(self.user_dir),
        )
        if plan.replace_ports is not None:
            services = plan.replace_ports(services)
        tree = RunTree(services, plan.spawn_limits)
        inbox.limits = LimitAnswers(tree.register, tree.supervisor)
        inbound = InboundMessages(
            plan.inbound, tree, self.clock, session=plan.session, unattended=plan.unattended and plan.approver is None
        )
        inbox.held_messages = inbound
        return OpenTree(tree, recorder, inbox, spill, inbound, processes, plan.gate)


def tree_metadata(plan: TreeOptions, number: str) -> dict[str, Any]:
    """Return the options of a whole tree as data: enough to open the tree again, except for objects of a process."""
    return {
        "number": number,
        "cwd": str(plan.cwd) if plan.cwd is not None else None,
        "spawn_limits": dataclasses.asdict(plan.spawn_limits),
        "session": plan.session,
        "unattended": plan.unattended,
        "omitted_type": plan.omitted_type,
        "hooks": len(plan.hooks),
        "children": to_public_dict(plan.children) if plan.children is not None else None,
        "sync_tools": plan.sync_tools,
        **({"gated": True} if plan.gate is not None else {}),
        **({"permissions": msgspec.to_builtins(plan.permissions.narrowing())} if plan.permissions else {}),
        **({"repeatable": False} if not plan.repeatable else {}),
        **({"conversation": True} if plan.conversation else {}),
        **({"inbound": plan.inbound} if plan.inbound != "refuse" else {}),
        **({"other_sessions": msgspec.to_builtins(plan.other_sessions)} if plan.other_sessions else {}),
    }


def read_only_policy(cwd: pathlib.Path | None) -> Policy:
    """Return the default policy with one folder to read."""
    return Policy(readonly_mounts=(str(cwd.resolve()),) if cwd is not None else ())


def _merge_hooks(
    configured: Sequence[HookRunner | HookConfig], cwd: pathlib.Path | None, recorder: Recorder
) -> HookRunner:
    """Return all hooks of a tree in one runner, which knows where the transcripts are."""
    runner = HookRunner(project_dir=cwd, transcript=recorder.transcript_of)
    for each in configured:
        runner = runner.with_hooks(each)
    return runner
