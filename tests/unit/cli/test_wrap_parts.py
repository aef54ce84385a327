"""The parts of `ramet wrap`: screen modes, copies, programs, policies, and the line at the end."""

from __future__ import annotations

import os
import pty
import termios
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.cli.wrap.screen_modes import ScreenModes
from ramet.cli.wrap.stream_relay import Relay
from ramet.cli.wrap.usage_line import Observations, usage_line
from ramet.cli.wrap.user_terminal import UserTerminal
from ramet.cli.wrap.wrap_command import exit_status
from ramet.cli.wrap.wrap_policy import policy_of
from ramet.cli.wrap.wrapped_programs import WrappedProgram, program_of
from ramet.core.errors import InvalidValue
from ramet.core.events import BudgetRefused, EndpointAsked, ForwardRefused
from ramet.core.ids import Path as RunPath
from ramet.core.ids import RunId
from ramet.core.outcome import ErrorInfo, Result, Status, Usage

PLAIN = b"\x1b[0m\x1b(B\x0f"


def modes_after(*pieces: bytes) -> bytes:
    """Return what resets a terminal after this output."""
    modes = ScreenModes()
    for each in pieces:
        modes.feed(each)
    return modes.reset()


@pytest.mark.parametrize(
    ("output", "reset"),
    [
        (b"plain \xc3\xa4 text\r\n", b""),
        (b"\x1b[31mred", PLAIN),
        (b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l" + PLAIN),
        (b"\x1b[?1049h\x1b[?1049l", PLAIN),
        (b"\x1b[?1000;1006;2004h", b"\x1b[?1000l\x1b[?1006l\x1b[?2004l" + PLAIN),
        (b"\x1b[?1006;;99999h", b"\x1b[?1006l" + PLAIN),
        (b"\x1b[>1u\x1b[>5u\x1b[<u", b"\x1b[<1u" + PLAIN),
        (b"\x1b[<9999u\x1b[>1u", b"\x1b[<1u" + PLAIN),
        (b"\x1b[>4;2m", b"\x1b[>4m" + PLAIN),
        (b"\x1b[>4;2m\x1b[>4m", PLAIN),
        (b"\x1b[>1u" * 100, b"\x1b[<32u" + PLAIN),
    ],
)
def test_modes_that_disturb_a_shell_are_reset(output: bytes, reset: bytes) -> None:
    """Modes are set again as the program had set them."""
    modes = ScreenModes()
    modes.feed(output)
    assert modes.reset() == reset
    assert modes_after(b"\x1b[m" + modes.set_again()).removesuffix(PLAIN) == reset.removesuffix(PLAIN)


@given(
    st.lists(st.sampled_from([b"\x1b[?1049h", b"\x1b[?25l", b"\x1b[?1049l", b"text", b"\x1b", b"\x1b[>1u"])), st.data()
)
def test_modes_are_found_however_the_output_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    output = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=20)))
    pieces = [output[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]

    assert modes_after(*pieces) == modes_after(output)


def test_a_relay_copies_every_byte_to_a_slow_reader_and_ends() -> None:
    """At most one piece is held: what is not read stays with its writer."""
    source, writer = os.pipe()
    reader, sink = os.pipe()
    data = os.urandom(1_000_000)
    relay, ended = Relay(), threading.Event()
    relay.start_output(source, sink, lambda piece: None, ended.set)

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(data)

    writing = threading.Thread(target=write)
    writing.start()
    received = b""
    while len(received) < len(data):
        received += os.read(reader, 1_000)
    writing.join()
    relay.finish(60)
    for fd in (source, reader, sink):
        os.close(fd)

    assert received == data
    assert ended.is_set()


def test_a_relay_ends_although_nobody_reads_or_writes() -> None:
    source, writer = os.pipe()
    reader, sink = os.pipe()
    os.set_blocking(sink, False)
    relay = Relay()
    relay.start_input(source, sink, lambda: None)
    os.write(writer, b"x" * 60_000)
    relay.finish(60)
    for fd in (source, writer, reader, sink):
        os.close(fd)


def test_a_terminal_is_restored_without_late_replies_to_queries() -> None:
    """A terminal answers in order, so what it says before the reply to the last query is not left for a shell."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)

    def answer() -> None:
        shown = b""
        while b"\x1b[5n" not in shown:
            shown += os.read(master, 1_000)
        os.write(master, b"rm -rf everything\r\x1b[0n")

    def use_terminal() -> None:
        with UserTerminal(slave, slave, reply_s=60) as terminal:
            assert termios.tcgetattr(slave) != before
            terminal.feed(b"\x1b]11;?\x07")
            emulator.start()
            raise RuntimeError("on purpose")

    emulator = threading.Thread(target=answer)
    with pytest.raises(RuntimeError, match="on purpose"):
        use_terminal()
    emulator.join()
    os.set_blocking(slave, False)

    assert termios.tcgetattr(slave) == before
    with pytest.raises(BlockingIOError):
        os.read(slave, 100)
    for fd in (master, slave):
        os.close(fd)


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """Create a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_program_is_mounted_with_its_packages_and_its_interpreter(tmp_path: Path) -> None:
    """Programs of the system and of the folder need nothing. Of the user only variables of the terminal pass."""
    work = tmp_path / "work"
    target = executable(tmp_path / "lib/node_modules/@maker/tool/cli.js", "#!/usr/bin/env node\n")
    node = executable(tmp_path / "node/bin/node")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").symlink_to(target)
    executable(work / "own")
    environ = {"PATH": f"{tmp_path}/bin:{node.parent}:/usr/bin:/bin", "TERM": "xterm", "ANTHROPIC_API_KEY": "secret"}

    tool = program_of(["tool", "-p", "hi"], work, environ=environ)
    system = program_of(["sh"], work, environ=environ)
    own = program_of(["./own"], work, environ=environ)

    assert tool.command == (str(node), str(target), "-p", "hi")
    assert tool.mounts == (f"{tmp_path}/lib/node_modules", str(node))
    assert tool.env["TERM"] == "xterm"
    assert "secret" not in tool.env.values()
    assert system.mounts == ()
    assert (own.command, own.mounts) == ((str(work / "own"),), ())


def test_a_known_program_gets_its_configuration(tmp_path: Path) -> None:
    """OpenCode has no model of its own."""
    for name in ("claude", "codex", "gemini", "opencode"):
        executable(tmp_path / name, "binary")
    environ = {"PATH": str(tmp_path)}

    def known(name: str, model: str | None = None) -> WrappedProgram:
        return program_of([name, "-x"], tmp_path, model=model, environ=environ)

    assert known("claude").env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert "${key_end}" in known("claude").files[".claude.json"]
    assert known("codex").command[1:] == ("--no-daemon", "-x")
    assert known("claude", "anthropic:claude-opus-5-5").env["ANTHROPIC_MODEL"] == "claude-opus-5-5"
    assert "${openai_url}/v1" in known("codex").files[".codex/config.toml"]
    assert known("gemini", "google_genai:gemini-2.5-pro").command[1:] == ("-m", "gemini-2.5-pro", "-x")
    assert "gpt-5.5" in known("opencode", "openai:gpt-5.5").files[".config/opencode/opencode.json"]
    for name, model in (("opencode", None), ("codex", "anthropic:x"), ("sh", "openai:gpt-5.5")):
        with pytest.raises(InvalidValue, match="model"):
            program_of([name], tmp_path, model=model, environ={"PATH": f"{tmp_path}:/bin"})


@pytest.mark.parametrize("name", ["no-such-program", "./no-such-program", "/etc/passwd", ""])
def test_a_program_that_is_not_there_is_an_error_of_usage(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"COMMAND: .* expected the name of a program in PATH"):
        program_of([name], tmp_path)


def options(tmp_path: Path, policy: str | None = None, memory: int | None = None) -> Namespace:
    """Return the options of a command line."""
    return Namespace(with_tools=False, policy=policy, memory=memory, dir=tmp_path)


def test_a_policy_says_more_and_the_command_line_decides(tmp_path: Path) -> None:
    """Without a policy every model may be asked, and no endpoint."""
    program = WrappedProgram(name="tool", command=("tool",), mounts=("/opt/tool",))
    plain = policy_of(options(tmp_path), program)
    text = '{"models": ["openai:*"], "memory_mb": 64, "readonly_mounts": ["/opt/more"]}'
    given_policy = policy_of(options(tmp_path, text, 512), program)

    assert (plain.models, plain.memory_mb, plain.allowed_endpoints) == (("*",), 2048, None)
    assert (plain.writable_mounts, plain.readonly_mounts) == ((str(tmp_path),), ("/opt/tool",))
    assert (given_policy.models, given_policy.memory_mb) == (("openai:*",), 512)
    assert given_policy.readonly_mounts == ("/opt/more", "/opt/tool")
    assert policy_of(options(tmp_path, '{"memory_mb": 64}'), program).memory_mb == 64


@pytest.mark.parametrize("folder", ["/", "/tmp", "/proc/self", "/run/user"])
def test_a_folder_that_no_sandbox_has_is_an_error_of_its_option(folder: str) -> None:
    with pytest.raises(InvalidValue, match="--dir: ") as refusal:
        policy_of(options(Path(folder)), WrappedProgram(name="tool", command=("tool",)))

    assert refusal.value.value == folder


def test_the_home_folder_is_an_error_that_says_where_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names no field of a policy, which a user of `ramet wrap` never typed, and needs no `--dir`."""
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(InvalidValue, match=r"--dir: .* home folder .*; begin in the folder of a project") as refusal:
        policy_of(options(tmp_path), WrappedProgram(name="tool", command=("tool",)))

    assert "writable_mounts" not in str(refusal.value)


def result(value: object = 0, status: Status = Status.COMPLETED, **fields: object) -> Result:
    return Result(status=status, value=value, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "is_refused", "status"),
    [
        (result(0), False, 0),
        (result(7), False, 7),
        (result(7), True, 4),
        (result(0), True, 0),
        (result(256), False, 0),
        (result("0"), False, 1),
        (result(None, Status.OOM), False, 137),
        (result(None, Status.TIMEOUT), True, 124),
    ],
)
def test_the_exit_status_is_that_of_the_program_unless_a_limit_made_it_fail(
    outcome: Result, is_refused: bool, status: int
) -> None:
    assert exit_status(outcome, is_refused=is_refused) == status


def test_the_last_line_names_use_refusals_and_endpoints() -> None:
    """A host that a program names cannot control the terminal."""
    stamp: dict[str, Any] = {"run": RunId("run-1"), "root": RunId("run-1"), "path": RunPath("main"), "agent": "claude"}
    seen = Observations()
    for _ in range(3):
        seen.take(BudgetRefused(**stamp, resource="usd", asked=1, left=0, scope="main"))
        seen.take(EndpointAsked(**stamp, host="bad\x1b[2J.org", port=443, allowed=False))
        seen.take(ForwardRefused(**stamp, model="claude-x", by="provider", wait_s=30))
    for number in range(7):
        seen.take(EndpointAsked(**stamp, host=f"h{number}", port=1, allowed=True))
    usage = Usage(model_calls=2, input_tokens=1_500, usd=0.5, estimated=True)

    assert usage_line("claude", "run-1", result(4, usage_subtree=usage), 4, seen) == (
        "ramet: claude ended with status 4 · 2 model calls · 1.5k tokens · $0.50 at list prices, estimated · "
        "refused at the limit of usd · 429 of the provider of claude-x, for 30s · refused endpoints: bad.org:443 · "
        "endpoints: h0:1, h1:1, h2:1, h3:1, h4:1, and 2 more · run run-1"
    )
    failed = result(None, Status.OOM, error=ErrorInfo(type="OutOfMemory", message="more\nthan 2048"))
    assert usage_line("x", "run-1", failed, 137, Observations()).startswith("ramet: x: oom: more than 2048 · 0 model")
