"""Journals replayed against code: the same code passes, other code fails at the place where it differs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Limits, Policy, ScriptedModel, Session, SpawnRequest, chain
from ramet.cli.main import main
from ramet.core.errors import InvalidValue
from ramet.core.events import Event
from ramet.core.lifecycle import State
from ramet.host.code_replay.replay_code import replay_code
from ramet.host.control.run_queries import journal_reader
from ramet.testing import Call, Fail, assert_replays
from ramet.tools.context import current
from tests.support.waiting import eventually

Captured = pytest.CaptureFixture[str]
SCRIPT: Mapping[str, Sequence[Any]] = {
    "You are a scout": [Call("read", {"path": "app.log"}), "It timed out.", "Nothing more."],
    "You are a critic": [Fail("no such model")],
    "": [
        Call("Agent", {"subagent_type": "scout", "prompt": "Look at app.log.", "name": "first"}),
        [
            Call("Agent", {"subagent_type": "scout", "prompt": "Look again.", "run_in_background": True}),
            Call("Agent", {"subagent_type": "critic", "prompt": "Object."}),
            Call("Agent", {"subagent_type": "boxed", "prompt": "Look from inside."}),
        ],
        Call("SendMessage", {"to": "first", "message": "Look for more."}),
        [Call("read", {"path": "a"}), Call("read", {"wrong": "b"}), Call("unknown")],
        *["I wait for news."] * 4,
        Call("read", {"path": "last"}),
        *["A timeout."] * 3,
    ],
}
WITHIN_S = 180  #: for one replay: each difference is found by a comparison, none by a wait
RAN: list[str] = []  #: calls of the tool that did run


def read(path: str) -> str:
    """Return the contents of a file."""
    RAN.append(path)
    return f"12:00:01 ERROR timeout in {path}"


def agents(scout: str = "You are a scout.") -> list[Agent]:
    """Return the types that the root may spawn."""
    return [
        Agent(name="scout", instructions=scout),
        Agent(name="critic", instructions="You are a critic."),
        Agent(name="boxed", instructions="Do you fit?", tools=[], policy=Policy(), model=ScriptedModel(["I do."])),
    ]


def lead(model: ScriptedModel) -> Session:
    """Return the session that the journal has."""
    return Session(model, [read], agents=agents())


async def record(folder: Path) -> str:
    """Record a tree with children side by side, in the background and in a sandbox, with mail, and failures."""
    async with AgentRuntime(folder, backend="local") as runtime:
        model = ScriptedModel(SCRIPT)
        async with Session(model, [read], agents=agents(), runtime=runtime) as session:
            await session.ask("What went wrong?")
            runs = session._open_tree.tree.register
            await eventually(lambda: all(each.state is State.IDLE for each in runs.living()))
            session.send("Is that all?")
            await eventually(lambda: all(each.state is State.IDLE for each in runs.living()))
            await session.ask("Sum up.")
            root = session._root.info.id
            await assert_replays(folder, root, lead)  # of a living kernel
    RAN.clear()
    return root


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with a journal, and the root of its tree."""
    folder = tmp_path_factory.mktemp("journal")
    return folder, asyncio.run(record(folder))


async def events_in(folder: Path, run: str) -> list[Event]:
    """Return the recorded events of a tree."""
    async with await journal_reader(folder) as reader:
        return [event async for event in reader.events(run)]


async def stream(events: Sequence[Event]) -> AsyncGenerator[Event]:
    """Yield events one after the other."""
    for event in events:
        yield event


async def differences(
    folder: Path, run: str, codes: Mapping[str, object], stall_s: float = 600
) -> dict[str, tuple[str, str]]:
    """Return the path and the kind of the first difference of each code."""
    events, found = await events_in(folder, run), {}
    for name, code in codes.items():
        async with asyncio.timeout(WITHIN_S):
            difference = (await replay_code(stream(events), code, stall_s=stall_s)).difference
        assert difference is not None, name
        found[name] = (difference.path, difference.what)
    return found


