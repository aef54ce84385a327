"""The agent of `ramet wrap`: a program of another maker, with the address and the key of the model endpoint inside."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ramet.guest.external.home_files import SCRATCH_FOLDER, write_home
from ramet.guest.external.run_program import endpoint_values
from ramet.guest.models.model_endpoint import model_endpoint
from ramet.guest.terminal.program_process import run_program
from ramet.wire.external_program import HOME_FOLDER

_KEY_END: Final = 20  #: characters by which Claude Code tells keys apart


def run_wrapped(
    command: Sequence[str], env: Mapping[str, str], files: Mapping[str, str], cwd: str, tree_tools: bool = False
) -> int:
    """Run a program to its end, and return its exit status.

    `env` has its variables besides those of the sandbox, `files` its files below its home. In both, `${key}`,
    `${anthropic_url}`, `${openai_url}` and `${google_url}` stand for the key and the addresses of the endpoint,
    `${key_end}` for the last 20 characters of the key, `${home}` for its home, and with `tree_tools` `${mcp_url}` for
    the address of the server of its tools. Raises InvalidValue and TaskFailed
    for files that cannot be written.
    """
    workspace = Path.cwd()
    with model_endpoint(tree_tools=tree_tools) as endpoint:
        values = endpoint_values(endpoint)
        values |= {"key_end": values["key"][-_KEY_END:], "home": str(workspace / HOME_FOLDER)}
        home = write_home(workspace, {path: _fill(text, values) for path, text in files.items()})
        folders = {"HOME": str(home), "TMPDIR": str(home / SCRATCH_FOLDER)}
        own = {name: _fill(text, values) for name, text in env.items()}
        return run_program(command, {**os.environ, **folders, **own}, cwd)


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of its placeholders."""
    for name, value in values.items():
        text = text.replace("${" + name + "}", value)
    return text
