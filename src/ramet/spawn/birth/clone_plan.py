"""The clone of a sandboxed run, planned at its spawn: what it is made from, and what its branch is called."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import NamedTuple

import msgspec

from ramet.core.errors import InvalidValue
from ramet.isolation.git import clone
from ramet.isolation.git.clone import CLONE_ENV, Clone
from ramet.spawn.birth.plan import Plan
from ramet.spawn.grants import program_of
from ramet.spawn.ports import TreePorts
from ramet.spawn.run import Run
from ramet.wire.code.capsule import pack


class _Source(NamedTuple):
    folder: pathlib.Path
    top: pathlib.Path  #: of the clone that the folder must belong to


async def with_clone(plan: Plan, parent: Run | None, services: TreePorts) -> Plan:
    """Return the plan of a run that needs a clone, with that clone.

    Below a run that works in a clone, that clone is copied. Raises NoWorktree, and InvalidValue for a clone that is on
    another machine.
    """
    name = plan.agent.name if parent is None else plan.name or plan.agent.name
    if parent is None:
        return _with(plan, await clone.plan(plan.cwd, name, git=services.git), services)
    source = await _source_in_clone(parent, plan, services) if parent.grant is not None else None
    folder, top = source or (plan.cwd, None)
    with parent.context.track_process():
        planned = await clone.plan(folder, name, git=services.git, inside=top)
    return _with(plan, planned, services)


def _with(plan: Plan, planned: Clone, services: TreePorts) -> Plan:
    """Return the plan with its clone; a program of another maker is told where to work."""
    program, capsule = program_of(plan.agent, plan.request.model, services.programs), plan.capsule
    if program is not None and services.programs is not None:
        cwd = str(planned.cwd(pathlib.Path()))
        start = program.start_under(plan.grant)
        start = msgspec.structs.replace(start, cwd=cwd, env={**CLONE_ENV, **start.env})
        capsule = pack(services.programs.run, (start,))
    return dataclasses.replace(plan, clone=planned, capsule=capsule)


async def _source_in_clone(parent: Run, plan: Plan, services: TreePorts) -> _Source:
    assert parent.sandbox.clone is not None, "a plan without it is refused"
    assert parent.sandbox.folder is not None, "a clone is in a folder"
    assert parent.grant is not None, "a clone is in a sandbox"
    assert services.placement is not None, "a sandbox has a placement"
    backend = await services.placement.backend(parent.grant)
    if (await backend.probe()).remote:
        accepted = f"nothing on {backend.name}: your clone is on another machine while you work"
        raise InvalidValue("isolation", plan.isolation, accepted)
    workspace = parent.sandbox.folder.workspace.resolve()
    below = plan.cwd.relative_to(parent.context.cwd)
    return _Source(parent.sandbox.clone.cwd(workspace) / below, parent.sandbox.clone.folder(workspace))
