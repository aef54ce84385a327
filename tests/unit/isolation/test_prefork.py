"""Tests of processes that a program forks before it has threads: a zygote that gets its kind later, and trials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.isolation import probe

_PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from ramet.isolation.linux.trials import background
none, _ = background.results(), background.results.cache_clear()
background.start()
opened = os.dup2(os.open(sys.argv[2], os.O_RDONLY), 50)
from ramet.isolation.zygote import prefork as ahead
ahead.start_zygote(sys.argv[3])
import asyncio
from pathlib import Path
from ramet.isolation import python_runtime as runtime
from ramet.isolation.linux import procfs
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.assignment import ZygoteConfig

async def main():
    waiting = ahead.claim_zygote()
    room = ZygoteConfig("none", "/nowhere", runtime.find().folders, {}, "bare", has_landlock=False, has_seccomp=False)
    keeper = await ZygoteClient.from_prefork(*waiting, room)
    child = await keeper.take_child()
    place = Path("/proc", str(keeper.pid))
    said = {
        "trials": [none, background.results()],
        "is_ours": procfs.stat(keeper.pid).parent == os.getpid(),
        "is_its": procfs.stat(child.pid).parent == keeper.pid,
        "another": ahead.claim_zygote(),
        "environment": [(place / "environ").read_bytes().strip(b"\\0").decode(), os.environ["OURS"]],
        "descriptors": sorted(int(each.name) for each in (place / "fd").iterdir())[:3],
        "inherited": sys.argv[2] in [str(each.readlink()) for each in (place / "fd").iterdir()],
        "cwd": str((place / "cwd").readlink()),
        "has_models": "pydantic_core" in (place / "maps").read_text(),
        "session": os.getsid(keeper.pid) == keeper.pid,
    }
    child.discard()
    await keeper.close()
    print(json.dumps({**said, "left": os.path.exists(place)}))

asyncio.run(main())
"""

_DYING_PROGRAM = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from ramet.core.errors import SandboxFailed
from ramet.isolation.zygote import prefork as ahead
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.assignment import ZygoteConfig

async def main():
    waiting = ahead.claim_zygote()
    os.write(waiting.output, b"what it says last")
    waiting.process.kill()
    try:
        await ZygoteClient.from_prefork(*waiting, ZygoteConfig("none", "/nowhere", (), {}, "bare"))
    except SandboxFailed as error:
        print(error)

ahead.start_zygote()
asyncio.run(main())
"""


_UNUSED_PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from ramet.isolation.zygote import prefork as ahead
before = set(os.listdir("/proc/self/fd"))
ahead.start_zygote()
waiting = ahead.claim_zygote()
waiting.end()
after = set(os.listdir("/proc/self/fd"))
print(waiting.process.returncode, after == before, os.path.exists(f"/proc/{waiting.process.pid}"))
"""


def _output_of(program: str, *words: str) -> str:
    source = str(Path(probe.__file__).parents[2])
    env = {"PATH": "/usr/bin:/bin", "OURS": "c4nary"}
    ran = subprocess.run(
        [sys.executable, "-c", program, source, *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _report_of(folder: Path, image: str) -> dict[str, Any]:
    (folder / "open").touch()
    report: dict[str, Any] = json.loads(_output_of(_PROGRAM, str(folder / "open"), image))
    return report


@pytest.fixture(scope="module")
def zygote_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _report_of(tmp_path_factory.mktemp("ahead"), "bare")


def test_a_preforked_zygote_forks_like_any_other(zygote_report: dict[str, Any]) -> None:
    assert zygote_report["is_ours"]
    assert zygote_report["is_its"]
    assert zygote_report["session"]
    assert zygote_report["another"] is None
    assert not zygote_report["left"]


def test_a_preforked_zygote_has_imported_its_image(zygote_report: dict[str, Any], tmp_path: Path) -> None:
    """The zygote imports before it gets its kind; here the kind needs less."""
    assert (zygote_report["has_models"], _report_of(tmp_path, "llm")["has_models"]) == (False, True)


def test_a_preforked_zygote_inherits_nothing_of_the_program(zygote_report: dict[str, Any]) -> None:
    """The zygote has no environment, not even in `/proc`, and no descriptor of the program."""
    assert zygote_report["environment"] == ["", "c4nary"]
    assert not zygote_report["inherited"]
    assert zygote_report["descriptors"] == [0, 1, 2]
    assert zygote_report["cwd"] == "/"


def test_background_trials_find_what_the_probe_finds(zygote_report: dict[str, Any]) -> None:
    none, trials = zygote_report["trials"]
    assert none == {}
    probe_result = probe.probe_machine()
    assert {name: probe_result[name].works for name in trials} == {name: works for name, (works, _) in trials.items()}
    assert set(trials) == {"seccomp", "landlock", "landlock_tcp", "landlock_scopes"}


def test_a_preforked_zygote_that_died_is_refused_with_its_last_output() -> None:
    assert "what it says last" in _output_of(_DYING_PROGRAM)


def test_an_unused_preforked_zygote_leaves_nothing() -> None:
    assert _output_of(_UNUSED_PROGRAM).split() == ["-9", "True", "False"]
