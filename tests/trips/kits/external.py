"""An external agent whose program is scripted by its prompt: see `tests/support/acp_program.py`."""

from __future__ import annotations

import json
import sys
from typing import Any

import ramet
from tests.support import acp_program

#: Variables by which the program asks its model.
MODEL_ENV = {"MODEL_URL": "${anthropic_url}", "MODEL_KEY": "${key}"}


def script(*steps: list[Any]) -> str:
    """Return a prompt that makes the program do these steps."""
    return json.dumps(steps)


def scripted(name: str = "coder", **fields: Any) -> ramet.Agent:
    """Return an agent whose program does what its prompts say."""
    settings: dict[str, Any] = {"memory_mb": 128, "pids": 32, "env": MODEL_ENV, "models": ["anthropic:*"]}
    external: dict[str, Any] = {
        key: fields.pop(key) for key in ("permission_mode", "env", "models", "files") if key in fields
    }
    command = [sys.executable, "-I", "-S", acp_program.__file__]
    mounts = [acp_program.__file__]
    return ramet.Agent(
        name=name, external=ramet.External(command=command, mounts=mounts, **{**settings, **external}), **fields
    )
