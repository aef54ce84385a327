"""Values, files and limits at the edge of what is allowed: a strange result harms no other run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ramet.agent.definition import Agent
from ramet.core.errors import SpawnRefused
from ramet.core.events import MailPushed, RunEnded, ToolEnded
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.model import Call, Fail, ScriptedModel
from ramet.spawn.admission import Admission, AdmissionSlot, ResourceShare
from ramet.tools.workspace import workspace_tools
from tests.support.waiting import eventually
from tests.trips.kits.sessions import answers, async_tool, is_tree_idle, of_kind, session_events

# --- values


class Unprintable:
    """A value whose `repr` raises."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


async def unprintable(text: str = "") -> Unprintable:
    return Unprintable()


async def test_a_result_whose_repr_raises_does_not_stop_its_run() -> None:
    """The end of the function's run is recorded, and its parent receives the notice."""
    call = Call("Agent", {"prompt": "x", "subagent_type": "odd", "run_in_background": True})
    agents = [Agent(name="odd", function=unprintable)]
    async with Session(ScriptedModel({"Go.": [call, "started"], "": ["noted"]}), agents=agents) as session:
        await session.ask("Go.")
        await eventually(lambda: of_kind(session_events(session), MailPushed, "main") and is_tree_idle(session))

        (run_end,) = of_kind(session_events(session), RunEnded, "main/1")
        assert run_end.result.status is Status.COMPLETED
    async with AgentRuntime() as runtime:
        result = await (await runtime.spawn(unprintable)).result()
        assert (result.status, type(result.value)) == (Status.COMPLETED, Unprintable)


@dataclass(frozen=True)
class Finding:
    """A place in a file."""

    path: str
    line: int


async def test_a_model_reads_the_typed_value_of_a_child_as_json() -> None:
    """The result of the call and the notice of a child in the background hold the same JSON."""
    finding = '{"path": "api.py", "line": 3}'
    finder = Agent(name="finder", output=Finding, model=ScriptedModel([finding] * 2))
    calls = [
        Call("Agent", {"prompt": "x", "subagent_type": "finder", "run_in_background": late}) for late in (False, True)
    ]
    async with Session(ScriptedModel({"Go.": [*calls, "started"], "": ["noted"]}), agents=[finder]) as session:
        await session.ask("Go.")
        await eventually(lambda: is_tree_idle(session))

        answer = of_kind(session_events(session), ToolEnded, "main")[0].preview
        (mail,) = of_kind(session_events(session), MailPushed, "main")
    assert answer == '{"path":"api.py","line":3}'
    assert answer in mail.text.splitlines()


async def test_a_session_can_ask_a_plain_function() -> None:
    """The prompt is the argument of `Session(agent=function)`, and the return value is the answer."""

    def repeat(text: str) -> str:
        return f"got {text}"

    async with Session(agent=repeat) as session:  # type: ignore[arg-type]
        result = await session.ask("hello")

    assert (result.status, result.value) == (Status.COMPLETED, "got hello")


async def test_a_refused_last_answer_keeps_the_status_budget_exhausted() -> None:
    """The limit ended the turn. A provider's refusal of the last answer does not turn that into a failure."""
    model = ScriptedModel([Call("ListAgents"), Fail("no")])
    async with Session(model, limits=Limits(model_calls=2)) as session:
        result = await session.ask("Go.")

    assert result.status is Status.BUDGET_EXHAUSTED
    assert result.error is not None
    assert result.error.type == "BudgetExceeded"


# --- large results


def exists(file: str) -> bool:
    return Path(file).exists()


def beginning_of(file: str) -> str:
    return Path(file).read_text()[:3]


def files_of(session: Session) -> list[str]:
    return [event.spilled_to for event in of_kind(session_events(session), ToolEnded) if event.spilled_to is not None]


