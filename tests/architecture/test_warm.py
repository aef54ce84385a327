"""Programs that start warm are processes of their own, like programs that a new Python starts."""

from __future__ import annotations

import json
import os
import pathlib
import signal
from asyncio.subprocess import PIPE

import pytest

from tests.support.warm import Warm, warm

__all__ = ["warm"]  # a fixture is used by its name

PROGRAM = """
import json, os, signal, sys
print("and this", file=sys.stderr)
here = {"words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "read": sys.stdin.read()}
print(json.dumps({**here, "pid": os.getpid(), "session": os.getsid(0), "name": __name__, "path": sys.path[0]}))
if sys.argv[1] == "killed":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3)
"""


@pytest.mark.parametrize(("word", "code"), [("ends", 3), ("killed", -signal.SIGKILL)])
async def test_a_warm_program_has_its_own_arguments_streams_and_end(
    tmp_path: pathlib.Path, warm: Warm, word: str, code: int
) -> None:
    """A warm program has its own arguments, folder, environment, streams, session and exit code."""
    program, there = tmp_path / "program.py", tmp_path / "there"
    program.write_text(PROGRAM)
    there.mkdir()

    process = await warm.start(program, word, "ü", cwd=there, env={"ONLY": "this"}, stdout=PIPE, stderr=PIPE)

    assert process.stdout is not None
    assert process.stderr is not None
    assert (await process.stderr.read(), await process.wait(), process.returncode) == (b"and this\n", code, code)
    report = json.loads(await process.stdout.read())
    assert report.pop("pid") == report.pop("session") == process.pid != os.getpid()
    expected = {"cwd": str(there), "env": {"ONLY": "this"}, "read": "", "path": str(tmp_path)}
    assert report == {"words": [word, "ü"], "name": "__main__", **expected}


async def test_a_hanging_warm_program_delays_no_other(tmp_path: pathlib.Path, warm: Warm) -> None:
    """Another program starts and ends while one hangs, and the hanging one can be killed."""
    (tmp_path / "hangs.py").write_text("import time\nprint(flush=True)\ntime.sleep(600)")
    (tmp_path / "ends.py").write_text("")
    hangs = await warm.start(tmp_path / "hangs.py", stdout=PIPE)
    assert hangs.stdout is not None
    await hangs.stdout.readline()

    assert await (await warm.start(tmp_path / "ends.py")).wait() == 0

    assert hangs.returncode is None
    hangs.kill()
    assert await hangs.wait() == -signal.SIGKILL
