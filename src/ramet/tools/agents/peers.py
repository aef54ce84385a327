"""The tools of a group of peers: SubmitPlan for a peer, RequestShutdown for its lead, AnswerRequest for both."""

from __future__ import annotations

from functools import cache
from typing import Literal

from langchain_core.tools import BaseTool
from pydantic import Field

from ramet.core.ids import CallId
from ramet.tools.agents.agents import context_with_tree
from ramet.tools.arguments import Arguments, workspace_tool
from ramet.tools.context import require_current_call
from ramet.tools.decisions import MAX_PLAN, MAX_REASON, PLAN_WAIT_MAX_S, PLAN_WAIT_S, PeerRequest

SUBMIT, SHUTDOWN, ANSWER = "SubmitPlan", "RequestShutdown", "AnswerRequest"


class _PlanArgs(Arguments):
    plan: str = Field(min_length=1, max_length=MAX_PLAN, description="The whole plan: what you will do, and why.")
    timeout: float = Field(default=PLAN_WAIT_S, ge=0, le=PLAN_WAIT_MAX_S, description="Seconds to wait at most.")


async def _submit_plan(args: _PlanArgs) -> str:
    context, tree = context_with_tree("reach a lead")
    call = require_current_call()
    request = PeerRequest("plan", text=args.plan, timeout_s=args.timeout, call_id=CallId(call.call_id))
    return await context.slot.while_waiting(tree.ask_peer(context, request), key=call.step_id)


class _ShutdownArgs(Arguments):
    to: str = Field(description="Name, path or id of a peer that you lead.")
    reason: str = Field(default="", max_length=MAX_REASON)


async def _request_shutdown(args: _ShutdownArgs) -> str:
    context, tree = context_with_tree("reach peers")
    return await tree.ask_peer(context, PeerRequest("shutdown", args.to, args.reason))


class _AnswerArgs(Arguments):
    request_id: str = Field(description="The id of the message with the request, such as 'mail-7'.")
    decision: Literal["approve", "reject"] = Field(description="Of a shutdown: 'approve' ends you, 'reject' does not.")
    reason: str = Field(default="", max_length=MAX_REASON, description="Feedback for the one who asks.")


async def _answer_request(args: _AnswerArgs) -> str:
    context, tree = context_with_tree("reach peers")
    answer = PeerRequest("answer", args.request_id, args.reason, args.decision == "approve")
    return await tree.ask_peer(context, answer)


@cache
def group_tools() -> tuple[BaseTool, BaseTool, BaseTool]:
    """Return SubmitPlan, RequestShutdown and AnswerRequest, shared by all runs: they have no state."""
    return (
        workspace_tool(
            SUBMIT,
            "Submit your plan to the agent that leads you, and wait until it approves or rejects it, with feedback. "
            "It changes no permission: what needs a person still does.",
            _PlanArgs,
            _submit_plan,
            concurrency_safe=False,
            waits=True,
            read_only=True,
            repeatable=True,
            children=False,
        ),
        workspace_tool(
            SHUTDOWN,
            "Ask an agent that you lead to shut down. It accepts and ends, or refuses with a reason; its answer comes "
            "as a message. TaskStop ends it without asking.",
            _ShutdownArgs,
            _request_shutdown,
            concurrency_safe=False,
            recorded=True,
            children=False,
        ),
        workspace_tool(
            ANSWER,
            "Answer a request that a message brought you: the plan of an agent that you lead, or the request of your "
            "lead to shut down.",
            _AnswerArgs,
            _answer_request,
            concurrency_safe=False,
            read_only=True,
            repeatable=True,
            children=False,
        ),
    )


def lead_tools() -> tuple[BaseTool, ...]:
    """Return the tools of an agent whose children are peers."""
    return group_tools()[1:]


def peer_tools() -> tuple[BaseTool, ...]:
    """Return the tools of a peer, which submits its plans and answers its lead."""
    submit, _, answer = group_tools()
    return submit, answer
