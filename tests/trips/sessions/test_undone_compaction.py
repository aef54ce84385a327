"""A compaction is recorded and can be undone: the originals stay in the journal."""

from __future__ import annotations

import pathlib

from ramet import AgentRuntime, ScriptedModel, Session
from ramet.agent.history.compaction import Compaction
from ramet.core.events import Compacted
from tests.trips.kits.sessions import of_kind, session_events


async def test_a_fork_before_a_compaction_has_the_whole_conversation(tmp_path: pathlib.Path) -> None:
    """Another kernel makes the fork; the shortened conversation goes on unchanged beside it."""
    long = "word " * 400
    compaction = Compaction(window_tokens=1_200, keep_last=1)
    async with AgentRuntime(tmp_path) as runtime:
        model = ScriptedModel([long, long, "A summary of it all.", "Still here."])
        async with Session(model, runtime=runtime, session_id="long", compaction=compaction) as session:
            for prompt in ("First.", "Second.", "Third."):
                await session.ask(prompt)
            (compacted,) = of_kind(session_events(session), Compacted)
            shortened = [each.text for each in session.messages]
    assert "A summary of it all." in compacted.summary
    assert compacted.before_messages > compacted.after_messages

    async with AgentRuntime(tmp_path) as runtime:
        model = ScriptedModel(["As before.", "And on."])
        async with await Session.fork(
            compacted.root, model, runtime=runtime, at=compacted.seq - 1, session_id="whole"
        ) as whole:
            assert [each.text for each in whole.messages] == ["First.", long, "Second.", long, "Third."]
        async with await Session.resume("long", model, runtime=runtime) as session:
            assert [each.text for each in session.messages] == shortened
