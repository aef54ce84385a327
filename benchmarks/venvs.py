"""Peers, each installed once into its own virtual environment below `.cache/bench`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.projects import Peer

CACHE = ROOT / ".cache" / "bench"
CONSTRAINTS = ROOT / "constraints.txt"


def interpreters_of(peers: Sequence[Peer]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreters of peers by name, and the reasons why others could not be installed."""
    interpreters, problems = {}, {}
    for peer in peers:
        try:
            interpreters[peer.name] = python_of(peer)
        except RuntimeError as problem:
            problems[peer.name] = str(problem)
    return interpreters, problems


def python_of(peer: Peer) -> str:
    """Return the interpreter that has the peer, and install it if needed. Raises RuntimeError if that fails.

    Packages that the peer shares with us have our version: `constraints.txt` is in force, but for `own_versions`.
    """
    home = CACHE / peer.name
    wanted = "\n".join((sys.version, *peer.packages))
    stamp = home / "installed"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {peer.label} into {home} (once)", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(home))
        (home / "constraints.txt").write_text(constraints_without(peer.own_versions))
        _run(
            *(_python(home), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("-c", str(home / "constraints.txt"), *peer.packages),
        )
        stamp.write_text(wanted)
    return _python(home)


def constraints_without(names: Collection[str]) -> str:
    """Return the text of `constraints.txt` without the pins of these packages."""
    lines = CONSTRAINTS.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if re.split(r"[=\s]", line)[0] not in names)


def _python(home: Path) -> str:
    return str(home / "bin" / "python")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise RuntimeError(f"{command[0]} cannot be run: {problem}") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-2000:]}")
