"""The command line on a disk that is full, or becomes full: each command ends with the reason in one line."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="a small disk of one's own takes root and unshare"
)

DISK_KB = 400
#: Runs a command in a folder that is a disk with some free KiB, and lists the files that it leaves.
ON_A_SMALL_DISK = f"""
mount -t tmpfs -o size={DISK_KB}k none "$1" && cd "$1" || exit 99
free=$2; shift 2
head -c $((({DISK_KB} - free) * 1024)) /dev/zero > ballast
"$@"
status=$?
find . -type f -size 0 -name .gitignore
find . -type f -name '*.py'
exit $status
"""
RAMET = [sys.executable, "-m", "ramet"]


def ramet_on_a_disk(disk: pathlib.Path, free_kb: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a disk of its own with some free KiB."""
    disk.mkdir()
    shell = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", str(disk), str(free_kb)]
    return subprocess.run([*shell, *RAMET, *words], check=False, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("free_kb", [0, 4, 8, 40, 100])
def test_a_run_on_a_full_disk_fails_with_the_reason(tmp_path: pathlib.Path, free_kb: int) -> None:
    """No run waits for a record that cannot be made; the store, its file and the cause are named."""
    (tmp_path / "job.py").write_text("def one():\n    return 1\n")

    run = ramet_on_a_disk(tmp_path / "disk", free_kb, "run", f"{tmp_path / 'job.py'}:one")

    assert (run.returncode, run.stdout) == (1, ""), run.stderr
    reasons = [line for line in run.stderr.splitlines() if f"the store {tmp_path}/disk/.ramet" in line]
    assert len(reasons) == 1, run.stderr
    assert any(
        cause in reasons[0].lower() for cause in ("no space left", "no space left on its disk", "disk i/o error")
    )
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("free_kb", [0, 4])
def test_nothing_remains_of_a_project_that_does_not_fit(tmp_path: pathlib.Path, free_kb: int) -> None:
    """`ramet init` removes what it has written, also the file that fits in part, and names the folder once."""
    init = ramet_on_a_disk(tmp_path / "disk", free_kb, "init")

    assert (init.returncode, init.stdout) == (2, "")
    assert init.stderr.count(str(tmp_path / "disk")) == 1
    assert "No space left on device" in init.stderr
