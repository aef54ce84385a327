"""A dialogue with a real client of a provider is recorded, and replayed without the provider."""

from __future__ import annotations

import base64
import json
import os
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage

from ramet import Agent, AgentRuntime, Result, Session
from ramet.core.errors import Damaged, InvalidValue, ModelFailed
from ramet.core.events import MessageDiscarded, ModelRetried
from ramet.models.rate_limit import RetryPolicy
from ramet.testing import RequestNotRecorded, ScriptedModel, assert_called, record_to, replay_from
from tests.support.providers import Call, Cut, Fail, Step, provider

KEY = "sk-ant-api03-Zq7/LoremIpsum+0123456789"
SCOUT = Agent(name="scout", instructions="You are a scout.")


async def converse(model: object, prompts: Sequence[str] = ("Go.",)) -> tuple[list[object], list[Result]]:
    """Return the texts and the kinds of events of a conversation with an agent that may spawn one, and its results."""
    items: list[object] = []
    results: list[Result] = []
    async with (
        AgentRuntime(retry=RetryPolicy(base_s=0.001, max_s=0.001)) as runtime,
        Session(model, agents=[SCOUT], runtime=runtime) as session,  # type: ignore[arg-type]  # any chat model
    ):
        for prompt in prompts:
            async for item in session.submit_message(prompt):
                items.append(item.text if isinstance(item, AIMessageChunk) else type(item))
            assert session.result is not None
            results.append(session.result)
    return items, results


