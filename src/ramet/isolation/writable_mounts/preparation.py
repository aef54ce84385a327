"""Preparation of the mounts of one sandbox: which parts are covered, and which stay read-only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.isolation.assignment import Assignment
from ramet.isolation.state_search import StateSearch
from ramet.isolation.writable_mounts.host_code import host_code
from ramet.isolation.writable_mounts.placeholders import Placeholders
from ramet.isolation.writable_mounts.protected_entries import find_protected


class MountPreparation:
    """The searches and placeholders of one backend."""

    def __init__(self, runtime: Sequence[str]) -> None:
        self._runtime = runtime
        self._state_search = StateSearch()
        self._placeholders = Placeholders()

    async def prepare(self, assignment: Assignment) -> Assignment:
        """Return the assignment with the parts of its mounts to cover or to protect.

        `release` must follow once the sandbox has ended. Raises InvalidValue, which names the mount.
        """
        preparing = in_thread(lambda: self._prepare(assignment), name="ramet-search")
        if not assignment.writable:
            return await preparing
        try:
            return await run_shielded(preparing)
        except asyncio.CancelledError:
            if preparing.exception() is None:
                await run_shielded(self.release(preparing.result()))
            raise

    async def release(self, assignment: Assignment) -> None:
        """Release the placeholders of a sandbox that has ended."""
        if assignment.placeholders:
            await in_thread(lambda: self._release(assignment), name="ramet-mounts")

    def _prepare(self, assignment: Assignment) -> Assignment:
        assignment = assignment._replace(hidden_folders=self._state_search.find_folders(assignment.mounts))
        if not assignment.writable:
            return assignment
        code = host_code(self._runtime)
        protected: dict[str, tuple[str, ...]] = {}
        pinned: dict[str, tuple[str, ...]] = {}
        placeholders: list[str] = []
        try:
            for mount in assignment.writable:
                source = assignment.mounts[mount]
                nested = _relative_paths(assignment.mounts, mount)
                found = find_protected(mount, source, nested, code)
                protected[mount] = found.paths
                pinned[mount] = _parents((*found.paths, *_relative_paths(assignment.hidden_folders, mount)), nested)
                if found.needs_placeholder:
                    self._placeholders.acquire(mount, source)
                    placeholders.append(mount)
        except BaseException:
            self._release(assignment._replace(placeholders=placeholders))
            raise
        return assignment._replace(protected=protected, pinned=pinned, placeholders=placeholders)

    def _release(self, assignment: Assignment) -> None:
        for mount in assignment.placeholders:
            self._placeholders.release(assignment.mounts[mount])


def _relative_paths(paths: Iterable[str], folder: str) -> list[str]:
    """Return the paths below a folder, relative to the folder."""
    return [os.path.relpath(each, folder) for each in paths if each.startswith(f"{folder}/")]


def _parents(paths: Iterable[str], nested: Sequence[str]) -> tuple[str, ...]:
    """Return the folders on the way to these paths and to nested mounts, outermost first, without those of the latter.

    In a nested mount its own access decides.
    """
    parents = {str(parent) for path in (*paths, *nested) for parent in PurePath(path).parents} - {"."}
    own = [each for each in parents if not any(PurePath(each).is_relative_to(inner) for inner in nested)]
    return tuple(sorted(own, key=lambda each: (each.count("/"), each)))
