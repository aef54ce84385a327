"""Commands in a folder without a journal."""

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
def test_each_command_reports_a_missing_journal(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with status 1, and no journal is made."""
    assert main([*line.split(), "--dir", str(tmp_path)]) == 1

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(tmp_path) in err
    assert not (tmp_path / ".ramet").exists()
