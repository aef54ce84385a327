"""Apply permission rules to a tool call, together with the hooks' decision."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ramet.core.policy.permissions import Ruling
from ramet.core.tool_names import READING_TOOLS
from ramet.tools.context import ToolUseContext
from ramet.tools.decisions import HookDecision
from ramet.tools.permissions.evaluation import Call, judge, may_change
from ramet.tools.permissions.path_rules import ANY_CHILD, bind
from ramet.tools.permissions.plan_mode import NAME as EXIT_PLAN_MODE
from ramet.tools.permissions.plan_mode import QUESTION
from ramet.tools.permissions.worktree_copies import Checkouts


def rule_on_call(context: ToolUseContext, tool: str, args: Mapping[str, Any]) -> Ruling:
    """Return the ruling of the context's rules on a call."""
    if not context.permissions:
        return Ruling()
    if tool == EXIT_PLAN_MODE and context.permissions_after_plan is not None:
        return Ruling("ask", QUESTION)
    tool_object = next((each for each in context.tools if each.name == tool), None)
    read_only = tool_object is not None and bool((tool_object.metadata or {}).get("read_only"))
    changes = may_change(tool, read_only=read_only)
    return judge(
        context.permissions, Call(tool, args, os.fspath((context.works_in or context.cwd).absolute()), changes)
    )


def narrow_decision(
    context: ToolUseContext, tool: str, args: Mapping[str, Any], decision: HookDecision
) -> HookDecision:
    """Return the hooks' decision on a call, or a stricter one where the rules are stricter."""
    if decision.verdict == "deny" or not context.permissions:
        return decision
    ruling = rule_on_call(context, tool, args)
    if ruling.verdict == "deny":
        return decision._replace(verdict="deny", reason=ruling.reason)
    if decision.verdict == "ask":
        dont_ask = context.permissions.mode("dontAsk")
        if dont_ask is not None:
            reason = f"{decision.reason}, and {dont_ask.source} says dontAsk"
            return decision._replace(verdict="deny", reason=reason)
        if ruling.verdict == "ask" and ruling.reason != decision.reason:  # An answer to one question is none to both.
            return decision._replace(reason="; ".join(filter(None, (decision.reason, ruling.reason))))
        return decision
    return decision._replace(verdict="ask", reason=ruling.reason) if ruling.verdict == "ask" else decision


def hidden_files(context: ToolUseContext, searched: os.PathLike[str]) -> Callable[[str], bool] | None:
    """Return a function that tells whether a search must leave out a file, by its absolute name; None if it hides none.

    A rule of `ask` that covers the searched folder itself was answered before the search began.
    """
    cwd, checkouts, searched_name = os.fspath(context.cwd.absolute()), Checkouts(), os.fspath(searched)
    rules = [
        bind(rule, cwd, checkouts)
        for rule in context.permissions.rules
        if rule.effect != "allow" and rule.specifier is not None and rule.tool in READING_TOOLS
    ]
    folder = (searched_name, f"{searched_name.rstrip('/')}/{ANY_CHILD}")
    hiding_rules = [each for each in rules if each.effect == "deny" or not each.fits(folder)]
    if not hiding_rules:
        return None
    return lambda name: any(each.fits((name,)) for each in hiding_rules)