@pytest.mark.parametrize("client", ["anthropic", "openai"])
async def test_a_recorded_dialogue_is_replayed_without_the_provider(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, tool calls, usage, a refusal and a cut stream come back as they were; no key is in the file.

    The key comes in the text of an error, in a prompt, and in base64 inside arguments that are cut. A folder of the
    first run, which is in a prompt and in arguments, is another one in the second run.
    """
    folder, other_folder = str(tmp_path), "/a/folder/of/another/run"
    file = tmp_path / "recordings" / "dialogue.jsonl"
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    script: dict[str, list[Step]] = {
        "You are a scout": ["Nothing is here."],
        "": [
            Fail(429, retry_after_s=0.001),
            Call("Agent", {"subagent_type": "scout", "prompt": f"Look into {folder}, with {basic}."}),
            Cut(9, text="One, two, three."),
            "It found nothing.",
            Fail(f"the key {KEY} is no good"),
        ],
    }
    prompts = (f"Go to {folder}.", f"Again, with {KEY}.")
    async with provider(script) as server:
        model = record_to(file, getattr(server, client)(api_key=KEY), replace={folder: "/project"})
        recorded = await converse(model, prompts)
        requests = server.count

    monkeypatch.setenv("USED_API_KEY", KEY)  # The replayed prompt has the key, which is masked here, too.
    replay = replay_from(file, replace={other_folder: "/project"})
    replayed = await converse(replay, [prompt.replace(folder, other_folder) for prompt in prompts])
    replay.assert_all_played()

    assert len(file.read_text().splitlines()) == 1 + requests
    assert replayed[0] == recorded[0]
    assert {ModelRetried, MessageDiscarded} <= set(replayed[0])
    assert [result.status for result in replayed[1]] == ["completed", "failed"]
    for new, old in zip(replayed[1], recorded[1], strict=True):
        assert (new.value, new.status, new.usage_subtree) == (old.value, old.status, old.usage_subtree)
    text = file.read_text()
    assert folder not in text
    for masked in ("the key *** is no good", "Again, with ***.", "Look into /project, with dXNlcjp***Q==."):
        assert masked in text
    for form in (KEY, KEY[5:30], json.dumps(KEY)[1:-1], basic, basic[8:40], KEY.encode().hex()):
        assert form not in text
    assert "authorization" not in text.lower()
    assert "x-api-key" not in text.lower()


async def test_a_request_that_was_not_recorded_fails_with_the_difference(tmp_path: Path) -> None:
    """A replay never asks the provider: it names the lines that differ, and what did not come."""
    file = tmp_path / "short.jsonl"
    async with provider(["First.", "Second."]) as server:
        await converse(record_to(file, server.anthropic()), ("One.\nSame.", "Two."))
        sent = server.count

        replay = replay_from(file)
        with pytest.raises(AssertionError, match=r"2 of 2 requests in short\.jsonl did not come"):
            replay.assert_all_played()
        _, (first, second) = await converse(replay, ("One.\nSame.", "Three."))
        assert server.count == sent

    assert first.value == "First."
    assert second.error is not None
    assert second.error.type == "RequestNotRecorded"
    assert second.error.message.splitlines() == [
        f"{replay.model_name}: short.jsonl has no such request:",
        "equal messages before these lines: 2",
        "--- request 2 of 2 in the recording",
        "+++ this request",
        " tools: Agent, ListAgents, SendMessage, TaskOutput, TaskStop",
        "- human: Two.",
        "+ human: Three.",
    ]
    with pytest.raises(AssertionError, match=r"short\.jsonl has no such request(.|\n)*\+ human: Three\."):
        replay.assert_all_played()
    with pytest.raises(RequestNotRecorded, match="tools: none"):
        await replay_from(file).ainvoke("One.\nSame.")  # It was sent with tools.
    only = replay_from(file)
    await converse(only, ("One.\nSame.",))
    with pytest.raises(RequestNotRecorded):
        only.invoke("Two.")


async def test_models_that_do_not_stream_and_synchronous_calls_are_recorded_too(tmp_path: Path) -> None:
    """A complete reply is recorded as a message; equal requests get their replies in the recorded order."""
    file = tmp_path / "whole.jsonl"
    async with provider(["One.", "Two.", Fail(401)]) as server:
        model = record_to(file, server.openai(disable_streaming=True, include_response_headers=True))
        assert (await model.ainvoke("Next?")).text == "One."
        assert [chunk.text async for chunk in model.astream("Next?")] == ["Two."]
        with pytest.raises(ModelFailed, match="401"):
            await model.ainvoke([HumanMessage("Next?")])
        with pytest.raises(InvalidValue, match="tool_choice"):
            model.bind_tools([], tool_choice="any")
        file.write_text(file.read_text() + "\n")
        with pytest.raises(InvalidValue, match="nobody else writes to"):
            await model.ainvoke("Once more?")

    assert '"headers"' not in file.read_text()
    file.write_text(file.read_text().rstrip() + "\n")
    replay = replay_from(file)
    assert replay.invoke("Next?").text == "One."
    assert [chunk.text async for chunk in replay.astream("Next?")] == ["Two."]
    with pytest.raises(ModelFailed, match="401") as failure:
        await replay.ainvoke("Next?")
    assert (failure.value.status, failure.value.retryable) == (401, False)
    with pytest.raises(RequestNotRecorded, match="request 1 is the same, but its reply was played already"):
        await replay.ainvoke("Next?")


HEADER = '{"format":"ramet-recording","version":1}\n'
REQUEST = '{"request":{"model":"m","messages":[{"type":"human","content":"Hi."}]},"reply":{%s}}\n'


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InvalidValue, "whose first line names 'ramet-recording'"),
        ('{"format":"ramet-recording","version":2}\n', InvalidValue, "'ramet-recording 2' is not accepted"),
        (HEADER + "{}\n", Damaged, "line 2"),
        (HEADER + REQUEST.replace('"model"', '"after":1,"model"') % "", Damaged, "line 2: no request 1 is above it"),
        (HEADER + REQUEST % '"command":"rm"', Damaged, "unknown field `command`"),
        (HEADER + REQUEST % '"chunks":[{"content":"a","lc":1}]', Damaged, "fields \\['lc'\\]"),
        (HEADER + REQUEST % '"chunks":[{"content":7}]', Damaged, "a reply that is none"),
        (HEADER + REQUEST % '"message":{"type":"tool","content":"a"}', Damaged, "a reply that is none"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(
    text: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    """A file of another version, or a line that nobody wrote, is refused by name and line."""
    file = tmp_path / "broken.jsonl"
    file.write_text(text)

    with pytest.raises(error, match=message):
        replay_from(file).invoke("Hi.")


def test_a_recording_is_a_regular_file_of_bounded_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is not waited for, a device not read, and lines without number take no memory."""
    pipe, long, link = tmp_path / "pipe", tmp_path / "long.jsonl", tmp_path / "link.jsonl"
    os.mkfifo(pipe)
    long.write_text(HEADER + "{}\n" * 1_000_000)
    monkeypatch.setattr("ramet.testing.recordings.recording_file.MAX_BYTES", 4_000_000)
    for file in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(InvalidValue, match="it is not a regular file"):
            replay_from(file)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidValue, match="at most 10,000 requests"):
            replay_from(long)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()

    long.write_text(HEADER + (REQUEST % '"chunks":[{"content":"a"}]').replace("\n", "\r\n"))
    link.symlink_to(long)
    assert replay_from(link).invoke("Hi.").text == "a"


async def test_tools_of_a_replay_work_in_the_folder_of_its_run(tmp_path: Path) -> None:
    """An agent is told its folder, and a recorded call names a file there: both are those of the replay's own run."""
    first, second = tmp_path / "first", tmp_path / "second"
    script: list[Step] = [Call("Read", {"file_path": str(first / "app.log")}), lambda messages: messages[-1].text]
    values = []
    for folder in (first, second):
        folder.mkdir()
        (folder / "app.log").write_text("timeout after 3000 ms")
        replace = {str(folder): "/project"}
        make = replay_from if folder == second else partial(record_to, model=ScriptedModel(script))
        async with Session(make(tmp_path / "log.jsonl", replace=replace), ["Read"], cwd=folder) as session:
            values.append((await session.ask("What happened?")).value)
        assert_called(session, "Read", file_path=str(folder / "app.log"))

    assert "timeout after 3000 ms" in values[0]
    assert values[1] == values[0]


def test_texts_and_their_stand_ins_are_pairs(tmp_path: Path) -> None:
    """A stand-in of two texts could not be turned back; an empty text is everywhere."""
    for replace in ({"/a": "/x", "/b": "/x"}, {"": "/x"}, {"/a": ""}):
        with pytest.raises(InvalidValue, match="replace"):
            record_to(tmp_path / "never.jsonl", ScriptedModel([]), replace=replace)
    assert not (tmp_path / "never.jsonl").exists()
