"""Trees that a killed process left: found in the journal, and opened again."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from ramet.agent.definition import Agent, check_model
from ramet.agent.history.compaction import Compaction, check_compaction
from ramet.agent.hooks.config import HookConfig
from ramet.agent.hooks.hooks import HookRunner
from ramet.agent.loop import open_calls
from ramet.core.arguments import check_callable
from ramet.core.errors import Damaged, DamagedTree, DefinitionMissing, Unknown
from ramet.core.ids import CallId, RunId
from ramet.core.limits import SpawnLimits
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Policy, from_json
from ramet.core.policy.session_access import Inbound, SessionAddress, checked_inbound
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.run_replay import RunReplay
from ramet.host.arguments import definitions_of
from ramet.host.journal.journal import Journal, tree_document
from ramet.host.journal.stored_events import location_of
from ramet.host.safety.gate import SafetyGate
from ramet.host.safety.write_approval import ASK_FACTS, require_approval_for_writes
from ramet.host.serialize.recipes import agent_of
from ramet.host.trees.factory import OpenTree, TreeOptions
from ramet.host.trees.other_sessions import checked_sessions
from ramet.host.trees.project import Project
from ramet.spawn.recovery import ResumeInputs, rebuild_tree
from ramet.spawn.run import Run
from ramet.tools.agents.agents import spawning_tools
from ramet.tools.builtins import builtin_tools
from ramet.tools.functions import as_tools
from ramet.tools.permission_checks import rule_on_call

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool


_log = logging.getLogger("ramet.recovery")

#: The keys of a tree's document in every version.
_REQUIRED_KEYS = frozenset({"number", "cwd", "spawn_limits", "session", "unattended", "omitted_type", "children"})
#: The tools that `AgentRuntime.spawn` gives every root by itself.
SPAWNING = frozenset(tool.name for tool in spawning_tools())


@dataclass(frozen=True, kw_only=True)
class ResolvedInputs:
    """The objects that the caller of a resume supplies."""

    llm: BaseChatModel | None
    models: Mapping[str, BaseChatModel]
    tools: Sequence[BaseTool]
    agents: tuple[Agent, ...]
    secrets: Mapping[str, str]
    env_vars: Mapping[str, str]
    hooks: tuple[HookRunner | HookConfig, ...]
    gate: SafetyGate | None = None
    approver: Callable[..., Any] | None = None
    compaction: Compaction | Literal[False] | None = None
    inbound: Inbound | None = None  #: None: the recorded one
    other_sessions: Mapping[str, SessionAddress] | None = None  #: None: the recorded ones

    def model(self, name: str) -> BaseChatModel:
        """Return the model object of that name. Raises DefinitionMissing."""
        llm = self.models.get(name, self.llm)
        if llm is None:
            raise DefinitionMissing("model", name)
        return llm

    @cached_property
    def resume_inputs(self) -> ResumeInputs:
        """The supplied objects in the form that runs need; created once for all trees."""
        agents = {each.name: each for each in self.agents}
        return ResumeInputs(
            agent=lambda data: agent_of(data, agents=agents, model=self.model),
            tools=(*builtin_tools({}).values(), *self.tools),
            secrets=self.secrets,
            env_vars=self.env_vars,
        )


class ResumeOptions(TypedDict, total=False):
    """The keyword arguments of `AgentRuntime.resume` for supplied objects."""

    llm: BaseChatModel | None
    models: Mapping[str, BaseChatModel]
    tools: Sequence[BaseTool | Callable[..., Any] | str]
    agents: Sequence[Agent | Mapping[str, Any]]
    secrets: Mapping[str, str]
    env_vars: Mapping[str, str]
    hooks: Sequence[HookRunner | HookConfig]
    gate: SafetyGate | None
    approver: Callable[..., Any] | None
    compaction: Compaction | Literal[False] | None
    inbound: Inbound | None
    other_sessions: Mapping[str, SessionAddress] | None


def resolve_inputs(
    *,
    llm: BaseChatModel | None = None,
    models: Mapping[str, BaseChatModel] | None = None,
    tools: Sequence[BaseTool | Callable[..., Any] | str] = (),
    agents: Sequence[Agent | Mapping[str, Any]] = (),
    secrets: Mapping[str, str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    hooks: Sequence[HookRunner | HookConfig] = (),
    gate: SafetyGate | None = None,
    approver: Callable[..., Any] | None = None,
    compaction: Compaction | Literal[False] | None = None,
    inbound: Inbound | None = None,
    other_sessions: Mapping[str, Any] | None = None,
) -> ResolvedInputs:
    """Return the supplied objects, with empty values for the missing ones. Raises InvalidValue for a wrong type."""
    check_model("llm", llm)
    check_callable("approver", approver)
    check_compaction(compaction)
    return ResolvedInputs(
        llm=llm,
        models=models or {},
        tools=as_tools(tools, "tools"),
        agents=definitions_of(agents),
        secrets=secrets or {},
        env_vars=env_vars or {},
        hooks=tuple(hooks),
        gate=gate,
        approver=approver,
        compaction=compaction,
        inbound=checked_inbound(inbound) if inbound is not None else None,
        other_sessions=checked_sessions(other_sessions) if other_sessions is not None else None,
    )


@dataclass(frozen=True)
class UnfinishedTree:
    """A tree that was not closed."""

    root: str
    about: Mapping[str, Any]
    _journal: Journal

    @property
    def is_alive(self) -> bool:
        """Return whether a runtime of this process has the tree."""
        return self.root in self._journal.living

    @property
    def is_conversation(self) -> bool:
        """Return whether the tree is a conversation. In older versions a session id marks a conversation."""
        return bool(self.about.get("conversation") or self.about.get("session"))

    async def replay(self) -> TreeReplay:
        """Read the recorded events of the tree. Raises DamagedTree."""
        return await self._journal.replay(self.root)

    @property
    def is_closed(self) -> bool:
        """Return whether every run of the tree has ended according to the tree's document."""
        return bool(self.about.get("over"))

    async def close(self, now: datetime) -> None:
        """Mark the tree as over: there is nothing to resume."""
        await self._journal.close_tree(self.root, now)

    async def reopen(self) -> None:
        """Note that the tree is active again. Raises Unknown if the tree was removed meanwhile, OwnedElsewhere."""
        if not await self._journal.reopen_tree(self.root):
            raise Unknown("session", self.about.get("session") or self.root)

    def plan(
        self, supplied: ResolvedInputs, open_project: Callable[[pathlib.Path | None, Sequence[Agent]], Project]
    ) -> TreeOptions:
        """Return the options of the tree. Raises DefinitionMissing if its folder or a needed value is missing.

        Raises DamagedTree for a document without a required key.
        """
        about = self.about
        if missing_keys := sorted(_REQUIRED_KEYS - about.keys()):
            reason = f"its document does not have {', '.join(missing_keys)}"
            raise DamagedTree(self.root, location_of(self._journal.store), reason)
        cwd = pathlib.Path(about["cwd"]) if about["cwd"] is not None else None
        if cwd is not None and not cwd.is_dir():
            raise DefinitionMissing("folder", str(cwd))
        project = open_project(cwd, supplied.agents)
        children = about["children"]
        return TreeOptions(
            definitions=project,
            cwd=cwd,
            spawn_limits=SpawnLimits(**about["spawn_limits"]),
            hooks=_hooks(about, supplied, project),
            session=about["session"],
            approver=supplied.approver,
            compaction=supplied.compaction,
            unattended=about["unattended"],
            omitted_type=about["omitted_type"],
            children=_policy(children, supplied) if children is not None else None,
            sync_tools=about.get("sync_tools", "thread"),
            gate=required_gate(about, supplied),
            permissions=_permissions(about, project),
            number=about["number"],
            repeatable=about.get("repeatable", True),
            conversation=bool(about.get("conversation")),
            inbound=supplied.inbound or about.get("inbound", "refuse"),
            other_sessions=supplied.other_sessions
            if supplied.other_sessions is not None
            else msgspec.convert(about.get("other_sessions", {}), dict[str, SessionAddress]),
        )


