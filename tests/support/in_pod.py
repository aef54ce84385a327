"""What is looked at inside a pod, or a place like one: each promise of the suite that one sandbox at a time can show.

Run as `python -m tests.support.in_pod FOLDER [NAME…]`; prints a line of JSON for each: name, and "" or what was wrong.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
import traceback

from ramet.isolation.conformance.suite import CHECKS, Check, Ground, NotHere, run
from ramet.isolation.local import LocalBackend
from tests.support import pod_checks

HERE = "tests.support.in_pod:in_pod"


def in_pod(runs: pathlib.Path) -> LocalBackend:
    """The backend that is looked at."""
    return LocalBackend(runs, pod=True)


async def main(folder: pathlib.Path, names: list[str]) -> None:
    """All of them, or those of these names."""
    for at, check in enumerate((*CHECKS, *pod_checks.CHECKS)):
        if check.__name__ in names or not names:
            place = folder / str(at)
            place.mkdir()
            print(json.dumps([check.__name__, await _wrong(check, place)]), flush=True)  # noqa: T201


async def _wrong(check: Check, folder: pathlib.Path) -> str:
    try:
        await run(check, Ground(HERE, folder))
    except NotHere as why:
        return f"not here: {why}"
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
