"""The command line of a pod's program after the arguments of its transport: how the pod is used, and its folders."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ramet.isolation.contract import Image

SHARED = "--shared"  #: followed by the number of processes that all runs in the pod may have together
LLM = "--llm"  #: the pod's run uses that image


class PodArgs(NamedTuple):
    """The parsed command line of a pod."""

    pids: int | None  #: of a pod that several runs share; None: the pod has one run at a time
    runs: Path  #: the folder of all workspaces
    places: Sequence[Path]  #: the folders of mounts
    image: Image = "bare"  #: of the pod's run, if that is known

    @property
    def is_shared(self) -> bool:
        """Return whether several runs use the pod at once. No part of such a pod belongs to one run alone."""
        return self.pids is not None


def read(args: Sequence[str]) -> PodArgs:
    """Parse the end of a pod's command line."""
    pids = None
    image: Image = "bare"
    if args[0] == SHARED:
        pids, args = int(args[1]), args[2:]
    if args[0] == LLM:
        image, args = "llm", args[1:]
    runs, *places = map(Path, args)
    return PodArgs(pids, runs, places, image)


def limit_processes(args: PodArgs) -> None:
    """Limit the number of processes of this process and all its descendants to `asked.pids`.

    The limit counts per user, and no two pods share a user.
    """
    if args.pids is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (args.pids, args.pids))
