"""The agent type "command": programs that fail in every way, in the host and in sandboxes, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest

from ramet import AgentRuntime, Limits, Policy
from ramet.core.errors import (
    Aborted,
    BusyError,
    InvalidValue,
    MailRefused,
    OutputTooLarge,
    RametError,
    SpawnRefused,
    TaskFailed,
    Unknown,
)
from ramet.services.agent_types.command.agent import CallProgram, Log
from ramet.services.agent_types.command.type import CommandInfo, CommandType
from ramet.services.contract import AgentSpec, Image, RunningAgent
from tests.support.waiting import alive, eventually, pid_in

Backend = Literal["bwrap", "local"]
PYTHON = "python3"
HERE = CommandType([PYTHON, "sh", "nowhere/to/be/found"])
ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = (ROOT / "tests" / "support" / "agent_types_program.py").read_text()
EXAMPLES = ROOT / "src" / "ramet" / "examples" / "commands"
READY = r"""printf '{"type":"ready"}\n'; """
everywhere = pytest.mark.parametrize("backend", [None, "local", "bwrap"], ids=["host", "local", "bwrap"])
twice = pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])


def request_body(text: str) -> bytes:
    """Return a request body that both formats accept."""
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


async def say(agent: RunningAgent, text: str) -> str:
    """Take one turn, and return its text."""
    chunks = [json.loads(chunk) async for chunk in agent.turn(request_body(text), "openai")]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks).strip()


async def failure_of(agent: RunningAgent, text: str) -> type[Exception] | None:
    """Return the type of the error of a failed turn, or None."""
    try:
        await say(agent, text)
    except RametError as problem:
        return type(problem)
    return None


def agent_spec(runtime: AgentRuntime, folder: pathlib.Path, backend: Backend | None, **more: Any) -> AgentSpec:
    """Return an AgentSpec as the service would make it. Other arguments go to `spawn_info`."""
    folder.mkdir(exist_ok=True)
    fields: dict[str, Any] = {"policy": Policy() if backend else None}
    fields |= {name: more.pop(name) for name in ("policy", "limits", "run", "image", "env") if name in more}
    info = CommandInfo(**more)
    return AgentSpec(id="a-1", name="ada", path="team/ada", info=info, runtime=runtime, folder=folder, **fields)


@asynccontextmanager
async def runtime_of(folder: pathlib.Path, backend: Backend | None) -> AsyncIterator[AgentRuntime]:
    """A started runtime, in which every tree has ended in the end."""
    async with AgentRuntime(folder, backend=backend, grace_s=0.1) as runtime:
        yield runtime
        await eventually(lambda: not runtime.trees)


@asynccontextmanager
async def open_agent(start: AgentSpec) -> AsyncIterator[RunningAgent]:
    """Check and open an agent, and close it in the end."""
    await HERE.check(start)
    agent = await HERE.open(start)
    try:
        yield agent
    finally:
        await agent.close("the test is over")


def sh(script: str) -> dict[str, Any]:
    """Return the arguments of a program in a shell."""
    return {"argv": ["sh", "-c", script]}


@everywhere
async def test_the_example_programs_are_agents(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """Each example works without ramet, in its own language."""
    answers = {("parrot.py", PYTHON): ["one.", "one. tür, two."], ("parrot.sh", "sh"): ["1: one", "2: tür, two"]}
    async with runtime_of(tmp_path, backend) as runtime:
        for (name, language), expected in answers.items():
            argv = [language, "-c", (EXAMPLES / name).read_text()]
            async with open_agent(agent_spec(runtime, tmp_path / name, backend, argv=argv)) as agent:
                assert [await say(agent, "one"), await say(agent, "tür, two")] == expected
                assert (await agent.history())[2] == {"role": "user", "content": "tür, two"}


async def test_a_daemon_that_holds_stdout_does_not_delay_the_end(tmp_path: pathlib.Path) -> None:
    """The daemon left everything that could identify it, so it survives, but the agent ends without waiting."""
    daemon = "echo $$ > pid; exec sleep 600"
    script = READY + f"env -i setsid -f sh -c '{daemon}'; while [ ! -s pid ]; do sleep 0.01; done; exec cat >&2"
    async with runtime_of(tmp_path, None) as runtime:
        async with open_agent(agent_spec(runtime, tmp_path / "ada", None, **sh(script))) as agent:
            await eventually(pid_in(tmp_path / "ada" / "pid"))
    pid = pid_in(tmp_path / "ada" / "pid")()
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    assert agent.end.result() is None


NEVER_READY: list[tuple[dict[str, Any], type[RametError], str]] = [
    ({"argv": ["nowhere/to/be/found"]}, InvalidValue, "No such file"),
    (sh("echo no chance >&2; exit 3"), SpawnRefused, "exit status 3; end of its stderr: no chance"),
    (sh("kill -9 $$"), SpawnRefused, "SIGKILL"),
    (sh("echo Loading; sleep 600"), SpawnRefused, "'Loading' arrived where a frame must begin"),
    (sh("""echo '{"type":"done","turn":1}'; sleep 600"""), SpawnRefused, "before its ready message"),
    (sh("head -c 100000 /dev/zero; sleep 600"), SpawnRefused, "no end of a line"),
    ({**sh("sleep 600 & sleep 600"), "start_s": 0.2}, SpawnRefused, r"within 0\.2 s"),
]


@twice
async def test_a_program_that_never_becomes_ready_is_refused(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """The error has the reason, and the program and its children are ended."""
    async with runtime_of(tmp_path, backend) as runtime:
        for program, error, reason in NEVER_READY:
            with pytest.raises(error, match=reason):
                await HERE.open(agent_spec(runtime, tmp_path / "ada", backend, **program))
            await eventually(lambda: not runtime.trees)
        if backend is not None:  # In the host nobody sees that.
            with pytest.raises(SpawnRefused, match="closed its stdout"):
                await HERE.open(agent_spec(runtime, tmp_path / "ada", backend, **sh("exec >&-; sleep 600")))


async def test_a_starting_server_does_not_wait_for_programs(tmp_path: pathlib.Path) -> None:
    """The server starts at once, and a turn of the agent waits until its program is ready."""
    slow = f"while ! [ -e {tmp_path}/there ]; do sleep 0.01; done; {READY}"
    answers = r"""while read -r told; do case $told in *'"turn"'*) printf '{"type":"done","turn":1}\n';; esac; done"""
    async with runtime_of(tmp_path, None) as runtime:
        start = agent_spec(runtime, tmp_path / "a", None, run="run-0", start_s=3600, **sh(slow + answers))
        async with open_agent(start) as agent:
            asking = asyncio.create_task(say(agent, "one"))
            await asyncio.sleep(0)
            (tmp_path / "there").touch()
            assert await asking == ""


@twice
async def test_a_program_that_is_not_ready_after_a_restart_fails_its_agent(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """The agent fails after `start_s`, and nothing of the program is left."""
    async with runtime_of(tmp_path, backend) as runtime:
        start = agent_spec(
            runtime, tmp_path / "a", backend, run="run-0", start_s=0.05, **sh("read line; exec sleep 60")
        )
        async with open_agent(start) as agent:
            with pytest.raises(TaskFailed, match="did not send its ready message"):
                await say(agent, "one")
            error = agent.end.result()
            assert error is not None
            assert "within 0.05 s" in error.message


async def test_a_file_that_is_not_executable_is_refused(tmp_path: pathlib.Path) -> None:
    """The file is in the agent's image. Once it is executable, the agent opens."""
    image = Image("sha-1", (tmp_path / "bundle",))
    image.folders[0].mkdir()
    (image.folders[0] / "tool").write_text("#!/bin/sh\n" + READY + "cat >/dev/null\n")
    async with runtime_of(tmp_path, "local") as runtime:
        start = agent_spec(runtime, tmp_path / "ada", "local", argv=["./tool"], in_image=True, image=image)
        with pytest.raises(InvalidValue, match="Permission denied"):
            await HERE.open(start)
        (image.folders[0] / "tool").chmod(0o755)
        async with open_agent(start):
            pass
        assert stat.S_ISREG((image.folders[0] / "tool").stat().st_mode)


