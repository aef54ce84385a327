"""Peers: installed beside our pins, measured after us, and left out with a reason if they fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import sitting as sittings
from benchmarks import venvs
from benchmarks.__main__ import main
from benchmarks.catalogue import CATALOGUE
from benchmarks.machine import ROOT
from benchmarks.measurement import Figure, Measurement
from benchmarks.projects import OURS, PEERS, Peer
from benchmarks.sitting import Sitting, sit

PINS = dict(line.strip().split("==") for line in venvs.CONSTRAINTS.read_text().splitlines() if "==" in line)
LIMIT = Measurement(
    name="import",
    title="An import",
    kind="import",
    arguments=("import json",),
    figures=(Figure("s", "time", "s wall"), Figure("modules", "modules", "modules", ours_only=True)),
    peers=("broken", "absent"),
    table="Imports",
)


@pytest.mark.parametrize("peer", PEERS, ids=lambda each: each.name)
def test_pins_of_a_peer_agree_with_ours(peer: Peer) -> None:
    """A package that both need has one version, or the peer says that it needs its own."""
    for package in peer.packages:
        name, _, version = package.partition("==")
        assert version
        assert name in peer.own_versions or PINS.get(name, version) == version
    assert set(peer.own_versions) <= PINS.keys()


def test_a_peer_may_have_its_own_version_of_a_package() -> None:
    """Only the pins of these packages are no constraint, and no package whose name begins alike."""
    lines = venvs.CONSTRAINTS.read_text().splitlines()

    left = venvs.constraints_without({"langgraph"}).splitlines()

    assert set(lines) - set(left) == {f"langgraph=={PINS['langgraph']}"}


def test_each_peer_has_an_adapter_and_a_part() -> None:
    """Each peer is driven by a script, is compared in some table, and says what it does not do."""
    names = [peer.name for peer in PEERS]
    parts = {name for each in CATALOGUE for name in each.peers}

    assert parts == set(names)
    assert all((ROOT / "benchmarks" / "peers" / f"bench_{name}.py").is_file() for name in names)
    assert all(peer.does_not for peer in PEERS)
    assert all(bool(each.table) == bool(each.peers) for each in CATALOGUE)


def test_a_peer_that_cannot_be_installed_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is returned by the peer's name, and the others have their interpreters."""
    monkeypatch.setattr(venvs, "CACHE", tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))
    broken, installed = (Peer(name=name, label=name, packages=()) for name in ("broken", "installed"))
    home = tmp_path / "installed"
    home.mkdir()
    (home / "installed").write_text(sys.version)

    interpreters, problems = venvs.interpreters_of([broken, installed])

    assert interpreters == {"installed": str(home / "bin" / "python")}
    assert "no-such-python" in problems["broken"]


@pytest.mark.slow
def test_the_command_goes_on_without_its_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours is measured and written, each missing peer is named with the reason, and the status is that of ours."""
    monkeypatch.setattr(venvs, "CACHE", tmp_path / "result.json" / "below-a-file")
    (tmp_path / "result.json").touch()

    arguments = ["harness-import", "--peers", "--rounds", "1", "--json", str(tmp_path / "result.json")]
    status = main([*arguments, "--plots", str(tmp_path / "plots")])

    data = json.loads((tmp_path / "result.json").read_text())
    shown = capsys.readouterr()
    assert status == 0
    assert "import_s" in data["measurements"]["harness-import"]["figures"]
    assert "s wall" in shown.out
    for peer in PEERS:
        assert data["left_out"][f"harness-import, {peer.name}"].startswith("cannot be installed: ")
        assert f"left out: {peer.name}, harness-import: cannot be installed: " in shown.err
    assert list((tmp_path / "plots").iterdir()) == []


def test_a_peer_that_fails_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    """Our rounds are all there, the reason names the round, and a peer without an interpreter is not tried."""
    broken = tmp_path / "python"
    broken.write_text('#!/bin/sh\necho started >>"$0.log"\necho reason >&2\nexit 3\n')
    broken.chmod(0o755)

    measured = sit([LIMIT], rounds=2, peers={"broken": str(broken)})

    assert measured.failures == []
    assert len(measured.of(LIMIT, LIMIT.figures[0])) == 2
    assert measured.left_out == {("import", "broken"): "round 1: status 3: reason"}
    assert (tmp_path / "python.log").read_text().splitlines() == ["started"]


def test_a_peer_that_is_left_out_has_no_values() -> None:
    """Values of earlier rounds go, too: a ratio pairs the rounds of both."""
    measured = Sitting()
    for project in (OURS, "broken"):
        measured.add(LIMIT, project, {"s": 1.0, "modules": 5.0})
    measured.leave_out(LIMIT, "broken", "reason")

    assert not measured.has(LIMIT, "broken")
    assert measured.ratio(LIMIT, LIMIT.figures[0], "broken") is None
    assert measured.has(LIMIT, OURS)


def test_a_figure_of_ours_only_is_not_asked_of_peers() -> None:
    """A peer that does not do what a figure measures is compared by the others."""
    measured = Sitting()
    measured.add(LIMIT, "broken", {"s": 1.0})

    assert measured.values["import"]["broken"] == {"s": [1.0]}
    with pytest.raises(KeyError):
        measured.add(LIMIT, OURS, {"s": 1.0})


def test_no_measured_process_reports_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that switch traces and usage statistics off win over those of the environment."""
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    command = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]

    environment = sittings.run_measurement(command)

    assert sittings.NO_TELEMETRY.items() <= environment.items()