def _policy(terms: Mapping[str, Any], supplied: ResolvedInputs) -> Policy:
    """Return a policy that is recorded with names alone. Raises DefinitionMissing for a value that is not supplied."""
    values = {"variable": supplied.env_vars, "secret": supplied.secrets}
    fields = {"variable": "env_vars", "secret": "secrets"}
    values_by_field: dict[str, dict[str, str]] = {}
    for kind, field in fields.items():
        for name in terms.get(field, ()):
            if name not in values[kind]:
                raise DefinitionMissing(kind, name)
            values_by_field.setdefault(field, {})[name] = values[kind][name]
    return from_json({**terms, **values_by_field})


def _hooks(about: Mapping[str, Any], supplied: ResolvedInputs, project: Project) -> tuple[HookRunner | HookConfig, ...]:
    """Return the hooks of a tree. Raises DefinitionMissing for fewer than the tree had: no gate may be missing.

    The gate of a tree of `ramet ask` is the host's own, and need not be supplied.
    """
    gates = [require_approval_for_writes(project.permissions or NO_PERMISSIONS)] if ASK_FACTS in about else []
    hooks = (*gates, *supplied.hooks, *project.hooks)
    required = about.get("hooks", 0)
    if len(hooks) < required:
        raise DefinitionMissing("hooks", f"{required} of the tree, of which {len(hooks)} are supplied")
    return hooks


