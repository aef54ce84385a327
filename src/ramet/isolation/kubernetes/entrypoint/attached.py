"""The program of a pod that is reached through the attach stream: its standard input and output are the line.

Its own output goes to standard error, which is the container's log. The program ends after `patience_s` without a
kernel.
"""

from __future__ import annotations

import os
import sys

from ramet.isolation.kubernetes import pod_args
from ramet.isolation.kubernetes.entrypoint import warmup


def main() -> None:
    """Run the program. Arguments: the patience in seconds, and those of `ramet.isolation.kubernetes.pod_args`."""
    patience, *words = sys.argv[1:]
    pod = pod_args.read(words)
    pod_args.limit_processes(pod)
    trying = warmup.start_warmup(pod)
    import asyncio

    from ramet.isolation.kubernetes.entrypoint.stdio import run

    given, taken = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    asyncio.run(run(given, taken, float(patience), pod, trying))
