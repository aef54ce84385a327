"""The exception of a tool is logged with its traceback, and the model reads one line of it."""

from __future__ import annotations

import logging
import pathlib
import subprocess
import sys

import pytest
from langchain_core.tools import ToolException

from ramet import Session
from ramet.core.errors import InvalidValue
from ramet.models.scripted.model import Call, ScriptedModel
from tests.support.store_addresses import ROOT


def broken(city: str) -> str:
    """Fails."""
    raise KeyError(f"no {city}")


def refuses(city: str) -> str:
    """Says no on purpose."""
    raise ToolException("not there")


async def test_a_tools_exception_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """`ramet.tools` logs one warning. The arguments are logged at DEBUG only."""
    caplog.set_level(logging.DEBUG, "ramet.tools")
    model = ScriptedModel([[Call("broken", {"city": "Oslo"})], "done"])
    async with Session(model, [broken]) as session:
        await session.ask("go")
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.name == "ramet.tools"
    assert "broken" in warning.getMessage()
    assert "main" in warning.getMessage()
    assert warning.exc_info is not None
    assert "raise KeyError" in logging.Formatter().formatException(warning.exc_info)
    assert "Oslo" not in warning.getMessage().replace("no Oslo", "")
    assert any("Oslo" in each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG)


async def test_a_refusal_or_wrong_arguments_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A deliberate refusal of a tool, and arguments that do not fit, concern only the model."""
    caplog.set_level(logging.DEBUG, "ramet.tools")
    model = ScriptedModel([[Call("refuses", {"city": "Oslo"}), Call("broken", {"town": 1})], "done"])
    async with Session(model, [broken, refuses]) as session:
        await session.ask("go")
        assert len(session.messages) == 5
    assert not [each for each in caplog.records if each.levelno > logging.DEBUG]


PROGRAM = """
import asyncio
from ramet import ScriptedModel, Session
from ramet.models.scripted.dialogue import Call

def add(a: int, b: int) -> int:
    "Add."
    return a + b

async def main():
    async with Session(ScriptedModel([[Call("add", {"a": 2, "b": 3})], "five"]), [add], verbose=%s) as session:
        await session.ask("go")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("verbose", "level", "is_told"),
    [(True, "", True), (False, "debug", True), (False, "", False), (False, "WARNING", False)],
)
def test_verbose_or_the_log_level_shows_what_agents_do(
    tmp_path: pathlib.Path, verbose: bool, level: str, is_told: bool
) -> None:
    """`verbose` or RAMET_LOG_LEVEL makes a program log to stderr. By default it logs nothing."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM % verbose)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), "RAMET_LOG_LEVEL": level}
    ran = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, check=True)
    assert ("DEBUG ramet.tools: main calls add" in ran.stderr) == is_told, ran.stderr
    assert ran.stdout == ""
    assert is_told or not ran.stderr


async def test_an_unknown_log_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the environment variable."""
    monkeypatch.setenv("RAMET_LOG_LEVEL", "loud")
    with pytest.raises(InvalidValue, match="RAMET_LOG_LEVEL"):
        Session(ScriptedModel([]))
