"""The program of a pod that dials its kernel. Nobody there for `patience_s`: it ends, and says so."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.isolation import probe
from ramet.isolation.kubernetes import asked

if TYPE_CHECKING:
    from ramet.isolation.lines.invitation import Invitation


def main() -> None:
    """Called with the Secret's folder, the patience in seconds, and what `ramet.isolation.kubernetes.asked` reads."""
    # What the node can do is tried while the rest is imported: both take a pod's first moments.
    trying = threading.Thread(target=probe.machine, daemon=True)
    trying.start()
    import asyncio

    from ramet.isolation.lines import invitation

    secret, patience, *words = sys.argv[1:]
    pod = asked.read(words)
    asked.hold(pod)
    told = invitation.read(Path(secret), pod=os.environ["RAMET_POD_UID"])
    asyncio.run(_run(told, float(patience), pod, trying))


async def _run(told: Invitation, patience_s: float, pod: asked.Asked, trying: threading.Thread) -> None:
    from ramet.concurrency.threads import in_thread
    from ramet.core.errors import Gone
    from ramet.isolation.lines.dialling import dialled
    from ramet.isolation.lines.resuming import Patience
    from ramet.isolation.remote.inside import serve

    async with dialled(told, patience=Patience(give_up_s=patience_s)) as line:
        await in_thread(trying.join, name="ramet-probe")
        if not await serve(line, pod.runs, pod.places, pod=not pod.is_shared):
            raise Gone(f"the kernel was not there for {patience_s:g} s, or has let go of the pod")
