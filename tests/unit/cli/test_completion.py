"""`ramet completion`: a shell completes commands, options and their values."""

from __future__ import annotations

import argparse
import shutil
import subprocess

import pytest

from ramet.cli.main import main
from ramet.cli.parser import build_parser

#: Calls the function that the script registers, as bash does at a tab, and prints the proposals on one line.
_TRY = """
source /dev/stdin
function=$(complete -p ramet | sed 's/.*-F \\([^ ]*\\).*/\\1/')
try() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  $function ramet "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  echo "${COMPREPLY[*]}"
}
try ramet doc
try ramet ask --max-to
try ramet schedule tr
try ramet ask --backend b
try ramet doctor --dir /us
try ramet completion ""
"""


def test_bash_completes_commands_options_and_values(capfd: pytest.CaptureFixture[str]) -> None:
    """A command, an option, a verb, a choice, a folder, and the shells."""
    assert main(["completion", "bash"]) == 0
    script = capfd.readouterr().out

    done = subprocess.run(["bash", "-c", _TRY], input=script, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["doctor", "--max-tokens", "trigger", "bwrap", "/usr", "bash zsh fish"]
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the shell is installed, it accepts the script, and fish completes a command."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out

    (commands,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert [each for each in commands.choices if each not in script] == []
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    if shell == "fish" and shutil.which(shell):
        words = [shell, "-c", "source; complete -C 'ramet doc'"]
        assert subprocess.run(words, input=script, text=True, check=True, capture_output=True).stdout.startswith(
            "doctor"
        )


def test_another_shell_is_refused_with_the_ones_that_are_supported(capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the three shells."""
    assert main(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
