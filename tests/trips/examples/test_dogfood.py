"""The example of agents that make agents, killed between every step, runs as its docstring says."""

from __future__ import annotations

import pathlib

import pytest

from tests.support.examples import run_example

EXPECTED = """\
process 1
  architect made math_solver; killed
process 2
  resumes the architect: completed, architect@…/math_solver@…:solve
process 3
  math_solver remembers: nothing yet
  math_solver made equation_parser; killed
process 4
  resumes the math_solver: completed, -2.0
  math_solver remembers: nothing yet
process 5
  math_solver remembers: 3*x + 6 = 0
  math_solver made equation_parser
  2*x - 1 = 4: x = 2.5
"""


@pytest.mark.slow
def test_a_handle_finds_the_same_agent_in_every_process(store_address: str, tmp_path: pathlib.Path) -> None:
    """AC-S4-1, AC-S4-2: three levels, four kills; on PostgreSQL each process has a working directory of its own."""
    assert run_example("dogfood.py", store_address, tmp_path) == EXPECTED.splitlines()
