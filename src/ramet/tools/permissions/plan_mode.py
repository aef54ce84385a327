"""Plan mode: an agent only reads until a person approves its plan, which it presents by the tool ExitPlanMode."""

from __future__ import annotations

from langchain_core.tools import BaseTool
from pydantic import Field

from ramet.core.errors import Denied
from ramet.core.tool_names import EXIT_PLAN_MODE
from ramet.tools.arguments import Arguments, workspace_tool
from ramet.tools.context import ToolUseContext, require_current_call

NAME = EXIT_PLAN_MODE
QUESTION = "it presents its plan; may it carry the plan out?"
MAX_PLAN = 64 * 1024  #: characters
PROMPT = (
    "# Plan mode\n\nYou change nothing yet: calls that may change something are denied. Find out what you need, then "
    f"present your plan with the {NAME} tool. A person reads it. Once it is approved, carry it out."
)


class PlanArguments(Arguments):
    plan: str = Field(min_length=1, max_length=MAX_PLAN, description="The whole plan: what changes, where, and why.")


async def exit_plan_mode(arguments: PlanArguments) -> str:
    """End the plan mode of the calling run: a person was asked before this call, and approved the plan.

    The call is repeated if its process was killed: then the run has left plan mode already. Raises Denied for an agent
    that is not in plan mode by its own definition.
    """
    call = require_current_call()
    if not leave_plan_mode(call.context) and call.context.approved_plan_call != call.call_id:
        raise Denied("plan", "you are not in plan mode by your own definition; nothing has changed")
    return "Your plan is approved. Carry it out."


def plan_tool() -> BaseTool:
    """Return the tool with which an agent in plan mode presents its plan."""
    return workspace_tool(
        NAME,
        "Present your plan to a person, when it is complete. If it is approved, plan mode ends and you may carry it "
        "out; if not, the answer says why, and you go on planning.",
        PlanArguments,
        exit_plan_mode,
        concurrency_safe=False,
        read_only=True,
        repeatable=True,
        children=False,
    )


def leave_plan_mode(context: ToolUseContext) -> bool:
    """Give a run the rules that hold once its plan is approved; return False if it is not in plan mode of its own."""
    if context.permissions_after_plan is None:
        return False
    context.permissions, context.permissions_after_plan = context.permissions_after_plan, None
    return True
