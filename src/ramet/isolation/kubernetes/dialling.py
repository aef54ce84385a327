"""The program of a pod that dials its kernel. Nobody there for `patience_s`: it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ramet.isolation.lines import invitation
from ramet.isolation.lines.dialling import dialled
from ramet.isolation.lines.resuming import Patience
from ramet.isolation.remote.inside import serve


def main() -> None:
    """Called with the Secret's folder, the patience in seconds, the folder of all workspaces, and those of mounts."""
    secret, patience, runs, *places = sys.argv[1:]
    told = invitation.read(Path(secret), pod=os.environ["RAMET_POD_UID"])
    asyncio.run(_run(told, float(patience), Path(runs), [Path(each) for each in places]))


async def _run(told: invitation.Invitation, patience_s: float, runs: Path, places: list[Path]) -> None:
    async with dialled(told, patience=Patience(give_up_s=patience_s)) as line:
        await serve(line, runs, places)
