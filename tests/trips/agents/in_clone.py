"""Functions that work in a clone of a repository, in a sandbox."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
from typing import NoReturn


def git(*args: str) -> str:
    """Run git as an agent does."""
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout.strip()


def commit(name: str) -> str:
    """Commit one file and leave another; return where that is."""
    pathlib.Path(name).write_text("committed\n")
    git("add", name)
    git("commit", "--quiet", "-m", f"add {name}")
    pathlib.Path("left.txt").write_text("not committed\n")
    return str(pathlib.Path.cwd())


def commit_and_fail(name: str) -> NoReturn:
    """Commit a file, and fail."""
    commit(name)
    raise ValueError("no more")


def commit_and_crash(name: str) -> NoReturn:
    """Commit a file, and end the process."""
    commit(name)
    os._exit(3)


def commit_and_wait(name: str) -> NoReturn:
    """Commit a file, say so, and do not return."""
    commit(name)
    print("committed", flush=True)  # noqa: T201 - it is the sign that the test waits for
    while True:
        time.sleep(60)


def leave_beside(name: str) -> None:
    """Write a file beside the clone, which is a result of its own."""
    commit(name)
    (pathlib.Path.home() / "report.txt").write_text("done\n")


def fail_with_names(name: str) -> NoReturn:
    """Commit a file, and fail with the names of the files that were there."""
    names = sorted(path.name for path in pathlib.Path().iterdir())
    commit(name)
    raise ValueError(" ".join(names))


def continue_work() -> list[str]:
    """Commit a file for each time that this is called; the first time, wait to be killed."""
    done = git("log", "--format=%s").splitlines()
    number = len(done)
    pathlib.Path(f"{number}.txt").write_text("new\n")
    git("add", ".")
    git("commit", "--quiet", "-m", f"part {number}")
    if number == 1:
        pathlib.Path("unfinished.txt").write_text("half\n")
        print("committed", flush=True)  # noqa: T201 - it is the sign that the test waits for
        while True:
            time.sleep(60)
    return git("log", "--format=%s").splitlines()


def hide_repository() -> None:
    """Put a link in the place of the clone's repository."""
    commit("x.txt")
    pathlib.Path(".git").rename(pathlib.Path.home() / "hidden")
    pathlib.Path(".git").symlink_to(pathlib.Path.home() / "hidden")


def remove_and_commit(removed: str, name: str) -> None:
    """Remove one file and commit another."""
    commit(name)
    pathlib.Path(removed).unlink()


def leave_odd_names() -> None:
    """Leave a repository inside the clone whose name is no text, and would change the colours of a terminal."""
    commit("x.txt")
    subprocess.run([b"git", b"init", b"--quiet", b"inner\xff\x1b[31m"], check=True)
