"""The agent of `ramet ask --agent` that is a program of another maker, with the folder that it works in."""

from __future__ import annotations

from pathlib import Path

from ramet.agent.definition import Agent
from ramet.agent.external.external import PRESETS
from ramet.core.policy.policy import Policy
from ramet.host.trees.project import Project
from ramet.tools.git.git_checkout import NoCheckout, find


def external_agent(name: str | None, project: Project, folder: Path) -> Agent | None:
    """Return the definition of a program of another maker that has this name; None for any other agent.

    Unless the definition says otherwise, it works in a clone of the repository that holds the folder. Without a
    repository it reads the folder, and writes files beside it.
    """
    if name is None:
        return None
    agent = project.get(name) or (Agent(name=name, external=name) if name in PRESETS else None)
    if agent is None or agent.external is None:
        return None
    if agent.isolation is not None or agent.policy is not None:
        return agent
    if _is_in_repository(folder):
        return agent.replace(isolation="worktree")
    return agent.replace(policy=Policy(readonly_mounts=(str(folder),)))


def _is_in_repository(folder: Path) -> bool:
    try:
        find(folder)
    except (NoCheckout, OSError):
        return False
    return True
