"""Run all checks of a store without a test framework.

Usage: `python -m ramet.testing.conformance.store package.module:function`. The named function is called once for each
check, with an empty folder of its own, and returns a `StoreFixture` (`ramet.testing.conformance.store.suite`) for
an empty store. One line reports the result of each check; the status is 1 if a promise is not kept, and 2 for
wrong usage.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from ramet.testing.conformance.checks import NotHere, Violation, one_line
from ramet.testing.conformance.store.suite import CHECKS, Check, StoreFixture, run

_USAGE = "usage: python -m ramet.testing.conformance.store package.module:function [CHECK…]"


def main(arguments: Sequence[str]) -> int:
    """Run all checks, or the named ones; return the exit status."""
    by_name = {check.__name__: check for check in CHECKS}
    if not arguments or arguments[0].startswith("-") or ":" not in arguments[0]:
        return _usage_error(_USAGE)
    if unknown := [name for name in arguments[1:] if name not in by_name]:
        return _usage_error(f"{unknown[0]!r} is not a check; there are: {', '.join(by_name)}")
    try:
        factory: Any = importlib.metadata.EntryPoint("store", arguments[0], "ramet.stores").load()
    except Exception as problem:  # The call runs the module's own code.
        return _usage_error(f"{arguments[0]} cannot be loaded: {one_line(problem)}")
    if not callable(factory):
        return _usage_error(f"{arguments[0]} is not a function that takes a folder and returns a StoreFixture")
    checks = [by_name[name] for name in arguments[1:]] or list(CHECKS)
    failed = 0
    for check in checks:
        line = _result_of(check, factory)
        failed += line.startswith("failed")
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{len(checks)} checks, {failed} failed\n")
    return 1 if failed else 0


def _result_of(check: Check, factory: Callable[[pathlib.Path], object]) -> str:
    """Return the result of one check, as a line."""
    name = check.__name__
    with tempfile.TemporaryDirectory(prefix="ramet-conformance-") as folder:
        try:
            fixture = factory(pathlib.Path(folder))
            if not isinstance(fixture, StoreFixture):
                return f"failed  {name}: a value of type {type(fixture).__name__} was returned, not a StoreFixture"
            asyncio.run(run(check, fixture))
        except NotHere as error:
            return f"skipped {name}: {one_line(error)}"
        except Violation as error:
            return f"failed  {name}: {one_line(error)}"
        except Exception as error:  # An undocumented error of the store.
            return f"failed  {name}: {type(error).__name__}: {one_line(error)}"
    return f"passed  {name}"


def _usage_error(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
