"""Random shell text: each start by a real shell must be denied or asked about."""

from __future__ import annotations

import pathlib
import random
import shlex
from collections.abc import Callable, Iterator

import pytest

from tests.support.marked_program import MarkedProgram
from tests.unit.tools.test_permission_starters import verdict

RUNS = 250  #: commands that pass the rules and are run for real
#: No loop without an end, and no function that calls itself: every text ends soon.
_PIECES = (
    *("rm x", "rm x", "; rm x;", "\n", "\n", " ", "'", '"', "\\", "$", "$", "${", "}", "$(", ")", "(", "((", "))", "`"),
    *("#", " #", "<<E", "\nE\n", "E", "E)", "<<'E'", "<<-E", "\t", "echo ", "echo a", "cat ", ";", "&", "|", "&&"),
    *("{ ", "; }", "[", "]", "[[ ", " ]]", "a=", "a", "x", "$x", "!", "=", "if ", "then ", "fi", "case a in ", "a) "),
    *(";;", "esac", "for i in a; do ", "done", "$'", '$"', "*", "?", "<", ">", ">&", "&>", "2", "<(", ":-", "\\\n"),
    *("%", "~", "@", "+", "-", "f() { rm x; }; f;", "coproc ", "time ", "${a:-", "${a", "$#", "$$", "$?", "[ ", "let "),
    *("declare ", "1", "0", "a[", "]=", "a=(", "<<<", "$((", "$[", "eval ", "{a,", "b}", "^", "_", "."),
)
_ENDS = ("", "\n", "'", '"', "}", ")", "\nE", "))", "`", "]", "\nE\n)")


def texts(dice: random.Random) -> Iterator[str]:
    """Yield texts of pieces that contain `rm x`, except texts that would write to the program's mark."""
    while True:
        text = "".join(dice.choice(_PIECES) for _ in range(dice.randint(3, 11)))
        if "rm x" not in text:
            text += dice.choice((";", "\n", " ", "")) + "rm x" + dice.choice(_ENDS)
        if ">" not in text or "rm" not in text.split(">", 1)[1][:4]:
            yield text


def for_bash(text: str) -> str:
    """Return a text for bash."""
    return text


def for_sh(text: str) -> str:
    """Return a command that makes `sh` run the text."""
    return f"sh -c {shlex.quote(text)}"


@pytest.mark.parametrize("text", [for_bash, for_sh])
def test_no_shell_starts_a_program_after_rules_pass(tmp_path: pathlib.Path, text: Callable[[str], str]) -> None:
    """Texts that match no rule run for real, and start nothing that a rule forbids."""
    shells, dice = MarkedProgram(tmp_path), random.Random(20)
    passed = (each for each in map(text, texts(dice)) if verdict(each, cwd=shells.cwd) is None)
    for _ in range(RUNS):
        shells.run(next(passed))

    assert shells.started() == []
