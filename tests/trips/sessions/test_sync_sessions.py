"""A session for programs without an event loop."""

from __future__ import annotations

import pathlib
import threading
from contextlib import closing
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from ramet import AgentRuntime, SyncSession
from ramet.core.errors import BusyError, InvalidValue, RametError
from ramet.core.outcome import Status
from ramet.models.scripted.model import Call, ScriptedModel


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_program_without_an_event_loop_talks_with_an_agent(tmp_path: pathlib.Path) -> None:
    """The program asks, streams, and resumes later. No thread is left in the end."""
    threads = threading.active_count()
    model = ScriptedModel([[Call("add", {"a": 2, "b": 3})], "It is 5.", "Bye."])
    with SyncSession(model, [add], cwd=tmp_path, session_id="chat") as session:
        assert session.ask("What is 2 + 3?").value == "It is 5."
        text = "".join(str(each.text) for each in session.submit_message("Bye") if isinstance(each, AIMessageChunk))
        assert text == "Bye."
        assert session.result is not None
        assert (session.result.status, len(session.messages), session.usage.model_calls) == (Status.COMPLETED, 6, 3)
    assert threading.active_count() == threads

    with SyncSession.resume("chat", ScriptedModel(["Hello again."]), [add], cwd=tmp_path) as session:
        assert session.ask("Hello").value == "Hello again."


def test_leaving_the_stream_early_interrupts_the_turn() -> None:
    """The next prompt is answered."""
    with SyncSession(ScriptedModel(["one two three", "four"])) as session:
        with closing(session.submit_message("Count.")) as items:
            for _ in items:
                break
        assert session.result is not None
        assert session.ask("On.").value == "four"


def test_a_sync_session_takes_the_options_of_a_session(tmp_path: pathlib.Path) -> None:
    """The errors are those of a session, too, and leave no thread behind."""
    threads = threading.active_count()
    options: dict[str, Any]
    for options, error in (
        ({"cwd": tmp_path / "none"}, InvalidValue),
        ({"session_id": ""}, InvalidValue),
        ({"tools": [object()]}, InvalidValue),
        ({"no_such_option": 1}, TypeError),
    ):
        with pytest.raises(error):
            SyncSession(ScriptedModel([]), **options)
    assert threading.active_count() == threads
    with SyncSession(ScriptedModel(["ok"]), cwd=tmp_path, backend="local") as session:
        assert session.ask("go").value == "ok"


def test_sync_sessions_can_share_a_runtime(tmp_path: pathlib.Path) -> None:
    """The runtime was started without an event loop, too."""
    runtime = AgentRuntime(tmp_path).start_sync()
    with SyncSession(ScriptedModel(["one"]), runtime=runtime, session_id="a") as first:
        with pytest.raises(BusyError):
            SyncSession(ScriptedModel([]), runtime=runtime, session_id="a")
        with SyncSession(ScriptedModel(["two"]), runtime=runtime, session_id="b") as second:
            assert (first.ask("go").value, second.ask("go").value) == ("one", "two")
        with SyncSession.resume("b", ScriptedModel(["three"]), runtime=runtime) as third:  # It was closed on leaving.
            assert third.ask("go").value == "three"
    runtime.stop_sync()


async def test_a_sync_session_is_refused_inside_an_event_loop() -> None:
    """A blocking session would stop the loop."""
    with pytest.raises(RametError, match="event loop"):
        SyncSession(ScriptedModel([]))
