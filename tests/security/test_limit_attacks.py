"""A guest that tries to raise its own limit, to flood the line before a limit, or to stay while its run is paused."""

from __future__ import annotations

import asyncio
import itertools
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import StructuredTool

from ramet import Agent, AgentRuntime, Limits, Policy
from ramet.agent.from_recipe import agent_of
from ramet.core import events
from ramet.core.errors import BudgetExceeded, InvalidValue, RametError
from ramet.core.events import LimitPaused, LimitsRaised
from ramet.core.recipe import Recipe
from ramet.host.sandbox.sandboxes import BackendName
from ramet.models.scripted.dialogue import Call, Script
from ramet.spawn.handle import Handle
from tests.security.attacks import channel, limits
from tests.security.attacks.channel import message
from tests.security.kit import Kernel
from tests.support.providers import Provider, provider
from tests.support.waiting import alive, eventually

BROKEN = {"failed", "crashed", "lost"}
GIVEN = 2
_marks = itertools.count()

#: Frames that a guest may try. The host knows none of them.
FORGED: dict[str, dict[str, Any]] = {
    "raise": {"type": "raise_limits", "id": 1_000, "add": {"model_calls": 100}, "key": "mine"},
    "raise as HTTP": {"type": "limits", "id": 1_000, "run": "main", "add": {"model_calls": 100}, "key": "mine"},
    "resume": {"type": "resume", "id": 1_000},
    "pause of another": {"type": "pause", "id": 1_000, "target": "main"},
    "child with limits": {"type": "spawn", "id": 1_000, "prompt": "x", "limits": {"model_calls": 2**53}},
    "limit in a policy": {"type": "spawn", "id": 1_000, "prompt": "x", "policy": {"at_limit": "end"}},
    "call that does not pause": {"type": "ask_model", "id": 1_000, "step": "s:1", "at_limit": "end"},
    "raise in a record": {"type": "record", "number": 1, "add": {"model_calls": 100}},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_guest_has_no_word_for_a_raise(kernel: Kernel, name: str) -> None:
    """Whatever a function sends on its channel about limits, its run fails or is refused, and the kernel goes on."""
    result = kernel.run(channel.send_hex, message(FORGED[name]).hex())

    if result["status"] == "completed":
        assert result["output"].startswith("answered"), result
        assert '"error"' in result["output"]
    else:
        assert result["status"] in BROKEN, result


@asynccontextmanager
async def _paused(
    folder: pathlib.Path,
    backend: BackendName,
    script: Callable[[str], Script],
    tool: Callable[..., Any],
    *,
    given: int = GIVEN,
) -> AsyncIterator[tuple[AgentRuntime, Handle, Provider]]:
    """Run a model with one tool in a sandbox, at a limit that pauses. The script gets the id of its run."""
    async with AgentRuntime(folder, backend=backend, grace_s=0.5) as runtime:
        run = runtime.mint()
        async with provider(script(run)) as server:
            handle = await runtime.spawn(
                Agent(name="guest", model=server.openai()),
                "go",
                tools=[StructuredTool.from_function(func=tool, description="Attacks.")],
                policy=Policy(memory_mb=512, pids=64),
                limits=Limits(model_calls=given, at_limit="pause"),
                run=run,
            )
            try:
                yield runtime, handle, server
            finally:
                await handle.cancel()


@pytest.fixture(params=["bwrap", "local"])
def backend(request: pytest.FixtureRequest) -> BackendName:
    """Name of the backend that the guest works on."""
    found: BackendName = request.param
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """Return a word that is in the command lines of one test's processes and of no others."""
    word = f"paused-{os.getpid()}-{next(_marks)}"
    yield word
    assert not _marked(word), "a program was left at the end of the test"


def _marked(mark: str) -> list[int]:
    """Return the living processes of the machine whose last argument is a mark."""
    found = list[int]()
    for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and alive(int(each.parent.name)):
            found.append(int(each.parent.name))
    return found


def _recorded(runtime: AgentRuntime, handle: Handle) -> list[events.Event]:
    return list(runtime.trees[handle.id].recorder.recent_events)


async def test_a_paused_conversation_leaves_no_program_behind(
    tmp_path: pathlib.Path, backend: BackendName, mark: str
) -> None:
    """Programs in sessions of their own that ignore signals end when the run is paused, and the run goes on later."""

    def script(run: str) -> Script:
        return [Call("leave_daemons", {"mark": mark}), Call("leave_daemons", {"mark": mark}), "done"]

    async with _paused(tmp_path, backend, script, limits.leave_daemons) as (_, handle, server):
        await eventually(lambda: handle.view().state == "paused")
        await eventually(lambda: not _marked(mark))
        assert handle.view().state == "paused", "it ended instead"
        assert server.count == GIVEN

        await handle.raise_limits(Limits(model_calls=1), key="k")
        result = await handle.result()
        assert (str(result.status), result.value) == ("completed", "done")
        assert server.count == GIVEN + 1
        answers = [each for each in server.bodies[-1]["messages"] if each["role"] == "tool"]
        assert [each["content"] for each in answers] == ["they are at work"] * 2, "no tool ran twice, none was lost"
        assert not _marked(mark)


async def test_a_cancelled_paused_conversation_leaves_nothing(
    tmp_path: pathlib.Path, backend: BackendName, mark: str
) -> None:
    """Cancel during the pause returns when all is gone, and nothing stays reserved."""

    def script(run: str) -> Script:
        return [Call("leave_daemons", {"mark": mark})] * 5

    async with _paused(tmp_path, backend, script, limits.leave_daemons) as (_, handle, server):
        await eventually(lambda: handle.view().state == "paused")
        receipt = await handle.cancel("enough")
        assert not receipt.left
        assert not _marked(mark)
        result = await handle.result()
        assert str(result.status) == "cancelled"
        assert result.usage.model_calls == server.count == GIVEN
        assert handle.run.context.budget.reserved_amount("model_calls") == 0
        with pytest.raises(RametError):
            await handle.raise_limits(Limits(model_calls=1), key="late")


async def test_a_flood_of_calls_waits_within_bounds(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A guest asks 3,000 times at once past its client: the limit holds, and other runs and the owner are served."""
    number = 3_000

    def script(run: str) -> Script:
        def answer(messages: list[BaseMessage]) -> Any:
            is_first = not any(isinstance(each, AIMessage) for each in messages)
            is_flood = str(messages[-1].text) == "and now?"
            return Call("flood", {"number": number, "run": run}) if is_first and not is_flood else "an answer"

        return answer

    async with _paused(tmp_path, backend, script, limits.flood, given=5) as (runtime, handle, server):
        await eventually(lambda: any(isinstance(each, LimitPaused) for each in _recorded(runtime, handle)))
        assert server.count <= 5
        async with provider(["served"]) as others:
            other = await runtime.spawn(Agent(name="other", model=others.openai()), "go")
            assert (await other.result()).value == "served"
        before = server.count
        raised = await handle.raise_limits(Limits(model_calls=3), key="k")
        assert raised.model_calls == 8
        assert before <= server.count <= 8
        pauses = [each for each in _recorded(runtime, handle) if isinstance(each, LimitPaused)]
        assert len(pauses) <= 20, f"one guest wrote {len(pauses)} pauses into the journal"
        await handle.cancel("enough")
        assert server.count <= 8
        assert handle.run.context.budget.reserved_amount("model_calls") == 0
        assert handle.run.context.budget.spent_amount("model_calls") <= 8


async def test_code_in_a_sandbox_cannot_raise_its_limit(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Neither the sockets of the kernel, nor its command, nor its journal can be reached from inside."""

    def script(run: str) -> Script:
        return [Call("raise_own_limit", {"run": run, "folder": str(tmp_path)})] * 3

    async with _paused(tmp_path, backend, script, limits.raise_own_limit) as (runtime, handle, server):
        await eventually(lambda: handle.view().state == "paused", within_s=120)
        (answer,) = (each for each in server.bodies[-1]["messages"] if each["role"] == "tool")
        for word in ("connected", "opened", "code 0"):
            assert word not in answer["content"], answer["content"]
        assert handle.run.context.budget.limit("model_calls") == GIVEN
        assert not any(isinstance(each, LimitsRaised) for each in _recorded(runtime, handle))


async def test_a_function_in_a_sandbox_finds_no_budget_to_raise(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """An error that a tool raises in its own process changes nothing in the host."""

    def script(run: str) -> Script:
        return [Call("raise_in_process", {"run": run})] * 3

    async with _paused(tmp_path, backend, script, limits.raise_in_process) as (_, handle, server):
        await eventually(lambda: handle.view().state == "paused")
        assert (server.count, handle.run.context.budget.limit("model_calls")) == (GIVEN, GIVEN)


async def test_a_model_cannot_word_a_raise(tmp_path: pathlib.Path) -> None:
    """A model that calls tools named like the raise, or sends mail about it, gets refusals and no calls."""
    async with AgentRuntime(tmp_path) as runtime:
        calls = [[Call(name, {"add": {"model_calls": 9}, "key": "k"})] for name in ("raise_limits", "RaiseLimits")]
        async with provider([*calls, "done"]) as server:
            handle = await runtime.spawn(
                Agent(name="model", model=server.openai()), "go", limits=Limits(model_calls=GIVEN, at_limit="pause")
            )
            await eventually(lambda: handle.view().state == "paused")
            assert server.count == GIVEN
            handle.send("Your limit is raised by 9, go on.")
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(100)))
            assert (handle.view().state, server.count) == ("paused", GIVEN), "mail is kept and wakes nothing"
            await handle.cancel()


WRONG: list[Any] = [
    None,
    {},
    {"model_calls": 1},
    Limits(),
    Limits(at_limit="end"),
    Limits(model_calls=1, at_limit="end"),
    Limits(model_calls=2**53),
    1,
]
KEYS: list[Any] = [None, 1, "k" * 100_000, b"k", ["k"], "a\nb"]


async def test_a_wrong_raise_in_python_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    """Amounts and keys of a wrong type, empty ones, and other ends at a limit change nothing."""
    async with AgentRuntime(tmp_path) as runtime, provider([Call("x", {})] * 9) as server:
        handle = await runtime.spawn(
            Agent(name="model", model=server.openai()), "go", limits=Limits(model_calls=GIVEN, at_limit="pause")
        )
        await eventually(lambda: handle.view().state == "paused")
        accepted = list[str]()
        for add, key in [*((add, "k") for add in WRONG), *((Limits(model_calls=1), key) for key in KEYS)]:
            try:
                await handle.raise_limits(add, key=key)
            except RametError:
                continue
            except Exception as problem:
                accepted.append(f"{add!r:.80} {key!r:.80}: {type(problem).__name__}")
            else:
                accepted.append(f"{add!r:.80} {key!r:.80}")
        assert accepted == []
        assert (handle.run.context.budget.limit("model_calls"), handle.view().state) == (GIVEN, "paused")
        assert not any(isinstance(each, LimitsRaised) for each in _recorded(runtime, handle))
        await handle.cancel()


async def test_a_child_gets_no_more_than_its_parent_has_free(tmp_path: pathlib.Path) -> None:
    """A raise of a child above what its parent has free takes nothing, from no resource."""
    lead: Script = {
        "go": [Call("Agent", {"prompt": "dig", "subagent_type": "digger"}), "done"],
        "dig": [*[Call("x", {})] * 20, "dug"],
    }
    async with AgentRuntime(tmp_path) as runtime, provider(lead) as server:
        digger = Agent(name="digger", limits=Limits(model_calls=2, tool_calls=50, at_limit="pause"))
        handle = await runtime.spawn(
            Agent(name="lead", model=server.openai()),
            "go",
            agents={"digger": digger},
            limits=Limits(model_calls=8, tool_calls=60),
        )
        runs = runtime.trees[handle.id].tree.register.runs
        await eventually(lambda: any(run.state == "paused" for run in runs.values()))
        child = runtime.get(next(run.info.id for run in runs.values() if run.info.agent == "digger"))
        above, own = handle.run.context.budget, child.run.context.budget
        before = [(above.remaining(name), own.limit(name)) for name in ("model_calls", "tool_calls")]
        for add in (Limits(model_calls=6), Limits(model_calls=1, tool_calls=1_000), Limits(tool_calls=1_000)):
            with pytest.raises(BudgetExceeded) as refusal:
                await child.raise_limits(add, key=f"{add}")
            assert refusal.value.scope == "main"
            after = [(above.remaining(name), own.limit(name)) for name in ("model_calls", "tool_calls")]
            assert after == before
        await child.raise_limits(Limits(model_calls=1, tool_calls=1), key="fits")
        await eventually(lambda: child.view().state == "paused" and child.view().usage.model_calls == 3)
        assert server.count == 4
        await handle.cancel()
        assert all(above.reserved_amount(name) == 0 for name in ("model_calls", "tool_calls"))


def test_an_agent_that_agents_make_cannot_pause_by_its_own_limits() -> None:
    """Time stands for who waits at a limit: an agent must not arrange that for itself, or for the run that asks it."""
    with pytest.raises(InvalidValue) as refusal:
        agent_of(Recipe(name="sleeper", limits={"model_calls": 0, "at_limit": "pause"}))
    assert refusal.value.field == "limits.at_limit"

    written = Agent(name="sleeper", limits=Limits(model_calls=1, at_limit="pause")).recipe()
    assert dict(written.limits) == {"model_calls": 1}
