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
    patience, *args = sys.argv[1:]
    pod = pod_args.read(args)
    pod_args.limit_processes(pod)
    warmup_thread = warmup.start_warmup(pod)
    import asyncio

    from ramet.isolation.kubernetes.entrypoint.stdio import run

    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    asyncio.run(run(stdin, stdout, float(patience), pod, warmup_thread))
