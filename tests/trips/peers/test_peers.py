"""Peers and their lead: names, mail among them only, plans and shutdowns that survive a kill."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys

import pytest

from ramet import Agent, AgentRuntime, ScriptedModel, Session
from ramet.core.errors import InvalidValue
from ramet.core.events import MailPushed, RequestAnswered, RunEnded
from ramet.models.scripted.dialogue import Call, Script
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.sessions import of_kind, run_of, typed_texts
from tests.trips.kits.terminal import environment
from tests.trips.programs import peer_kernel

__all__ = ["usual_backend"]

ROOT = pathlib.Path(__file__).parents[3]


async def test_plans_and_shutdowns_survive_a_kill(tmp_path: pathlib.Path, usual_backend: BackendName) -> None:
    """Both peers wait for the lead when their kernel dies; in the next one, the plan is approved and the peer ends."""
    program = (sys.executable, "-m", "tests.trips.programs.peer_kernel", str(tmp_path), usual_backend)
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, env=environment(None))
    assert await process.wait() == -signal.SIGKILL

    model = ScriptedModel(peer_kernel.play_on)
    async with AgentRuntime(tmp_path, backend=usual_backend) as runtime:
        [handle] = await runtime.resume(llm=model, agents=peer_kernel.PEERS)
        recorder = runtime.trees[handle.id].recorder
        result = await handle.result()
        events = list(recorder.recent_events)

    assert result.value == "All are gone."
    ends = {each.path: each.result for each in of_kind(events, RunEnded)}
    assert ends["main/builder"].value == "It is done."
    assert str(ends["main/tester"].status) == "cancelled"
    assert "accepted the request of main to shut down" in str(ends["main/tester"].error)
    answers = [(each.path, each.approved, each.text) for each in of_kind(events, RequestAnswered)]
    assert answers[0] == ("main", True, "But test it.")
    assert of_kind(events, RequestAnswered)[0].request_id in ("mail-1", "mail-2")  # the ids of before the kill
    assert not [each for each in of_kind(events, MailPushed, "main") if each.text.startswith("Test it.")]
    assert answers[-2:] == [("main/tester", False, "Busy."), ("main/tester", True, "Good bye.")]
    assert "It is built." in [each.text for each in of_kind(events, MailPushed, "main/tester")]


def type_call(kind: str, prompt: str, name: str) -> Call:
    """Return a call that starts an agent of a type."""
    return Call("Agent", {"subagent_type": kind, "prompt": prompt, "name": name})


LEAD = Agent(name="lead", instructions="You lead.", peers=True)
WORKER = Agent(name="worker", instructions="You work.", sibling_list=True)


async def test_only_a_lead_and_its_peers_write_to_a_peer() -> None:
    """An agent outside of the group is refused, as are a plan without a lead and a plan that nobody could answer."""
    send = Call("SendMessage", {"to": "one", "message": "Hello"})
    script: Script = {
        "Root": [type_call("lead", "Lead", "boss"), type_call("worker", "Outside", "outsider"), "done"],
        "Lead": [type_call("worker", "Plan", "one"), type_call("worker", "Inside", "two"), "led"],
        "Plan": [
            Call("SubmitPlan", {"plan": "Mine"}),
            Call("AnswerRequest", {"request_id": "mail-1", "decision": "approve"}),
            "planned",
        ],
        "Inside": [send, "sent"],
        "Hello": ["read"],
        "Outside": [send, Call("SubmitPlan", {"plan": "x"}), "tried"],
    }
    async with Session(ScriptedModel(script), agents=[LEAD, WORKER], agent=Agent(name="top")) as session:
        await session.ask("Root")
        texts = {
            path: [text for kind, text in typed_texts(run_of(session, path).context.history) if kind == "tool"]
            for path in ("one", "two", "outsider")
        }

    assert "make the plan your answer" in texts["one"][0]
    assert "unknown request 'mail-1'" in texts["one"][1]
    assert texts["two"] == ["main/boss/one had finished; it continues with your message in the background."]
    assert "peers that main/boss leads" in texts["outsider"][0]
    assert "no tool named 'SubmitPlan'" in texts["outsider"][1]


def test_a_function_leads_no_peers() -> None:
    """Peers need a lead with a model, which can read their plans."""
    with pytest.raises(InvalidValue, match="without a model"):
        Agent(name="lead", peers=True, function=print)
