"""The checks of `ramet doctor`."""

from __future__ import annotations

import io
import linecache
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from ramet.cli.doctor import doctor_command, provider_checks
from ramet.cli.doctor.bounded_checks import run_checks
from ramet.cli.doctor.check_result import CheckResult
from ramet.cli.doctor.machine_checks import check_folder
from ramet.cli.doctor.provider_checks import check_providers
from ramet.cli.doctor.sandbox_checks import run_trial
from ramet.cli.doctor.service_checks import check_services
from ramet.cli.main import main

FINE = CheckResult(name="fine", state="ok", meaning="it works")


def test_a_check_that_hangs_or_raises_hides_no_other() -> None:
    """Every check has a result, in their order, and the report says that it is not complete."""
    end = threading.Event()

    def hang() -> list[CheckResult]:
        end.wait()
        return []

    report = run_checks({"hang": hang, "raise": lambda: [][0], "fine": lambda: [FINE]}, timeout_s=2)
    end.set()

    assert [(each.name, each.state) for each in report.results] == [
        ("hang", "missing"),
        ("raise", "missing"),
        ("fine", "ok"),
    ]
    assert "no answer within 2 s" in report.results[0].meaning
    assert "IndexError" in report.results[1].meaning
    assert not report.is_complete


async def test_a_sandbox_that_can_read_a_file_of_the_host_is_limited() -> None:
    """Every sandbox sees the standard library: the trial notices that the file is readable."""
    result = await run_trial("local", Path(linecache.__file__))

    assert result.state == "limited"
    assert "could read a file of this machine" in result.meaning


def test_the_settings_of_an_untrusted_folder_are_not_used(tmp_path: Path) -> None:
    """No connection is made to the database that the file names; a database of the environment is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        (tmp_path / "ramet.yaml").write_text(f"store: postgresql://someone:word@127.0.0.1:{port}/journal\n")

        settings, store, _ = check_services(tmp_path, {})

        with pytest.raises(BlockingIOError):
            listener.accept()
    assert (settings.name, settings.state, store.state) == ("settings", "limited", "ok")
    assert "ramet trust" in settings.remedy
    # The listener is closed: nobody answers there.
    _, store, _ = check_services(tmp_path, {"RAMET_STORE": f"postgresql://someone:word@127.0.0.1:{port}/journal"})
    assert store.state == "missing"
    assert f"someone:***@127.0.0.1:{port}" in store.meaning
    assert "word" not in store.meaning.replace("password", "")


def test_a_key_is_named_and_not_shown() -> None:
    """The value of a key is in no result."""
    results = {each.name: each for each in check_providers({"ANTHROPIC_API_KEY": "sk-ant-1234", "GEMINI_API_KEY": ""})}

    assert results["provider anthropic"].state == "ok"
    assert "ANTHROPIC_API_KEY" in results["provider anthropic"].meaning
    assert results["provider openai"].state == "limited"
    assert "sk-ant-1234" not in str(results)


def test_the_remedy_for_a_provider_needs_no_package_index_that_has_ramet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation from a clone or a wheel is told the packages of the extra, not `ramet[anthropic]`."""
    monkeypatch.setattr(provider_checks, "_is_installed", lambda module: False)

    remedies = [each.remedy for each in provider_checks.check_providers({})]

    assert "pip install 'anthropic>=2' 'langchain-anthropic" in remedies[0]
    assert not any("ramet[" in each for each in remedies)


def test_a_state_folder_that_leads_elsewhere_is_reported(tmp_path: Path) -> None:
    """The remedy names the entry; a folder as it should be is fine."""
    assert [each.state for each in check_folder(tmp_path)] == ["ok", "ok"]
    (tmp_path / ".ramet").symlink_to("/tmp")

    folder = check_folder(tmp_path)[0]

    assert folder.state == "missing"
    assert ".ramet" in folder.remedy


def test_the_status_is_1_where_no_sandbox_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single sandbox that works is enough for status 0, with or without limits."""
    states = {"sandbox bwrap": "missing", "sandbox local": "missing"}

    def check() -> list[CheckResult]:
        return [CheckResult(name=name, state=state, meaning="") for name, state in states.items()]  # type: ignore[arg-type]  # ok or missing

    monkeypatch.setattr(doctor_command, "check_isolation", check)
    monkeypatch.setitem(os.environ, "PATH", "")

    assert main(["doctor"]) == 1
    assert "no sandbox" in capsys.readouterr().err
    states["sandbox local"] = "limited"
    assert main(["doctor"]) == 0
    assert "sandboxes of local" in capsys.readouterr().err


def test_long_meanings_are_wrapped_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets lines that fit below each other. A file gets one line for each check, as grep wants it."""
    meaning = "one word after the other " * 6
    check = CheckResult(name="moon", state="limited", meaning=meaning, remedy="a command that is copied " * 4)
    shown = []
    for at_terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda answer=at_terminal: answer)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", "dumb")  # without colours, and 80 columns wide
        doctor_command._show((check,), ["local"], as_json=False)
        shown.append(stream.getvalue().splitlines())

    assert [len(lines) for lines in shown] == [4, 2]
    assert all(line[:15].isspace() and line[15] != " " and len(line) <= 80 for line in shown[0][1:3])
    assert shown[0][3] == shown[1][1]
