"""Rebuild a definition from its recipe, in a process that does not have its code."""

from __future__ import annotations

from typing import Any

from ramet.agent.capabilities.task import Task
from ramet.agent.definition import Agent
from ramet.agent.schemas.work_budget import count_steps
from ramet.agent.typed.from_schema import TypeReader
from ramet.core.errors import InvalidValue
from ramet.core.limits import RESOURCES, Limits
from ramet.core.recipe import Recipe


def agent_of(recipe: Recipe, **more: Any) -> Agent:
    """Return a definition with the tasks of a recipe; the caller sets what it may use. Raises InvalidValue."""
    # Not `at_limit`: time stands for who waits at a limit, and an agent must not arrange that for itself.
    known_names = {*RESOURCES, "seconds"}
    unknown = sorted(set(recipe.limits) - known_names)
    if unknown:
        raise InvalidValue(f"limits.{unknown[0]}", recipe.limits[unknown[0]], ", ".join(sorted(known_names)))
    fields: dict[str, Any] = {
        "name": recipe.name,
        "primer": recipe.primer,
        "model": recipe.model,
        "capabilities": recipe.capabilities,
        "limits": Limits(**recipe.limits),
        "setup": recipe.setup,
        "types": {name: dict(kind) for name, kind in recipe.types.items()},
    }
    agent = Agent(**{**fields, **more})
    types = TypeReader(recipe.types)
    with count_steps(len(recipe.canonical())):  # limits the checks of all defaults together
        tasks = {name: Task.from_definition(agent, name, each, types) for name, each in recipe.tasks.items()}
    object.__setattr__(agent, "tasks", tasks)
    return agent
