"""The first step of a pod's program: it probes the node while it imports modules and opens a line."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.isolation.kubernetes.pod_args import PodArgs


def start_warmup(pod: PodArgs) -> threading.Thread:
    """Start the probe; it is done when the returned thread has ended. Call while there is no other thread.

    In a pod of one run, fork a zygote from the program itself, too. A shared pod uses a zygote of a new process.
    """
    gc.disable()  # Imported objects are never freed.
    if not pod.is_shared:
        from ramet.isolation.linux.trials import background

        background.start()
    # Modules that both the program and its zygote need are imported once.
    import asyncio  # noqa: F401

    from ramet.isolation import probe

    if not pod.is_shared:
        from ramet.isolation.zygote import prefork

        prefork.start_zygote(pod.image)
    thread = threading.Thread(target=probe.probe_machine if pod.is_shared else background.results, daemon=True)
    thread.start()
    gc.freeze()
    gc.enable()
    return thread
