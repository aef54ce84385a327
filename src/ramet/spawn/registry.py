"""The registry of all runs of one tree: living runs, names, and the fate of ended runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.slots import Slots
from ramet.core.errors import Unknown
from ramet.core.ids import RunId
from ramet.core.lifecycle import State
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.spawn.admission import Admission
from ramet.spawn.ports import TreePorts
from ramet.spawn.run import Run


class Tombstone(NamedTuple):
    """The remaining record of a run whose history is deleted: that it existed, and how it ended."""

    path: str
    name: str
    status: Status


class RunRegistry:
    """A registry that finds runs unambiguously: no name or id is given twice."""

    def __init__(self, services: TreePorts, limits: SpawnLimits) -> None:
        self.services, self.limits = services, limits
        self.slots = Slots(limits.running)
        self.admission = Admission(limits, self.living)
        self.root: Run | None = None
        self.loop_is_ending = False  #: a new turn would never run
        self.abort = AbortController()  #: above all runs; runs that outlive their parents are attached to it directly
        self.runs: dict[RunId, Run] = {}  #: living, and finished ones whose history is kept
        self.tombstones: dict[str, Tombstone] = {}
        self.known_spawns: dict[tuple[RunId, str], Run] = {}  #: by parent and key, of a process that has ended
        self.runs_by_request: dict[str, Run] = {}  #: by the sandbox request that led to them, of such a process
        self.mail_by_request: set[str] = set()  #: likewise, requests that led to mail
        #: Called when a run has changed its state, and when a pause has begun or ended.
        self.on_state: list[Callable[[], None]] = []
        self._names: dict[str, RunId] = {}
        self._versions: dict[str, int] = {}  #: the newest version given, by requested name
        self._finished_ids: OrderedDict[RunId, None] = OrderedDict()

    @property
    def is_paused(self) -> bool:
        """True if a run is paused, and nothing in the tree works."""
        states = {run.state for run in self.living()}
        return State.PAUSED in states and not states & {State.STARTING, State.RUNNING, State.STOPPING}

    def living(self) -> Iterator[Run]:
        """Return every run that has not ended."""
        return (run for run in list(self.runs.values()) if run.is_living)

    def free_name(self, preferred_name: str) -> str:
        """Return the name itself, or its first version that no run of this tree ever had."""
        name, version = preferred_name, self._versions.get(preferred_name, 1)
        while self._means_another(name):
            version += 1
            name = f"{preferred_name}-{version}"
        self._versions[preferred_name] = version
        return name

    def _means_another(self, name: str) -> bool:
        """Return whether the name addresses, or could address, something else.

        Such names are a name, id or number, "parent", and a file of transcripts.
        """
        return (
            name in self._names
            or name in self.runs
            or name in self.tombstones
            or name == "parent"
            or name.isdecimal()
            or name.endswith(".jsonl")
        )

    def add(self, run: Run) -> None:
        """Register a new run, or a run of another process, among the living or the ended runs."""
        self.runs[run.info.id] = run
        self._names[run.name] = run.info.id
        if run.parent is None:
            self.root = run
        elif run.is_living:
            run.parent.children[run.info.id] = run
        if not run.is_living:
            self._finished_ids[run.info.id] = None

    def finish(self, run: Run) -> list[Run]:
        """Remove an ended run from the living ones; return the finished runs that are not kept any longer."""
        self.admission.release(run.admission_slot)
        if run.parent is not None:
            run.parent.children.pop(run.info.id, None)
        self._finished_ids[run.info.id] = None
        surplus = len(self._finished_ids) - self.services.max_finished_runs
        return [self.runs[self._finished_ids.popitem(last=False)[0]] for _ in range(surplus)]

    def reopen(self, run: Run, parent: Run) -> None:
        """Add a finished run to the living ones again."""
        self._finished_ids.pop(run.info.id, None)
        run.move_below(parent)
        parent.children[run.info.id] = run

    def forget(self, run: Run) -> None:
        """Reduce a run to its tombstone."""
        assert run.turn.verdict is not None, "only an ended run is forgotten"
        del self.runs[run.info.id]
        self.tombstones[run.info.id] = Tombstone(run.info.path, run.name, run.turn.verdict.status)

    def find(self, target: str, asker: Run | None = None) -> Run:
        """Return the run of this id, path or name; 'parent' is relative to the asker.

        Raises Unknown if there is none; never guesses.
        """
        if target == "parent" and asker is not None and asker.parent is not None:
            return asker.parent
        match = self.runs.get(RunId(self._names.get(target, target)))
        if match is None:
            match = next((run for run in self.runs.values() if run.info.path == target), None)
        if match is not None:
            return match
        known = tuple(run.name for run in self.runs.values())
        for run_id, tombstone in self.tombstones.items():
            if target in (run_id, tombstone.path, tombstone.name):
                raise Unknown("agent", f"{target} (it ended as {tombstone.status}; its history has expired)", known)
        raise Unknown("agent", target, known)
