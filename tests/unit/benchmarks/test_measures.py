"""Each measurement still works: one small run finds the values that the catalogue shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from benchmarks.catalogue import CATALOGUE
from benchmarks.cost import Figures
from benchmarks.machine import ROOT
from benchmarks.measurement import Measurement
from benchmarks.measures import (
    batch,
    cancel,
    crowd,
    depth,
    dynamic,
    history,
    isolated,
    isolated_call,
    isolated_death,
    isolated_many,
    isolated_model,
    isolated_tree,
    journal,
    kept_turn,
    kernels,
    limit,
    memory,
    opening,
    page_frames,
    pods,
    population,
    recording,
    recovery,
    scheduled_takeover,
    served,
    services,
    state,
    takeover,
    team_pod,
    tree,
)
from benchmarks.projects import DURABLE, IN_MEMORY
from benchmarks.venvs import CACHE
from tests.support.postgres import reason_absent

pytestmark = pytest.mark.slow  # each starts interpreters of its own

SMALL: dict[str, Callable[[], Awaitable[Figures]]] = {
    "batch": lambda: batch.measure(3),
    "cancel-deep": lambda: cancel.cancel((2, 1, 1)),
    "cancel-flat": lambda: cancel.cancel((5,)),
    "cancel-wide": lambda: cancel.cancel((2, 3)),
    "crowd": lambda: crowd.measure(70),
    "depth": lambda: depth.measure(3, 100, 2, 1),
    "dynamic": lambda: dynamic.measure("3", "20"),
    "history": lambda: history.measure(6, 1),
    "isolated": lambda: isolated.measure(4),
    "isolated-call": lambda: isolated_call.measure(2, 2),
    "isolated-death": isolated_death.measure,
    "isolated-idle": lambda: isolated_many.measure("idle", 3),
    "isolated-model": lambda: isolated_model.measure(1),
    "isolated-rate": lambda: isolated_many.measure("rate", 1),
    "recovery": lambda: recovery.measure(3, 20),
    "journal": lambda: journal.measure(2_000),
    "isolated-tree": lambda: isolated_tree.measure(1, 1),
    "kept-turn": lambda: kept_turn.measure(2, 1),
    "kernels-heard": lambda: kernels.measure(1, 1, 100),
    "limit-100": lambda: limit.measure(20),
    "memory-asleep": lambda: memory.measure("asleep", 3),
    "memory-idle": lambda: memory.measure("idle", 3),
    "memory-over": lambda: memory.measure("over", 3),
    "memory-session": lambda: memory.measure("session", 3),
    "memory-waiting": lambda: memory.measure("waiting", 3),
    "opening": lambda: opening.measure(1),
    "pods": lambda: pods.measure(1, 2),
    "population": lambda: population.measure(2, 1, 100, 10),
    "recording": lambda: recording.measure(5),
    "served": lambda: served.measure(2, 3),
    "services": lambda: services.measure(64, 2, 3),
    "takeover": lambda: takeover.measure(6),
    "scheduled-takeover": lambda: scheduled_takeover.measure(6),
    "state": lambda: state.measure(3, 20),
    "team-pod": lambda: team_pod.measure(2),
    "tree": lambda: tree.measure(2, 2),
    "ui": lambda: page_frames.measure(200, 100, 0.5),
}
ON_PODS = {"pods", "team-pod"}
ON_POSTGRES = {"kept-turn", "kernels-heard", "takeover", "scheduled-takeover"}
BY_NAME = {each.name: each for each in CATALOGUE}


#: Measurements that take seconds of processor time even if they are small.
LONG = {"takeover", "scheduled-takeover", "isolated", "isolated-rate", "ui"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.larger] if name in LONG else []) for name in SMALL]
)
async def test_a_measurement_finds_its_values(name: str) -> None:
    """Each value of the table is measured."""
    if name in ON_POSTGRES and (reason := reason_absent()):
        pytest.skip(reason)
    if name in ON_PODS and not (os.environ.get("KUBECONFIG") and os.environ.get("REGISTRY")):
        pytest.skip("no cluster is given (KUBECONFIG and REGISTRY)")
    if name == "ui" and shutil.which("chromium") is None:
        pytest.skip("chromium is not installed: `make setup` installs it on Debian")
    measurement = await SMALL[name]()

    assert {figure.key for figure in BY_NAME[name].figures} <= measurement.keys()


def test_each_measurement_is_tried() -> None:
    """No measurement is omitted here, except that one stands for others that differ only in size."""
    modules = {BY_NAME[name].arguments[0] for name in SMALL}

    assert {each.arguments[0] for each in CATALOGUE if each.kind == "measure"} == modules
    assert all((ROOT / "benchmarks" / "measures" / f"{name}.py").is_file() for name in modules)


@pytest.mark.parametrize("adapter", ["bench_ramet", "bench_ramet_durable"])
def test_the_harness_drives_ramet(adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter fits the harness of the peers, with and without a journal."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # The harness leaves what it made there.

    assert '"child_turns": 3' in _output_of(f"benchmarks/peers/{adapter}.py", "fanout", "3", "0.0")


@pytest.mark.parametrize("peer", [*IN_MEMORY, *DURABLE])
def test_the_harness_drives_a_peer(peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed peer runs children as ours does. A limit of 5 model requests lets three children end."""
    python = _python_of(peer)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # The harness leaves what it made there.
    script = f"benchmarks/peers/bench_{peer}.py"

    assert '"child_turns": 3' in _output_of(script, "fanout", "3", "0.0", python=python)
    if peer in BY_NAME["limit-100"].peers:
        assert '"requests": 5' in _output_of(script, "limit", "3", python=python)


def test_ray_is_measured_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that Ray starts has a path of its folder in its command line, or a name of Ray."""
    python = _python_of("ray")
    with TemporaryDirectory(prefix="ramet-bench-") as folder:  # a short path: Ray has sockets below it
        monkeypatch.setenv("TMPDIR", folder)
        before = set(psutil.pids())

        figures = json.loads(_output_of("benchmarks/peers/bench_ray.py", "isolated_call", python=python))

        assert figures.keys() == {"bare_p50_ms", "bare_idle_mb"}
        processes = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in before]
        commands = [" ".join(each.info["cmdline"] or []) for each in processes]
        assert [each for each in commands if folder in each or each.startswith("ray::")] == []


@pytest.mark.parametrize(
    "measurement", [each for each in CATALOGUE if each.kind == "import"], ids=lambda each: each.name
)
def test_an_import_is_measured_in_a_bare_interpreter(measurement: Measurement) -> None:
    """The measured modules are those that the statement loads."""
    assert '"modules": ' in _output_of("-P", "benchmarks/measures/imports.py", *measurement.arguments)


def _python_of(peer: str) -> str:
    if not (CACHE / peer / "installed").is_file():
        pytest.skip("`make bench ARGS='--peers'` installs it")
    return str(CACHE / peer / "bin" / "python")


def _output_of(*arguments: str, python: str = sys.executable) -> str:
    return subprocess.run([python, *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
