"""Code that breaks out of its capabilities, and guests that lie about agents, reach nothing of the host."""

from __future__ import annotations

import json
import os
import pathlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet import Agent
from ramet.core.errors import InvalidValue, ProtocolError, RametError
from ramet.core.ids import StepId
from ramet.core.outcome import Status
from ramet.core.policy.capabilities import Capability
from ramet.core.recipe import MAX_BYTES, Recipe
from ramet.spawn.run import Run
from ramet.spawn.sandbox.guest_requests.intentions import MAX_ARGUMENTS
from ramet.spawn.sandbox.requests import MAX_REF, GuestRequests
from ramet.spawn.tree import RunTree
from ramet.tools.spawn_request import CreationReceipt
from ramet.wire.guest_protocol.guest_to_host import CreateAgent, PerformTask
from tests.trips.isolation.test_code_agents import MAKE, MAKER, agent, both_backends, code, converse
from tests.trips.kits.authoring import MemoryAuthoring
from tests.trips.kits.isolated import BackendName

MATH = Capability("module", "math", include=("pi", "sin"))

#: Ways around a view and the import hook. Each leaves the whole `os` module in `os`.
BREAKS = {
    "the globals of a function": "import typing\nos = typing.get_type_hints.__globals__['sys'].modules['os']",
    "the builtins of another function": "os = task_fail.__globals__['__builtins__']['__import__']('os')",
    "the view's own dict": "import dataclasses\nos = vars(dataclasses)['ramet_module'].sys.modules['os']",
    "every class there is": (
        "loader = [c for c in object.__subclasses__() if c.__name__ == 'BuiltinImporter'][0]\n"
        "os = loader.load_module('posix')"
    ),
    "the frames of a refusal": (
        "try:\n    import os\nexcept ImportError as refusal:\n    trace = refusal.__traceback__\n"
        "while trace.tb_next: trace = trace.tb_next\nos = trace.tb_frame.f_globals['sys'].modules['os']"
    ),
}


