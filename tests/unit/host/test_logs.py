"""Machine-readable logs: each record is one line and one JSON object, without secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.core.errors import InvalidValue
from ramet.host.observability.logs import MAX_LINE, Lines, setup_logging
from ramet.host.observability.redaction import Redaction
from ramet.tools.context import current
from tests.support.context import calling, make_context, run_info

SEED = (
    '{"timestamp": "2026-05-22T14:30:00.123Z", "level": "INFO", "logger": "runtime", '
    '"message": "Agent session started", "session_id": "abc-123"}'
)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, restored after the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def log_stream() -> io.StringIO:
    """The stream of a log."""
    return io.StringIO()


def read_log(out: io.StringIO) -> list[dict[str, Any]]:
    """The lines of a log, each of which must be one JSON object."""
    text = out.getvalue()
    assert text.endswith("\n") or not text
    lines = text.split("\n")[:-1]
    assert len(lines) == len(text.splitlines()), "no other line end is in a line"
    entries = [json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")) for line in lines]
    assert all(isinstance(each, dict) for each in entries)
    return entries


def last_record(out: io.StringIO) -> dict[str, Any]:
    return read_log(out)[-1]


class FailingObject:
    """An object whose every method fails."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__
    __eq__ = __bool__ = __len__ = __str__  # type: ignore[assignment]  # broken, as said
    __hash__ = None  # type: ignore[assignment]


# --- what a line is


def test_the_documented_example_logs_its_documented_line(log_stream: io.StringIO) -> None:
    """AC-S0-10: The documented call gives the documented fields, in their order and form."""
    from ramet import setup_logging

    setup_logging(structured=True, level="INFO", stream=log_stream)
    logging.getLogger("runtime").info("Agent session started", extra={"session_id": "abc-123"})

    line = log_stream.getvalue().rstrip("\n")
    time = json.loads(line)["timestamp"]
    assert line.replace(time, "2026-05-22T14:30:00.123Z") == SEED
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()) < 60
    assert ramet.setup_logging is setup_logging


