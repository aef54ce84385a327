"""`ramet config check`: the settings of a server here, the source of each, and their problems."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from ramet.cli.render.console import console
from ramet.cli.render.formatting import count
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.settings_file import default_file, trust_problem
from ramet.core.errors import InvalidValue
from ramet.services.config.load import SETTINGS, Config, examine, references


def config(options: Namespace) -> int:
    """Print every setting; or print a line for each problem, and return status 1."""
    out, err = console(sys.stdout), console(sys.stderr)
    config, problems = examine(default_file(Path()) if options.file is None else Path(options.file), os.environ, {})
    if config is None:
        for problem in problems:
            line = {"problem": str(problem), "setting": problem.field}
            if options.json:
                print_json(json.dumps(line))
            else:
                out.print(Text(one_line(str(problem), 2_000)), soft_wrap=True)
        err.print(Text(count(len(problems), "problem"), "dim"), soft_wrap=True)
        return 1
    rows = list(_rows(config))
    name_width, value_width = (max(len(each[at]) for each in rows) for at in (0, 1))
    for row in rows:
        if options.json:
            print_json(json.dumps(row._asdict()))
        else:
            out.print(
                Text(f"{row.setting.ljust(name_width)}  {row.value.ljust(value_width)}  {row.origin}"), soft_wrap=True
            )
    for name, reference in references(config).items():
        try:
            reference.read(os.environ)
        except InvalidValue as problem:
            err.print(Text(one_line(f"note: {name}: {problem}", 2_000), "dim"), soft_wrap=True)
    if options.file is None and default_file(Path()) is not None and (reason := trust_problem(Path())):
        note = f"note: without --config, ramet serve reads only {reason}"
        err.print(Text(one_line(note, 2_000), "dim"), soft_wrap=True)
    return 0


class _Row(NamedTuple):
    setting: str
    value: str
    origin: str


def _rows(config: Config) -> Iterator[_Row]:
    for setting in SETTINGS:
        value: Any = config
        for name in setting.attribute.split("."):
            value = getattr(value, name)
        entries = {f"{setting.name}.{name}": each for name, each in value.items()} if setting.many else None
        for name, each in (entries if entries is not None else {setting.name: value}).items():
            yield _Row(name, one_line(_format_value(each), 500), one_line(config.origins[name], 500))


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {amount:.12g}" for name, amount in value.items())
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)
