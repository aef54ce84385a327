"""The source that a command line names, and the key for a server."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.main import main
from ramet.cli.sources.choose import source_of
from ramet.cli.sources.local_approvals import open_questions
from ramet.cli.sources.server import key_in
from ramet.core.errors import InvalidValue
from ramet.core.events import ApprovalAnswered, ApprovalAsked, RunEnded, RunSpawned
from ramet.core.outcome import Result, Status
from ramet.core.replay.replay import TreeReplay
from tests.unit.cli.story import TreeEventWriter

MINE, OTHER = "a-token-of-my-own-choice", "another-token-of-my-own"


@pytest.mark.parametrize(
    ("server", "dir", "option_name", "expected"),
    [
        (None, None, None, "LocalSource"),
        (None, None, " ", "LocalSource"),
        (None, None, "a.sock", "ServerSource a.sock"),
        ("b.sock", None, "a.sock", "ServerSource b.sock"),
        ("http://127.0.0.1:1", None, None, "ServerSource http://127.0.0.1:1"),
        (None, Path("/"), "a.sock", "LocalSource"),
    ],
)
def test_options_go_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, server: str | None, dir: Path | None, option_name: str | None, expected: str
) -> None:
    """The order is --server or --dir, RAMET_SERVER, this folder."""
    if option_name is not None:
        monkeypatch.setenv("RAMET_SERVER", option_name)

    source: Any = source_of(Namespace(server=server, dir=dir))

    assert " ".join([type(source).__name__, *([source.address] if hasattr(source, "address") else [])]) == expected


@pytest.mark.parametrize(
    "source_options", ["ftp://here", "http://", "http://[::1", "http://here:99999", "~nobody-of-that-name/x"]
)
def test_an_invalid_server_is_refused_with_its_origin(
    source_options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with status 2, for each command."""
    assert main(["ps", "--server", source_options]) == 2
    monkeypatch.setenv("RAMET_SERVER", source_options)
    assert main(["ps"]) == 2

    out, err = capsys.readouterr()
    assert (out, [line.partition(": ")[2].partition(": ")[0] for line in err.splitlines()]) == (
        "",
        ["--server", "RAMET_SERVER"],
    )


def test_the_key_is_found_as_a_server_finds_it(tmp_path: Path) -> None:
    """RAMET_TOKEN names the place of the key and goes before RAMET_OPERATOR_TOKEN, which holds it."""
    file = tmp_path / "token"
    file.write_text(f"{OTHER}\n")
    file.chmod(0o600)

    assert key_in({}) is None
    assert key_in({"RAMET_TOKEN": " ", "RAMET_OPERATOR_TOKEN": ""}) is None
    assert key_in({"RAMET_OPERATOR_TOKEN": f" {MINE}\n"}) == MINE
    assert key_in({"RAMET_OPERATOR_TOKEN": MINE, "RAMET_TOKEN": f"file:{file}"}) == OTHER
    assert key_in({"RAMET_TOKEN": "env:HERE", "HERE": MINE}) == MINE


def test_a_question_stays_open_until_it_is_answered() -> None:
    """A question before the start of its call or outside a call is open, too; the end of its run closes it."""
    writer = TreeEventWriter()
    for run in ("main", "main/child", "main/gone"):
        name = run.rpartition("/")[2]
        writer.add(RunSpawned, run, 0, name=name, prompt="")
        for id, call in ((f"{name}-1", "c1"), (f"{name}-2", "c2"), (f"{name}-3", None)):
            writer.add(ApprovalAsked, run, 1, approval_id=id, tool="Write", question="Really?", call_id=call)
    writer.add(ApprovalAnswered, "main", 2, approval_id="main-1", allowed=True, call_id="c1")
    writer.add(ApprovalAnswered, "main/child", 2, approval_id="child-3", allowed=False)
    writer.add(RunEnded, "main/gone", 3, result=Result(status=Status.CANCELLED))

    assert [question.id for _, question in open_questions(TreeReplay().apply_all(writer.events))] == [
        "main-2",
        "main-3",
        "child-1",
        "child-2",
    ]


@pytest.mark.parametrize(
    "environ",
    [{"RAMET_TOKEN": MINE}, {"RAMET_TOKEN": "env:NOT_HERE"}, {"RAMET_OPERATOR_TOKEN": "schlüssel-zum-haus"}],
    ids=["no-place", "nothing-there", "not-ascii"],
)
def test_an_unusable_key_is_refused_and_not_shown(environ: dict[str, str]) -> None:
    """The error names the variable."""
    with pytest.raises(InvalidValue) as refusal:
        key_in(environ)

    assert next(iter(environ)) in str(refusal.value) or "NOT_HERE" in str(refusal.value)
    assert not any(value in str(refusal.value) for value in environ.values() if "env:" not in value)


def test_a_missing_key_is_reported_with_the_variable_that_names_it() -> None:
    """The name of the empty variable alone would not help."""
    with pytest.raises(InvalidValue, match=r"^RAMET_TOKEN: env:NOT_HERE: "):
        key_in({"RAMET_TOKEN": "env:NOT_HERE"})
