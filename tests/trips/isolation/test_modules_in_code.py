"""Modules of a user's program in the code of its agents: they work alike in a sandbox and in the host."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import ramet
from ramet.agent.source_modules import source_modules
from ramet.core.events import ToolEnded
from ramet.core.outcome import Result, Status
from ramet.core.policy.capabilities import Capability
from ramet.models.scripted.dialogue import Call
from ramet.tools.python import python_tool
from tests.trips.kits.isolated import BACKENDS, BackendName

both = pytest.mark.parametrize("backend", BACKENDS)
POLICY = ramet.Policy(allow_sub_agents=True)

HELPERS = '''
"""What the user wrote beside his program."""
import own_more
from own_package.inner import double

RATE = 3
KEY = "a-secret-of-the-helpers"

def add(a: int, b: int) -> int:
    """Add."""
    return own_more.plus(a, b)

class Box:
    def __init__(self, size: int) -> None:
        self.size = size

    def grown(self) -> int:
        return double(self.size)
'''
FILES = {
    "own_helpers.py": HELPERS,
    "own_more.py": "def plus(a, b):\n    return a + b\n",
    "own_package/__init__.py": "NAME = 'package'\n",
    "own_package/inner.py": "def double(n):\n    return 2 * n\n",
    "own_package/lazy.py": "def triple(n):\n    return 3 * n\n",
}
PROGRAM = '''
import asyncio, sys
import own_helpers
import ramet
from ramet.models.scripted.dialogue import Call

CODE = "import own_helpers\\ntask_success([add(1, 2), own_helpers.add(3, 4), own_helpers.RATE, Box(4).grown()])"

async def main(backend, folder, policy):
    model = ramet.ScriptedModel([Call("python", {"code": CODE})])
    clerk = ramet.Agent(name="clerk", model=model, policy=policy)
    clerk.fn(own_helpers.add)
    clerk.cls(own_helpers.Box)
    clerk.module(own_helpers)

    @clerk.task
    def work() -> list[int]:
        """Work."""

    async with ramet.AgentRuntime(folder, backend=backend):
        print(await work())

for policy in (None, ramet.Policy()):
    asyncio.run(main(sys.argv[1], sys.argv[2], policy))
helpers = own_helpers
print([helpers.add(1, 2), helpers.add(3, 4), helpers.RATE, helpers.Box(4).grown()])
'''


def write_modules(folder: pathlib.Path) -> None:
    """Write the user's modules."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def helpers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield one of the user's modules, which this process can import."""
    folder = tmp_path / "program"
    folder.mkdir()
    write_modules(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("own_helpers")
    for name in [each for each in sys.modules if each.startswith("own_")]:
        del sys.modules[name]


def code(text: str) -> Call:
    """Return a call of the tool `python`."""
    return Call("python", {"code": text})


def coder(*script: Any, name: str = "coder", **fields: Any) -> ramet.Agent:
    """Return an agent that writes code in a sandbox."""
    model = ramet.ScriptedModel([*map(code, script), "done"])
    return ramet.Agent(name=name, model=model, tools=(python_tool(),), policy=POLICY, **fields)


async def play(agent: ramet.Agent, backend: BackendName, folder: pathlib.Path) -> tuple[Result, list[str]]:
    """Run the agent; return its result and the outputs of its calls."""
    async with ramet.AgentRuntime(folder / "work", backend=backend) as runtime:
        handle = await runtime.spawn(agent, "Play.")
        result = await handle.result()
        return result, [
            f"{each.status}: {each.preview}" async for each in handle.events() if isinstance(each, ToolEnded)
        ]


@pytest.mark.slow
@both
def test_a_programs_module_works_alike_in_sandbox_and_host(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A program with helpers in its folder gets the results of a plain call, with a policy and without one."""
    write_modules(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    process_result = subprocess.run(
        [sys.executable, "program.py", backend, str(tmp_path / "work")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (process_result.returncode, process_result.stderr) == (0, "")
    assert process_result.stdout.splitlines() == ["[3, 7, 3, 8]"] * 3


@both
async def test_only_declared_names_of_a_module_are_shown(
    tmp_path: pathlib.Path, backend: BackendName, helpers: ModuleType
) -> None:
    """Modules that the module itself imports work, and are no capability of the code."""
    agent = coder("own_helpers.add(1, 2)", "own_helpers.RATE", "import own_more")
    agent.module(helpers, include=["add"])
    _, outputs = await play(agent, backend, tmp_path)

    assert outputs[0] == "ok: 3"
    assert "AttributeError: own_helpers.RATE is not among the capabilities; available: add" in outputs[1]
    assert "ModuleNotFoundError: module 'own_more' is not among the capabilities" in outputs[2]


async def test_a_package_brings_its_loaded_modules(tmp_path: pathlib.Path, helpers: ModuleType) -> None:
    """The sandbox has each loaded module that the capability shows."""
    importlib.import_module("own_package.lazy")
    text = "import own_package.lazy\nown_package.lazy.triple(2), own_package.NAME"
    _, outputs = await play(coder(text).module("own_package"), "local", tmp_path)
    assert outputs == ["ok: (6, 'package')"]

    hidden = coder(text).module("own_package", exclude=["lazy"])
    _, outputs = await play(hidden, "local", tmp_path)
    assert "module 'own_package.lazy' is not among the capabilities" in outputs[0]


async def test_hidden_modules_of_a_package_stay_in_the_host(tmp_path: pathlib.Path, helpers: ModuleType) -> None:
    """Excluded and private modules are not sent, at any depth; the shown ones work."""
    deep = tmp_path / "program" / "own_package" / "deep"
    deep.mkdir()
    for name in ("__init__", "shown", "secret", "_hidden"):
        (deep / f"{name}.py").write_text(f"NAME = {name!r}\n")
        importlib.import_module(f"own_package.deep.{name}".removesuffix(".__init__"))
    agent = coder("import own_package.deep.shown\nown_package.deep.shown.NAME").module(
        "own_package", exclude=["secret"]
    )
    named_module = coder("1").module("own_package", include=["deep"])

    below = ["own_package", "own_package.deep", "own_package.deep.shown", "own_package.inner", "own_package.lazy"]
    assert sorted(source_modules(agent) | {"own_package.lazy"}) == below
    assert "own_package.deep._hidden" not in source_modules(named_module)
    assert "own_package.deep.secret" in source_modules(named_module)
    _, outputs = await play(agent, "local", tmp_path)
    assert outputs == ["ok: 'shown'"]


@both
async def test_a_created_agent_has_modules_of_its_root_agent(
    tmp_path: pathlib.Path, backend: BackendName, helpers: ModuleType
) -> None:
    """The created agent imports them in its own sandbox and by its handle, with only the names that it was given."""
    make = """
with Agent(name="adder", primer="You add.") as adder:
    adder.module("own_helpers", include=["add", "own_more"])
    @adder.task
    def total(a: int, b: int) -> int:
        '''Add these.'''
task_success(f"{adder.ref} {total(1, 2)}")
"""
    inner = "import own_helpers\ntask_success(own_helpers.add(1, 2))"
    model = ramet.ScriptedModel(script={"Build it.": [code(make)], "Add these.": [code(inner)] * 2})
    architect = ramet.Agent(name="architect_of_helpers", policy=POLICY, model=model)
    architect.cls(ramet.Agent)
    architect.fn(helpers.add)

    @architect.task
    def build() -> str:
        """Build it."""

    async with ramet.AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        ref, _, output = (await build()).partition(" ")
        assert output == "3"
        assert [each.key for each in (await runtime.dynamic.load(ref)).capabilities] == ["module own_helpers"]
        task = await runtime.dynamic.task(f"{ref}:total")
        assert await task(1, 2) == 3


async def test_a_resumed_session_has_its_modules(tmp_path: pathlib.Path, helpers: ModuleType) -> None:
    """The definition comes from the journal, without another declaration."""
    agent = coder("add(1, 2)", name="talker")
    agent.fn(helpers.add)
    async with ramet.AgentRuntime(tmp_path / "work", backend="local") as runtime:
        async with ramet.Session(agent=agent, root_policy=POLICY, session_id="sums", runtime=runtime) as session:
            assert (await session.ask("Once.")).value == "done"
            assert session.messages[-2].text == "3"

    async with ramet.AgentRuntime(tmp_path / "work", backend="local") as runtime:
        model = ramet.ScriptedModel([code("add(3, 4)"), "again"])
        async with await ramet.Session.resume("sums", model, runtime=runtime) as session:
            assert (await session.ask("Again.")).value == "again"
            assert session.messages[-2].text.endswith("7")


async def test_an_undeclared_module_stays_in_the_host(tmp_path: pathlib.Path, helpers: ModuleType) -> None:
    """A client of a server may name a module, but does not get the server's loaded one."""
    agent = coder("1", capabilities=(Capability("module", "own_helpers"),))
    result, outputs = await play(agent, "local", tmp_path)

    assert (result.status, outputs) == (Status.FAILED, [])
    assert result.error is not None
    assert result.error.type == "AgentNotResolved"
    assert "'module own_helpers' cannot be imported in the sandbox" in result.error.message
    assert "declares it with .module, .fn or .cls" in result.error.message


async def test_the_prompt_shows_an_undeclared_module_by_name_only(helpers: ModuleType) -> None:
    """The prompt lists the functions of a declared module, and not those of one that a client named."""
    for is_declared in (False, True):
        model = ramet.ScriptedModel(["done"])
        agent = ramet.Agent(name="reader", model=model)
        if is_declared:
            agent.module(helpers)
        else:
            agent = agent.replace(capabilities=(Capability("module", "own_helpers"),))
        async with ramet.Session(agent=agent, unattended=True) as session:
            await session.ask("Go.")
        prompt = model.requests[0].messages[0].text
        assert "module own_helpers" in prompt
        assert ("add(a: int, b: int)" in prompt) is is_declared


async def test_a_module_that_cannot_be_packed_is_named(tmp_path: pathlib.Path, helpers: ModuleType) -> None:
    """A module with a secret, a deleted one and a missing one fail the run before a request to a model."""
    secret = ramet.Policy(secrets={"KEY": helpers.KEY})
    never = coder("1").module("own_never")
    holding, without_secret = coder("1").replace(policy=secret), coder("1")
    holding.fn(helpers.add)
    without_secret.fn(helpers.add)
    result, _ = await play(holding, "local", tmp_path)
    assert result.error is not None
    assert (result.error.type, result.usage.model_calls) == ("NotShippable", 0)
    assert "module 'own_helpers'" in result.error.message
    assert helpers.KEY not in result.error.message

    assert helpers.__file__ is not None
    os.unlink(helpers.__file__)  # noqa: PTH108 - nothing else is at work meanwhile
    result, _ = await play(without_secret, "local", tmp_path)
    assert result.error is not None
    assert (result.error.type, result.usage.model_calls) == ("NotShippable", 0)
    assert "module 'own_helpers'" in result.error.message

    result, _ = await play(never, "local", tmp_path)
    assert result.error is not None
    assert (result.error.type, result.usage.model_calls) == ("AgentNotResolved", 0)
    assert "'module own_never' cannot be imported in the sandbox" in result.error.message
