"""Fixtures of the pytest plugin give what tests need, and fail tests that leave something behind."""

from __future__ import annotations

import pytest

from ramet.host.session import Session
from ramet.testing import ReplayModel, ScriptedModel, leak_check, record_to

pytest_plugins = ["pytester"]

OPTIONS = ("-p", "no:langsmith_plugin", "-p", "no:schemathesis", "-p", "no:xdist", "-p", "no:cacheprovider", "-q")
TESTS = """
import os, subprocess
from ramet import Agent, Session
from ramet.testing import Call, Fail, Hang, Say, ScriptedModel, assert_called, assert_no_run_left

processes = []

async def test_tidy(runtime, scripted_model, fake_clock, tmp_path):
    assert (tmp_path / ".ramet").parent == runtime.working_dir and fake_clock.monotonic() == 0
    async with Session(scripted_model(["Hello."]), runtime=runtime) as session:
        assert (await session.ask("Hi.")).value == "Hello."
    await runtime.spawn(Agent(name="slow", model=scripted_model([Hang(), "More."], play_all=False)), "Work.")

async def test_leaves_a_process(runtime):
    processes.append(subprocess.Popen(["sleep", "60"]))

def test_ends_it():
    processes[0].kill()
    processes[0].wait()

async def test_leaves_steps(scripted_model):
    await scripted_model(["One.", "Two."]).ainvoke("Hi.")

async def test_recorded(recorded_model, tmp_path):
    model = recorded_model(ScriptedModel([f"In {tmp_path}."]))
    assert (await model.ainvoke(f"{os.environ['PROMPT']} {tmp_path}")).text == f"In {tmp_path}."

def test_not_recorded(recorded_model):
    recorded_model(ScriptedModel([]), "second")
"""
INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""


@pytest.mark.leaves("pytester keeps the modules of its tests, and their processes with them")
def test_fixtures_help_tidy_tests_and_fail_the_others(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tidy test passes; a process, steps of a script, and requests that are left or new fail their tests."""
    assert None not in (Session, ReplayModel, ScriptedModel, record_to)  # Imported here, not in each run of pytest.
    monkeypatch.setattr(leak_check, "PAUSES_S", (0.01,))
    monkeypatch.setenv("PROMPT", "Hi.")
    pytester.makeini(INI)
    pytester.makeconftest('pytest_plugins = ["ramet.testing.pytest_plugin"]')
    pytester.makepyfile(test_fixtures=TESTS)

    recording = pytester.runpytest_inprocess(*OPTIONS, "--ramet-record", "-k", "test_recorded")
    recording.assert_outcomes(passed=1, deselected=5)
    text = (pytester.path / "recordings" / "test_fixtures" / "test_recorded.jsonl").read_text()
    assert "Hi. /tmp_path" in text

    replaying = pytester.runpytest_inprocess(*OPTIONS)
    replaying.assert_outcomes(passed=5, failed=1, errors=2)
    replaying.stdout.fnmatch_lines_random(
        [
            "left behind by the runtime: process *: sleep 60",
            "the script of scripted has 1 steps left",
            "there is no recording *test_not_recorded-second.jsonl: run this test once with --ramet-record",
        ]
    )

    monkeypatch.setenv("PROMPT", "Hello.")
    differing = pytester.runpytest_inprocess(*OPTIONS, "-k", "test_recorded")
    differing.assert_outcomes(failed=1, errors=1, deselected=5)
    lines = ["*test_recorded.jsonl has no such request:", "*- human: Hi. /tmp_path", "*+ human: Hello. /tmp_path"]
    differing.stdout.fnmatch_lines(lines)
