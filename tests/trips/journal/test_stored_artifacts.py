"""Artifacts of tools as bytes: the store keeps them over a restart, and removes them with their last tree."""

from __future__ import annotations

import hashlib
import pathlib
from datetime import UTC, datetime, timedelta

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool

from ramet import AgentRuntime, ScriptedModel, Session
from ramet.core.errors import Unknown
from ramet.host.journal.blobs import BLOB_OF, remove_blobs, store_blob
from ramet.host.retention.sweep import sweep
from ramet.models.scripted.dialogue import Call
from ramet.store.sqlite.store import SqliteStore

PICTURE = bytes(range(256)) * 1000
NAME = hashlib.sha256(b"\0" + PICTURE).hexdigest()


@tool(response_format="content_and_artifact")
def draw() -> tuple[str, bytes]:
    """Draw a picture."""
    return "drawn", PICTURE


async def draw_in_session(runtime: AgentRuntime, name: str) -> ToolMessage:
    """Return the answer of the tool, in a session of its own."""
    async with Session(ScriptedModel([Call("draw"), "done"]), [draw], runtime=runtime, session_id=name) as session:
        await session.ask("Draw")
        (answer,) = [each for each in session.messages if isinstance(each, ToolMessage)]
    return answer


async def test_an_artifact_survives_a_restart_and_goes_with_its_last_tree(tmp_path: pathlib.Path) -> None:
    """The message has the tool's own bytes; the journal has their hash, and the store has them once."""
    async with AgentRuntime(tmp_path) as runtime:
        first = await draw_in_session(runtime, "first")
        await draw_in_session(runtime, "second")
    assert (first.content, first.artifact) == ("drawn", PICTURE)
    assert first.response_metadata["artifact"] == {"blob": NAME, "bytes": len(PICTURE)}

    async with AgentRuntime(tmp_path) as runtime:
        assert await runtime.blob(NAME) == PICTURE
        with pytest.raises(Unknown, match="blob"):
            await runtime.blob("0" * 64)

    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    try:
        results = [each.data for each in await store.read() if b'"tool_call_id"' in each.data]
        assert [NAME.encode() in data for data in results] == [True, True]
        roots = sorted({each.tree for each in await store.read()})
        assert len(await store.list(BLOB_OF)) == 2
        soon = datetime.now(UTC) + timedelta(hours=1)

        await sweep(store, tmp_path, before=soon, keep=roots[1:])
        assert [list(await store.list_blobs()), len(await store.list(BLOB_OF))] == [[NAME], 1]
        await sweep(store, tmp_path, before=soon)
        assert (list(await store.list_blobs()), await store.list(BLOB_OF)) == ([], [])
    finally:
        await store.close()


async def test_removing_an_artifact_keeps_an_equal_value_of_a_state(tmp_path: pathlib.Path) -> None:
    """A blob that a state holds too stays in the store after its tree is removed, and is then no artifact."""
    value = ["x" * 1000]
    async with AgentRuntime(tmp_path) as runtime:
        state = await runtime.state("notes")
        state.set("kept", value)
        await state.commit()
        store = await runtime.open_store()
        blobs = set(await store.list_blobs())
        for name in list(blobs):
            blob = await store.get_blob(name)
            assert blob is not None
            await store_blob(store, "run-1", blob)
        assert await remove_blobs(store, "run-1") == len(blobs)

        assert set(await store.list_blobs()) == blobs
        assert (await runtime.state("notes")).get("kept") == value
        for name in blobs:
            with pytest.raises(Unknown):
                await runtime.blob(name)


async def test_without_a_store_an_artifact_lasts_as_long_as_its_tree(tmp_path: pathlib.Path) -> None:
    """The message has the tool's bytes and names a blob, which is gone with the session."""
    async with AgentRuntime() as runtime:
        answer = await draw_in_session(runtime, "alone")
        with pytest.raises(Unknown):
            await runtime.blob(NAME)

    assert (answer.artifact, "artifact" in answer.response_metadata) == (PICTURE, True)
