"""The parsers of commands that set up a machine, a folder or a shell. Imports nothing slow."""

from __future__ import annotations

from ramet.cli.values import parse_folder, parse_name
from ramet.cli.verbs import Add, Commands, adder


def add_setup_commands(commands: Commands) -> None:
    """Add the parsers of all these commands."""
    add = adder(commands)
    for add_command in (_add_doctor, _add_init, _add_completion):
        add_command(add)


def _add_doctor(add: Add) -> None:
    doctor = add(
        "doctor",
        "[--dir DIR] [--json]",
        "show what works on this machine, and what to do about the rest",
        "Starts a sandbox of each kind. Status 1 if none starts.",
        bare=True,
    )
    doctor.add_argument("--dir", type=parse_folder, default=".", help="the folder to work in (default: this one)")
    doctor.add_argument("--json", action="store_true", help="print one JSON object per line")


def _add_init(add: Add) -> None:
    init = add(
        "init",
        "[DIR]",
        "write an agent, a tool and a test to begin with",
        description="Write an agent file, a program with a tool, and a test with a model that plays a written "
        "dialogue. If one of these files exists, nothing is written.",
        bare=True,
    )
    init.add_argument(
        "folder", nargs="?", type=parse_name, default=".", metavar="DIR", help="default: this folder; created if needed"
    )


def _add_completion(add: Add) -> None:
    completion = add(
        "completion",
        "bash|zsh|fish",
        "print a script with which a shell completes commands and options",
        description="Print a script with which a shell completes commands and options. For bash: "
        "ramet completion bash > ~/.local/share/bash-completion/completions/ramet",
        bare=True,
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="bash, zsh or fish")