def _permissions(about: Mapping[str, Any], project: Project) -> Permissions | None:
    """Return the folder's present rules, joined with the rules that applied when the tree began."""
    data = about.get("permissions")
    if data is None:
        return project.permissions
    recorded = msgspec.convert(data, Permissions)
    return recorded if project.permissions is None else recorded.merge(project.permissions)


def required_gate(about: Mapping[str, Any], supplied: ResolvedInputs) -> SafetyGate | None:
    """Return the supplied gate. Raises DefinitionMissing if the tree had a gate and none is supplied."""
    if about.get("gated") and supplied.gate is None:
        raise DefinitionMissing("safety gate", "of the tree")
    return supplied.gate


def _log_damage(problem: DamagedTree) -> None:
    _log.error("a tree cannot be resumed: %s", problem)


async def unfinished_trees(
    journal: Journal | None, only: str | None = None, *, on_damaged: Callable[[DamagedTree], None] = _log_damage
) -> list[UnfinishedTree]:
    """Return trees that are not known to be over, or the one of that root or session: its conversation may be closed.

    A tree whose document cannot be read is left unchanged; `on_damaged` is called with the error, and logs it by
    default.
    """
    if journal is None:
        return []
    trees = list[UnfinishedTree]()
    for each in await journal.trees(only):
        try:
            trees.append(UnfinishedTree(each.key, tree_document(each, location_of(journal.store)), journal))
        except DamagedTree as problem:
            on_damaged(problem)
    if only is None:
        return [each for each in trees if not each.is_closed]
    return [each for each in trees if each.is_conversation or not each.is_closed]


async def orphaned_trees(journal: Journal, roots: Sequence[str]) -> list[UnfinishedTree]:
    """Return the trees that were claimed from failed kernels; release claims of trees that are over or unknown.

    A tree whose document cannot be read is logged, and stays with this kernel.
    """
    trees = list[UnfinishedTree]()
    for root in roots:
        try:
            trees.append(UnfinishedTree(root, await journal.tree_facts(root), journal))
        except Damaged as problem:
            _log.error("this kernel owns tree %s, and cannot resume it: %s", root, problem)
    for each in trees:
        if not each.about or each.about.get("over"):
            await journal.store.release(each.root)
    return [each for each in trees if each.about and not each.about.get("over")]


def rebuild_runs(opened: OpenTree, replay: TreeReplay, supplied: ResolvedInputs) -> Run:
    """Put the recorded runs into a tree that was opened for them; return the root. Raises DefinitionMissing."""
    opened.recorder.continue_numbering(replay.seq)
    root = rebuild_tree(opened.tree, replay, supplied.resume_inputs)
    for each in replay.runs.values():
        run = opened.tree.register.runs[RunId(each.id)]
        _check_gate(run, each)
        opened.inbox.restore(each, partial(_still_asks, run), run.context.emit)
    opened.inbound.restore(replay.root)
    return root


def _check_gate(run: Run, replay: RunReplay) -> None:
    """Check that a call with a pending question is still gated.

    Raises DefinitionMissing if the hook that asked is missing.
    """
    hooks = run.context.hooks
    if run.context.safety is not None or run.agent.external is not None:
        return  # The gate is asked about every call, and a tree that had a gate has one.
    is_waiting = any(
        id not in replay.approval_answers
        and _still_asks(run, CallId(question.call_id or ""))
        and rule_on_call(run.context, question.tool, question.args).verdict is None
        for id, question in replay.approvals.items()
    )
    if is_waiting and (hooks is None or not hooks.listens("PreToolUse")):
        raise DefinitionMissing("PreToolUse hook", f"of {run.info.path}")


def _still_asks(run: Run, call: CallId) -> bool:
    """Return whether a call with a question has neither begun nor been answered."""
    context = run.context
    if run.agent.external is not None:  # Its program may ask again.
        return run.is_living
    is_open = any(each["id"] == call for each in open_calls(context.history) or ())
    return run.is_living and is_open and call not in context.interrupted_calls and call not in context.answers
