"""An answer for a run covers calls that are equal in what matters, and never one that a rule denies."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool, StructuredTool

from ramet.concurrency.clock import FakeClock
from ramet.core.ids import RunId
from ramet.core.policy.permissions import Permissions
from ramet.host.approvals import Inbox
from ramet.host.run_grants import COMMANDS as COMMAND_ARGUMENTS
from ramet.host.run_grants import RECIPIENTS, RunGrants, describe_grant
from ramet.tools.dispatch import run_tools
from ramet.tools.permissions.parsing import parse_rule
from tests.support.context import make_context, run_info

RUN = RunId("run")
values = st.recursive(
    st.one_of(st.booleans(), st.integers(-2, 2), st.text(max_size=5), st.just("x" * 3000), st.just("\ud800")),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
names = [*COMMAND_ARGUMENTS[:2], *RECIPIENTS[:2], "file_path", "description"]
arguments = st.dictionaries(st.sampled_from(names), values, max_size=3)
calls = st.tuples(st.sampled_from(["Bash", "Write"]), st.sampled_from(["why?", "", "q" * 3000]), arguments)


@given(first=calls, second=calls)
def test_a_covered_call_is_equal_in_what_matters(
    first: tuple[str, str, dict[str, Any]], second: tuple[str, str, dict[str, Any]]
) -> None:
    """Tool, question and the named arguments are equal, also in their types, and were shown whole."""
    grants = RunGrants()
    grants.add(RUN, *first)
    for tool, question, args in (first, second):
        is_offered = describe_grant(tool, question, args) != ""
        same = repr(sorted(what_matters(args).items())) == repr(sorted(what_matters(first[2]).items()))
        assert grants.covers(RUN, tool, question, args) == (is_offered and same and (tool, question) == first[:2])
        assert not grants.covers(RunId("child"), tool, question, args)
        assert not is_offered or "xxx" not in str(what_matters(args))


def what_matters(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that must be equal: of a command all but its description, else the recipients."""
    if any(name in args for name in COMMAND_ARGUMENTS):
        return {name: value for name, value in args.items() if name != "description"}
    return {name: value for name, value in args.items() if name in RECIPIENTS}


def test_an_answer_about_a_program_covers_its_arguments() -> None:
    """A program is not allowed with other arguments, and what is no plain data is answered only once."""
    grants, call = RunGrants(), {"command": "git", "args": ["status"], "cwd": "."}
    grants.add(RUN, "run", "why?", call)
    assert describe_grant("run", "why?", call) == "run with the same command and other arguments"
    assert grants.covers(RUN, "run", "why?", dict(call, timeout=5))
    assert not grants.covers(RUN, "run", "why?", dict(call, args=["push", "--force"]))
    assert not grants.covers(RUN, "run", "why?", {"command": "git"})
    deep: list[Any] = []
    for _ in range(3_000):
        deep = [deep]
    for value in (b"x", {1: 1, "a": deep}, deep):
        assert describe_grant("run", "why?", {"command": value}) == ""


COMMANDS = ["rm x", "ls", "ls; rm x", "sudo rm x", "$X", "ls x"]


def shell_tool(ran: list[str]) -> BaseTool:
    """Return a tool that collects its commands."""

    async def bash(command: str) -> str:
        ran.append(command)
        return "it ran"

    return StructuredTool.from_function(coroutine=bash, name="Bash", description="Runs.")


@settings(max_examples=30, deadline=None)
@given(commands=st.lists(st.sampled_from(COMMANDS), max_size=8))
def test_whatever_a_person_allows_for_a_run_a_denied_call_does_not_run(commands: list[str]) -> None:
    """Every question is answered for the run, and each is put once; what a rule denies is not even asked."""
    rules = (("Bash", "ask"), ("Bash(rm:*)", "deny"))
    parsed = tuple(parse_rule(*each, source="s", field="f") for each in rules)  # type: ignore[arg-type]  # pairs of texts
    permissions = Permissions(rules=parsed)
    ran, asked = list[str](), list[str]()

    async def work() -> None:
        inbox = Inbox(mint=lambda: "id", clock=FakeClock(), timeout_s=None)
        context = make_context(run=run_info(), tools=(shell_tool(ran),), permissions=permissions, approve=inbox.ask)
        turn = [ToolCall(name="Bash", args={"command": each}, id=f"c{at}") for at, each in enumerate(commands)]
        working = asyncio.create_task(run_tools(context, turn))
        while not working.done():
            for each in inbox.pending:
                asked.append(each.args["command"])
                inbox.answer(each.id, True, for_run=True)
            await asyncio.sleep(0)
        await working

    asyncio.run(work())
    assert not any("rm" in each for each in ran)
    assert sorted(asked) == sorted({each for each in commands if "rm" not in each})
    assert ran == [each for each in commands if "rm" not in each]
