"""The program of a pod that is reached through the attach stream: its standard input and output are the line.

What it prints goes nowhere but to the container's log, on standard error. Nobody there for `patience_s`: it ends.
"""

from __future__ import annotations

import os
import sys

from ramet.isolation.kubernetes import pod_args
from ramet.isolation.kubernetes.entrypoint import warmup


def main() -> None:
    """Called with the patience in seconds, and what `ramet.isolation.kubernetes.pod_args` reads."""
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
