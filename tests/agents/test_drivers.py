"""The drivers of ramet with each program, against a scripted model server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from ramet.core.errors import BudgetExceeded, TaskFailed
from ramet.guest.external.program_host import Permission
from ramet.guest.external.run_program import drive_program
from ramet.wire.external_program import HOME_FOLDER, PermissionMode, ProgramStart
from tests.agents.scripts import ANSWERS, SPEAKS_ACP, TITLES, each, turns, write_call
from tests.support.agent_programs import Program
from tests.support.providers import Fail, Hang, Provider, Script, Step, provider
from tests.support.recording_host import RecordingHost

REPLY = "The file is written."
#: Arguments by which a program answers one prompt in lines of JSON.
STREAMS = {
    "claude-code": ("-p", "--output-format", "stream-json", "--verbose", "--allowedTools=Write", "--", "${prompt}"),
    "codex": ("exec", "--json", "--skip-git-repo-check", "--", "${prompt}"),
    "gemini-cli": ("-m", "gemini-2.5-pro", "--output-format", "stream-json", "--yolo", "--prompt=${prompt}"),
    "opencode": ("run", "--format", "json", "--", "${prompt}"),
}


def acp_start(program: Program, server: Provider, prompt: str, mode: PermissionMode = "ask") -> ProgramStart:
    """Return the description of a program that speaks ACP with us, and asks this model server."""
    assert program.acp is not None
    return ProgramStart(
        command=(*program.command, *program.acp),
        protocol="acp",
        prompt=prompt,
        env=_env(program, server),
        files=program.configuration(server.url),
        permission_mode=mode,
    )


def stream_start(program: Program, server: Provider, prompt: str) -> ProgramStart:
    """Return the description of a program that answers one prompt in lines of JSON."""
    files = program.configuration(server.url)
    if program.name == "opencode":
        settings = json.loads(files[".config/opencode/opencode.json"])
        del settings["permission"]
        files[".config/opencode/opencode.json"] = json.dumps(settings)
    return ProgramStart(
        command=(*program.command, *STREAMS[program.name]),
        protocol="stream-json",
        prompt=prompt,
        env=_env(program, server),
        files=files,
    )


def _env(program: Program, server: Provider) -> dict[str, str]:
    nowhere = "http://127.0.0.1:9"  # Programs look for updates and plugins: in tests they find nobody.
    proxies = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "npm_config_registry": nowhere}
    return {**proxies, "TERM": "xterm-256color", "NO_COLOR": "1", **program.environment, **program.address(server.url)}


@asynccontextmanager
async def asked(**prompts: list[Step]) -> AsyncIterator[Provider]:
    """Serve the steps of each prompt that has the word before them, as `[word]`."""
    script: Script = {**TITLES, **{f"[{word}]": steps for word, steps in prompts.items()}}
    async with provider(script) as server:
        yield server


async def drive(start: ProgramStart, host: RecordingHost, folder: Path) -> str:
    return await drive_program(start, host, workspace=folder, values={})


def processes_of(home: Path) -> list[int]:
    """Return the living processes whose home is this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@each(SPEAKS_ACP)
async def test_a_call_that_the_host_allows_is_done(program: Program, folder: Path) -> None:
    """The call begins once, is asked about with the path of its file, and ends; the reply is the last text."""
    note = folder / "note.txt"
    host = RecordingHost()
    async with asked(write=[write_call(program.name, note, "hello"), REPLY]) as server:
        text = await drive(acp_start(program, server, "Please [write]."), host, folder)

        assert (text, note.read_text()) == (REPLY, "hello")
        assert REPLY in host.text
        assert [status for _, status in host.tools] == ["ok"]
        assert host.questions
        assert all("note.txt" in str(question.args) for question in host.questions)
        assert len(turns(server.requests)) == 2
    assert not processes_of(folder / HOME_FOLDER)


@each(SPEAKS_ACP)
async def test_a_denied_call_is_not_done_and_the_program_goes_on(program: Program, folder: Path) -> None:
    """A program whose turn ends with the denial gets the reason as its next prompt; the others go on at once."""
    note = folder / "note.txt"
    host = RecordingHost(decide=lambda _: Permission(False, "not on a Sunday"))
    script: dict[str, list[Step]] = {
        "write": [write_call(program.name, note, "hello"), "As you like."],
        "denied": ["As you like."],
    }
    async with asked(**script) as server:
        text = await drive(acp_start(program, server, "Please [write]."), host, folder)

        assert text == "As you like."
        assert not note.exists()
        assert [status for _, status in host.tools] == ["denied"]
        is_told = "not on a Sunday" in str(turns(server.requests)[-1].body)
        assert is_told == (program.name in ("codex-acp", "opencode"))


@each(SPEAKS_ACP)
async def test_a_run_without_questions_asks_nobody(program: Program, folder: Path) -> None:
    """Where the sandbox alone decides, a question is answered by the driver."""
    note = folder / "note.txt"
    host = RecordingHost()
    async with asked(write=[write_call(program.name, note, "hello"), REPLY]) as server:
        await drive(acp_start(program, server, "Please [write].", "allow"), host, folder)

    assert note.exists()
    assert not host.questions


