"""The shortest soak of `ramet serve`: all kinds of turns, a kill, a restart, and its report."""

from __future__ import annotations

import json

from benchmarks.soak.load import WEIGHTS
from benchmarks.soak.soaking import Plan, soak


async def test_a_short_soak_loses_nothing_and_ends_by_itself() -> None:
    """One worker does each thing at least once, and the outcome is sound."""
    lines: list[str] = []
    outcome = await soak(Plan(seconds=0.0, workers=1, lives=2, warm_up=0), progress=lines.append)

    account, report = outcome.account, outcome.as_json()
    assert outcome.is_sound, outcome.text()
    assert set(account.done) == set(WEIGHTS)
    assert list(outcome.end_codes) == [-9, 0]
    assert {each.life for each in outcome.samples} == {0, 1}
    assert json.loads(json.dumps(report))["turns"] == account.turns
    assert "resident memory, MB" in outcome.text()
    assert [each for number in (1, 2) for each in lines if f"process {number} of 2: " in each] == lines
    assert len(lines) >= 2
