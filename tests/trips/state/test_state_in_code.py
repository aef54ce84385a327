"""State of agents that write code, under the name `state`, and tasks on branches of that state.

Both backends are tested.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest

import ramet
from ramet import Agent
from ramet.agent.capabilities import declarations
from ramet.core.errors import InvalidValue
from ramet.core.events import StateCommitted, ToolEnded
from ramet.models.scripted.dialogue import Call
from ramet.tools.python import python_tool
from tests.trips.kits.isolated import BACKENDS, BackendName

both = pytest.mark.parametrize("backend", BACKENDS)

MAKES = """
with Agent(name="helper", primer="You help.") as helper:
    helper.module("math", include=["pi"])

    @helper.task
    def improve() -> str:
        '''Improve the plan.'''

state.set("plan", {"n": 1})
state.commit("a plan")
begun = improve.on_branch().submit()
print(begun.result(), state.get("plan"), list(state.branches()) == [begun.id])
print(state.merge(begun).message == f"merge the branch of {begun.id}", state.get("plan"))
print(state.keys(recursive=False), state.namespaces())
"""


@pytest.fixture(autouse=True)
def forget_declared_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the agents that other tests declared in code."""
    monkeypatch.setattr(declarations, "_declared", declarations._Registry())


def code(text: str) -> Call:
    """Return a call of the tool."""
    return Call("python", {"code": text})


def coder() -> Agent:
    """Return an agent that writes code and may create others."""
    agent = Agent(
        name="coder",
        description="Writes code",
        instructions="Write code.",
        tools=(python_tool(),),
        policy=ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8),
    )
    agent.cls(Agent)
    agent.module(math, include=["pi"])
    return agent


async def play(folder: pathlib.Path, backend: BackendName, script: dict[str, list[Any]]) -> tuple[list[str], list[Any]]:
    """Run a script in a session's child, and return the outputs of its calls and its commits."""
    parts: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "coder", "prompt": "Play."}), "Done."],
        **script,
    }
    model = ramet.ScriptedModel(script=parts)
    async with ramet.Session(model, agents=[coder()], cwd=folder, backend=backend, unattended=True) as session:
        await session.ask("Begin!")
        events = [each async for each in session.handle("main/1").events()]
    outputs = [f"{each.status}: {each.preview}" for each in events if isinstance(each, ToolEnded)]
    return outputs, [each for each in events if isinstance(each, StateCommitted)]


@both
async def test_code_has_its_state_by_name(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Code can use the state inside an event loop, too, and reads the host's errors."""
    use = "state.set('n', state.get('n', 0) + 1)\nstate.commit('counted')\nstate.get('n')"
    awaited = "await __import__('typing').cast(object, helper())"
    outputs, commits = await play(
        tmp_path,
        backend,
        {
            "Play.": [
                code(use),
                code("async def helper():\n    return state.get('n'), 'n' in state, state.history()[0].message"),
                code(awaited),
                code("state.set('../n', 1)"),
                code("state.set('__local_agent_registry__', {})"),
                "I am done.",
            ]
        },
    )

    assert outputs[0] == "ok: 1"
    assert outputs[2] == "ok: (1, True, 'counted')"
    assert "InvalidValue" in outputs[3]
    assert "Denied" in outputs[4]
    assert [each.keys for each in commits] == [1]


@both
async def test_a_task_on_a_branch_shows_after_its_merge(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """AC-S4-10: a created agent works on a branch of its creator's state, and the creator merges it."""
    outputs, _ = await play(
        tmp_path,
        backend,
        {
            "Play.": [code(MAKES), "I am done."],
            "Improve the plan.": [
                code("state.set('plan', {'n': state.get('plan')['n'] + 1})\nstate.commit('better')"),
                "better",
            ],
        },
    )

    assert outputs[0].splitlines() == [
        "ok: better {'n': 1} True",
        "True {'n': 2}",
        "['__local_agent_registry__', 'plan'] []",
    ]


async def test_a_task_on_a_branch_needs_a_parent_run() -> None:
    """A task that no run calls has no parent, so it has no state to branch from."""
    agent = Agent(name="solver", primer="You solve.", model=ramet.ScriptedModel(["2"]))

    @agent.task
    def solve() -> str:
        """Solve it."""

    async with ramet.AgentRuntime():
        with pytest.raises(InvalidValue, match="on_branch"):
            await solve.on_branch()()
        assert await solve() == "2"
