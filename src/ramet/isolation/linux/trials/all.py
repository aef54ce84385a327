"""The program that runs all trials in sequence, and prints one JSON object of name → [works, observation]."""

from __future__ import annotations

import json
import sys

from ramet.isolation.linux.trials import bubblewrap, cgroups, gates, namespaces
from ramet.isolation.linux.trials.throwaway import run_trial


def main(uid: int | None, gid: int | None, bwrap: str | None) -> None:
    """Try everything as this user, cgroups as the caller, and print the results."""
    user = None if uid is None or gid is None else (uid, gid)
    results = {name: run_trial(trial, None) for name, trial in cgroups.TRIALS.items()}
    for name, trial in {**namespaces.TRIALS, **gates.TRIALS}.items():
        results[name] = run_trial(trial, user)
    results["bwrap"] = run_trial(lambda: bubblewrap.works(bwrap), user) if bwrap else (False, "not installed")
    sys.stdout.write(json.dumps(results))
