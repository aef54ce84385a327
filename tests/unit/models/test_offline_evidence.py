"""Evidence of the offline researcher, and what it did not look at, with small folders and real tools."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping

import pytest

from ramet.models.research import evidence, settings
from ramet.models.research.evidence import EvidenceLine
from ramet.models.research.model import OfflineResearcher
from tests.support.driving import READERS, FinishedConversation, run_conversation

TEAM = (*READERS, "Agent")


def make(folder: pathlib.Path, files: Mapping[str, str | bytes]) -> pathlib.Path:
    """Make a folder with these files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def section(text: str, title: str) -> str:
    """Return what an answer says under a title; empty if the title is not there."""
    return text.partition(f"**{title}")[2].partition("\n\n**")[0].partition("\n\nConfidence")[0]


def assert_exact(conversation: FinishedConversation, folder: pathlib.Path) -> int:
    """Compare every quotation with its file and every setting with its quotation, and return their number."""
    names = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
    paths = "|".join(sorted((re.escape(name) for name in names if name in conversation.text), key=len, reverse=True))
    cited = re.findall(rf"(?<![\w./-])({paths}):(\d+): (?:`` (.*?) ``|`([^`\n]*)`)", conversation.text) if paths else []
    for path, number, fenced, plain in cited:
        line = (folder / path).read_bytes().split(b"\n")[int(number) - 1].decode("utf-8", "replace").strip()
        assert (fenced or plain) == line[:200], f"{path}:{number}"
    for value, quotation in re.findall(r"` = (.*?) \([^`\n]*?:\d+: `([^`\n]*)`", conversation.text):
        assert value in quotation
    return len(cited)


async def answer_of(folder: pathlib.Path, question: str, tools: tuple[str, ...] = READERS) -> str:
    """Return the answer to a question, after each quotation in it was compared with the folder."""
    conversation = await run_conversation(OfflineResearcher(), question, folder, tools=tools)
    assert_exact(conversation, folder)
    return conversation.text


PORT = {
    "config/app.yaml": "server:\n  port: 8081\n  host: localhost\n",
    "src/server.py": "SERVER_PORT = 8080\nSERVER_HOST = 'localhost'\n",
    "app.log": "2026-05-01 10:00:00 ERROR client: connect to 127.0.0.1:8081 refused\n",
}


@pytest.mark.parametrize("tools", [READERS, TEAM], ids=["alone", "team"])
async def test_a_port_that_contradicts_the_code_is_named_with_both_values(
    tmp_path: pathlib.Path, tools: tuple[str, ...]
) -> None:
    """Both lines are quoted together, without the setting of equal value."""
    text = await answer_of(make(tmp_path, PORT), "Why can the client not connect?", tools)

    (line,) = [each for each in section(text, "Settings of one name with values that").split("\n") if "port" in each]
    assert "`server.port` = 8081 (config/app.yaml:2: `port: 8081`)" in line
    assert "`SERVER_PORT` = 8080 (src/server.py:1: `SERVER_PORT = 8080`)" in line
    assert "localhost" not in section(text, "Settings of one name with values that")
    assert "`server.host` = localhost" in section(text, "Settings of one name with equal values")


async def test_equal_and_different_units_do_not_contradict(tmp_path: pathlib.Path) -> None:
    """30 s are 30000 ms, and a number without a unit is compared with neither."""
    make(
        tmp_path,
        {
            "a.toml": "[http]\nread_timeout_ms = 30000\nidle_timeout_s = 5\n",
            "b.toml": '[http]\nread_timeout = "30s"\nidle_timeout = 7\n',
        },
    )

    text = await answer_of(tmp_path, "Why is it slow and broken?")

    assert not section(text, "Settings of one name with values that")
    assert "30000" in section(text, "Settings of one name with equal values")
    assert "idle" not in section(text, "Settings of one name with equal values")


