"""The `.gitignore` of a state folder: git ignores records of runs, and sees the files that people write."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ramet.disk.state_folder import ensure_state_folder

SEEN = ("agents/scout.md", "skills/pdf/SKILL.md", "skills/pdf/scripts/fill.py", "settings.json")
IGNORED = ("journal.db", "journal.db-wal", "transcripts/t/main.jsonl", "runs/r/workspace/a.md", "agents/a.db")


def test_git_sees_the_files_of_people_and_no_record(tmp_path: Path) -> None:
    """An agent file that nobody could commit would be missed on the next machine only."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    folder = ensure_state_folder(tmp_path)
    for each in (*SEEN, *IGNORED):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_text("x")

    status = ["git", "-C", str(tmp_path), "status", "--porcelain", "--untracked-files=all"]
    shown = subprocess.run(status, capture_output=True, text=True, check=True).stdout

    assert sorted(line.removeprefix("?? .ramet/") for line in shown.splitlines()) == sorted(SEEN)
