"""Ray: an actor that is created, called once and answers, one after another; and the memory of actors that wait.

An actor has no model loop. Ray is started for this alone, on loopback, and is stopped at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from statistics import median

import psutil

#: Below the time limit of the sitting, so that Ray is stopped even then.
TIMEOUT_S = 100


def main(mode: str) -> None:
    """Print the figures of a mode: `import`, or `isolated_call`."""
    if mode == "import":
        from common import main as common_main

        return common_main(Imported)
    print(json.dumps(_isolated_call()), flush=True)


class Imported:
    """The adapter of an import, which is all that the harness can time here."""

    IMPORTS = "import ray"


def _isolated_call(count: int = 10, idle: int = 4) -> dict[str, float]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(TIMEOUT_S)
    ray.init(
        address="local",  # a Ray of its own, whatever runs elsewhere
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=80 * 2**20,
        _node_ip_address="127.0.0.1",
        _temp_dir=tempfile.mkdtemp(prefix="ray-"),
    )
    try:
        actor_class = ray.remote(num_cpus=0)(Actor)
        found = []
        for number in range(count + 3):
            began = time.perf_counter()
            actor = actor_class.remote()
            assert ray.get(actor.nothing.remote()) == 1
            if number >= 3:  # The first ones take the processes that Ray started with itself.
                found.append((time.perf_counter() - began) * 1e3)
            ray.kill(actor)
        waiting = [actor_class.remote() for _ in range(idle)]
        pids = ray.get([each.pid.remote() for each in waiting])
        memory_mb = [_proportional_mb(each) for each in pids]
        return {"bare_p50_ms": median(found), "bare_idle_mb": sum(memory_mb) / idle}
    finally:
        signal.alarm(0)
        ray.shutdown()


def _proportional_mb(pid: int) -> float:
    """Return the memory of a process, with its share of the memory that other processes have too."""
    return float(psutil.Process(pid).memory_full_info().pss) / 2**20


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"not done within {TIMEOUT_S} s")


class Actor:
    """An actor that does the least that one can do."""

    def nothing(self) -> int:
        """Return a number."""
        return 1

    def pid(self) -> int:
        """Return the process of this actor."""
        return os.getpid()


if __name__ == "__main__":
    main(sys.argv[1])
