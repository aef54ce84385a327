"""Agents that write code: their loop and their code run in their own sandboxes, on both backends."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ramet
from ramet.core.events import ToolEnded
from ramet.core.outcome import Result, Status
from ramet.core.policy.capabilities import Capability
from ramet.guest.serve import NEW_TURN
from ramet.host.trees import factory
from ramet.models.scripted.dialogue import Call
from ramet.spawn.tree import RunTree
from ramet.tools.agents.authoring import authoring_tools
from ramet.tools.agents.task_result import task_result_tools
from ramet.tools.python import python_tool
from tests.trips.kits.authoring import MemoryAuthoring
from tests.trips.kits.isolated import BACKENDS, BackendName
from tests.trips.kits.sessions import of_kind, session_events

both_backends = pytest.mark.parametrize("backend", BACKENDS)


def code(text: str, **arguments: Any) -> Call:
    """Return a call of the tool `python`."""
    return Call("python", {"code": text, **arguments})


def agent(*capabilities: Capability, **fields: Any) -> ramet.Agent:
    """Return an agent that writes code."""
    return ramet.Agent(
        name="coder",
        description="Writes code",
        instructions="Write code.",
        tools=(python_tool(),),
        policy=ramet.Policy(allow_sub_agents=True),
        capabilities=capabilities,
        **fields,
    )


async def converse(
    folder: pathlib.Path, backend: BackendName, coder: ramet.Agent, *script: Any, lines: Any = None
) -> tuple[Result, list[str]]:
    """Let a session start the coder with a script; return its result and the outputs of its calls."""
    parts: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "coder", "prompt": "Play."}), "Done."],
        "Play.": [*script, "I am done."],
        **(lines or {}),
    }
    model = ramet.ScriptedModel(script=parts)
    async with ramet.Session(model, agents=[coder], cwd=folder, backend=backend, unattended=True) as session:
        await session.ask("Begin!")
        handle = session.handle("main/1")
        outputs = [f"{each.status}: {each.preview}" async for each in handle.events() if isinstance(each, ToolEnded)]
        return await handle.result(), outputs


@both_backends
async def test_code_runs_in_the_agents_own_sandbox(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Names stay from call to call, errors are tracebacks, and imports are limited to the capabilities."""
    result, outputs = await converse(
        tmp_path,
        backend,
        agent(Capability("module", "math", include=("sin", "pi"))),
        code("import math\nx = round(math.sin(math.pi / 2))\nprint('x is', x)\nx + 1"),
        code("await __import__('asyncio').sleep(0)"),
        code("math.tan(x)"),
        code("x"),
    )

    assert (result.status, result.value) == (Status.COMPLETED, "I am done.")
    assert outputs[0] == "ok: x is 1\n2"
    assert "ModuleNotFoundError: module 'asyncio' is not among the capabilities" in outputs[1]
    assert outputs[2].startswith("error: Traceback")
    assert "AttributeError: math.tan is not among the capabilities; available: pi, sin" in outputs[2]
    assert outputs[3] == "ok: 1"