async def test_an_invalid_command_is_refused_by_field(tmp_path: pathlib.Path) -> None:
    """The refusal comes before a process starts."""
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("argv", {"argv": []}),
        ("argv", {"argv": [""]}),
        ("argv", {"argv": ["a\0b"]}),
        ("argv", {"argv": ["x" * 200_000]}),
        ("argv", {"argv": ["rm", "-rf"], "policy": None}),
        ("cwd", {"argv": ["sh"], "cwd": "here"}),
        ("in_image", {"argv": ["sh"], "in_image": True}),
        ("start_s", {"argv": ["sh"], "start_s": 0}),
        ("formats", {"argv": ["sh"], "formats": ["a", "a"]}),
        ("formats", {"argv": ["sh"], "formats": ["A b"]}),
        ("env", {"argv": ["sh"], "policy": None, "env": {"A": "b"}}),
    ]
    async with runtime_of(tmp_path, "local") as runtime:
        for field, fields in wrong:
            with pytest.raises(InvalidValue, match=field):
                await HERE.check(agent_spec(runtime, tmp_path / "ada", "local", **fields))
    for bad in (b"{}", b'{"argv": "sh"}', b'{"argv": ["sh"], "shell": true}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(bad, type=CommandInfo)


GOES_WRONG = [
    ("echo too bad >&2; exit 4", "crashed", "exit status 4; end of its stderr: too bad"),
    ("kill -9 $$", "crashed", "SIGKILL"),
    ("echo oops; sleep 600", "cancelled", "'oops' arrived where a frame must begin"),
    ("""echo '{"type":"chunk","turn":1,"size":2000000}'; sleep 600""", "cancelled", "2000000 bytes; at most"),
    ("""echo '{"type":"chunk","turn":9}'; sleep 600""", "cancelled", "turn 9, which was never requested"),
    ("""printf '{"type":"chunk","turn":1,"size":9}\nhalf'; exit""", "c", "middle of a frame"),  # It ends, or is ended.
]


@twice
async def test_a_program_that_breaks_in_a_turn_fails_its_agent(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """The errors of turn and agent have the reason. The agent takes no more turns, and nothing is left."""
    async with runtime_of(tmp_path, backend) as runtime:
        for answer, status, reason in GOES_WRONG:
            script = READY + f"read -r line; read -r line; {answer}"
            async with open_agent(agent_spec(runtime, tmp_path / "ada", backend, **sh(script))) as agent:
                with pytest.raises(TaskFailed, match=reason) as failure:
                    await say(agent, "hi")
                assert failure.value.status.startswith(status)
                assert failure.value.run == agent.run
                error = await agent.end
                assert error is not None
                assert await failure_of(agent, "again") is RametError
                with pytest.raises(MailRefused):
                    await agent.mail("hello")
                await eventually(lambda: not runtime.trees)


@twice
async def test_a_turn_of_a_silent_program_times_out(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """A turn ends at its time limit, or when its reader leaves.

    Unread input fills up, and further turns raise BusyError.
    """
    script = READY + "sleep 600"
    async with runtime_of(tmp_path, backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", backend, **sh(script), limits=Limits(seconds=0.1))
        async with open_agent(start) as agent:
            with pytest.raises(TaskFailed, match=r"its time of 0\.1 s") as failure:
                await say(agent, "hi")
            assert failure.value.status == "timeout"
            answer = agent.turn(request_body("and now"), "openai")
            await anext(answer)
            await agent.interrupt()
            await answer.aclose()  # type: ignore[attr-defined]  # as a conversation does that has lost its patience
            failures = [await failure_of(agent, "x" * 8_000_000) for _ in range(5)]
            assert failures == [TaskFailed] * 4 + [BusyError], "what it has not read takes room here"
            assert not agent.end.done()


async def test_late_output_of_an_abandoned_turn_is_dropped(tmp_path: pathlib.Path) -> None:
    """The next turn gets its own answer. An interrupted turn raises Aborted, even if the program says done."""
    program = PROGRAM.replace(
        'case "interrupt":', 'case "interrupt":\n            say("chunk", b"LATE ", turn=message["turn"])'
    )
    async with runtime_of(tmp_path, "local") as runtime:
        async with open_agent(agent_spec(runtime, tmp_path / "ada", "local", argv=[PYTHON, "-c", program])) as agent:
            answer = agent.turn(request_body("hang"), "openai")
            await anext(answer)
            await answer.aclose()  # type: ignore[attr-defined]  # a generator
            assert await say(agent, "two") == "hang | two"
            turning = asyncio.create_task(say(agent, "hang"))
            await eventually(lambda: agent._reply)  # type: ignore[attr-defined]  # what it is at
            await agent.interrupt()
            with pytest.raises(Aborted):
                await turning


@pytest.mark.parametrize("backend", [None, "bwrap"], ids=["host", "bwrap"])
async def test_bodies_of_a_program_s_own_format_pass_unchanged(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """Any bytes of any length pass in both directions."""
    body = bytes(range(256)) * 2_000 + b'\n{"type":"done"}\n'
    async with runtime_of(tmp_path, backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", backend, argv=[PYTHON, "-c", PROGRAM], formats=["raw", "openai"])
        async with open_agent(start) as agent:
            assert b"".join([chunk async for chunk in agent.turn(body, "raw")]) == body
            chunks = [chunk async for chunk in agent.turn(request_body("x"), "openai")]
            assert request_body("x") in b"".join(chunks), "declared by the program: it was not translated"
    assert HERE.formats_of(start.info) == ("raw", "openai")
    assert HERE.formats_of(CommandInfo(argv=["sh"])) == ("anthropic", "openai")


async def test_a_new_kernel_gives_the_recorded_conversation_to_the_program(tmp_path: pathlib.Path) -> None:
    """The agent's folder is on another kernel: the restarted program receives the history from the journal."""
    run = ""
    async with runtime_of(tmp_path, None) as runtime:
        for folder in ("one", "two", "three"):
            start = agent_spec(runtime, tmp_path / folder, None, run=run, argv=[PYTHON, "-c", PROGRAM])
            async with open_agent(start) as agent:
                answer, run = await say(agent, folder), agent.run
        assert answer == "one | two | three"
        history = await agent.history()
    assert [each["content"] for each in history if each["role"] == "user"] == ["one", "two", "three"]


async def test_an_endless_answer_fails_its_turn(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host keeps answers, so it bounds them. The next turn is answered."""
    monkeypatch.setattr("ramet.services.agent_types.conversation_log.MAX_ANSWER_CHARS", 1_000)
    async with runtime_of(tmp_path, None) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", None, argv=[PYTHON, "-c", PROGRAM], formats=["raw"])
        async with open_agent(start) as agent:
            with pytest.raises(OutputTooLarge):
                [chunk async for chunk in agent.turn(b"x" * 1_001, "raw")]
            assert [chunk async for chunk in agent.turn(b"y" * 1_000, "raw")] == [b"y" * 1_000]
            assert [each["content"] for each in await agent.history()][1::2] == ["", "y" * 1_000]


@twice
async def test_operations_mail_and_log_reach_a_program(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """Declared operations are passed on. A refused, an unknown and an unanswered operation give different errors."""
    async with runtime_of(tmp_path, backend) as runtime:
        async with open_agent(agent_spec(runtime, tmp_path / "ada", backend, argv=[PYTHON, "-c", PROGRAM])) as agent:
            await agent.mail("a letter")
            assert await agent.control(CallProgram(operation="mail")) == ["a letter"]
            with pytest.raises(TaskFailed, match="nothing to swap"):
                await agent.control(CallProgram(operation="swap"))
            with pytest.raises(Unknown, match="mail, swap, hang"):
                await agent.control(CallProgram(operation="teleport"))
            with pytest.raises(TaskFailed, match=r"within 0\.05 s"):
                await agent.control(CallProgram(operation="hang", timeout_s=0.05))
            assert await say(agent, "log") == "log"
            await eventually(lambda: agent._log().endswith("x" * 100))  # type: ignore[attr-defined]  # its own pace
            log = (await agent.control(Log()))["stderr"]
        assert 1_000 < len(log) < 200_000
        async with open_agent(agent_spec(runtime, tmp_path / "bob", backend, **sh(READY + "cat >/dev/null"))) as quiet:
            with pytest.raises(MailRefused, match="reads no mail"):
                await quiet.mail("a letter")


async def test_a_cancelled_opening_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """The caller is cancelled before the program is ready."""
    async with runtime_of(tmp_path, "local") as runtime:
        start = agent_spec(runtime, tmp_path / "ada", "local", **sh("sleep 600"))
        task = asyncio.create_task(HERE.open(start))
        await eventually(lambda: any(runtime.get(root).run.sandbox.current for root in runtime.trees))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
