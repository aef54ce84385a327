"""Rebuilding and resuming a tree that another process left: same runs, ids, budgets, conversations and mail.

Nothing is spawned here: `ramet.spawn.birth.spawner` spawned every run once, and each spawn is recorded. Runs that were
active continue in the middle of their turn. Ended runs stay as they ended, for queries or to be resumed by mail.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, SystemMessage
from msgspec.structs import replace

from ramet.agent.context import calls_of
from ramet.agent.definition import Agent
from ramet.agent.result_codec import decode_result
from ramet.agent.toolset import Toolset, resolve_tools
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.mailbox import Mail
from ramet.core.agent_ref import AgentRef
from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded, DefinitionMissing, InvalidValue, RametError
from ramet.core.events import ToolStarted
from ramet.core.ids import CallId, Path, RunId, SessionId, StepId
from ramet.core.lifecycle import State
from ramet.core.limits import Amount, Limits, limits_from
from ramet.core.liveness.watch_settings import watch_from
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.core.replay.codec import StoredMessage
from ramet.core.replay.replay import CLOSED, OPEN, RAISED, TreeReplay, amount
from ramet.core.replay.run_replay import RunReplay
from ramet.models.messages import KINDS, decode, prompt_message
from ramet.spawn.birth.plan import Plan, check_tools, own_tools_of
from ramet.spawn.birth.record import (
    Values,
    capsule_in,
    clone_in,
    cwd_of,
    grant_of,
    inheritable_names,
    limits_of,
    narrowed_in,
    request_of,
)
from ramet.spawn.lifecycle.worktree_end import leave_worktree
from ramet.spawn.mcp.interrupted_calls import find_interrupted
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run, TurnResult
from ramet.spawn.sandbox.run_folder import restore_folder
from ramet.spawn.tool_calls import PastCalls, ToolCallLedger
from ramet.spawn.tree import RunTree
from ramet.spawn.verdict import lost_result, recorded_verdict
from ramet.spawn.watches.run_watch import RunWatch
from ramet.tools.permissions.plan_mode import leave_plan_mode
from ramet.tools.run_info import RunInfo

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool


#: What a spawn's record says about the place of the states of a run and of those below it.
STATE_FIELDS = ("begins_at", "fork_place", "state_owner")


@dataclass(frozen=True, kw_only=True)
class ResumeInputs:
    """The objects, by name, that only a process can supply."""

    agent: Callable[[Mapping[str, Any]], Agent]  #: the definition of a recipe; raises DefinitionMissing
    tools: Sequence[BaseTool] = ()  #: tools of the root
    secrets: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)


def rebuild_tree(tree: RunTree, replay: TreeReplay, supplies: ResumeInputs) -> Run:
    """Put the runs of a replay into an empty tree, idle; `resume_tree` starts their work. Returns the root.

    Raises DefinitionMissing for the first named object that is missing; nothing has been started then.
    """
    replay.close_open()
    tree.post.continue_numbering(replay.newest_mail)
    tree.register.mail_by_request |= replay.mail_requests
    budgets = _budgets(replay)
    runs: dict[str, Run] = {}
    for each in replay.runs.values():
        runs[each.id] = _restore_run(tree, each, runs, budgets[each.id], supplies)
    for each in replay.runs.values():  # Before any run is active, which could use what these runs were granted.
        runs[each.id].sandbox.inherited_calls = _inherited_calls(runs[each.id], each)
        for mail_id, asker in each.awaiting_idle.items():
            if asker in replay.runs and f"idle:{mail_id}" not in replay.runs[asker].mail_ids:
                tree.post.await_idle(runs[each.id], mail_id, asker)
    open_calls = [(each.id, call) for each in replay.runs.values() for call in each.started_calls]
    tree.peers.restore(replay.peer_requests.newest.values(), open_calls)
    return runs[replay.root.id]


def resume_tree(tree: RunTree, replay: TreeReplay) -> None:
    """Continue what was active: interrupted turns, spawns whose first turn had not begun, unread mail."""
    run_replays = [
        (run, each) for each in replay.runs.values() if (run := tree.register.runs.get(RunId(each.id))) is not None
    ]
    for run, _ in run_replays:
        if not run.is_living:  # Before idle runs are considered, which would end if nothing could come any more.
            tree.post.report_end_to_all(run)  # Does nothing if its notices are recorded: their ids show this.
    tree.peers.resume()
    for run, _ in run_replays:
        if run.is_living and run.sandbox.replay is None:
            tree.monitor_reports.end_lost(run)
    for run, each in run_replays:
        if not run.is_living:
            continue
        if _is_stopped(run, each) or replay.peer_requests.accepts_shutdown(each.id):
            run.turn.verdict = TurnResult(
                Status.CANCELLED, error=ErrorInfo(type="Aborted", message="it was being stopped")
            )
            tree.supervisor.end(run)
        elif _is_lost(run, each):
            run.turn.verdict = lost_result(run, "its process ended")
            tree.supervisor.end(run)
        elif each.is_in_turn or each.turn == 0 or _has_no_recorded_value(run, each):
            if not run.persistent or each.is_in_turn:
                tree.supervisor.resume_turn(run, began=each.turn > 0)
            else:
                tree.supervisor.resume_idle(run)  # It has had no prompt, but perhaps mail.
        else:
            tree.supervisor.resume_idle(run)
        if isinstance(run.activity.watcher, RunWatch):
            run.activity.watcher.resume(each)


async def leave_ended_copies(tree: RunTree, replay: TreeReplay) -> None:
    """Leave the copies of repositories of runs that `resume_tree` will end without a further turn."""
    ended: set[str] = set()
    for each in replay.runs.values():
        run = tree.register.runs.get(RunId(each.id))
        if run is None or not run.is_living:
            continue
        is_orphan = not run.detached and run.parent is not None and run.parent.info.id in ended
        accepts_shutdown = replay.peer_requests.accepts_shutdown(each.id)
        if is_orphan or accepts_shutdown or _is_stopped(run, each) or _is_lost(run, each):
            ended.add(each.id)
            await leave_worktree(run, tree.register.services.git)


def _is_stopped(run: Run, replay: RunReplay) -> bool:
    is_parent_over = run.parent is not None and not run.detached and not run.parent.is_living
    return replay.state == State.STOPPING or is_parent_over


def _is_lost(run: Run, replay: RunReplay) -> bool:
    """Return whether a function was cut off that must not be called again."""
    return run.restarts_from_scratch and not run.repeatable and bool(replay.turn) and run.sandbox.replay is None


def _has_no_recorded_value(run: Run, replay: RunReplay) -> bool:
    """Return whether only an end event would have recorded the value of the turn.

    This is the case for a function, and for an equal call whose result was reused.
    """
    has_no_reply = replay.turn_status == Status.COMPLETED and not replay.replies
    return not run.persistent and (run.agent.function is not None or has_no_reply)


def _budgets(replay: TreeReplay) -> dict[str, Budget]:
    """Return the scopes of all runs, by repeating every move in order."""
    budgets: dict[str, Budget] = {}
    for entry in replay.ledger:
        spawn_event = replay.runs[entry.run].spawn_event
        if entry.kind == RAISED:
            budgets[entry.run].raise_limits(Amount(**entry.raised))  # type: ignore[arg-type]  # as they were recorded
            continue
        parent_budget = budgets.get(spawn_event.parent or "")
        if entry.kind == OPEN:
            limits, budget = limits_of(spawn_event.birth), budgets.get(entry.run)
            if budget is not None:
                if spawn_event.birth.get("owns") and parent_budget is not None and not spawn_event.detached:
                    budget.reopen(parent_budget)
            elif parent_budget is None:
                budgets[entry.run] = Budget(limits, scope=spawn_event.path)
            elif not spawn_event.birth.get("owns"):
                budgets[entry.run] = parent_budget
            elif spawn_event.detached:
                parent_budget.charge(Amount(**{name: getattr(limits, name) or 0 for name in Amount._fields}))
                budgets[entry.run] = Budget(limits, scope=spawn_event.path)
            else:
                budgets[entry.run] = Budget(limits, scope=spawn_event.path, parent=parent_budget)
        elif entry.kind == CLOSED:
            if spawn_event.birth.get("owns"):
                budgets[entry.run].close()
        else:
            budgets[entry.run].charge(amount(entry.usage))
    return budgets


def _restore_run(
    tree: RunTree, replay: RunReplay, runs: Mapping[str, Run], budget: Budget, supplies: ResumeInputs
) -> Run:
    spawn_event, register, services = replay.spawn_event, tree.register, tree.register.services
    parent, ancestor = runs.get(spawn_event.parent or ""), runs.get(replay.ancestor_id)
    spawn_data = spawn_event.birth
    info = RunInfo(
        id=RunId(spawn_event.run),
        root=RunId(spawn_event.root),
        path=Path(spawn_event.path),
        agent=spawn_event.agent,
        depth=spawn_event.depth,
        parent=RunId(spawn_event.parent) if spawn_event.parent else None,
        parent_call=CallId(spawn_event.parent_call) if spawn_event.parent_call else None,
        session=SessionId(spawn_event.session) if spawn_event.session else None,
    )
    try:
        agent = supplies.agent(spawn_data["agent"])
        cwd = cwd_of(spawn_data)
        toolset = _toolset(agent, replay, parent, supplies, own_tools_of(agent, cwd, parent, services), register)
        values = Values(
            path=spawn_event.path,
            secrets=supplies.secrets,
            env_vars=supplies.env_vars,
            ancestor_grants=tuple(parent.grants()) if parent is not None else (),
        )
        (grant, missing), (bound, bound_missing) = grant_of(spawn_data, values), grant_of(spawn_data, values, "bound")
        missing = tuple(dict.fromkeys((*missing, *bound_missing)))
        # A sandbox that may be active still has its values; a new sandbox is not started without them.
        if missing and (replay.sandbox is None or not replay.is_in_turn):
            raise DefinitionMissing("variable", ", ".join(missing))
        request = request_of(
            spawn_data,
            agent.function,
            prompt=spawn_event.prompt,
            description=spawn_event.description,
            name=spawn_event.name,
        )
        check_tools(toolset.tools, grant is not None, services)
    except DefinitionMissing:
        if not replay.is_over:
            raise
        # An ended run is only looked at. It needs only the fields that say where the states below it are.
        agent, cwd, toolset = _ended_agent(replay), pathlib.Path(spawn_data.get("cwd", ".")), Toolset(())
        grant, bound, missing = None, None, ()
        state_fields = {name: value for name, value in spawn_data.items() if name in STATE_FIELDS}
        request = request_of(
            state_fields, None, prompt=spawn_event.prompt, description=spawn_event.description, name=spawn_event.name
        )
    plan = Plan(
        request=request,
        agent=agent,
        is_fork=spawn_event.mode == "fork",
        name=spawn_event.name,
        limits=reduce(Limits.add, (limits_from(each.add) for each in replay.raised), limits_of(spawn_data)),
        grant=grant,
        step_ceiling=bound,
        policy_ceiling=narrowed_in(spawn_data),
        capsule=capsule_in(spawn_data) if grant is not None else None,
        clone=clone_in(spawn_data, services.git),
        definition_mounts=tuple(spawn_data.get("skill_folders", ())),
        toolset=toolset,
        system=tuple(SystemMessage(content=text) for text in spawn_data.get("system", ())),
        cwd=cwd,
        watch=watch_from(spawn_data.get("watch", {})),
    )
    slot = (
        register.admission.admit_unchecked(ancestor, plan.share)
        if not replay.is_over
        else register.admission.released_slot()
    )
    abort = register.abort if ancestor is None or spawn_event.detached else ancestor.context.abort
    run = tree.spawner.builder.build(info, parent, plan, slot, budget, AbortController(abort))
    if replay.is_plan_approved:
        leave_plan_mode(run.context)
        run.context.approved_plan_call = replay.approved_plan_call
    run.move_below(ancestor)
    run.sandbox.missing_variables = missing
    run.sandbox.loaded_tools |= dict.fromkeys(replay.loaded_tools, True)
    run.persistent, run.detached = bool(spawn_data.get("persistent")), spawn_event.detached
    run.background = spawn_event.background or replay.reports_by_notice
    run.max_turns = spawn_data.get("max_turns", run.max_turns)
    run.own_budget = budget if spawn_data.get("owns") else None
    run.turns, run.activations, run.wake_count = replay.turn, replay.generation, replay.wakes
    run.spawn_count, run.turn.spawns_before = replay.spawns, replay.spawns_before_turn
    run.admitted_spawns = run.spawn_count
    run.earlier_elapsed_s, run.turn.replies, run.turn.objections = (
        replay.active_time.seconds,
        replay.replies,
        replay.objections,
    )
    run.pauses.recorded_limit = replay.limit_pause
    if replay.pause is not None and not replay.is_over:
        tree.supervisor.pauses.restore(run, replay.pause.reason)
    if (denial := replay.limit_denial) is not None:
        run.denied_limits[denial.scope, denial.resource] = replay.turn
    run.raised_limits = {each.key: limits_from(each.add) for each in replay.raised}
    run.subtree, run.context.usage, run.context.steps = replay.subtree, replay.usage, replay.steps
    run.context.quota, run.activity.last_event_at = replay.quota, replay.last_event_at
    for each in replay.conversation:
        if each.kind not in KINDS:
            raise InvalidValue("message.type", each.kind, "one of " + ", ".join(sorted(KINDS)))
    run.context.set_history_loader(partial(_decode_messages, replay.conversation, dict(replay.started_calls)))
    run.turn_began_at, run.turn.attempt = min(replay.turn_began_at, len(replay.conversation)), replay.attempt
    if replay.exhausted_resource and replay.is_in_turn:
        run.context.final_refusal = BudgetExceeded(replay.exhausted_resource, asked=1, left=0, scope=run.path)
    run.context.interrupted_calls = {
        CallId(call): StepId(started_call.step_id) for call, started_call in replay.started_calls.items()
    }
    letters = [Mail(id=each.id, sender=each.sender, text=each.text, kind=each.kind) for each in replay.unread_mail()]  # type: ignore[arg-type]  # written by us
    run.context.mailbox.restore(letters, seen_ids=replay.mail_ids)
    run.recent_mail = replay.recent_mail
    run.monitors, run.monitor_count = dict.fromkeys(replay.monitors, 0), replay.monitor_count
    run.monitors_by_request = {request_key: monitor for monitor, request_key in replay.monitors.items()}
    if spawn_data.get("brief") and not replay.is_briefed:
        run.pending.append(prompt_message(spawn_data["brief"], run.request.attachments))
    if replay.result is not None:
        _restore_result(run, replay.result)
    else:
        # A pause may have kept its next turn from beginning: what that turn reads is unread.
        waits_to_begin = replay.state in (State.PAUSED, State.STARTING) and replay.turn > 0 and not replay.is_in_turn
        is_idle = (replay.state == State.IDLE or waits_to_begin) and not _has_no_recorded_value(run, replay)
        run.state = State.IDLE if is_idle else State.STARTING
        run.sandbox.replay = (
            replay
            if replay.sandbox is not None and (replay.is_in_turn or _has_no_recorded_value(run, replay))
            else None
        )
        if run.state is State.IDLE:  # Its newest turn has ended, and no caller waits for it any more.
            run.turn.verdict = recorded_verdict(run, replay)
        if run.sandbox.capsule is None and run.grant is not None:  # Its loop is, or was, in a sandbox, with its calls.
            run.context.interrupted_calls.clear()
            run.sandbox.interrupted_calls = find_interrupted(replay)
            if run.context.final_refusal is None:  # Otherwise no message follows.
                run.turn_began_at = len(replay.conversation)
    register.add(run)
    if spawn_data.get("key") and parent is not None:
        register.known_spawns[parent.info.id, spawn_data["key"]] = run
    if spawn_data.get("asked"):
        register.runs_by_request[spawn_data["asked"]] = run
    run.sandbox.was_started = replay.was_sandboxed
    restore_folder(run, services.placement)
    if run.is_living and run.sandbox.was_started:
        run.worktree = run.sandbox.clone
    return run


def _ended_agent(replay: RunReplay) -> Agent:
    """Return a substitute for the missing definition of a run that has ended."""
    ref = replay.spawn_event.birth["agent"].get("ref")
    return Agent(name=replay.spawn_event.agent, ref=AgentRef.parse(ref) if ref is not None else None)


def _decode_messages(
    stored_messages: Sequence[StoredMessage], started_calls: Mapping[str, ToolStarted]
) -> list[BaseMessage]:
    """Return the conversation, with started calls as they were started: a hook may have changed their arguments."""
    messages = [decode(each.data) for each in stored_messages]
    newest = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
    for call in calls_of(newest) if started_calls and newest is not None else ():
        if (started := started_calls.get(call["id"] or "")) is not None:
            call["args"] = started.args
    return messages


def _inherited_calls(run: Run, replay: RunReplay) -> ToolCallLedger | None:
    """Return the unanswered calls of the newest reply that the guest had received."""
    if run.sandbox.capsule is not None or run.grant is None or not replay.is_in_turn or replay.is_rewound:
        return None
    at = next((at for at in reversed(range(len(replay.conversation))) if replay.conversation[at].kind != "tool"), None)
    if at is None or replay.conversation[at].kind != "ai":
        return None
    answered_ids = frozenset(each.call_id or "" for each in replay.conversation[at + 1 :])
    past_calls = PastCalls(frozenset(replay.started_calls), frozenset(replay.unstarted_calls), answered_ids)
    return ToolCallLedger(run.context, replay.reply_step, cast(AIMessage, run.context.history[at]), past_calls)


def _toolset(
    agent: Agent,
    replay: RunReplay,
    parent: Run | None,
    supplies: ResumeInputs,
    own_tools: Sequence[BaseTool],
    register: RunRegistry,
) -> Toolset:
    if replay.spawn_event.mode == "fork" and parent is not None:
        return Toolset(parent.context.tools, delegable=parent.rights[-1].delegable)
    available = parent.inheritable_tools if parent is not None else _root_tools(replay, supplies, own_tools)
    may_spawn = (parent.info.depth + 1 if parent is not None else 0) < register.limits.depth
    try:
        return resolve_tools(agent, available, may_spawn=may_spawn, is_child=parent is not None, own=own_tools)
    except RametError as problem:
        raise DefinitionMissing("tools of", agent.name) from problem


def _root_tools(replay: RunReplay, supplies: ResumeInputs, own_tools: Sequence[BaseTool]) -> tuple[BaseTool, ...]:
    """Return the tools that the root had, by name.

    Raises DefinitionMissing if a tool is not supplied.
    """
    supplied = {tool.name: tool for tool in supplies.tools}
    own_names = {tool.name for tool in own_tools}
    names = inheritable_names(replay.spawn_event)
    for name in names:
        if name not in supplied and name not in own_names:
            raise DefinitionMissing("tool", name)
    return tuple(supplied[name] for name in names if name not in own_names)


def _restore_result(run: Run, result: Result) -> None:
    """Restore the state of a run that has ended, so that its result can be queried."""
    if result.status is Status.COMPLETED:
        with suppress(RametError):  # A value that its definition would not accept today stays as it was written.
            result = replace(result, value=decode_result(run.agent, result.value))
    was_stopped = result.status in (Status.CANCELLED, Status.TIMEOUT)
    run.state = State.STOPPED if was_stopped else State.ENDED
    run.result = run.reported_result = result
    run.turn.verdict = TurnResult(result.status, result.value, result.error, result.partial)
    run.context.mailbox.close("it was stopped" if was_stopped else "it has finished")
    run.context.abort.abort("its run ended")