def test_every_logger_is_included(log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-S0-10: Our loggers, other packages', the root, asyncio's and uvicorn's are included."""
    # A server that ran in this process before has switched it off.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    setup_logging(stream=log_stream)
    names = ["ramet.session", "httpx", "asyncio", "uvicorn.error", "uvicorn.access", "root"]
    for name in names:
        logging.getLogger(None if name == "root" else name).warning("from %s", name)

    assert [line["logger"] for line in read_log(log_stream)] == names


def test_uvicorns_own_handlers_are_removed(log_stream: io.StringIO) -> None:
    """Lines of uvicorn are JSON and appear once."""
    from logging.config import dictConfig

    from uvicorn.config import LOGGING_CONFIG

    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    try:
        dictConfig(LOGGING_CONFIG)
        setup_logging(stream=log_stream)
        logging.getLogger("uvicorn.error").info("Started", extra={"color_message": "\x1b[1mStarted"})
        logging.getLogger("uvicorn.access").info('%s - "%s" %d', "127.0.0.1", "GET / HTTP/1.1", 200)
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate, logger.level = handlers, propagate, level

    start_record, request_record = read_log(log_stream)
    assert start_record | {"timestamp": ""} == {
        "timestamp": "",
        "level": "INFO",
        "logger": "uvicorn.error",
        "message": "Started",
    }
    assert request_record["message"] == '127.0.0.1 - "GET / HTTP/1.1" 200'


def test_an_exception_is_a_field(log_stream: io.StringIO) -> None:
    """The traceback is in the same line; a record without an exception has no such field."""
    setup_logging(stream=log_stream)
    try:
        raise ValueError("line one\nline two")
    except ValueError:
        logging.getLogger("x").exception("it failed")
        logging.getLogger("x").info("with a stack", stack_info=True)
    logging.getLogger("x").warning("none", exc_info=True)

    failed_record, stacked, none = read_log(log_stream)
    assert failed_record["exception"].startswith("Traceback (most recent call last):\n")
    assert failed_record["exception"].endswith("ValueError: line one\nline two")
    assert "test_an_exception_is_a_field" in stacked["stack"]
    assert "exception" not in none


def test_extras_are_json_or_their_repr(log_stream: io.StringIO) -> None:
    """JSON values stay as they are at any depth; other values become their repr, and NaN becomes text."""
    setup_logging(stream=log_stream)
    cycle: list[Any] = []
    cycle.append(cycle)
    extra = {
        "plain": {"a": [1, 2.5, None, True, "x"]},
        "path": Path("/tmp"),
        "pair": (1, 2),
        "keys": {1: "one"},
        "nan": float("nan"),
        "huge": 10**10_000,
        "ring": cycle,
        "bytes": b"\x00" * 10_000_000,
        "level": "mine",
        "broken": FailingObject(),
    }
    logging.getLogger("x").info("m", extra=extra)

    line = last_record(log_stream)
    assert line["plain"] == {"a": [1, 2.5, None, True, "x"]}
    assert (line["path"], line["pair"], line["keys"]) == (repr(Path("/tmp")), [1, 2], {"1": "one"})
    assert (line["nan"], line["huge"]) == ("nan", "an integer of 33220 bits")
    assert (line["level"], line["extra.level"]) == ("INFO", "mine")
    assert line["broken"] == "(a FailingObject whose repr failed: RuntimeError)"
    assert "ring" in line
    assert line["bytes"].startswith("b'\\x00")


def test_a_broken_value_loses_neither_its_line_nor_raises(log_stream: io.StringIO, root_logger: logging.Logger) -> None:
    """A message, argument, extra or exception that cannot be shown is replaced."""
    root_logger.handlers.clear()  # pytest's own raise what they meet
    setup_logging(stream=log_stream)
    log = logging.getLogger("x")
    log.info(FailingObject())
    log.info("%s", FailingObject())
    log.info("%d", "no number")
    log.info("one", "too many")
    try:
        raise RuntimeError(FailingObject())
    except RuntimeError:
        log.exception("raised")
    log.info("m", extra={"api_key": FailingObject(), FailingObject.__name__: FailingObject()})
    log.handle(logging.makeLogRecord({"msg": "m", "levelno": 40, "created": float("nan")}))

    lines = read_log(log_stream)
    assert len(lines) == 7
    assert all({"timestamp", "level", "logger", "message"} <= set(line) for line in lines)
    assert lines[2]["message"] == "'%d' % ('no number',) (it could not be formatted: TypeError)"


@pytest.mark.parametrize("kind", ["closed", "raises", "none"])
def test_a_broken_stream_raises_nothing(
    kind: str, log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The line is lost; the caller continues, and nothing else is printed."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    stream: io.StringIO | None = Full() if kind == "raises" else log_stream
    if kind == "closed":
        log_stream.close()
    elif kind == "none":
        stream = None
        monkeypatch.setattr(sys, "stderr", None)
    setup_logging(stream=stream)
    logging.getLogger("x").error("lost")

    monkeypatch.undo()
    assert capfd.readouterr() == ("", "")


def test_letters_that_a_stream_cannot_write_are_escaped() -> None:
    """Other letters of a plain line stay as they are."""
    raw = io.BytesIO()
    setup_logging(structured=False, stream=io.TextIOWrapper(raw, "ascii"))
    logging.getLogger("x").warning("größer")

    assert raw.getvalue().endswith(b"WARNING x: gr\\xf6\\xdfer\n")


# --- one record is one line


HOSTILE = st.text(st.characters(), max_size=200) | st.sampled_from(
    ["a\nb", "a\r\nb", "\x1b[2J", "\x00", "\x7f\x9b1m", "\u2028\u2029\x85", "\ud800", '"}\n{"level": "ERROR"}']
)


@given(message=HOSTILE, value=st.recursive(HOSTILE | st.floats() | st.integers(), st.lists), name=HOSTILE)
def test_one_record_is_one_line_whatever_it_holds(message: str, value: object, name: str) -> None:
    """No text can end its line, start another, or control a terminal."""
    out = io.StringIO()
    record = logging.makeLogRecord({"name": name, "msg": message, "levelname": "INFO", "value": value})
    for structured in (True, False):
        Lines(out, Redaction(environ={}), structured=structured).emit(record)

    structured_line, plain_line, rest = out.getvalue().split("\n")
    assert rest == ""
    assert isinstance(json.loads(structured_line), dict)
    assert structured_line.isascii()
    assert structured_line.isprintable()
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", plain_line)


def test_a_line_is_bounded(log_stream: io.StringIO) -> None:
    """Any line is JSON with its four fields, and shorter than the limit of container runtimes."""
    setup_logging(stream=log_stream)
    log = logging.getLogger("x")
    log.info("m" * 1_000_000)
    log.info("😀" * 100_000)
    log.info("many", extra={f"field_{number}": "ä" * 1_000 for number in range(1_000)})
    log.info("deep", extra={"rows": [["x" * 100] * 100] * 100})
    try:
        raise ValueError("x" * 100_000 + " the end")
    except ValueError:
        log.exception("failed")

    lines = read_log(log_stream)
    assert max(map(len, log_stream.getvalue().splitlines())) <= MAX_LINE
    assert [line["message"][:4] for line in lines] == ["mmmm", "😀😀😀😀", "many", "deep", "fail"]
    assert lines[0]["message"].endswith("… (cut)")
    assert lines[2]["left_out"] > 0
    assert lines[4]["exception"].endswith(" the end")


def test_lines_of_many_threads_are_whole(log_stream: io.StringIO) -> None:
    """No line is mixed with another."""
    setup_logging(stream=log_stream)
    log = logging.getLogger("x")

    def work() -> None:
        for number in range(50):
            log.info("m", extra={"n": number})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(line["n"] for line in read_log(log_stream)) == sorted(list(range(50)) * 8)


# --- secrets


KEYS = [
    "sk-ant-api03-" + "a1B2" * 10,
    "sk-proj-" + "Zz9_" * 10,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "glpat-" + "a1B2" * 5,
    "xoxb-123456789012-abcdefghij",
    "AKIA" + "ABCD1234" * 2,
    "AIza" + "a1B2" * 9,
    "hf_" + "a1B2" * 8,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("key", KEYS, ids=[key[:6] for key in KEYS])
@pytest.mark.parametrize("structured", [True, False])
def test_text_that_looks_like_a_key_is_masked(key: str, structured: bool, log_stream: io.StringIO) -> None:
    """AC-S0-10: The mask holds in a message, an argument, an extra, a nested value, a name, a repr and an exception."""
    setup_logging(structured, stream=log_stream)
    log = logging.getLogger("x")
    log.info(f"with {key} in it")
    log.info("with %s", key)
    log.info("m", extra={"value": key, "nested": {"list": [key], key: 1}, "object": Path(key)})
    try:
        raise ValueError(f"bad: {key}")
    except ValueError:
        log.exception("failed")

    assert key not in log_stream.getvalue()
    assert json.dumps(key)[1:-1] not in log_stream.getvalue()
    assert key.splitlines()[-1] not in log_stream.getvalue()
    assert log_stream.getvalue().count("***") == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("headers {'authorization': 'Basic dXNlcjpwYXNz'}", "headers {'authorization': 'Basic ***'}"),
        ("password=hunter22 user=me", "password=*** user=me"),
        ('{"api_key": "abcdef"}', '{"api_key": "***"}'),
        ("postgresql://me:hunter22@db/x", "postgresql://me:***@db/x"),
        ("used 1234 tokens, max_tokens=4096", "used 1234 tokens, max_tokens=4096"),
        ("tokens: 12, token: None", "tokens: 12, token: None"),
        ("task-notification-of-an-agent, ask-a-question", "task-notification-of-an-agent, ask-a-question"),
        ("run-0123456789abcdef:12 http://localhost:80/x", "run-0123456789abcdef:12 http://localhost:80/x"),
    ],
)  # fmt: skip
def test_text_around_a_secret_stays(text: str, expected: str, log_stream: io.StringIO) -> None:
    """A reader sees the kind of the secret; text that only resembles one stays."""
    setup_logging(stream=log_stream)
    logging.getLogger("x").info(text)

    assert last_record(log_stream)["message"] == expected


def test_known_secrets_are_masked(log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given secrets and current values of secret variables are masked, whenever they were set."""
    monkeypatch.setenv("BEFORE_API_KEY", "before the setup")
    monkeypatch.setenv("HARMLESS", "nothing to hide")
    monkeypatch.setenv("PWD", "nothing to hide")  # the folder, no password
    setup_logging(stream=log_stream, secrets=["open sesame", "über geheim"])
    monkeypatch.setenv("MY_TOKEN", "set after it")
    monkeypatch.setenv("SHORT_KEY", "ab")
    logging.getLogger("x").info("open sesame, über geheim, before the setup, set after it, nothing to hide, ab")
    monkeypatch.setenv("MY_TOKEN", "changed since")
    logging.getLogger("x").info("changed since")

    first, second = read_log(log_stream)
    assert first["message"] == "***, ***, ***, ***, nothing to hide, ab"
    assert second["message"] == "***"


def test_a_value_with_a_secrets_name_is_masked(log_stream: io.StringIO) -> None:
    """The value's form does not matter; counts of tokens are not secrets."""
    setup_logging(stream=log_stream)
    extra = {"password": "x", "api_key": 7, "request": {"auth_token": ["y"]}, "max_tokens": 5, "primary_key": "z"}
    logging.getLogger("x").info("m", extra=extra | {"token": None})

    line = last_record(log_stream)
    assert (line["password"], line["api_key"], line["request"]) == ("***", "***", {"auth_token": "***"})
    assert (line["max_tokens"], line["primary_key"], line["token"]) == (5, "z", None)


@pytest.mark.parametrize("position", [7_990, 8_000, 1_990, 0])
def test_a_cut_text_shows_no_part_of_a_secret(position: int, log_stream: io.StringIO) -> None:
    """Masking comes before cutting, at both ends of a text."""
    setup_logging(stream=log_stream, secrets=["correct horse battery staple"])
    log = logging.getLogger("x")
    text = "x" * position + "correct horse battery staple" + "x" * 20_000
    log.info(text)
    try:
        raise ValueError(text[::-1].replace("elpats yrettab esroh tcerroc", "correct horse battery staple"))
    except ValueError:
        log.exception("m", extra={"other": text})

    for part in ("correct", "horse", "battery", "staple"):
        assert part not in log_stream.getvalue()


@pytest.mark.parametrize("secrets", ["one text", b"bytes", 7, [""], [7], [None]])
def test_secrets_must_be_a_list_of_texts(secrets: Any) -> None:
    """Any other value is refused and not shown, since it may be a secret."""
    with pytest.raises(InvalidValue, match="a list of texts") as refusal:
        setup_logging(secrets=secrets)

    assert "one text" not in str(refusal.value)
    assert "bytes'" in str(refusal.value) or not isinstance(secrets, bytes)


HARD = ["eyJ-", "a-", "a://b:", "a://b", "token", "token:", "-----BEGIN ", "sk-", "Bearer ", "password: ", "secret"]


def test_masking_takes_time_linear_in_the_text() -> None:
    """Megabytes of beginnings of secrets would take hours in quadratic time.

    In a process that may use some CPU time, and is killed beyond that: no clock decides.
    """
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "from ramet.host.observability.redaction import Redaction\n"
        "for text in sys.argv[1:]:\n"
        "    Redaction(environ={}).clean(text * (1_000_000 // len(text)))\n"
        "    print(text, flush=True)\n"
    )
    process_result = subprocess.run([sys.executable, "-c", code, *HARD], capture_output=True, text=True, check=False)

    assert (process_result.stdout.splitlines(), process_result.returncode) == (HARD, 0), process_result.stderr


# --- set up


def test_setting_up_twice_equals_setting_up_once(root_logger: logging.Logger) -> None:
    """The second call replaces the first one's handler; other handlers stay."""
    other = logging.NullHandler()
    root_logger.addHandler(other)
    first, second = io.StringIO(), io.StringIO()
    setup_logging(stream=first)
    setup_logging(level="debug", stream=second)
    logging.getLogger("x").debug("m")

    assert (len(read_log(first)), len(read_log(second))) == (0, 1)
    assert other in root_logger.handlers
    assert len([handler for handler in root_logger.handlers if isinstance(handler, Lines)]) == 1


@pytest.mark.parametrize(("level", "expected"), [("INFO", 3), ("warning", 2), (" Error ", 1), (logging.WARNING, 2)])
def test_levels_are_accepted_by_name(level: str | int, expected: int, log_stream: io.StringIO) -> None:
    """The case does not matter; lower levels are not shown."""
    setup_logging(level=level, stream=log_stream)
    log = logging.getLogger("x")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")

    assert len(read_log(log_stream)) == expected


@pytest.mark.parametrize("level", ["", "LOUD", "NOTSET", 0, 15, True, None, 20.0, []])
def test_an_invalid_level_is_refused(level: Any, root_logger: logging.Logger) -> None:
    """The error lists the accepted names, and nothing changes."""
    before = list(root_logger.handlers), root_logger.level
    with pytest.raises(InvalidValue, match="DEBUG, INFO"):
        setup_logging(level=level)

    assert (root_logger.handlers, root_logger.level) == before


@pytest.mark.parametrize("settings", [{"structured": "yes"}, {"stream": "stderr"}, {"structured": None}])
def test_other_settings_are_checked(settings: Any) -> None:
    """An invalid setting is refused by name."""
    with pytest.raises(InvalidValue, match=next(iter(settings))):
        setup_logging(**settings)


def test_plain_lines_are_for_people(log_stream: io.StringIO) -> None:
    """A line has time, level, logger, message and extras; an exception stays on the same line."""
    setup_logging(structured=False, stream=log_stream)
    logging.getLogger("runtime").info("Agent session\nstarted", extra={"session_id": "abc-123", "n": 1, "text": "a b"})

    line = log_stream.getvalue()
    assert line.count("\n") == 1
    assert line.partition(" ")[2] == 'INFO runtime: Agent session\\nstarted session_id=abc-123 n=1 text="a b"\n'


# --- whose line it is


def test_a_line_of_a_run_names_the_run(log_stream: io.StringIO) -> None:
    """Inside a tool call, the line has the root's id as `session_id`, the run and its path; a given extra wins."""
    setup_logging(stream=log_stream)
    log = logging.getLogger("a.tool")
    with calling(make_context(run=run_info(1, path="main/child", depth=1))):
        log.info("inside")
        log.info("inside", extra={"session_id": "mine"})
    log.info("outside")

    inside_record, own_record, outside = read_log(log_stream)
    assert (inside_record["session_id"], inside_record["run"], inside_record["path"]) == (
        "run-00",
        "run-01",
        "main/child",
    )
    assert (own_record["session_id"], own_record["run"]) == ("mine", "run-01")
    assert not {"session_id", "run", "path"} & set(outside)


async def test_functions_of_a_real_run_log_with_its_id(log_stream: io.StringIO) -> None:
    """An async function and one in a thread work concurrently, and their lines differ."""
    setup_logging(stream=log_stream)

    async def waits(word: str) -> str:
        await asyncio.sleep(0)
        logging.getLogger("f").info(word)
        return current().run.id

    def works(word: str) -> str:
        logging.getLogger("f").info(word)
        return current().run.id

    async with ramet.AgentRuntime() as runtime:
        handles = [await runtime.spawn(f, args=(f"{f.__name__}-{n}",)) for f in (waits, works) for n in range(2)]
        ids = [(await handle.result()).value for handle in handles]

    lines = {line["message"]: line for line in read_log(log_stream) if line["logger"] == "f"}
    words = ["waits-0", "waits-1", "works-0", "works-1"]
    assert [lines[word]["run"] for word in words] == ids
    assert [lines[word]["session_id"] for word in words] == ids
    assert len(set(ids)) == 4


def test_a_process_of_its_own_writes_nothing_but_json(tmp_path: Path) -> None:
    """Warnings of asyncio and errors from threads are included."""
    program = textwrap.dedent(
        """
        import asyncio, logging
        from ramet import setup_logging
        setup_logging(structured=True, level="INFO")
        setup_logging(structured=True, level="INFO")
        async def main():
            asyncio.get_running_loop().call_exception_handler({"message": "two\\nlines"})
            await asyncio.to_thread(logging.getLogger("third.party").error, "from a thread")
        asyncio.run(main())
        """
    )
    process_result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True
    )

    lines = [json.loads(line) for line in process_result.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("asyncio", "two\nlines"),
        ("third.party", "from a thread"),
    ]
    assert process_result.stdout == ""