RENAMED = {
    "config.yaml": "request_timeout: 30\nworkers: 4\n",
    "client.py": 'wait = config["timeout_seconds"]\nworkers = config["workers"]\n',
    "app.log": "2026-05-01 10:00:00 ERROR client: KeyError: 'timeout_seconds'\n",
}


async def test_a_renamed_setting_is_shown_from_both_sides(tmp_path: pathlib.Path) -> None:
    """The setting that code reads and nothing sets stands beside the one that is set and no code names."""
    text = await answer_of(make(tmp_path, RENAMED), "Why does the client fail?")

    text_section = section(text, "Settings that may have been renamed")
    assert "code reads `timeout_seconds`" in text_section
    assert 'client.py:1: `wait = config["timeout_seconds"]`' in text_section
    assert "config.yaml:1: `request_timeout: 30`" in text_section
    assert "workers" not in text_section


async def test_a_setting_that_other_code_names_was_not_renamed(tmp_path: pathlib.Path) -> None:
    """One use anywhere is enough."""
    make(tmp_path, {**RENAMED, "other.py": "print(settings.request_timeout)\n"})

    assert not section(await answer_of(tmp_path, "Why does the client fail?"), "Settings that may have been renamed")


async def test_an_answer_says_that_there_is_no_fault(tmp_path: pathlib.Path) -> None:
    """Words such as error in a line of level INFO, or in code, are no trouble."""
    make(
        tmp_path,
        {
            "app.log": "2026-05-01 10:00:00 INFO api: 0 errors, 12 requests\n" * 20,
            "api.py": 'def fail():\n    raise ValueError("request failed: %s")\n',
            "config.yaml": "port: 80\n",
        },
    )

    text = await answer_of(tmp_path, "Why is the api failing?", TEAM)

    assert "No fault was found in 1 file of logs, 1 file of settings, 1 file of source" in text
    assert "Confidence: none." in text
    assert not section(text, "Log lines that report trouble")


async def test_a_general_format_names_no_writer(tmp_path: pathlib.Path) -> None:
    """`%s` makes every message, so it identifies none; a text with words of its own does."""
    make(
        tmp_path,
        {
            "app.log": "10:00:00 ERROR disk quota used up on sda1\n10:00:01 ERROR bus lost its carrier 7\n",
            "log.py": 'def report(message):\n    logger.error("%s", message)\n    logger.error(f"{message}")\n',
            "bus.py": 'logger.error("bus lost its carrier %d", n)\nlogger.error("bus lost its keys %d", n)\n',
        },
    )

    text = await answer_of(tmp_path, "Why does it fail?")

    assert text.count("a text in code that makes it") == 1
    assert 'bus.py:1: `logger.error("bus lost its carrier %d", n)`' in text
    assert "log.py:" not in section(text, "Log lines that report trouble")


async def test_the_default_of_a_library_is_found(tmp_path: pathlib.Path) -> None:
    """No setting has the number of the message, but the source of a bundled library has it."""
    make(
        tmp_path,
        {
            "app.log": "2026-05-01 10:00:00 ERROR sync: timed out after 17 s\n",
            "config.yaml": "sync:\n  host: db.test\n",
            "sync.py": "import netlib\n\nnetlib.connect(config['host'])\n",
            "vendor/netlib/client.py": "def connect(host, timeout: float = 17.0):\n    return open(host, timeout)\n",
        },
    )

    text = await answer_of(tmp_path, "Why does the sync fail?", TEAM)

    assert "the same number, 17 s (the setting states no unit): `timeout` = 17.0 (vendor/netlib/client.py:1:" in text


async def test_a_different_number_is_no_evidence(tmp_path: pathlib.Path) -> None:
    """A setting with a similar name and another number is not linked to the message, nor are small numbers alone."""
    make(
        tmp_path,
        {
            "app.log": "2026-05-01 10:00:00 ERROR pool: no connection within 2000 ms (order 3)\n",
            "config.yaml": "pool:\n  wait_ms: 1900\n  retries: 5\nmail:\n  attempts: 3\n",
        },
    )

    text = await answer_of(tmp_path, "Why is the pool failing?")

    assert "pool: no connection within" in text
    assert "1900" not in text
    assert "attempts" not in text


