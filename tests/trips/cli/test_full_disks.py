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

#: Runs a command in a folder that is a disk with some free KiB, and lists the files that it leaves.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=4096k none "$1" && cd "$1" || exit 99
free=$2; shift 2
head -c $(((4096 - free) * 1024)) /dev/zero > ballast
"$@"
status=$?
find . -type f -size 0 -name .gitignore
find . -type f -name '*.py'
exit $status
"""
#: Starts a server, makes teams while its disk is full until that fails, and starts the next server on a disk with room.
SERVERS = """
import os, subprocess, sys, time
import ramet

def serve():
    process = subprocess.Popen([sys.executable, "-m", "ramet", "serve"], stdout=sys.stderr)
    while not os.path.exists(".ramet/serve.sock") and process.poll() is None:
        time.sleep(0.01)
    return process

first = serve()
with ramet.connect(".ramet/serve.sock") as client:
    team = client.create_team({"agents": 1}, name="first")
    ballast = os.open("ballast", os.O_WRONLY | os.O_APPEND)
    while True:
        try:
            while True:
                os.write(ballast, bytes(4096))
        except OSError:
            pass
        try:
            client.create_team({"agents": 1})
        except Exception:  # The answer is an error, or cut off.
            break
print("status", first.wait())
os.truncate("ballast", 0)
os.unlink(".ramet/serve.sock")
second = serve()
with ramet.connect(".ramet/serve.sock") as client:
    print(client.get_team("first", key=team.key).name)
second.terminate()
print("status", second.wait())
"""


def run_on_a_disk(disk: pathlib.Path, free_kb: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a disk of its own with some free KiB."""
    disk.mkdir()
    shell = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        ON_A_SMALL_DISK,
        "sh",
        str(disk),
        str(free_kb),
        sys.executable,
    ]
    return subprocess.run([*shell, *words], check=False, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("free_kb", [0, 4, 100])
def test_a_run_on_a_full_disk_fails_with_the_reason(tmp_path: pathlib.Path, free_kb: int) -> None:
    """No run waits for a record that cannot be made; the store, its file and the cause are named."""
    (tmp_path / "job.py").write_text("def one():\n    return 1\n")

    run = run_on_a_disk(tmp_path / "disk", free_kb, "-m", "ramet", "run", f"{tmp_path / 'job.py'}:one")

    assert (run.returncode, run.stdout) == (1, ""), run.stderr
    reasons = [line for line in run.stderr.splitlines() if f"the store {tmp_path}/disk/.ramet" in line]
    assert len(reasons) == 1, run.stderr
    assert any(
        cause in reasons[0].lower() for cause in ("no space left", "no space left on its disk", "disk i/o error")
    )
    assert "Traceback" not in run.stderr


def test_nothing_remains_of_a_project_that_does_not_fit(tmp_path: pathlib.Path) -> None:
    """`ramet init` removes what it has written, also the file that fits in part, and names the folder once."""
    init = run_on_a_disk(tmp_path / "disk", 4, "-m", "ramet", "init")

    assert (init.returncode, init.stdout) == (2, "")
    assert init.stderr.count(str(tmp_path / "disk")) == 1
    assert "No space left on device" in init.stderr


def test_a_server_exits_when_its_disk_is_full_and_the_next_one_continues(tmp_path: pathlib.Path) -> None:
    """A server that can record nothing more does not go on to say that it is ready: a supervisor starts it again."""
    run = run_on_a_disk(tmp_path / "disk", 2048, "-c", SERVERS)

    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["status", "1", "first", "status", "0"]
    [reason] = [line for line in run.stderr.splitlines() if line.startswith("ramet: ")]
    assert "journal.db failed: there is no space left on its disk" in reason
    assert reason.endswith("; the server exits and can be started again")
