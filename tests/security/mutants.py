"""Remove one layer after the other from a copy of the source and run the tests that must notice.

    make mutants                          # every layer; about half an hour
    make mutants ARGS="seccomp rlimit"    # those whose name contains a word; --list names them

The project is not touched. The table goes to stdout, for docs/design/security-attacks.md, progress to stderr. The
exit status is 1 if a layer can be removed without a test that fails, or cannot be found in the source.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.security.mutations import MUTANTS, Edit, Mutant

PROJECT = pathlib.Path(__file__).resolve().parents[2]
SOURCE, TESTS = PROJECT / "src" / "ramet", PROJECT / "tests"
#: Selection that fail, after which no further one is run, and that the table names.
ENOUGH = 3
#: How long the tests of one layer may take.
BOUND_S = 900.0


class Selection(NamedTuple):
    """Tests that run together: files or names of tests, and the kernel that attacks run against."""

    paths: tuple[str, ...]
    kernel: str = ""


class Hung(Exception):
    """Error for tests that did not end in time."""


class Found(NamedTuple):
    """Result of the tests without a layer."""

    mutant: Mutant
    noticed_by: tuple[str, ...]
    note: str = ""


def misses(mutant: Mutant, source: pathlib.Path = SOURCE) -> list[Edit]:
    """Return the edits of a mutant whose words do not occur exactly once in their file."""
    return [each for each in mutant.edits if (source / each.file).read_text().count(each.words) != 1]


def selections_of(mutant: Mutant) -> list[Selection]:
    """Return the tests that must notice that a layer is missing, by how they run."""
    attacks = [f"tests/security/test_attacks_{name}.py" for name in mutant.tests if "/" not in name]
    others = [f"tests/{name}" for name in mutant.tests if "/" in name]
    found = [Selection(tuple(attacks), mutant.kernel)] if attacks else []
    return [*found, Selection(tuple(others))] if others else found


class Scratch:
    """Copy of the source, and a Python that imports the copy in place of the project's source."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._whole, self._source = folder, folder / "whole", folder / "src"
        folder.chmod(0o755)
        shutil.copytree(PROJECT / "src", self._whole, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self._whole, quiet=2)  # Selection start hundreds of interpreters.
        shutil.copytree(sys.prefix, folder / "venv", symlinks=True, copy_function=_link)
        [path_file] = (folder / "venv").glob("lib/python*/site-packages/_editable_impl_ramet.pth")
        path_file.unlink()  # It is a hard link.
        path_file.write_text(str(self._source))
        self._python = folder / "venv" / "bin" / "python"

    def restore(self) -> None:
        """Put each layer back into the copy."""
        shutil.rmtree(self._source, ignore_errors=True)
        shutil.copytree(self._whole, self._source)

    def remove(self, mutant: Mutant) -> None:
        """Remove one layer from the copy."""
        self.restore()
        for edit in mutant.edits:
            file = self._source / "ramet" / edit.file
            file.write_text(file.read_text().replace(edit.words, edit.instead))
            for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                stale.unlink()
            compileall.compile_file(file, quiet=2)

    def failures(self, tests: Selection, *, again: bool = False) -> list[str]:
        """Run tests until enough have failed, or with `again` only earlier failures. Return the tests that fail.

        Raises Hung.
        """
        cache = self._folder / f"cache-{hash(tests)}"
        options = ["-q", "--tb=no", "-o", f"cache_dir={cache}", "-p", "no:xdist"]
        options += ["-k", tests.kernel] if tests.kernel else []
        if again:
            options += ["--last-failed", "--last-failed-no-failures=none"]
        else:
            shutil.rmtree(cache, ignore_errors=True)
            options.append(f"--maxfail={ENOUGH}")
        # A layer that is missing may be the one that keeps mounts of a sandbox from becoming those of the machine.
        apart = ["unshare", "--mount", "--propagation", "private"] if os.geteuid() == 0 else []
        with subprocess.Popen(
            [*apart, self._python, "-m", "pytest", *options, *tests.paths],
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.wait(BOUND_S)
            except subprocess.TimeoutExpired:
                raise Hung from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        failed = cache / "v" / "cache" / "lastfailed"
        if process.returncode == pytest.ExitCode.TESTS_FAILED and not failed.exists():
            return [f"{tests.paths[0]}::all"]  # A sandbox without its layer has taken the files of pytest away.
        return list(json.loads(failed.read_text())) if failed.exists() else []


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def attack(scratch: Scratch, mutant: Mutant) -> Found:
    """Run the tests of a layer without it. A test counts if it fails then, and passes with each layer in place."""
    failed: dict[str, Selection] = {}
    try:
        scratch.remove(mutant)
        for tests in selections_of(mutant):
            if len(failed) < ENOUGH:
                failed |= dict.fromkeys(scratch.failures(tests), tests)
        scratch.restore()
        still = {test for tests in dict.fromkeys(failed.values()) for test in scratch.failures(tests, again=True)}
    except Hung:
        return Found(mutant, (), f"**its tests did not end within {BOUND_S:.0f} s**")
    noticed = tuple(test for test in failed if test not in still)
    return Found(mutant, noticed, "**only by tests that fail anyway**" if failed and not noticed else "")


def line(found: Found) -> str:
    """Return a row of the table."""
    names = list(dict.fromkeys(test.rpartition("::")[2].partition("[")[0] for test in found.noticed_by))
    result = ", ".join(f"`{name}`" for name in names[:ENOUGH]) or found.note or "**none**"
    shown_on = found.mutant.kernel if any("/" not in name for name in found.mutant.tests) else "each backend"
    return f"| {found.mutant.layer} | {shown_on} | {result} |"


def select_mutants(words: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose layer contains one of the words, or each mutant if there are no words."""
    return [each for each in MUTANTS if not words or any(word in each.layer for word in words)]


def log(text: str) -> None:
    """Print progress to stderr, apart from the table."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command


def main(arguments: Sequence[str]) -> int:
    """Try the named layers, or each layer if none is named."""
    mutants = select_mutants([each for each in arguments if each != "--list"])
    if "--list" in arguments or not mutants:
        log("\n".join(each.layer for each in mutants or MUTANTS))
        return 0 if mutants else 2
    lost = [(each.layer, edit) for each in mutants for edit in misses(each)]
    for layer, edit in lost:
        log(f"{layer}: these words do not occur once in src/ramet/{edit.file}: {edit.words!r}")
    if lost:
        return 1
    unnoticed: list[str] = []
    print("| removed layer | shown on | tests that fail |\n|---|---|---|", flush=True)  # noqa: T201 - a command
    with tempfile.TemporaryDirectory(prefix="ramet-mutants-", dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        scratch = Scratch(pathlib.Path(folder))
        for number, mutant in enumerate(mutants, 1):
            began = time.monotonic()
            found = attack(scratch, mutant)
            print(line(found), flush=True)  # noqa: T201 - a command
            outcome = f"{len(found.noticed_by)} tests fail" if found.noticed_by else "NOT NOTICED"
            log(f"[{number}/{len(mutants)}] {mutant.layer}: {outcome}, {time.monotonic() - began:.0f} s")
            unnoticed += [] if found.noticed_by else [mutant.layer]
    log(f"no test notices: {', '.join(unnoticed)}" if unnoticed else f"all {len(mutants)} removals are noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
