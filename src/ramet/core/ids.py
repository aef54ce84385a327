"""Ids and names.

The host makes ids from entropy that the caller passes in. Paths are for people to read.
"""

from __future__ import annotations

import re
from typing import NewType

from ramet.core.errors import InvalidValue

RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
StepId = NewType("StepId", str)
SessionId = NewType("SessionId", str)
Path = NewType("Path", str)  #: `main/searcher/2`: names from the root down

ROOT_NAME = "main"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def run_id(entropy: bytes) -> RunId:
    """Make a new run id from 8 bytes of entropy, which the caller supplies."""
    return RunId("run-" + entropy.hex())


def step_id(run: RunId, number: int) -> StepId:
    """Return the id of one model call or tool call of a run.

    The id is the key that ensures that an effect is executed once.
    """
    return StepId(f"{run}:{number}")


def checked_name(field: str, name: object) -> str:
    """Return `name` unchanged if it is valid.

    A valid name has 1 to 64 letters, digits, `.`, `_` or `-`, and starts with a letter or digit. Raises InvalidValue
    otherwise.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidValue(field, name, "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit")
    return name


def safe_name(name: str, fallback: str = "agent") -> str:
    """Make a valid name from a text that a model wrote.

    Valid characters are kept. Hostile input cannot leave its folder.
    """
    return _UNSAFE.sub("-", name[:256]).strip("-._")[:48].rstrip("-._") or fallback


def child_path(parent: Path, name: str) -> Path:
    """Return the path of a child: the path of its parent, then the name of the child.

    Raises InvalidValue if the name is invalid: `a/b` would be the path of another run.
    """
    return Path(f"{parent}/{checked_name('name', name)}")
