"""`ramet doctor` as a person runs it."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
from asyncio.subprocess import PIPE

import psutil

from tests.support.waiting import eventually
from tests.trips.kits.terminal import ramet, running_ramet


async def test_what_is_missing_is_named_with_its_remedy(tmp_path: pathlib.Path) -> None:
    """Without bubblewrap a sandbox of the kind local starts: status 0. A password and a key are not shown."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "/bin/false")
    done = await ramet(
        *("doctor", "--json", "--dir", str(tmp_path)),
        env={
            "PATH": str(tmp_path / "bin"),
            "RAMET_STORE": "postgresql://someone:very-hidden@127.0.0.1:1/journal",
            "KUBECONFIG": str(tmp_path / "none"),
            "ANTHROPIC_API_KEY": "sk-ant-hidden",
        },
    )
    results = {each["name"]: each for each in map(json.loads, done.out.splitlines())}

    assert (done.status, results["sandbox local"]["state"] != "missing") == (0, True)
    missing = {name: each["remedy"] for name, each in results.items() if each["state"] == "missing"}
    assert {"sandbox bwrap", "bubblewrap", "ripgrep", "store", "cluster"} <= missing.keys()
    assert "apt install bubblewrap" in missing["bubblewrap"]
    assert missing["ripgrep"].startswith("apt-get install ripgrep")
    assert results["git"]["state"] == "ok"
    assert "hidden" not in done.out + done.err


async def test_ctrl_c_ends_the_checks_and_their_processes(tmp_path: pathlib.Path) -> None:
    """The status is 130 at once, and no process is left."""
    async with running_ramet("doctor", "--dir", str(tmp_path), stdout=PIPE, stderr=PIPE) as process:
        program = psutil.Process(process.pid)
        await eventually(lambda: program.children(recursive=True) != [])
        children = program.children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()

    assert (process.returncode, err) == (130, b"")
    await eventually(lambda: not any(each.is_running() and each.status() != "zombie" for each in children))