@each(SPEAKS_ACP)
async def test_a_cancelled_driver_leaves_no_process(program: Program, folder: Path) -> None:
    """In the middle of a reply the turn, its request and every process of the program end."""
    host = RecordingHost()
    async with asked(recite=[Hang(12, text="A long reply without an end.")]) as server:
        driving = asyncio.ensure_future(drive(acp_start(program, server, "Please [recite]."), host, folder))
        await host.until(lambda: "A long" in host.text)

        driving.cancel()
        await asyncio.wait({driving})

        assert driving.cancelled()
        await server.client_left.wait()
    assert not processes_of(folder / HOME_FOLDER)


@each(SPEAKS_ACP)
async def test_a_call_beyond_the_budget_ends_the_run(program: Program, folder: Path) -> None:
    """The call is not done, and the refusal of the host is the error of the run."""
    note = folder / "note.txt"
    refusal = BudgetExceeded("tool_calls", asked=1, left=0, scope="main")
    host = RecordingHost(refusal=refusal, max_calls=0)
    async with asked(write=[write_call(program.name, note, "hello"), REPLY]) as server:
        with pytest.raises(BudgetExceeded):
            await drive(acp_start(program, server, "Please [write]."), host, folder)

    assert not note.exists()
    assert not processes_of(folder / HOME_FOLDER)


@each(SPEAKS_ACP)
async def test_mail_is_a_further_prompt_of_the_same_session(program: Program, folder: Path) -> None:
    """The model sees the first prompt together with the second, and the last reply counts."""
    host = RecordingHost(mails=["Please [recall] the word."])
    async with asked(note=["It is noted."], recall=["The word was sorrel."]) as server:
        text = await drive(acp_start(program, server, "Please [note] the word sorrel."), host, folder)

        assert text == "The word was sorrel."
        assert "sorrel" in str(turns(server.requests)[-1].body)


@each(SPEAKS_ACP)
async def test_a_killed_program_goes_on_with_its_session(program: Program, folder: Path) -> None:
    """After SIGKILL another process loads the session; the model sees what was said, and nothing is reported again."""
    first, second = RecordingHost(mails=["Please [wait]."]), RecordingHost()
    note = folder / "note.txt"
    steps: list[Step] = [write_call(program.name, note, "sorrel"), "It is noted."]
    hang = Hang(5, text="Wait a moment.")
    # A prompt that follows an unfinished one is one message with it: the word of the last one is looked for first.
    async with asked(recall=["The word was sorrel."], wait=[hang], note=steps) as server:
        driving = asyncio.ensure_future(
            drive(acp_start(program, server, "Please [note] sorrel.", "allow"), first, folder)
        )
        await first.until(lambda: "Wait" in first.text)
        for pid in processes_of(folder / HOME_FOLDER):
            with contextlib.suppress(ProcessLookupError):  # The end of the first one may have ended it.
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(TaskFailed, match="SIGKILL"):
            await driving

        second.session = first.session
        text = await drive(acp_start(program, server, "Please [recall] the word."), second, folder)

        assert text == "The word was sorrel."
        assert "It is noted." in str(turns(server.requests)[-1].body)
        assert not second.calls


@each(SPEAKS_ACP)
async def test_an_unknown_session_begins_anew(program: Program, folder: Path) -> None:
    """A program that has lost its session gets the prompt in a new one, whose id is saved."""
    host = RecordingHost(session="01234567-89ab-4def-8123-456789abcdef")
    async with asked(hello=["Hello."]) as server:
        text = await drive(acp_start(program, server, "Say [hello]."), host, folder)

    assert text == "Hello."
    assert host.session not in (None, "01234567-89ab-4def-8123-456789abcdef")


@each(SPEAKS_ACP)
async def test_a_refused_request_to_the_model_fails_the_run(program: Program, folder: Path) -> None:
    """The error says what the model's server said."""
    async with provider(lambda _: Fail(402)) as server:
        server.failure_headers = {"x-should-retry": "false"}
        with pytest.raises(TaskFailed, match="402"):
            await drive(acp_start(program, server, "What is the answer?"), RecordingHost(), folder)


@each(ANSWERS)
async def test_lines_of_json_are_calls_and_a_reply(program: Program, folder: Path) -> None:
    """A program that answers one prompt reports its call, its end and its last text."""
    note = folder / "note.txt"
    host = RecordingHost()
    async with asked(write=[write_call(program.name, note, "hello"), REPLY]) as server:
        text = await drive(stream_start(program, server, "Please [write]."), host, folder)

    assert (text, note.read_text()) == (REPLY, "hello")
    assert [status for _, status in host.tools] == ["ok"]
    assert "note.txt" in str(next(iter(host.calls.values())).args)
    assert not processes_of(folder / HOME_FOLDER)


@each(ANSWERS)
async def test_lines_of_json_say_why_a_program_failed(program: Program, folder: Path) -> None:
    """A refusal of the model's server is an error with the program's own words."""
    async with provider(lambda _: Fail(402)) as server:
        server.failure_headers = {"x-should-retry": "false"}
        with pytest.raises(TaskFailed, match="402"):
            await drive(stream_start(program, server, "What is the answer?"), RecordingHost(), folder)
