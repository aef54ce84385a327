"""Agent types that a prompt mentions are spawned in its turn, whatever the model says."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session
from ramet.agent.mentions import find_mentions
from ramet.cli.main import main
from ramet.core.errors import InvalidValue, Unknown
from ramet.models.scripted.dialogue import Call, Script
from ramet.store.memory import MemoryStore
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.sessions import Gate, typed_texts
from tests.trips.recovery.test_resume import lost_runtime

__all__ = ["usual_backend"]

REVIEWER = Agent(name="reviewer", description="Reviews", instructions="You review.")
TYPES = ("reviewer", "agent-x", "a.b")


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("@reviewer look", ("reviewer",)),
        ("Look at it (@agent-reviewer), @a.b. And @reviewer", ("reviewer", "a.b")),
        ("@agent-x and @agent-a.b!", ("agent-x", "a.b")),
        ("bob@reviewer `@reviewer` @Reviewer @dataclass", ()),
    ],
)
def test_words_with_an_at_sign_are_found_or_text(prompt: str, found: tuple[str, ...]) -> None:
    """A known name counts at the beginning of a word; addresses, code and other names are text."""
    assert find_mentions(prompt, TYPES) == found


def test_a_wrong_explicit_mention_is_refused() -> None:
    """`@agent-NAME` of no type is an error that names the types, and so are too many mentions."""
    with pytest.raises(Unknown, match="reviwer"):
        find_mentions("@agent-reviwer look", TYPES)
    with pytest.raises(InvalidValue, match="at most 8"):
        find_mentions(" ".join(f"@t{number}" for number in range(9)), [f"t{number}" for number in range(9)])


DELEGATE = Call("Agent", {"subagent_type": "reviewer", "prompt": "A better brief"})
SCRIPT: Script = {
    "You review": ["Line 3 is wrong."],
    "@reviewer one": ["I looked at it myself.", "The reviewer says: line 3."],
    "@reviewer two": [Call("Agent", {"prompt": "Be a fork"}), DELEGATE, "Delegated."],
    "three": ["No reviewer."],
    "Be a fork": ["I am one."],
}


async def test_a_mentioned_type_is_spawned_once_in_its_turn() -> None:
    """A model that answers by itself meets the call; one that delegates writes the prompt; a fork owes nothing."""
    async with Session(ScriptedModel(SCRIPT), agents=[REVIEWER], mentions=True) as session:
        values = [(await session.ask(prompt)).value for prompt in ("@reviewer one", "@reviewer two", "three")]
        texts = typed_texts(session.messages)
        agents = [view.agent for view in session.runs()]

    assert values == ["The reviewer says: line 3.", "Delegated.", "No reviewer."]
    assert texts[1:4] == [("ai", "I looked at it myself."), ("tool", "Line 3 is wrong."), ("ai", values[0])]
    assert sorted(agents) == ["main", "main", "reviewer", "reviewer"]


async def test_a_mention_holds_for_a_root_in_a_sandbox(tmp_path: pathlib.Path, usual_backend: BackendName) -> None:
    """The host adds the call to the reply that the loop in the sandbox receives."""
    policy = Policy(allow_sub_agents=True, max_sub_agents=9)
    async with AgentRuntime(working_dir=tmp_path, backend=usual_backend) as runtime:
        async with Session(
            ScriptedModel(SCRIPT), agents=[REVIEWER], mentions=True, runtime=runtime, root_policy=policy
        ) as session:
            assert (await session.ask("@reviewer one")).value == "The reviewer says: line 3."
            assert [view.agent for view in session.runs()] == ["main", "reviewer"]


async def test_a_mention_is_honoured_after_a_kill(tmp_path: pathlib.Path) -> None:
    """The turn goes on in another process, whose model ends it without a call, and the type is spawned there."""
    gate, store = Gate(), MemoryStore()
    script: Script = {"You review": ["Line 3."], "@agent-reviewer go": [Call("gate"), "Not needed.", "Done."]}
    async with lost_runtime(store) as runtime:
        session = Session(
            ScriptedModel(script), [gate.tool], agents=[REVIEWER], mentions=True, runtime=runtime, session_id="talk"
        )
        asking = asyncio.create_task(session.ask("@agent-reviewer go"))
        await gate.entered.wait()
    asking.cancel()
    async with AgentRuntime(store=store) as runtime:
        session = await Session.resume("talk", ScriptedModel(script), [gate.tool], agents=[REVIEWER], runtime=runtime)
        result = await session.wait_for_turn()

        assert result is not None
        assert result.value == "Done."
        assert ("tool", "Line 3.") in typed_texts(session.messages)


def test_the_command_line_honours_a_mention(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ramet ask` starts the type that its question mentions, and refuses one that is not there in one line."""
    command = ["ask", "--dir", str(tmp_path), "--backend", "inline", "--no-approvals"]
    (tmp_path / "notes.md").write_text("The harbour closes at nine.\n")
    main([*command, "--json", "@plan When does the harbour close?"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "plan" in [line["agent"] for line in lines if line["type"] == "run_spawned"]

    assert main([*command, "@agent-explor when?"]) != 0
    [line] = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "agent type" in line
    assert "explore" in line
