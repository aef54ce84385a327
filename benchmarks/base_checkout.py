"""A commit to compare with: its sources and its own virtual environment, made once below `.cache/bench`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.venvs import CACHE


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """Sources with the interpreter that runs them."""

    name: str
    root: Path
    python: str
    has_other_measurements: bool = False  #: its benchmarks are not those of this tree


def checkout_of(revision: str) -> Checkout:
    """Return the checkout of a revision, and make it if needed. Raises RuntimeError if there is no such revision.

    The packages are those that the revision pins.
    """
    # `--end-of-options`: what follows is a revision, whatever it begins with.
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if not commit:
        raise RuntimeError(f"base: {revision!r} is no commit of this repository; expected a commit, branch or tag")
    name = commit[:10]
    root = CACHE / f"base-{name}"
    python = root / ".venv" / "bin" / "python"
    if not (root / ".complete").is_file():
        print(f"setting up {name} in {root.relative_to(ROOT)} (once, about a minute)", file=sys.stderr)
        root.mkdir(parents=True, exist_ok=True)
        _unpack(commit, root)
        _run([sys.executable, "-m", "venv", "--clear", str(root / ".venv")], root)
        _run([str(python), "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e", ".[dev]"], root)
        (root / ".complete").touch()
    _run([str(python), "-m", "compileall", "-q", "src", "benchmarks"], root)
    differs = _git("diff", "--name-only", commit, "--", "benchmarks", ":!benchmarks/results")
    return Checkout(name=name, root=root, python=str(python), has_other_measurements=bool(differs))


def _unpack(commit: str, root: Path) -> None:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(root)], input=archive, check=True)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-2000:]}")
