"""Shell blocks of pages about the services are one session, run as a reader would type it."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.docs.test_blocks_run import ROOT, blocks
from tests.support.waiting import eventually

#: Pages of one session: the others continue that of the first, before its last block, which ends the server.
SESSIONS = (
    (
        "guides/services.md",
        "guides/server-turns.md",
        "guides/repeated-requests.md",
        "guides/server-clients.md",
        "guides/server-images.md",
        "guides/operator-routes.md",
        "guides/server-commands.md",
        "guides/server-keys.md",
    ),
    ("guides/command-agents.md",),
    ("start/first-server.md",),
)
#: First line of a Python block that the reader saves as a file.
PROGRAM = re.compile(r"# (\w+\.py)\n")
#: Whatever happens in between, the server ends with the shell.
BEGIN = "set -euo pipefail; trap 'kill %1 2>/dev/null || true; wait' EXIT\n"


@pytest.fixture
def short_folder() -> Iterator[pathlib.Path]:
    """Folder with a short path, so that its sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="ramet-", dir="/tmp") as folder:  # noqa: S108, RUF100 - for the length
        yield pathlib.Path(folder)


@pytest.mark.parametrize("pages", SESSIONS, ids=lambda pages: pages[0])
async def test_the_shell_session_of_a_page_runs_unchanged(short_folder: pathlib.Path, pages: tuple[str, ...]) -> None:
    """Every command of the session succeeds, and its server has ended afterwards."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    first, *others = [blocks((ROOT / "docs" / page).read_text()) for page in pages]
    shell = [block.code for block in first if block.language == "sh"]
    further = [block.code for page in others for block in page if block.language == "sh"]
    script = "".join([*shell[:-1], *further, shell[-1]])
    assert script.count("curl ") >= 2 or script.count("api ") > 5
    env = {
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(short_folder),
        "LANG": "C.UTF-8",
    }
    folder = short_folder / "served"
    folder.mkdir()
    for block in first:
        if program := PROGRAM.match(block.code):
            (folder / program[1]).write_text(block.code)

    done = subprocess.run(  # noqa: ASYNC221 - nothing else is to be done meanwhile
        ["bash", "-c", BEGIN + script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    await eventually(lambda: not _listens(folder))


def _listens(folder: pathlib.Path) -> bool:
    asked = ["curl", "-s", "--unix-socket", str(folder / ".ramet" / "serve.sock"), "http://ramet/healthz"]
    return subprocess.run(asked, capture_output=True).returncode == 0  # noqa: S603, RUF100 - curl itself
