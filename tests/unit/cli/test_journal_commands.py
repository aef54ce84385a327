"""Commands on a journal where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli.main import main


@pytest.mark.parametrize(
    "line",
    [
        *(
            "ps",
            "tree",
            "show x",
            "logs x",
            "logs -f x",
            "export x",
            "replay x",
            "gc",
            "repair",
            "repair --set-aside x",
            "resume",
            "resume x",
        ),
        *(
            "send x y",
            "stop x",
            "approvals",
            "approve x",
            "deny x",
            "keep x",
            "sessions list",
            "sessions show x",
            "sessions rm x",
            "schedule list",
            "schedule rm x",
            "schedule trigger x",
        ),
    ],
)
def test_without_a_journal_every_command_says_so_and_makes_none(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, status 1, and the folder stays as it was."""
    assert main([*line.split(), "--dir", str(tmp_path)]) == 1

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(tmp_path) in err
    assert not (tmp_path / ".ramet").exists()