@both_backends
async def test_a_missing_module_fails_the_run_by_name(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The run fails at its start, before a request to its model."""
    result, outputs = await converse(tmp_path, backend, agent(Capability("module", "not_there")), code("1"))

    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.type == "AgentNotResolved"
    assert "'module not_there' cannot be imported" in result.error.message
    assert (outputs, result.usage.model_calls) == ([], 0)


@both_backends
async def test_endless_code_fails_its_call_only(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The next call works, with the names of the previous one."""
    _, outputs = await converse(
        tmp_path, backend, agent(), code("kept = 1\nwhile True: pass", timeout=1000), code("kept")
    )

    assert outputs == ["error: [stopped after 1 s; the names it had set until then are kept]", "ok: 1"]


async def test_code_does_not_run_in_the_host(tmp_path: pathlib.Path) -> None:
    """The tool is denied, and says that the agent needs a sandbox."""
    model = ramet.ScriptedModel([code("open('left', 'w')"), "It cannot."])
    async with ramet.Session(model, [python_tool()], cwd=tmp_path, unattended=True) as session:
        await session.ask("Go")
        [answer] = [each for each in session.messages if each.type == "tool"]

    assert answer.text.startswith("python denied: code runs in a sandbox only; give the agent one")
    assert not (tmp_path / "left").exists()


@pytest.fixture
def memory_authoring(monkeypatch: pytest.MonkeyPatch) -> MemoryAuthoring:
    """Return the registry that keeps the agents of each tree of this test."""
    authoring = MemoryAuthoring()
    monkeypatch.setattr(RunTree, "_authoring", lambda tree: authoring)
    return authoring


async def test_setup_runs_before_a_turn_and_is_not_charged(tmp_path: pathlib.Path) -> None:
    """Row 203: the first call has the names of the setup, which is neither a turn nor a tool call."""
    coder = agent(Capability("module", "math"), setup="import math\nradius = math.sqrt(16)")

    result, outputs = await converse(tmp_path, "local", coder, code("radius * 2"))

    assert outputs == ["ok: 8.0"]
    assert (result.usage.tool_calls, result.usage.model_calls) == (1, 2)


async def test_a_failing_setup_ends_the_run(tmp_path: pathlib.Path) -> None:
    """The error has the traceback, and the model is not asked."""
    result, outputs = await converse(tmp_path, "local", agent(setup="1 / 0"), code("2"))

    assert (outputs, result.usage.model_calls) == ([], 0)
    assert result.error is not None
    assert result.error.type == "TaskFailed"
    assert "ZeroDivisionError" in result.error.message


MAKER = (Capability("class", "Agent"), Capability("module", "math", include=("sin", "cos", "pi")))
MAKE = """
from dataclasses import dataclass

@dataclass
class Root:
    x: float
    exact: bool = False

with Agent(name="math_solver", primer="You solve equations.") as solver:
    solver.module("math", include=["sin", "tan", "pi"])

    @solver.task
    def solve(equation: str, times: int = 1) -> list[Root]:
        '''Solve this equation.'''
"""


@both_backends
async def test_code_creates_an_agent_and_calls_its_task(
    tmp_path: pathlib.Path, backend: BackendName, memory_authoring: MemoryAuthoring
) -> None:
    """The task runs below the code's run, and returns values of the types that the code declared."""
    result, outputs = await converse(
        tmp_path,
        backend,
        agent(*MAKER),
        code(MAKE + "str(solver.ref)"),
        code("solve('x = 1')"),
        code("await solve('x = 2', times=2)"),
        code("[each.result() for each in solve.map(['x = 3', 'x = 4'], max_parallel=2)]"),
        code("solve.submit('x = 5').exception()"),
        code("solve(5)"),
        lines={"x = 5": ["no list"] * 3, "Solve this equation.": ['[{"x": 1.5}]']},
    )

    assert result.status is Status.COMPLETED, result
    [ref] = memory_authoring.recipes
    assert outputs[0] == f"ok: [math_solver did not get, because you do not have it: module math.tan]\n'{ref}'"
    assert outputs[1] == "ok: [Root(x=1.5, exact=False)]"
    assert outputs[2] == "ok: [Root(x=1.5, exact=False)]"
    assert outputs[3] == "ok: [[Root(x=1.5, exact=False)], [Root(x=1.5, exact=False)]]"
    assert outputs[4].startswith("ok: TaskFailed(")
    assert "InvalidValue: solve.equation: 5 is not accepted" in outputs[5]
    assert [arguments for _, _, arguments in memory_authoring.requests][:2] == [
        {"equation": "x = 1", "times": 1},
        {"equation": "x = 2", "times": 2},
    ]


@both_backends
async def test_code_completes_its_task_with_task_success(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The host checks the value against the agreed schema."""
    result, outputs = await converse(
        tmp_path,
        backend,
        agent(output={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
        code("task_success(object())"),
        code("task_success({'n': 'none'})\nprint('never')"),
        code("try:\n    task_success({'n': 7})\nfinally:\n    print('left')"),
    )

    assert (result.status, result.value) == (Status.COMPLETED, {"n": 7})
    assert "InvalidValue: result" in outputs[0]
    assert outputs[1:] == ["ok: [the task is concluded: success]", "ok: left\n[the task is concluded: success]"]


@pytest.mark.parametrize(
    ("ending", "status", "says"),
    [
        ("task_fail('no such file')", Status.FAILED, "no such file"),
        ("task_clarify('which one?')", Status.NEEDS_INPUT, "which one?"),
    ],
)
async def test_code_fails_its_task_or_asks_back(tmp_path: pathlib.Path, ending: str, status: Status, says: str) -> None:
    """The run ends with that status, without another request to its model."""
    result, _ = await converse(tmp_path, "local", agent(), code(ending))

    assert (result.status, result.usage.model_calls) == (status, 1)
    assert result.error is not None
    assert result.error.message == says


@both_backends
async def test_a_model_creates_an_agent_by_tools(
    tmp_path: pathlib.Path, backend: BackendName, memory_authoring: MemoryAuthoring
) -> None:
    """The tools work from a sandbox; the answer lists the capabilities that the new agent did not get."""
    maker = ramet.Agent(
        name="coder", description="", tools=authoring_tools(), policy=ramet.Policy(allow_sub_agents=True)
    )
    make = {
        "name": "adder",
        "primer": "You add.",
        "capabilities": [{"type": "module", "name": "os"}],
        "tasks": {
            "add": {
                "docstring": "Add these two.",
                "parameters": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "returns": {"type": "integer"},
            }
        },
    }
    _, outputs = await converse(
        tmp_path,
        backend,
        maker,
        Call("CreateAgent", make),
        Call("CallTask", {"agent": "adder", "task": "add", "arguments": {"a": 1, "b": 2}}),
        Call("CallTask", {"agent": "adder", "task": "add", "arguments": {"a": "x", "b": 2}}),
        Call("CallTask", {"agent": "nobody", "task": "add"}),
        Call("CallTask", {"agent": "adder", "task": "divide"}),
        lines={"Add these two.": ["3"]},
    )

    [ref] = memory_authoring.recipes
    assert outputs[0].startswith(f"ok: adder was created. Its handle: {ref}\n")
    assert "- add(a, b): Add these two." in outputs[0]
    assert "did not get these capabilities, because you do not have them: module os" in outputs[0]
    assert outputs[1] == "ok: 3"
    assert outputs[2].startswith("error: add.a: 'x' is not accepted")
    assert outputs[3].startswith("error: the agent 'nobody' cannot be resolved")
    assert outputs[4].startswith("error: unknown task 'divide'; known: add")


async def test_code_gets_denied_where_no_agents_are_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code reads a typed error."""
    monkeypatch.setattr(factory, "HostAuthoring", lambda agents: None)
    _, outputs = await converse(tmp_path, "local", agent(*MAKER), code(MAKE))

    assert "Denied: creating agents denied: this runtime does not store agents that agents create" in outputs[0]


@both_backends
async def test_the_runtime_keeps_an_agent_that_code_created(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The agent's handle finds it from outside, with no more capabilities than its creator has."""
    make = f"{MAKE}\ntask_success(f'{{solver.ref}} {{solve(\"x = 1\")[0].x}}')"
    lines: dict[str, Any] = {"Build it.": [code(make)], "Solve this equation.": ['[{"x": 1.5}]']}
    architect = ramet.Agent(name="architect", tools=(python_tool(),), model=ramet.ScriptedModel(script=lines))
    architect.cls(ramet.Agent)
    architect.module("math", include=["sin", "cos", "pi"])

    @architect.task
    def build() -> str:  # type: ignore[empty-body]
        """Build it."""

    async with ramet.AgentRuntime(tmp_path, backend=backend) as runtime:
        ref, _, value = (await build()).partition(" ")
        loaded_agent = await runtime.dynamic.load(ref)

        assert value == "1.5"
        assert (loaded_agent.name, str(loaded_agent.ref)) == ("math_solver", ref)
        assert [each.include for each in loaded_agent.capabilities] == [("pi", "sin")]


LEAD = ramet.Policy(allow_sub_agents=True, memory_mb=1024)
THREE = {
    "Build it.": """
with Agent(name="math_solver", primer="You solve.") as solver:
    solver.module("math", include=["sin"])
    solver.cls(Agent)
    @solver.task
    def solve(equation: str) -> float:
        '''Solve this.'''
task_success(str(solve("sin(0) = x")))
""",
    "Solve this.": """
import math
with Agent(name="equation_parser", primer="You parse.") as parser:
    parser.module("math")
    @parser.task
    def parse(text: str) -> list[str]:
        '''Parse this.'''
left, right = parse("sin(0) = x")
task_success(math.sin(0) + len(left))
""",
    "Parse this.": """
import math
found = hasattr(math, "sin"), hasattr(math, "cos")
assert found == (True, False), found
task_success(["sin(0)", "x"])
""",
}


@both_backends
async def test_created_agents_can_create_agents(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Each agent has a sandbox of its own and its ancestors' capabilities; values return through each level."""
    script: dict[str, Any] = {prompt: [code(text)] for prompt, text in THREE.items()}
    architect = ramet.Agent(name="architect", policy=LEAD, model=ramet.ScriptedModel(script=script))
    architect.cls(ramet.Agent)
    architect.module("math", include=["sin", "cos"])

    @architect.task
    def build() -> str:  # type: ignore[empty-body]
        """Build it."""

    async with ramet.AgentRuntime(tmp_path, backend=backend) as runtime:
        assert await build() == "6.0"
        assert list(await runtime.dynamic.made_by(architect)) == ["math_solver"]


async def test_a_conclusion_holds_for_one_turn_only(tmp_path: pathlib.Path) -> None:
    """The next turn has its own answer."""
    model = ramet.ScriptedModel([Call("task_success", {"result": "first"}), "second"])
    async with ramet.Session(model, task_result_tools(), cwd=tmp_path, unattended=True) as session:
        assert (await session.ask("One")).value == "first"
        assert (await session.ask("Two")).value == "second"


async def test_waiting_for_another_agent_does_not_count_as_call_time(tmp_path: pathlib.Path) -> None:
    """A child that works longer than its parent's code may run still returns its value."""
    script: dict[str, Any] = {
        "Build it.": [code(THREE["Build it."], timeout=1000)],
        "Solve this.": [code("while True: pass", timeout=1000), code("task_success(2.5)")],
    }
    architect = ramet.Agent(name="architect", policy=LEAD, model=ramet.ScriptedModel(script=script))
    architect.cls(ramet.Agent)

    @architect.task
    def build() -> str:  # type: ignore[empty-body]
        """Build it."""

    async with ramet.AgentRuntime(tmp_path, backend="local"):
        assert await build() == "2.5"


async def test_the_first_call_of_a_later_turn_says_that_names_are_new(tmp_path: pathlib.Path) -> None:
    """Each turn has a process of its own; only the first call of the later turn says so."""
    script: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "coder", "prompt": "Play."}), "Done."],
        "Play.": [code("x = 1"), "I am done."],
        "Once more.": [code("'x' in globals()"), code("2"), "Again."],
    }
    async with ramet.Session(
        ramet.ScriptedModel(script=script), agents=[agent()], cwd=tmp_path, backend="local", unattended=True
    ) as session:
        await session.ask("Begin!")
        handle = session.handle("main/1")
        handle.send("Once more.")
        assert (await handle.result()).value == "Again."
        outputs = [each.preview for each in of_kind(session_events(session), ToolEnded) if each.tool == "python"]

    assert outputs == ["(no output)", f"{NEW_TURN}\nFalse", "2"]


