"""The example of a tree that survives two kills runs as its docstring says."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.support.examples import run_example

#: How many agents are born and have ended when a kernel is killed is up to the machine.
EXPECTED = """\
kernel 1: killed while sandboxes work; agents spawned N, ended N; payments made 0
kernel 2: killed while it pays; agents spawned N, ended N; payments made 1
kernel 3: ended with 0; agents spawned 10, ended 10; payments made 4
the tree: completed, 10 agents: the country is counted
payments: east, north, printer, south; requested 5 times, made 4 times
"""


@pytest.mark.slow
def test_the_example_makes_every_payment_once(store_address: str, tmp_path: pathlib.Path) -> None:
    """AC-S0-8, NEG-15: ten agents, two kills, four payments; a cut agent asks again, and pays nothing twice."""
    first, second, *rest = run_example("survives_kill.py", store_address, tmp_path)

    masked_lines = [re.sub(r"spawned \d+, ended \d+", "spawned N, ended N", line) for line in (first, second)]
    assert [*masked_lines, *rest] == EXPECTED.splitlines()
