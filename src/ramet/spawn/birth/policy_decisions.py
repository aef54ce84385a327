"""The question to the host's policy adapter before a spawn, and the effect of its answer on the request."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from ramet.agent.definition import Agent
from ramet.concurrency.slots import Slot
from ramet.core.errors import Aborted, PolicyAdapterFailed, SpawnRefused
from ramet.core.events import PolicyDecided
from ramet.core.limits import Limits
from ramet.core.policy.decision import MAX_PROMPT, Narrow, PolicyDecision, PolicyRequest, Refuse
from ramet.core.policy.policy import Policy, PolicyFields, resolve_root_policy, to_public_dict
from ramet.spawn.ports import Decide
from ramet.spawn.run import Run
from ramet.tools.context import ToolUseContext, current_call
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from ramet.spawn.birth.plan import Plan


#: The number of consecutive spawns, in one turn, that may fail after the adapter was asked: each is an event, and a
#: call of the adapter.
MAX_FAILED_SPAWNS = 1_000


class DecidedRequest(NamedTuple):
    """A request after the adapter's answer, and the most that the new run may do."""

    request: SpawnRequest
    ceiling: Policy | None = None
    decision: PolicyDecision | None = None  #: None: there is no adapter


async def decide_child(decide: Decide, parent: Run, plan: Plan, slot: Slot | None) -> DecidedRequest:
    """Ask the adapter about a planned child; its answer is recorded for the parent in every case.

    Raises SpawnRefused if the spawn is refused, or if the parent is being stopped, and PolicyAdapterFailed.
    """
    if parent.failed_spawns >= MAX_FAILED_SPAWNS:
        raise SpawnRefused("policy adapter", f"{MAX_FAILED_SPAWNS} spawns in a row were requested and failed", free=0)
    parent_grant, request = parent.grant or parent.step_ceiling, plan.request
    question = PolicyRequest(
        agent=plan.agent.name,
        name=plan.name,
        root=parent.info.root,
        parent=parent.info.id,
        parent_agent=parent.info.agent,
        parent_path=parent.info.path,
        depth=parent.info.depth + 1,
        session=parent.info.session or "",
        prompt=request.prompt[:MAX_PROMPT],
        mode="fork" if plan.is_fork else "fresh",
        model=_model_name(plan.agent),
        tools=tuple(tool.name for tool in plan.toolset.tools),
        background=bool(request.background if request.background is not None else plan.agent.background),
        detached=request.detached,
        limits=plan.limits.as_data(),
        asked=_policy_data(request.policy or plan.agent.policy),
        inherited=_policy_data(parent_grant),
        granted=_policy_data(plan.grant or plan.step_ceiling),
    )
    answer = asyncio.ensure_future(decide(question, parent.context.abort))
    call = current_call.get(None)
    try:
        # The parent waits for the adapter: others may work meanwhile.
        decision = await (
            answer if slot is None else slot.while_waiting(answer, key=call.step_id if call is not None else None)
        )
    except Aborted:
        raise SpawnRefused("stopped", f"{parent.info.path} is being stopped", free=0) from None
    finally:
        answer.cancel()
    if isinstance(decision.answer, Refuse):
        parent.failed_spawns += 1
    record(parent.context, decision, plan.agent.name, call_id=request.call_id)
    return _apply_decision(decision, request, works_in_host=plan.grant is None and plan.step_ceiling is None)


async def decide_root(
    decide: Decide, agent: Agent, request: SpawnRequest, limits: Limits, *, session: str | None
) -> DecidedRequest:
    """Ask the adapter about a root.

    Raises SpawnRefused if the spawn is refused, and PolicyAdapterFailed.
    """
    policy = request.policy
    question = PolicyRequest(
        agent=agent.name,
        name=request.name or "",
        session=session or "",
        prompt=request.prompt[:MAX_PROMPT],
        model=_model_name(agent),
        tools=tuple(str(getattr(each, "name", each)) for each in agent.tools or ()),
        limits=limits.as_data(),
        asked=_policy_data(policy),
        granted=_policy_data(resolve_root_policy(policy) if policy is not None else None),
    )
    decision = await decide(question, None)
    return _apply_decision(decision, request, works_in_host=policy is None)


def record(context: ToolUseContext, decision: PolicyDecision, child: str, *, call_id: str | None = None) -> None:
    """Record a decision for a run."""
    answer = decision.answer
    narrow = answer if isinstance(answer, Narrow) else None
    context.emit(
        PolicyDecided,
        call_id=call_id,
        adapter=decision.adapter,
        verdict=type(answer).__name__.lower(),
        reason=answer.reason,
        child=child,
        policy=_policy_data(narrow.policy) or {} if narrow is not None else {},
        limits=narrow.limits.as_data() if narrow is not None else {},
        failed=bool(decision.failure),
    )


def _apply_decision(decision: PolicyDecision, request: SpawnRequest, *, works_in_host: bool) -> DecidedRequest:
    """Apply an answer to a request.

    Raises SpawnRefused or PolicyAdapterFailed.
    """
    answer = decision.answer
    if isinstance(answer, Refuse):
        kind = PolicyAdapterFailed if decision.failure else SpawnRefused
        raise kind(f"policy adapter {decision.adapter}", answer.reason)
    if not isinstance(answer, Narrow):
        return DecidedRequest(request, None, decision)
    request = dataclasses.replace(request, limits=request.limits.tighten(answer.limits))
    if answer.policy is not None and works_in_host:
        request = dataclasses.replace(request, policy=answer.policy)
    return DecidedRequest(request, answer.policy, decision)


def _model_name(agent: Agent) -> str:
    return agent.model if isinstance(agent.model, str) else ""


def _policy_data(terms: PolicyFields | None) -> dict[str, object] | None:
    return to_public_dict(terms) if terms is not None else None
