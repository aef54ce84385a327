"""The agent of `ramet wrap`: a program of another maker, with the address and the key of the model endpoint inside."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from ramet.guest.models.model_endpoint import ModelEndpoint, model_endpoint
from ramet.guest.terminal.program_process import run_program


def run_wrapped(command: Sequence[str], env: Mapping[str, str], files: Mapping[str, str], cwd: str) -> int:
    """Run a program to its end, and return its exit status.

    `env` has its variables besides those of the sandbox, `files` its files below its home. In both, `${key}`,
    `${anthropic_url}`, `${openai_url}` and `${google_url}` stand for the key and the addresses of the endpoint,
    `${home}` for its home, and `${path}` for the PATH of the sandbox. Raises OSError if a file cannot be written.
    """
    with model_endpoint() as endpoint:
        values = _values(endpoint)
        for name, text in files.items():
            path = Path(os.environ["HOME"], name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).safe_substitute(values))
        own = {name: Template(text).safe_substitute(values) for name, text in env.items()}
        return run_program(command, {**os.environ, **own}, cwd)


def _values(endpoint: ModelEndpoint) -> Mapping[str, str]:
    urls = {f"{wire}_url": endpoint.url(wire) for wire in ("anthropic", "openai", "google")}
    return {"key": endpoint.key, **urls, "home": os.environ["HOME"], "path": os.environ["PATH"]}