async def test_long_output_goes_to_a_file_in_the_sandbox(tmp_path: pathlib.Path) -> None:
    """The next call reads the whole output from that file."""
    _, outputs = await converse(
        tmp_path,
        "local",
        agent(Capability("module", "pathlib")),
        code("print('x' * 40_000)"),
        code("import pathlib\nfound = list(pathlib.Path('/tmp').glob('ramet-results-*/*'))\nlen(found[0].read_text())"),
    )

    assert outputs[1] == "ok: 40000"


@pytest.fixture
def source(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the text of a module of two agents, which the host can import."""
    text = (pathlib.Path(__file__).parents[2] / "support" / "specialists.py").read_text()
    (tmp_path / "their_specialists.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield text
    sys.modules.pop("their_specialists", None)


async def run_lead(source: str, backend: BackendName, text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Let the lead run code in a sandbox with the module; return the outputs and the runs."""
    model = ramet.ScriptedModel(
        script={
            "Play.": [code(text), "I am done."],
            "Solve an equation": ['{"value": 3.0, "steps": ["halve"]}'],
        }
    )
    lead = importlib.import_module("their_specialists").lead.with_model(model)
    async with ramet.AgentRuntime(backend=backend) as runtime:
        import_dir = runtime.sandboxes.folders.import_dir("theirs")
        (import_dir / "their_specialists.py").write_text(source)
        handle = await runtime.spawn(lead, "Play.", import_dir=import_dir)
        tree = runtime.trees[handle.run.info.root].tree
        result = await handle.result()
        assert result.status is Status.COMPLETED, result
        outputs = [f"{each.status}: {each.preview}" async for each in handle.events() if isinstance(each, ToolEnded)]
        return outputs, [(run.path, run.agent.name) for run in tree.register.runs.values()]


@both_backends
async def test_code_calls_another_agents_task_as_a_function(source: str, backend: BackendName) -> None:
    """Rows 150 and 202: `@lead.fn` above `@specialist.task` is typed both ways; the run is a child of the caller's."""
    text = "found = solve('2x = 6')\nhalf(found.value), found.steps, type(found).__name__"
    outputs, runs = await run_lead(source, backend, text)

    assert outputs == ["ok: (1.5, ['halve'], 'Solution')"]
    assert runs == [("main", "lead"), ("main/specialist", "specialist")]


async def test_a_call_from_code_does_not_change_the_declared_agent(source: str, tmp_path: pathlib.Path) -> None:
    """A capability that the caller lacks is missing in that one run, and not in the declared agent."""
    able = source.replace("@dataclass", 'specialist.fn("math:cos")\n\n\n@dataclass', 1)
    (tmp_path / "their_specialists.py").write_text(able)
    outputs, _ = await run_lead(able, "local", "solve('2x = 6').steps")

    assert outputs == ["ok: ['halve']"]
    module = importlib.import_module("their_specialists")
    assert module.solve.agent is module.specialist
    assert [each.name for each in module.solve.agent.capabilities] == ["math:cos"]


async def test_a_wrong_argument_of_a_task_starts_no_run(source: str) -> None:
    """The code reads the error that a caller in the host gets."""
    outputs, runs = await run_lead(source, "local", "solve(6)")
    assert "solve.equation" in outputs[0]
    assert len(runs) == 1
