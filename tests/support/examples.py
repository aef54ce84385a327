"""Examples as programs, in a folder that must be as empty afterwards as before."""

from __future__ import annotations

import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
#: On PostgreSQL each process has a working directory of its own: the folders of sandboxes are in another one.
_LOST = "no longer exists: the run continues in an empty one"


def run_example(example: str, address: str, folder: pathlib.Path) -> list[str]:
    """Run an example with its store at `address` ("sqlite" or "postgres SCHEMA DSN"); return the printed lines."""
    kind, schema, dsn = (*address.split(" ", 2), "")[:3]
    store_options = ["--schema", schema, "--dsn", dsn] if kind == "postgres" else []
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, "--backend", "local", *store_options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    messages = [each for each in done.stderr.splitlines() if kind != "postgres" or not each.endswith(_LOST)]
    assert (done.returncode, messages) == (0, [])
    assert list(folder.iterdir()) == []
    return done.stdout.splitlines()
