"""Mail whose sender asks that equal messages within a window be delivered once."""

from __future__ import annotations

import math
import pathlib

import pytest

from ramet import AGENT_REGISTRY, Agent, AgentRuntime, Policy, Session, SpawnRequest
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue
from ramet.core.events import MailPushed
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.trips.agents import isolated as agents
from tests.trips.kits.sessions import answers, of_kind, run_of, session_events, typed_texts


def _pushed_texts(session: Session) -> list[str]:
    return [each.text for each in of_kind(session_events(session), MailPushed)]


async def test_an_equal_message_within_the_window_is_delivered_once() -> None:
    """A message with another text, without `dedupe_s`, or from another sender is delivered, too."""
    async with Session(ScriptedModel(["Ready."] + ["Yes."] * 9)) as session:
        await session.ask("Go.")
        root = session.handle("main")

        first = root.send("ping", dedupe_s=60)
        repeated_delivery = root.send("ping", dedupe_s=60)
        root.send("pong", dedupe_s=60)
        root.send("ping")
        session.send("ping", dedupe_s=60)
        AGENT_REGISTRY.push(session.id, "ping", sender="main/other", dedupe_s=60)

        assert "Delivered to main" in first
        assert repeated_delivery == "Not delivered again: main got the same message as mail-1 less than 60 s ago."
        assert _pushed_texts(session) == ["ping", "pong", "ping", "ping"]


async def test_an_equal_message_after_the_window_is_delivered() -> None:
    """The window begins at the newest delivery."""
    clock = FakeClock()
    async with AgentRuntime(clock=clock) as runtime:
        session = Session(ScriptedModel(["Ready."] + ["Yes."] * 9), runtime=runtime)
        await session.ask("Go.")
        for seconds in (0, 9, 2, 9, 2):
            await clock.advance(seconds)
            session.send("ping", dedupe_s=10)

        assert len(_pushed_texts(session)) == 3


async def test_an_equal_message_does_not_wake_a_finished_agent() -> None:
    """A message that is not delivered changes nothing."""
    model = ScriptedModel({"Look.": ["seen", "seen again"]})
    async with AgentRuntime() as runtime:
        session = await Session(model, runtime=runtime).start()
        handle = await session.spawn(SpawnRequest(prompt="Look.", name="scout", mode="fresh"))
        await handle.result()
        handle.send("More?", dedupe_s=60)
        assert (await handle.result()).value == "seen again"

        handle.send("More?", dedupe_s=60)

        assert handle.view().state == "completed"
        await session.close()


async def test_an_equal_message_is_known_after_a_restart() -> None:
    """A message that another process delivered counts as delivered."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        session = Session(ScriptedModel(["Ready.", "Yes."]), runtime=runtime, session_id="talk")
        await session.ask("Go.")
        session.send("ping")
        await session.wait_for_turn()
    cut_store = await cut_behind(store, lambda event: isinstance(event, MailPushed))
    model = ScriptedModel(["Yes."] * 3)
    async with AgentRuntime(store=cut_store) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)

        session.send("ping", dedupe_s=3600)
        await session.wait_for_turn()

        assert [text for role, text in typed_texts(session.messages) if role == "human" and "ping" in text] == ["ping"]


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, 10**400, "60", True])
async def test_an_invalid_window_is_refused(wrong: object) -> None:
    """The error names the field, the value, and the accepted values."""
    async with Session(ScriptedModel(["Ready."])) as session:
        await session.ask("Go.")

        with pytest.raises(InvalidValue, match=r"dedupe_s: .* is not accepted; expected seconds above 0, or None"):
            session.send("ping", dedupe_s=wrong)  # type: ignore[arg-type]  # the act under test

        assert _pushed_texts(session) == []


@pytest.mark.parametrize("policy", [None, Policy()], ids=["host", "sandbox"])
async def test_send_message_with_dedupe_s_delivers_an_equal_message_once(
    tmp_path: pathlib.Path, policy: Policy | None
) -> None:
    """The answer to the second call of SendMessage says that nothing was delivered. A window of 0 is refused."""
    ping = {"to": "main", "message": "ping"}
    model = ScriptedModel(
        {
            "You write.": [
                *(Call("SendMessage", {**ping, "dedupe_s": 60}, id=f"call-{each}") for each in (1, 2)),
                Call("SendMessage", {**ping, "dedupe_s": 60, "notify_when_idle": True}, id="call-3"),
                Call("SendMessage", {**ping, "dedupe_s": 0}, id="call-4"),
                "written",
            ],
            "": ["Ready."] + ["Yes."] * 9,
        }
    )
    writer = Agent(name="writer", description="Writes.", instructions="You write.", policy=policy)
    async with Session(model, agents=[writer], cwd=tmp_path, backend="local") as session:
        await session.ask("Go.")
        handle = await session.spawn(SpawnRequest(prompt="Write.", name="scout", subagent_type="writer"))
        await handle.result()

        results = answers(run_of(session, "scout").context.history)
        refusal = "Not delivered again: main got the same message as mail-1 less than 60 s ago."
        assert results["call-1"].startswith("Delivered to main")
        assert results["call-2"] == refusal
        assert results["call-3"] == f"{refusal} You receive no idle notice for this message."
        assert "dedupe_s: 0" in results["call-4"]
        assert "expected seconds above 0, or None" in results["call-4"]
        assert [each.text for each in of_kind(session_events(session), MailPushed) if each.kind == "agent"] == ["ping"]


async def test_a_sandboxed_function_can_deduplicate_its_messages(tmp_path: pathlib.Path) -> None:
    """A function calls `send_message(..., dedupe_s=60)`. An invalid window is refused before anything is sent."""
    async with Session(ScriptedModel(["Ready."] + ["Yes."] * 9), cwd=tmp_path, backend="local") as session:
        await session.ask("Go.")
        arguments = ("main", "ping", [60, 60, None, "60"])
        handle = await session.spawn(SpawnRequest(agent=agents.send_again, args=arguments, policy=Policy()))
        first, second, third, fourth = (await handle.result()).value

        assert (first.startswith("Delivered to main"), third.startswith("Delivered to main")) == (True, True)
        assert second == "Not delivered again: main got the same message as mail-1 less than 60 s ago."
        assert fourth == "InvalidValue: dedupe_s: '60' is not accepted; expected seconds above 0, or None"
