"""Peers, each installed once into its own virtual environment below `.cache/bench`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT

CACHE = ROOT / ".cache" / "bench"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another project, which `peers/bench_NAME.py` drives."""

    name: str
    label: str
    packages: tuple[str, ...]


PEERS = (
    Peer(
        name="langchain_sqlite",
        label="langchain + sqlite",
        packages=(
            "langchain==1.4.7",
            "langgraph==1.2.24",
            "langgraph-checkpoint-sqlite==3.1.2",
            "aiosqlite==0.22.1",
            "psutil==7.2.2",
        ),
    ),
    Peer(
        name="agent_framework",
        label="agent-framework",
        packages=("agent-framework-core==1.23.0", "psutil==7.2.2"),
    ),
)


def python_of(peer: Peer) -> str:
    """Return the interpreter that has the peer, and install it if needed. Raises RuntimeError if that fails.

    Packages that the peer shares with us have our version: `constraints.txt` is in force.
    """
    home = CACHE / peer.name
    wanted = "\n".join((sys.version, *peer.packages))
    stamp = home / "installed"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {peer.label} into {home.relative_to(ROOT)} (once)", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(home))
        _run(_python(home), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), *peer.packages)
        stamp.write_text(wanted)
    return _python(home)


def _python(home: Path) -> str:
    return str(home / "bin" / "python")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-2000:]}")
