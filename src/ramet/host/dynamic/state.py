"""The states of the agents of one tree for its runs: each run has a working copy of its own, over its own place."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ramet.core.errors import Conflict, UnsavedChanges
from ramet.host.dynamic.namespaces import branch_of, place_of, prefix_below, state_location
from ramet.host.dynamic.registry import Registries
from ramet.host.dynamic.run_state import RunState
from ramet.spawn.run import Run
from ramet.store.state.namespaced import Namespaced
from ramet.wire.guest_protocol.answer_data import StateReply
from ramet.wire.guest_protocol.guest_to_host import UseState


class HostState:
    """The host's side of the states, for the runs of one tree."""

    def __init__(self, registries: Registries) -> None:
        self._registries = registries
        self._opening = asyncio.Lock()

    async def use(self, run: Run, request: UseState, body: bytes) -> tuple[StateReply, bytes]:
        """Execute a request on a run's own state. Raises InvalidValue, Conflict, UnsavedChanges, Unknown, Denied."""
        return await (await self._own(run)).use(request, body)

    async def begins_at(self, parent: Run) -> str:
        """Return the commit at which a branch of a run's state begins now; commit first if there is none.

        Raises UnsavedChanges.
        """
        state = (await self._own(parent)).state
        if state.is_changed:
            raise UnsavedChanges(tuple(state.unsaved), "a branch begins at a commit", "commit() or discard() first")
        if state.is_detached:
            raise UnsavedChanges((), "a branch begins at the newest commit of a branch", "checkout() returns to it")
        return (state.head or await state.commit("")).id

    async def branch(self, run: Run) -> None:
        """Create the branch on which a run was spawned; idempotent."""
        location = state_location(run)
        state = await self._registries.state(location.owner)
        base_state = await state.open_copy(at=run.request.begins_at)
        with suppress(Conflict):  # The branch exists: an ended process created it, or an earlier call did.
            await base_state.fork(branch_of(location))

    async def _own(self, run: Run) -> RunState:
        async with self._opening:
            if run.memory is None:
                if (branched := _nearest_branched(run)) is not None:
                    await self.branch(branched)
                location = state_location(run)
                state = await self._registries.state(location.owner)
                branch_state = await state.open_copy(branch_of(location), author=run.info.id)
                run.memory = RunState(run.context, Namespaced(branch_state, place_of(location)), prefix_below(location))
                run.recorded_end().add_done_callback(lambda _: _forget(run))
        run_state: RunState = run.memory
        return run_state


def _nearest_branched(run: Run | None) -> Run | None:
    """Return the run whose branch a run works on; None if that is the main branch, or a branch that begins empty."""
    while run is not None and not run.request.begins_at and not run.request.fork_place:
        run = run.parent
    return run if run is not None and run.request.begins_at else None


def _forget(run: Run) -> None:
    """Drop the uncommitted changes of an ended run."""
    run.memory = None