async def test_the_same_code_passes_and_nothing_runs(journal: tuple[Path, str], tmp_path: Path) -> None:
    """Every run of a session is replayed, in the recorded order; no tool runs, and the folder stays as it is."""
    folder, run = journal
    before = hashlib.sha256((folder / ".ramet" / "journal.db").read_bytes()).digest()

    report = await assert_replays(folder, run, lead)

    assert (report.runs, report.not_compared, report.ends_early) == (4, ("main/3: it ended failed",), False)
    assert report.steps > 40
    with pytest.raises(AssertionError, match=r"start: instructions"):  # It works in a folder, which stays empty.
        await assert_replays(folder, run, lambda: Session(model="anthropic:none", cwd=tmp_path))
    assert (RAN, os.listdir(tmp_path)) == ([], [])  # noqa: PTH208 - in an async function
    assert hashlib.sha256((folder / ".ramet" / "journal.db").read_bytes()).digest() == before


async def test_every_beginning_of_a_journal_is_replayed(journal: tuple[Path, str]) -> None:
    """A record that ends anywhere, as one of a killed or a living kernel does, has no difference to the same code."""
    events = await events_in(*journal)

    for end in range(1, len(events), 3):
        report = await replay_code(stream(events[:end]), lead, stall_s=60)
        assert report.difference is None, (events[end - 1], report.difference)
    assert RAN == []


async def test_other_code_differs_at_its_place(journal: tuple[Path, str]) -> None:
    """Another prompt, tool, argument, child, contract or limit is found where it shows first."""

    def session(tools: Sequence[Any] = (read,), types: Sequence[Agent] | None = None, **options: Any) -> Any:
        return lambda model: Session(model, tools, agents=agents() if types is None else types, **options)

    def renamed(file: str) -> str:
        """Return the contents of a file."""
        return file

    renamed.__name__ = "read"

    def started(command: str) -> str:
        """Run a command."""
        return command

    found = await differences(
        *journal,
        {
            "prompt": session(system_prompt="Be brief."),
            "tool gone": session(()),
            "tool more": session((read, started)),
            "argument": session((renamed,)),
            "instructions of a child": session(types=agents("You are a spy.")),
            "no child": session(types=agents()[1:]),
            "child is a function": session(types=[Agent(name="scout", function=renamed), *agents()[1:]]),
            "contract": session(agent=Agent(name="main", output={"type": "integer"})),
            "limit": session(limits=Limits(tool_calls=3)),
            "turns": session(max_turns=2),
            "definition alone": Agent(name="main"),
        },
    )

    assert found == {
        "prompt": ("main", "start: instructions"),
        "tool gone": ("main", "start: tools"),
        "tool more": ("main", "start: tools"),
        "argument": ("main/first", "answer of read: text"),
        "instructions of a child": ("main/first", "start: instructions"),
        "no child": ("main", "answer of Agent: text"),
        "child is a function": ("main/first", "start: kind"),
        "contract": ("main", "start: instructions"),
        "limit": ("main", "answer of Agent: text"),
        "turns": ("main", "another step"),
        "definition alone": ("main", "start: tools"),
    }
    assert RAN == []


async def add(first: int, second: int) -> int:
    """Add two numbers."""
    RAN.append("add")
    return first + second


def found_at(place: str) -> Agent:
    """Return an agent that finds a place."""
    return Agent(name="finder", instructions="Find it.", model=ScriptedModel([place] * 2))


async def below(agent: Any, prompt: str = "", *args: Any) -> Any:
    """Spawn a child of the current function, and return its value."""
    context = current()
    assert context.tree is not None
    handle = await context.tree.spawn(context, SpawnRequest(agent=agent, prompt=prompt, args=args))
    return (await handle.result()).value


async def plan(topic: str) -> str:
    """Find a topic, and count."""
    place = await below(found_at("here"), f"Find {topic}.")
    return f"{place} {await below(add, '', 1, 2)}"


