"""`ramet doctor`: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from argparse import Namespace
from dataclasses import asdict
from typing import Final

from rich.text import Text

from ramet.cli.doctor.bounded_checks import Check, run_checks
from ramet.cli.doctor.check_result import CheckResult, State
from ramet.cli.doctor.machine_checks import check_folder, check_programs, check_python
from ramet.cli.doctor.provider_checks import check_providers
from ramet.cli.doctor.sandbox_checks import BACKENDS, check_isolation
from ramet.cli.doctor.service_checks import check_services
from ramet.cli.errors import set_up_logging
from ramet.cli.render.console import console
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.signals import kill_descendants

TIMEOUT_S: Final = (
    30.0  #: for all checks together; they take two seconds on a quiet machine, and most of that is imports
)
_STYLES: dict[State, str] = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(options: Namespace) -> int:
    """Print a line for each check; return status 1 if no sandbox could be started."""
    set_up_logging()
    checks: dict[str, Check] = {
        "python": check_python,
        "isolation": check_isolation,
        "programs": check_programs,
        "folder": lambda: check_folder(options.dir),
        "services": lambda: check_services(options.dir, os.environ),
        "providers": lambda: check_providers(os.environ),
    }
    is_complete = False
    try:
        report = run_checks(checks, timeout_s=TIMEOUT_S)
        is_complete = report.is_complete
    finally:
        if not is_complete:  # Ctrl-C, or the end of the time: a trial may have a process left.
            kill_descendants(os.getpid())
    names = {f"sandbox {each}" for each in BACKENDS}
    usable = [each.name.partition(" ")[2] for each in report.results if each.name in names and each.works]
    _show(report.results, usable, as_json=options.json)
    return 0 if usable else 1


def _show(results: tuple[CheckResult, ...], usable: list[str], *, as_json: bool) -> None:
    if as_json:
        for each in results:
            print_json(json.dumps(asdict(each)))
        return
    out, err = console(sys.stdout), console(sys.stderr)
    width = max(len(each.name) for each in results)
    indent = " " * (11 + width)
    room = max(30, out.width - len(indent)) if out.is_terminal else 500
    for each in results:
        line = Text(each.state.ljust(9), _STYLES[each.state])
        meaning = f"\n{indent}".join(textwrap.wrap(one_line(each.meaning, 500), room))
        line.append(each.name.ljust(width), "bold").append(f"  {meaning}", "none")
        out.print(line, soft_wrap=True)
        if each.remedy:
            out.print(Text(f"{indent}do: {one_line(each.remedy, 600)}", "dim"), soft_wrap=True)
    if usable:
        verdict = f"ramet works here, with sandboxes of {' and '.join(usable)}"
    else:
        verdict = "ramet starts no sandbox here; what is missing is above"
    err.print(Text(verdict, "bold"), soft_wrap=True)
