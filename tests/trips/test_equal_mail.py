"""Mail whose sender asks that equal messages within a window be delivered once."""

from __future__ import annotations

import math

import pytest

from ramet import AGENT_REGISTRY, AgentRuntime, Session, SpawnRequest
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue
from ramet.core.events import MailPushed
from ramet.models.scripted import ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut import cut_behind
from tests.trips.kit import kept, of_kind, said


def _pushed(session: Session) -> list[str]:
    return [each.text for each in of_kind(kept(session), MailPushed)]


async def test_an_equal_message_within_the_window_is_delivered_once() -> None:
    """Another text is another message, and so is the same text without the wish, or of another sender."""
    async with Session(ScriptedModel(["Ready."] + ["Yes."] * 9)) as session:
        await session.ask("Go.")
        root = session.handle("main")

        first = root.send("ping", dedupe_s=60)
        again = root.send("ping", dedupe_s=60)
        root.send("pong", dedupe_s=60)
        root.send("ping")
        session.send("ping", dedupe_s=60)
        AGENT_REGISTRY.push(session.id, "ping", sender="main/other", dedupe_s=60)

        assert "Delivered to main" in first
        assert again == "Not delivered again: main got the same message as mail-1 less than 60 s ago."
        assert _pushed(session) == ["ping", "pong", "ping", "ping"]


async def test_an_equal_message_after_the_window_is_delivered() -> None:
    """The window is counted from the newest delivery."""
    clock = FakeClock()
    async with AgentRuntime(clock=clock) as runtime:
        session = Session(ScriptedModel(["Ready."] + ["Yes."] * 9), runtime=runtime)
        await session.ask("Go.")
        for seconds in (0, 9, 2, 9, 2):
            await clock.advance(seconds)
            session.send("ping", dedupe_s=10)

        assert len(_pushed(session)) == 3


async def test_an_equal_message_does_not_wake_an_agent_that_has_finished() -> None:
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
    """What another process delivered counts."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        session = Session(ScriptedModel(["Ready.", "Yes."]), runtime=runtime, session_id="talk")
        await session.ask("Go.")
        session.send("ping")
        await session.wait_for_turn()
    left = await cut_behind(store, lambda event: isinstance(event, MailPushed))
    model = ScriptedModel(["Yes."] * 3)
    async with AgentRuntime(store=left) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)

        session.send("ping", dedupe_s=3600)
        await session.wait_for_turn()

        assert [text for role, text in said(session.messages) if role == "human" and "ping" in text] == ["ping"]


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, 10**400, "60", True])
async def test_a_window_that_is_none_is_refused(wrong: object) -> None:
    """The error names the field, the value, and what would be taken."""
    async with Session(ScriptedModel(["Ready."])) as session:
        await session.ask("Go.")

        with pytest.raises(InvalidValue, match=r"dedupe_s: .* is not accepted; expected seconds above 0, or None"):
            session.send("ping", dedupe_s=wrong)  # type: ignore[arg-type]  # the act under test

        assert _pushed(session) == []
