"""Names of things. Ids are minted by the host from entropy that is passed in; paths are read by people."""

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
    """Make an id of 8 bytes that nobody has used before; the caller supplies the chance."""
    return RunId("run-" + entropy.hex())


def step_id(run: RunId, number: int) -> StepId:
    """Name one model call or tool call of one run: the key by which an effect is done once."""
    return StepId(f"{run}:{number}")


def checked_name(field: str, name: object) -> str:
    """Take a name as it is, or refuse it: letters, digits, `.`, `_`, `-`, at most 64, not starting with a sign."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidValue(field, name, "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit")
    return name


def safe_name(wanted: str, fallback: str = "agent") -> str:
    """Make a usable name of whatever a model wrote, keeping what can be kept; hostile input cannot leave its folder."""
    return _UNSAFE.sub("-", wanted[:256]).strip("-._")[:48].rstrip("-._") or fallback


def child_path(parent: Path, name: str) -> Path:
    """The path of a child: its parent's, then its own name, which is checked: `a/b` would be the path of another."""
    return Path(f"{parent}/{checked_name('name', name)}")
