"""What a pod's program begins first: what the node can do is tried while the rest is imported, and a line is made."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.isolation.kubernetes.pod_args import PodArgs


def start_warmup(pod: PodArgs) -> threading.Thread:
    """Begin; done once that thread is. Called by a program that has no other thread yet.

    A pod that is one run's has a zygote of the program itself, too; several runs have one that nothing came before.
    """
    gc.disable()  # What is imported stays.
    if not pod.is_shared:
        from ramet.isolation.linux.trials import background

        background.begin()
    # What both the program and its zygote need is imported once.
    import asyncio  # noqa: F401

    from ramet.isolation import probe

    if not pod.is_shared:
        from ramet.isolation.zygote import prefork

        prefork.start_zygote(pod.image)
    trying = threading.Thread(target=probe.probe_machine if pod.is_shared else background.found, daemon=True)
    trying.start()
    gc.freeze()
    gc.enable()
    return trying