async def test_a_function_is_called_and_its_children_are_compared(tmp_path: Path) -> None:
    """Order, prompts, arguments, results and the number of the children of a function are compared."""

    async def other_prompt(topic: str) -> str:
        return await plan(topic.upper())

    async def other_order(topic: str) -> str:
        number = await below(add, "", 1, 2)
        return f"{await below(found_at('here'), f'Find {topic}.')} {number}"

    async def other_argument(topic: str) -> str:
        return f"{await below(found_at('here'), f'Find {topic}.')} {await below(add, '', 2, 1)}"

    async def fewer(topic: str) -> str:
        return f"{await below(found_at('here'), f'Find {topic}.')} 3"

    async def more(topic: str) -> str:
        value = await plan(topic)
        await below(add, "", 1, 2)
        return value

    async def other_value(topic: str) -> str:
        return (await plan(topic)).upper()

    async def stuck(topic: str) -> str:
        await asyncio.Event().wait()
        return topic

    async with AgentRuntime(tmp_path) as runtime:
        handle = await runtime.spawn(plan, args=("logs",))
        assert (await handle.result()).value == "here 3"
        steps = chain(found_at("first"), found_at("second"), name="steps")
        chained = await runtime.spawn(steps, "Begin.")
        await chained.result()
    RAN.clear()

    report = await assert_replays(tmp_path, handle.id, plan)
    assert report.not_compared == ("main/2: it is no model",)
    await assert_replays(tmp_path, chained.id, steps)
    with pytest.raises(
        AssertionError, match=r"main/1, step 1 \(event \d+ of the journal\): start: prompt\n  journal: Find logs."
    ):
        await assert_replays(tmp_path, handle.id, other_prompt)
    codes = (other_order, other_argument, fewer, more, other_value)
    assert await differences(tmp_path, handle.id, {each.__name__: each for each in codes}) == {
        "other_order": ("main/1", "start: agent"),
        "other_argument": ("main/2", "start: args"),
        "fewer": ("main/2", "start: missing"),
        "more": ("main", "one more child"),
        "other_value": ("main", "end: value"),
    }
    found = await differences(tmp_path, handle.id, {"stuck": stuck}, stall_s=3)
    assert found == {"stuck": ("main/1", "start: missing")}
    assert RAN == []
    other_roots: tuple[object, ...] = (found_at("here"), 3, [])
    for other_root in other_roots:
        with pytest.raises(InvalidValue, match=r"code"):
            await assert_replays(tmp_path, handle.id, other_root)


CODE = """
from ramet import Agent
from tests.trips.journal.test_code_replay import agents, lead, read

def brief(model):
    session = lead(model)
    print("this is no report")
    return [Agent(name="main", tools=[read], instructions="Be \\x1b[31mbrief.\\nOr not.")]

def broken():
    raise ValueError("no")

LIST = [1]
"""


def test_the_command_reports_the_first_difference(journal: tuple[Path, str], capsys: Captured) -> None:
    """The status is 0 for the same, 1 for a difference with both sides, 2 with one line for unusable input."""
    folder, run = journal
    (folder / "replay_codes.py").write_text(CODE)
    (folder / "main.md").write_text("---\nname: main\ndescription: Leads.\n---\nBe brief.\n")

    def command(code: str, *options: str, id: str = run) -> tuple[int, str, str]:
        status = main(["replay", id, "--dir", str(folder), "--against", code, *options])
        return status, *capsys.readouterr()

    same = command("tests.trips.journal.test_code_replay:lead", id=run[:12])
    assert (same[0], same[1].startswith("same: "), same[2]) == (0, True, "not replayed: main/3: it ended failed\n")
    status, out, err = command("replay_codes:brief")
    assert (status, out.splitlines()[1:], err.splitlines()[0]) == (
        1,
        [
            "main, step 1 (event 1 of the journal): start: instructions",
            "  --- journal",
            "  +++ code",
            "  +Be brief.",
            "  +Or not.",
        ],
        "this is no report",
    )
    report = json.loads(command("main.md", "--json")[1])
    assert (report["same"], report["steps"]) == (False, 0)
    assert (report["difference"]["path"], report["difference"]["code"]) == ("main", "Be brief.")
    for code, word in (
        ("replay_codes:broken", "ValueError: no"),
        ("replay_codes:LIST", "an agent file"),
        ("gone:code", "No module named 'gone'"),
        ("gone.md", "there is no such file"),
    ):
        status, out, err = command(code)
        assert (status, out, err.count("\n"), word in err) == (2, "", 1, True), (code, err)
    assert command("main.md", id="run-none")[0] == 2
    assert RAN == []
