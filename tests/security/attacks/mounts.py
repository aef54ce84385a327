"""Attacks on mounts by the client that ramet ships: children ask for paths below their parent's mounts."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from tests.security.attacks.spawning import _policy, _told


def look(path: str) -> str:
    """Return the beginning of a file's text, or the names in a folder."""
    entry = pathlib.Path(path)
    if entry.is_dir():
        return " ".join(sorted(os.listdir(entry)))  # noqa: PTH208
    with entry.open(errors="replace") as file:
        return file.read(500)


def look_or_say(path: str) -> str:
    """Return the value of `look`, or the name of the error that stopped it."""
    try:
        return look(path)
    except OSError as problem:
        return type(problem).__name__


def look_at_each(paths: list[str]) -> dict[str, str]:
    """Return the value of `look_or_say` for each path."""
    return {path: look_or_say(path) for path in paths}


def ask(cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Spawn a child for each case, with `mounts`, that reads `path`. Return the outcome of each by its name."""
    from ramet.sub_agent_client import spawn_sub_agent

    outcomes: dict[str, Any] = {}
    for name, case in cases.items():
        policy = _policy({"readonly_mounts": case["mounts"]})
        try:
            result = spawn_sub_agent(agent=look, args=(case["path"],), policy=policy)
        except Exception as problem:
            outcomes[name] = _told(problem)
        else:
            outcomes[name] = {"error": None, "output": result.output, "message": str(result.error)}
    return outcomes


def ask_below(mounts: list[str], cases: dict[str, dict[str, Any]]) -> Any:
    """Spawn a child with `mounts` that spawns the children of `ask`, and return their outcomes."""
    from ramet.sub_agent_client import spawn_sub_agent

    policy = _policy({"readonly_mounts": mounts, "allow_sub_agents": True})
    return spawn_sub_agent(agent=ask, args=(cases,), policy=policy).output
