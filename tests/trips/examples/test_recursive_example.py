"""The example of recursive function agents runs as its docstring says, alike on every backend."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "recursive_function_agents.py"
EXPECTED = """\
survey: completed, 6 agents below it
  north
    Arden: 1200 people
    Brill: 800 people (asked for a helper, refused: policy.allow_sub_agents)
  south
    Corve: oom
    Dunmoor: 2500 people
"""


@pytest.mark.parametrize("backend", ["bwrap", "local"])
def test_the_example_prints_the_same_on_every_backend(backend: str, tmp_path: pathlib.Path) -> None:
    """Three levels print one refusal with its reason and one `oom`; ids, times and paths do not appear."""
    if backend == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")

    process_result = subprocess.run(
        [sys.executable, EXAMPLE, "--backend", backend],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert (process_result.returncode, process_result.stderr) == (0, "")
    assert process_result.stdout == EXPECTED
    assert list(tmp_path.iterdir()) == []