@both_backends
@pytest.mark.parametrize("method", BREAKS)
async def test_code_that_breaks_out_of_a_view_is_still_in_its_sandbox(
    tmp_path: pathlib.Path, backend: BackendName, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code with the whole `os` module finds no variable, file or process of the host, and writes nothing outside."""
    monkeypatch.setenv("SECRET_OF_THE_HOST", "canary-4711")
    secret = tmp_path / "secret.txt"
    secret.write_text("canary-4712")
    looks = f"""
def tried(what, *arguments):
    try:
        return what(*arguments)
    except OSError as refusal:
        return type(refusal).__name__
home = {str(tmp_path)!r}
found = [
    dict(os.environ).get(b'SECRET_OF_THE_HOST', dict(os.environ).get('SECRET_OF_THE_HOST')),
    tried(os.open, home + '/left.txt', os.O_CREAT | os.O_WRONLY),
    tried(os.kill, {os.getpid()}, 0),
    tried(os.open, '/root/.ssh', os.O_RDONLY),
]
print(found)
"""
    _, shown = await converse(tmp_path, backend, agent(MATH), code(f"{BREAKS[method]}\n{looks}"))

    assert shown[0].startswith("ok: [None, "), shown
    assert "canary" not in shown[0]
    assert not (tmp_path / "left.txt").exists()


@both_backends
async def test_code_without_the_capability_makes_no_agent(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Code that gets the class `Agent` without its capability is denied, since the host checks the capability."""
    around = """
imports = task_fail.__globals__['__builtins__']['__import__']
Agent = imports('ramet.agent.definition', fromlist=['Agent']).Agent
with Agent(name="helper", primer="x") as helper: pass
"""
    _, shown = await converse(tmp_path, backend, agent(MATH), code("Agent"), code(around))

    assert "NameError: name 'Agent' is not defined" in shown[0]
    assert "Denied: creating agents denied: coder does not have the capability class Agent" in shown[1]


@both_backends
async def test_a_forged_handle_is_an_error_and_starts_no_run(
    tmp_path: pathlib.Path, backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle with another root or version, a malformed one, or one that is too long, is refused."""
    authoring = MemoryAuthoring()
    monkeypatch.setattr(RunTree, "_authoring", lambda tree: authoring)
    forge = """
from dataclasses import dataclass
def forged(ref):
    object.__setattr__(solver, 'ref', ref)
    try:
        return solve('x')
    except Exception as refusal:
        return type(refusal).__name__
right = solver.ref
[forged(right._replace(root='boss')), forged(right._replace(version='f' * 64)), forged('../..'), forged('x' * 20_000)]
"""
    _, shown = await converse(tmp_path, backend, agent(*MAKER), code(MAKE), code(forge))

    assert shown[1] == "ok: ['AgentNotResolved', 'AgentNotResolved', 'AgentNotResolved', 'InvalidValue']"
    assert authoring.requests == []


@both_backends
async def test_a_recipe_that_is_too_large_is_refused(
    tmp_path: pathlib.Path, backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the guest's own check and the host refuse a large recipe, and the run continues."""
    authoring = MemoryAuthoring()
    monkeypatch.setattr(RunTree, "_authoring", lambda tree: authoring)
    huge = "with Agent(name='huge', primer='x' * 262_000 + 'ä' * 100): pass"
    around = f"""
load = task_fail.__globals__['__builtins__']['__import__']
line = load('ramet.guest.thread_channel', fromlist=['current_channel']).current_channel()
requests = load('ramet.wire.guest_protocol.guest_to_host', fromlist=['CreateAgent'])
line.ask(requests.CreateAgent, b'{{"name": "huge", "primer": "' + b'x' * {MAX_BYTES} + b'"}}')
"""
    _, shown = await converse(tmp_path, backend, agent(*MAKER), code(huge), code(around), code("'still here'"))

    assert "InvalidValue: recipe: " in shown[0]
    assert f"at most {MAX_BYTES} bytes" in shown[0]
    assert f"at most {MAX_BYTES} bytes" in shown[1]
    assert shown[2] == "ok: 'still here'"
    assert authoring.recipes == {}


async def test_a_capability_of_a_missing_module_fails_its_run(tmp_path: pathlib.Path) -> None:
    """A run whose capability names a missing module fails with `AgentNotResolved`."""
    result, _ = await converse(tmp_path, "local", agent(Capability("module", "antigravity_is_not_there")))
    assert result.status is Status.FAILED
    assert result.error is not None
    assert result.error.type == "AgentNotResolved"


# ---- the two requests, whatever comes with them


class Stub:
    """Tree of a run that reads recipes and stores nothing."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def create(self, context: Any, entry: Any) -> CreationReceipt:
        """Check an entry as a runtime does, and record its recipe."""
        recipe = Recipe.from_entry(entry)
        self.asked.append(recipe)
        return CreationReceipt(recipe.name)

    async def call_task(self, context: Any, ref: str, task: str, arguments: Any, **more: Any) -> Any:
        """Record the call, and start no run."""
        assert type(arguments) is dict
        self.asked.append((ref, task, more))
        raise RametError("nobody")


def guest_requests() -> GuestRequests:
    """Return the requests of a run with the stub as its tree."""

    class Context:
        tree, safety = Stub(), None

    class One:
        context, agent, sandbox = Context(), Agent(name="one"), SimpleNamespace()

    return GuestRequests(cast(Run, One()), StepId("run-00:1"))


ENTRY = {
    "name": "solver",
    "primer": "You solve.",
    "capabilities": [{"type": "module", "name": "math", "include": ["sin"]}],
    "task_definitions": {
        "solve": {"docstring": "Solve.", "signature": {"parameters": {"x": {"type": "number"}}, "returns": None}}
    },
}
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["../x", "a\0b", "__x__", "os"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated_entries(draw: st.DrawFn) -> Any:
    """Return a real entry with one part replaced by another value."""
    entry = json.loads(json.dumps(ENTRY))
    at: Any = entry
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            at[key] = draw(plain)
            return entry
        at = at[key]


@given(mutated_entries() | plain | st.just({"name": "a" * 1_000_000}) | st.just({"name": "../../etc"}))
@settings(suppress_health_check=[HealthCheck.too_slow])
async def test_an_odd_recipe_is_accepted_or_gives_a_typed_error(entry: Any) -> None:
    """Any entry is a recipe or raises a typed error, and the host imports no module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("importlib.import_module", lambda *_: pytest.fail("nothing is imported"))
        try:
            body = json.dumps(entry).encode()
            await guest_requests().answer(CreateAgent(id=1), body)
        except (InvalidValue, ProtocolError):
            pass


@given(st.binary(max_size=100), st.text(max_size=30), st.text(max_size=30), st.none() | st.text(max_size=30))
async def test_an_odd_task_request_gives_a_typed_error(body: bytes, ref: str, task: str, name: str | None) -> None:
    """A task request with odd bytes, names or handles raises a typed error."""
    with pytest.raises(RametError):
        await guest_requests().answer(PerformTask(id=1, ref=ref, task=task, name=name), body)
    with pytest.raises(InvalidValue):
        await guest_requests().answer(PerformTask(id=1, ref=ref, task="a b"), b"{}")
    with pytest.raises(InvalidValue):
        await guest_requests().answer(PerformTask(id=1, ref="x" * (MAX_REF + 1), task="t"), b"{}")
    with pytest.raises(InvalidValue):
        await guest_requests().answer(PerformTask(id=1, ref=ref, task="t"), b" " * (MAX_ARGUMENTS + 1))
