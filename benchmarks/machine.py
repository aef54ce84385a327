"""The machine and the commit of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def machine() -> dict[str, Any]:
    """Return a description of the machine that does not tell whose it is."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def has_cluster() -> bool:
    """Return whether there is a Kubernetes cluster for measurements."""
    return bool(os.environ.get("KUBECONFIG") and os.environ.get("REGISTRY"))


def load() -> list[float]:
    """Return the load averages of the last 1, 5 and 15 minutes: on a shared machine, the work of others."""
    return [round(each, 2) for each in os.getloadavg()]


def commit() -> str:
    """Return the measured commit, with `-changed` if the tree differs from it; `uncommitted` without a commit."""
    name = _git("rev-parse", "--short=10", "HEAD")
    if name is None:
        return "uncommitted"
    return (
        f"{name}-changed" if _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results") else name
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
