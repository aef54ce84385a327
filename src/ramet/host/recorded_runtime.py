"""The part of a runtime that works with the record: resume and adopt trees, read results and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Unpack

from ramet.core.errors import Unknown
from ramet.core.outcome import Result
from ramet.host.dynamic.time_travel import memory_events, recorded_events, state_at
from ramet.host.journal.blobs import read_blob
from ramet.host.journal.ttl import set_keep
from ramet.host.recovery.failover import FailoverTask
from ramet.host.recovery.fork_points import ForkPoint, fork_point, point_of_run
from ramet.host.recovery.resume import ResolvedInputs, ResumeOptions, orphaned_trees, resolve_inputs
from ramet.host.recovery.takeover import Takeover, claim_orphans, resume_all
from ramet.host.retention.results import check_not_expired, recorded_result
from ramet.host.runtime_base import RuntimeBase
from ramet.host.safety.gate import SafetyGate
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run
from ramet.store.state.versioned import Versioned


class RecordedRuntime(RuntimeBase):
    """A runtime, and the trees and states on record."""

    async def state(self, name: str, branch: str = "main", **options: Any) -> Versioned:
        """Open the versioned state of that name, kept with the journal, else in memory.

        Raises InvalidValue, StoreFailed.
        """
        return await Versioned.open(await self.open_store(), name, branch=branch, **options)

    async def state_at(self, run: str, seq: int) -> Versioned:
        """Return the agents' state at an event of a run's tree, for reading. Raises Unknown, InvalidValue.

        `Namespaced(state, "architect")` (`ramet.store.state.namespaced`) is the state of one agent.
        """
        if self.journal is None:
            trees = self._trees.of(run)
            events = memory_events([each for opened in trees for each in opened.recorder.recent_events])
        else:
            with suppress(Unknown):
                await self.get(run).run.context.wait_persisted()
            events = recorded_events(self.journal, run)
        return await state_at(self.dynamic.registries, events, run, seq)

    async def resume(
        self,
        *,
        only: str | None = None,
        prepare: Callable[[Run], None] | None = None,
        **brought: Unpack[ResumeOptions],
    ) -> list[Handle]:
        """Resume every tree that a killed process left, or `only` one, and return handles on their roots.

        The caller supplies the objects that a journal can only name: model objects (`llm` stands for all that `models`
        does not name), tools of a root, definitions that hold objects, hooks, a safety gate, values of secrets and of
        variables. `env_vars` has a variable by its name, or, for one run alone, by `path:NAME`. `only` is a root's id,
        or a session's; a closed conversation is then opened again, and waits for its next prompt. `prepare` is called
        with each root before the root starts to work. Raises DefinitionMissing for an object that is not supplied; the
        trees before it continue. A tree that cannot be read is logged and left unchanged; as the `only` one it raises
        DamagedTree.
        """
        if self.journal is not None:
            self.journal.users.add(self._trees)
        takeover = Takeover(self, resolve_inputs(**brought), self._close_with, prepare, reopens=only is not None)
        return await resume_all(takeover, self.journal, only=only)

    async def adopt(
        self,
        adopted: Callable[[Handle], None] | None = None,
        *,
        prepare: Callable[[Run], None] | None = None,
        **brought: Unpack[ResumeOptions],
    ) -> list[Handle]:
        """Resume like `resume`; then, until this runtime stops, take over the trees of every kernel that fails.

        For several kernels on one database. The objects that the trees need are supplied as for `resume`. A tree that
        needs others is named in the log, and stays for a `resume` that supplies them. `adopted` is called with each
        root that is taken over later; the roots that continue at once are returned. If several kernels adopt, exactly
        one gets a tree.
        """
        handles: list[Handle] = []
        takeover = Takeover(self, resolve_inputs(**brought), self._close_with, prepare)
        if (journal := self.journal) is None:
            return handles
        journal.users.add(self._trees)
        await self.stop_adopting()
        await takeover.resume_each(await claim_orphans(journal), handles.append)

        async def take(roots: Sequence[str]) -> None:
            await takeover.resume_each(await orphaned_trees(journal, roots), adopted or (lambda handle: None))

        self._failover = FailoverTask(journal, take)
        await self._failover.start()
        return handles

    async def result(self, run: str) -> Result:
        """Return the result of a run that ended in any process; wait for a run that is active here.

        A value from the journal is plain data. Raises Unknown for a run that is not recorded, BusyError for a run that
        another process left active and `resume` has not resumed, Expired for a run whose retention time has ended.
        """
        with suppress(Unknown):
            handle = self.get(run)
            await check_not_expired(self.journal, handle.run.info.root, run, self.clock.now())
            return await handle.result()
        return await recorded_result(self.journal, run, self.clock.now())

    async def blob(self, name: str) -> bytes:
        """Return the bytes of a tool result's artifact, by the recorded name. Raises Unknown."""
        if self.journal is not None:
            await self.journal.open()
            if (data := await read_blob(self.journal.store, name)) is not None:
                return data
        raise Unknown("blob", name)

    async def retain(self, run: str, on: bool = True) -> None:
        """Keep the tree of a run recorded until further notice (`on=False`), whatever its retention time is.

        Raises Unknown.
        """
        if self.journal is None:
            raise Unknown("run", run)
        await self.journal.open()
        with suppress(Unknown):
            await self.get(run).run.context.wait_persisted()
        await set_keep(self.journal.store, run, on)

    async def _fork_point(self, run: str, at: int | None, supplied: ResolvedInputs) -> ForkPoint:
        """Return the fork point of a run at an event's number. Raises like `fork`."""
        if self.journal is None:
            return point_of_run(self.get(run).run, at)
        with suppress(Unknown):
            await self.get(run).run.context.wait_persisted()
        return await fork_point(self.journal, run, at, supplied)

    def _gate_of(self, run: str) -> SafetyGate | None:
        """Return the gate of a run's tree, if the tree is here."""
        return next((opened.gate for opened in self._trees.of(run)), None)
