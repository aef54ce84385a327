"""What the program of a pod is told, behind what its way to the kernel takes: whose the pod is, and its folders."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ramet.isolation.contract import Image

SHARED = "--shared"  #: and how many processes all runs in it may have together
LLM = "--llm"  #: its run is of that image


class PodArgs(NamedTuple):
    """A pod's command line."""

    pids: int | None  #: of a pod that several runs share; None: it belongs to one at a time
    runs: Path  #: the folder of all workspaces
    places: Sequence[Path]  #: the folders of mounts
    image: Image = "bare"  #: of its run, as far as that is known

    @property
    def is_shared(self) -> bool:
        """Whether several runs are in it at once, and nothing of it is one run's own."""
        return self.pids is not None


def read(words: Sequence[str]) -> PodArgs:
    """The end of a command line."""
    pids = None
    image: Image = "bare"
    if words[0] == SHARED:
        pids, words = int(words[1]), words[2:]
    if words[0] == LLM:
        image, words = "llm", words[1:]
    runs, *places = map(Path, words)
    return PodArgs(pids, runs, places, image)


def limit_processes(asked: PodArgs) -> None:
    """Have this process, and all that it starts, be no more than that many: no pod has its user in common."""
    if asked.pids is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (asked.pids, asked.pids))
