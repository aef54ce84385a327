"""Checks of the interpreter, of programs, and of the folder."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ramet.cli.doctor.check_result import CheckResult, package_remedy
from ramet.cli.render.formatting import size
from ramet.core.errors import InvalidValue
from ramet.disk.state_folder import JOURNAL, checked_state_folder
from ramet.store.sqlite.lock import refuse_network

_MIN_FREE = 10**9  #: bytes; sandboxes have workspaces of 256 MiB
#: Programs by their packages, and what ramet does with and without each.
_PROGRAMS = (
    ("git", "git", "agents work in copies of a repository", "no agent has a copy of a repository of its own"),
    ("rg", "ripgrep", "the tool Grep is fast", "the tool Grep searches with Python, which is slower"),
)


def check_python() -> Sequence[CheckResult]:
    """Report the interpreter and the system."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform != "linux":
        meaning = f"{version}, {system}: agents run as ordinary processes, without sandboxes"
        remedy = "run ramet on Linux, or on a Linux virtual machine"
        return [CheckResult(name="python", state="limited", meaning=meaning, remedy=remedy)]
    return [CheckResult(name="python", state="ok", meaning=f"{version}, {system}")]


def check_programs() -> Sequence[CheckResult]:
    """Look for the programs that tools use."""
    return [_program(*each) for each in _PROGRAMS]


def check_folder(folder: Path) -> Sequence[CheckResult]:
    """Report whether the journal can be kept in a folder, and the free space there."""
    return [_state_folder(folder), _disk(folder)]


def _program(program: str, package: str, with_it: str, without_it: str) -> CheckResult:
    if shutil.which(program) is not None:
        return CheckResult(name=package, state="ok", meaning=with_it)
    return CheckResult(name=package, state="missing", meaning=without_it, remedy=package_remedy(package))


def _state_folder(folder: Path) -> CheckResult:
    name = "folder"
    try:
        state_folder = checked_state_folder(folder)
        refuse_network(folder / JOURNAL)
    except InvalidValue as refusal:
        meaning = f"nothing is recorded here: {refusal.value} is not accepted"
        return CheckResult(name=name, state="missing", meaning=meaning, remedy=refusal.accepted)
    if not os.access(state_folder if state_folder.exists() else folder, os.W_OK | os.X_OK):
        meaning = "it cannot be written to: ramet ask answers, and records nothing"
        remedy = "work in a folder of yours, with --dir"
        return CheckResult(name=name, state="limited", meaning=meaning, remedy=remedy)
    return CheckResult(name=name, state="ok", meaning="the journal can be kept here, on a disk of this machine")


def _disk(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE:
        meaning = f"{size(free)} are free here: the work of agents may not fit"
        remedy = "free some space, or remove the trees of old runs: ramet gc"
        return CheckResult(name="disk", state="limited", meaning=meaning, remedy=remedy)
    return CheckResult(name="disk", state="ok", meaning=f"{size(free)} are free here")
