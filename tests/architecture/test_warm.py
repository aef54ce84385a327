"""Programs that start warm are processes of their own, like programs that a new Python starts."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator

import pytest

from tests.support.warm import warm_programs

PROGRAM = """
import json, os, signal, sys
print("and this", file=sys.stderr)
here = {"words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "read": sys.stdin.read()}
there = {"path": sys.path[0], "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(), "name": __name__}
with os.fdopen(int(sys.argv[2])) as passed:
    print(json.dumps({**here, **there, "pid": os.getpid(), "passed": passed.read()}))
if sys.argv[1] == "killed":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3)
"""
MODULES = "import sys; print('langchain_openai' in sys.modules)"


@pytest.fixture(scope="module", autouse=True)
def warm(pytestconfig: pytest.Config) -> Iterator[None]:
    """Warm starts, as in the folders of slow tests."""
    with warm_programs(pytestconfig):
        yield


@pytest.fixture
def passed() -> Iterator[int]:
    """A descriptor with a text, for the program."""
    reads, writes = os.pipe()
    os.write(writes, b"by number")
    os.close(writes)
    yield reads
    os.close(reads)


@pytest.mark.parametrize("option", [(), ("-s",)], ids=["warm", "cold"])
@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(("word", "code"), [("ends", 3), ("killed", -signal.SIGKILL)])
async def test_a_program_has_its_own_arguments_streams_and_end(
    tmp_path: pathlib.Path, passed: int, word: str, code: int, leads: bool, option: tuple[str, ...]
) -> None:
    """A program has its own arguments, folder, environment, descriptors, session and exit code, warm and cold."""
    program, there = tmp_path / "program.py", tmp_path / "there"
    program.write_text(PROGRAM)
    there.mkdir()
    line = (sys.executable, *option, str(program), word, str(passed), "ü")

    process = await asyncio.create_subprocess_exec(
        *line,
        cwd=there,
        env={"ONLY": "this"},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=[passed],
        start_new_session=leads,
    )
    out, err = await process.communicate(b"typed")

    assert (err, process.returncode) == (b"and this\n", code)
    report = json.loads(out)
    environment = {key: value for key, value in report.pop("env").items() if key != "LC_CTYPE"}  # Python sets it itself
    own = {"cwd": str(there), "path": str(tmp_path), "passed": "by number", "read": "typed", "name": "__main__"}
    expected = {"words": [word, str(passed), "ü"], "pid": process.pid, "parent": os.getpid(), "leads": leads, **own}
    assert (report, environment) == (expected, {"ONLY": "this"})


@pytest.mark.parametrize(
    ("option", "more"), [((), {}), (("-s",), {}), ((), {"PYTHONUTF8": "0"}), ((), {"LC_ALL": "C"})]
)
async def test_what_changes_the_interpreter_starts_cold(
    tmp_path: pathlib.Path, option: tuple[str, ...], more: dict[str, str]
) -> None:
    """Options of the interpreter, and variables that it reads, mean what they always do."""
    program = tmp_path / "program.py"
    program.write_text(MODULES)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *option, str(program), stdout=PIPE, env={**os.environ, **more}
    )

    assert (await process.communicate())[0].strip().decode() == str(not option and not more)


async def test_a_hanging_warm_program_delays_no_other(tmp_path: pathlib.Path) -> None:
    """Another program starts and ends while one hangs, and the hanging one can be killed."""
    (tmp_path / "hangs.py").write_text("import time\nprint(flush=True)\ntime.sleep(600)")
    (tmp_path / "ends.py").write_text("")
    hangs = await asyncio.create_subprocess_exec(sys.executable, tmp_path / "hangs.py", stdout=PIPE)
    assert hangs.stdout is not None
    await hangs.stdout.readline()

    ends = await asyncio.create_subprocess_exec(sys.executable, tmp_path / "ends.py")
    assert await ends.wait() == 0

    assert hangs.returncode is None
    hangs.kill()
    assert await hangs.wait() == -signal.SIGKILL
