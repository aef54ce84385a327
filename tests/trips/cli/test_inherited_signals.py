"""The command line as the child of a program that leaves it unusual settings."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.trips.kits.isolated import BackendName
from tests.trips.kits.isolated import backend as backend

#: Ignores the ends of children, as some supervisors do, and becomes `ramet`, which inherits that.
IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "ramet", *sys.argv[1:]])
"""


def test_a_sandbox_starts_below_a_parent_that_ignores_its_children(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """The command sees the ends of its own processes."""
    (tmp_path / "job.py").write_text("def one():\n    return 1\n")

    words = ["run", "--policy", "{}", "--backend", backend, "--quiet", "job.py:one"]
    run = subprocess.run(
        [sys.executable, "-c", IGNORING, *words], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )

    assert (run.returncode, run.stdout, run.stderr) == (0, "1\n", "")