@pytest.mark.slow
async def test_fifty_thousand_files_are_bounded_and_the_answer_says_so(tmp_path: pathlib.Path) -> None:
    """The answer gives the numbers beyond each bound, and finds the log among the files."""
    (tmp_path / "first.txt").write_text("nothing here\n")
    for folder in (tmp_path / f"pkg{n}" for n in range(50)):
        folder.mkdir()
        for n in range(1_000):
            os.link(tmp_path / "first.txt", folder / f"m{n}.py")
    make(tmp_path, {"zone/api.log": "2026-05-01 10:00:00 ERROR gateway: certificate has expired\n"})

    text = await answer_of(tmp_path, "Why is the gateway failing?")

    assert "zone/api.log:1: `2026-05-01 10:00:00 ERROR gateway: certificate has expired`" in text
    assert re.search(r"beyond a bound of the search for `\*\*`: \d+ of 50002 shown", text)
    assert re.search(r"\d+ of \d+ files of source: searched for words, and not read", text)


@pytest.fixture(params=["ripgrep", "python"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with ripgrep, and with a PATH that has none."""
    if request.param == "python":
        monkeypatch.setenv("PATH", "/nonexistent")
    elif shutil.which("rg") is None:
        pytest.skip("no ripgrep here; `make setup` installs it")
    return str(request.param)


async def test_a_file_with_a_name_outside_utf_8_is_reported_as_unread(tmp_path: pathlib.Path, program: str) -> None:
    """The search sees the file under its listed name, and no tool accepts that name."""
    (tmp_path / os.fsdecode(b"caf\xe9.log")).write_text("2026-05-01 10:00:00 ERROR gateway: down\n")
    make(tmp_path, {"a.log": "2026-05-01 10:00:00 ERROR gateway: late\n"})

    text = await answer_of(tmp_path, "Why is the gateway failing?")

    assert "gateway: late" in text
    assert r"caf\udce9.log: no name that a tool can be given" in section(text, "Not looked at")


async def test_a_binary_file_is_reported_as_unread(tmp_path: pathlib.Path, program: str) -> None:
    """The word is in it, and it is no evidence."""
    make(tmp_path, {"core.log": b"ERROR gateway\0\1\2 gateway\n", "a.py": "gateway = 1\n"})

    text = await answer_of(tmp_path, "Where is the gateway?")

    assert "a.py:1: `gateway = 1`" in text
    assert "core.log: is a binary file" in section(text, "Not looked at")
    assert "core.log:1" not in text


@contextlib.contextmanager
def ordinary_user(folder: pathlib.Path) -> Iterator[None]:
    """Become a user whom file modes bind: root becomes one for a while."""
    if os.geteuid():
        yield
        return
    folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_an_unreadable_file_is_reported(program: str) -> None:
    """A file and a folder without permission are reported by name and reason."""
    if program == "python" and not os.geteuid():
        pytest.skip("the interpreter may lie where only root reads")
    with tempfile.TemporaryDirectory() as name:
        folder = make(
            pathlib.Path(name), {"secret.log": "ERROR gateway\n", "a.py": "gateway = 1\n", "shut/b.py": "x\n"}
        )
        (folder / "secret.log").chmod(0)
        (folder / "shut").chmod(0)
        try:
            with ordinary_user(folder):
                text = await answer_of(folder, "Where is the gateway?")
        finally:
            (folder / "shut").chmod(0o700)

    left_out = section(text, "Not looked at")
    assert "secret.log: Permission denied" in left_out
    assert "shut: Permission denied" in left_out
    assert "a.py:1: `gateway = 1`" in text


async def test_a_link_out_of_the_folder_and_a_fifo_are_not_followed(tmp_path: pathlib.Path, program: str) -> None:
    """The FIFO has no writer: opening it would wait without end."""
    outside = make(tmp_path / "outside", {"keys.log": "ERROR gateway key=s3cret\n"})
    folder = make(tmp_path / "inside", {"a.py": "gateway = 1\n"})
    (folder / "keys.log").symlink_to(outside / "keys.log")
    (folder / "all").symlink_to(outside)
    os.mkfifo(folder / "pipe.log")

    text = await answer_of(folder, "Why is the gateway failing?", TEAM)

    left_out = section(text, "Not looked at")
    assert "s3cret" not in text
    assert "keys.log: leads outside the workspace" in left_out
    assert "all: leads outside the workspace" in left_out
    assert "pipe.log: is a FIFO" in left_out


async def test_only_the_shown_part_of_a_huge_line_counts(tmp_path: pathlib.Path, program: str) -> None:
    """The word is far behind the shown beginning: the line is no evidence for it, and is named."""
    long = "x" * 600_000
    make(tmp_path, {"a.log": f"2026-05-01 10:00:00 ERROR start {long} gateway\n", "b.md": f"{long} gateway\n"})

    text = await answer_of(tmp_path, "Why is the gateway failing?")

    assert "a.log:1: the rest of a long line" in text
    assert "b.md:1: the rest of a long line" in text
    assert not section(text, "Lines with words of the question")
    assert len(text) < 4_000


async def test_a_name_like_a_place_does_not_mislead(tmp_path: pathlib.Path) -> None:
    """A file whose name looks like a path and a line is quoted under its own name, or not at all."""
    make(tmp_path, {"a.py": "x = 1\n", "a.py:12:b.py": "def gateway():\n    pass\n"})

    text = await answer_of(tmp_path, "Where is the gateway defined?")

    assert "a.py:12:b.py:1: `def gateway():`" in text


async def test_code_about_logs_is_no_log(tmp_path: pathlib.Path) -> None:
    """A folder of code is named logs, and the name of a file begins with log."""
    make(tmp_path, {"src/logs/handler.py": "# ERROR: gateway down\n", "logging.ini": "level = ERROR\n"})

    text = await answer_of(tmp_path, "Why is the gateway failing?")

    assert "No fault was found" in text
    assert not section(text, "Log lines that report trouble")


async def test_a_line_with_line_separators_stays_one(tmp_path: pathlib.Path) -> None:
    """A file could put a text that looks like another quotation after a carriage return."""
    fake = "- config.toml:1: `gateway = off`"
    make(tmp_path, {"app.log": f"2026-05-01 10:00:00 ERROR gateway\r{fake}\u2028{fake}\n"})

    text = (await run_conversation(OfflineResearcher(), "Why is the gateway failing?", tmp_path, tools=READERS)).text

    assert "app.log:1: " in text
    assert not any(each.startswith(fake) for each in text.splitlines())


def test_each_line_is_read_quickly() -> None:
    """Long sequences of blanks, brackets and dashes take no long time; a pattern of quadratic time would take hours."""
    for text in (f"a:{' ' * 1990}x", "[" * 2000, "a-" * 1000, f"a: b{' ' * 1900}x", '"\\' * 1000):
        lines = [EvidenceLine(path, number, text) for path in ("a.py", "a.toml", "a.log") for number in range(20)]
        settings.with_sections(lines)
        assert [settings.settings_on(each) for each in lines]
        assert evidence.group([each._replace(text=f"ERROR {text}") for each in lines])
    assert [each.key for each in settings.settings_on(EvidenceLine("a.py", 1, "LIMIT: Final[int] = 5"))] == ["LIMIT"]


def test_hostile_lines_of_a_settings_file_are_read_in_linear_time() -> None:
    """Blanks without a heading behind them are read once."""
    lines = [EvidenceLine("a.yaml", number, " " * 2_000 + "[a]\x01") for number in range(200)]
    begin = time.process_time()

    settings.with_sections(lines)

    assert time.process_time() - begin < 2
