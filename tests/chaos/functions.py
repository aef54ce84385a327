"""Functions of trips B and C: two with checkpoints and children in sandboxes, and one that is scheduled."""

from __future__ import annotations

import ctypes
import pathlib
import signal
import time
from typing import Any

REGIONS = ("north", "south")


def survey() -> dict[str, Any]:
    """Have a child count each region in turn. A checkpoint keeps finished regions, so that none is counted again."""
    from ramet import Policy
    from ramet.sub_agent_client import load_checkpoint, save_checkpoint, spawn_sub_agent

    outputs: dict[str, Any] = load_checkpoint() or {}
    for name in REGIONS:
        if name in outputs:
            continue
        policy = Policy(allow_sub_agents=True, memory_mb=256, cpu_cores=0.5)
        result = spawn_sub_agent(agent=region, policy=policy, args=(name,))
        if result.exit_code:
            raise RuntimeError(f"{name}: {result.status}: {result.error}")
        outputs[name] = result.output
        save_checkpoint(outputs)
    return outputs


def region(name: str) -> list[str]:
    """Have two towns counted concurrently."""
    from ramet import Policy
    from ramet.sub_agent_client import map_sub_agents

    policy = Policy(memory_mb=96, cpu_cores=0.2, allow_sub_agents=False)
    results = map_sub_agents(town, [f"{name} 1", f"{name} 2"], policy=policy)
    return [result.output for result in results]


def town(name: str) -> str:
    """Count one town."""
    return f"counted {name}"


#: What a survey finds.
FOUND = {name: [f"counted {name} 1", f"counted {name} 2"] for name in REGIONS}
#: How many runs that takes: the survey, regions, towns.
RUNS = 1 + len(REGIONS) * 3


def hold_one(patient: bool) -> dict[str, Any]:
    """Start a child that never ends by itself, and return how it ended.

    A further attempt returns only that it is one.
    """
    from ramet import Policy
    from ramet.sub_agent_client import load_checkpoint, save_checkpoint, spawn_sub_agent

    if load_checkpoint() is not None:
        return {"attempt": "again"}
    save_checkpoint("begun")
    if not patient:
        never_end()
    result = spawn_sub_agent(agent=never_end, policy=Policy(memory_mb=96, cpu_cores=0.2, timeout_seconds=60))
    return {"status": str(result.status), "exit_code": result.exit_code}


def never_end() -> None:
    """Wait until the process is terminated."""
    print("here", flush=True)  # noqa: T201 - it is how it is known to be at work
    while True:
        time.sleep(60)


def stay(name: str) -> None:
    """Take a process name of at most 15 letters, ignore SIGTERM, and wait until SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(15, name.encode())  # PR_SET_NAME
    print("here", flush=True)  # noqa: T201 - as above
    while True:
        time.sleep(60)


def tick(folder: str) -> str:
    """Leave one countable effect, as the function of a schedule."""
    from tests.chaos.planned import count

    count(pathlib.Path(folder), "tick")
    return "ticked"