async def test_a_run_can_read_its_large_result_without_a_working_folder() -> None:
    """The result of a session without a `cwd` is in a temporary folder, which Read opens.

    The session removes it at its end.
    """
    files: list[str] = []

    async def big() -> str:
        """Read much."""
        return "\n".join(["a line"] * 10_000 + ["the end"])

    def read(_: object) -> Call:
        files[:] = files_of(session)
        return Call("Read", {"file_path": files[0], "offset": 10_001})

    model = ScriptedModel([Call("big"), read, "ok"])
    async with Session(model, [async_tool(big), *workspace_tools()]) as session:
        await session.ask("Go.")

        assert "the end" in list(answers(session.messages).values())[-1]
        assert exists(files[0])
    assert not exists(files[0])


async def test_large_results_of_calls_with_one_id_do_not_replace_each_other(tmp_path: Path) -> None:
    """Some providers number calls from 0 in each reply. Each large result still has its own file."""
    calls = 0

    async def big() -> str:
        """Read much."""
        nonlocal calls
        calls += 1
        return str(calls) * 40_000

    model = ScriptedModel([Call("big", id="call_0"), Call("big", id="call_0"), "ok"])
    async with Session(model, [async_tool(big)], cwd=tmp_path) as session:
        await session.ask("Go.")

        assert [beginning_of(file) for file in files_of(session)] == ["111", "222"]


# --- births in line


@dataclass(eq=False)
class Node:
    """The parts of a run that admission uses."""

    path: str
    parent: Node | None = None
    persistent: bool = False
    living_descendants: list[Node] = field(default_factory=list)
    waits_for: list[Node] = field(default_factory=list)
    envelope: ResourceShare | None = None

    def ancestors(self) -> Iterator[Node]:
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class CountedTree:
    """A full tree of a root with two children, which counts how often admission looks through it."""

    def __init__(self) -> None:
        self.looks = 0
        self.root = Node("main", persistent=True)
        self.asker, self.other = Node("main/asker", self.root), Node("main/other", self.root)
        self.root.living_descendants = [self.asker, self.other]
        self.nodes = [self.root, self.asker, self.other]
        self.admission = Admission(SpawnLimits(runs=3, children=10**6), self.living)
        self.admission.admit_root()
        self.places = [self.admission.admit_nowait(self.root) for _ in range(2)]

    def living(self) -> Iterable[Node]:
        self.looks += 1
        return list(self.nodes)

    async def queue_spawns(self, births: int) -> list[asyncio.Task[AdmissionSlot]]:
        """Queue this many spawns below one child, and return their tasks."""
        asking = [asyncio.create_task(self.admission.admit(self.asker)) for _ in range(births)]
        await eventually(lambda: self.admission.queue_length == births)
        return asking


BIRTHS = 200


async def test_admission_looks_through_the_tree_once_per_spawn_and_end() -> None:
    """Admission looks once for each queued spawn, and once for each end that makes room."""
    tree = CountedTree()
    asking = await tree.queue_spawns(BIRTHS)

    slot = tree.places[1]
    tree.nodes.remove(tree.other)
    tree.root.living_descendants.remove(tree.other)
    for task in asking:
        child = Node("main/asker/child", tree.asker)
        tree.nodes.append(child)
        tree.asker.living_descendants.append(child)
        tree.admission.release(slot)
        slot = await task
        tree.nodes.remove(child)
        tree.asker.living_descendants.remove(child)

    assert tree.looks <= 2 * BIRTHS + 2


async def test_admission_refuses_hopeless_spawns_with_one_look_each() -> None:
    """The last run that could make room begins to wait, too, so every queued spawn is refused."""
    tree = CountedTree()
    asking = await tree.queue_spawns(BIRTHS)

    tree.other.waits_for = [tree.asker]
    tree.admission.recheck_queue()

    for task in asking:
        with pytest.raises(SpawnRefused):
            await task
    assert tree.looks <= 2 * BIRTHS + 2
