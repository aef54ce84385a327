"""Errors of commands in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli.errors import report
from ramet.cli.main import main
from ramet.core.errors import Bug, InvalidValue, MissingExtra, RametError, Unknown

INSTALL = "ramet: openai needs the extra 'openai'; install it with: pip install 'ramet[openai]'\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (Unknown("model", "x:y", ("offline",)), 2, "ramet: unknown model 'x:y'; known: offline\n"),
        (InvalidValue("limits.usd", -1, "more"), 2, "ramet: limits.usd: -1 is not accepted; expected more\n"),
        (MissingExtra("openai", "openai"), 1, INSTALL),
        (RametError("a\nb\x1b[2J"), 1, "ramet: a b\n"),
        (FileNotFoundError(2, "No such file", "/x"), 1, "ramet: /x: No such file\n"),
        (OSError(28, "No space"), 1, "ramet: No space: the output, or a disk that ramet writes to, is full\n"),
        (ExceptionGroup("g", [ExceptionGroup("h", [RametError("deep")])]), 1, "ramet: deep\n"),
    ],
)
def test_a_known_error_is_one_line(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2 for a mistake of the caller and 1 otherwise; no traceback is printed."""
    assert report(error) == status
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    "error", [RuntimeError("boom\n\x1b[2J"), Bug("impossible"), ExceptionGroup("g", [KeyError(1), KeyError(2)])]
)
def test_an_unexpected_error_is_one_line_and_a_file(
    error: Exception, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the file of details, which only its owner can read."""
    assert report(error) == 1

    err = capsys.readouterr().err
    (log,) = (home / ".ramet" / "logs").iterdir()
    assert err.count("\n") == 1
    assert f"(details: ~/.ramet/logs/{log.name})" in err
    assert type(error).__name__ in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_an_unwritable_details_file_is_no_second_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line is printed without a file."""
    monkeypatch.setenv("RAMET_HOME", "/dev/null/x")
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")

    assert report(RuntimeError("boom")) == 1
    assert capsys.readouterr().err == "ramet: unexpected RuntimeError: boom\n"


def test_a_command_in_a_removed_folder_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A removed current folder is a mistake of the caller; another missing file stays unexpected."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir("removed")
    (tmp_path / "removed").rmdir()

    assert main(["ask", "hi"]) == 2
    assert capsys.readouterr() == ("", "ramet: the current folder no longer exists; change to another one\n")


def test_debug_level_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The variable is RAMET_LOG_LEVEL=DEBUG."""
    monkeypatch.setenv("RAMET_LOG_LEVEL", "DEBUG")

    assert report(RuntimeError("boom")) == 1
    assert "RuntimeError: boom\n" in capsys.readouterr().err.partition("\n")[2]
