"""The permission rules of a folder, as `ramet agents check` shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ramet.agent.files.bounded_read import Unreadable
from ramet.cli.project import permissions
from ramet.cli.render.sanitize import one_line
from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Permissions

NOT_TRUSTED = "waits for trust: ramet trust DIR"


class _Line(NamedTuple):
    list: str
    rule: str
    source: str
    holds: bool


def show_permissions(folder: Path, out: Console, *, as_json: bool) -> int:
    """Print every rule with its list and its file; return status 1 if the settings cannot be understood."""
    try:
        loaded = permissions(folder)
    except (Unreadable, InvalidValue) as problem:
        sentence = str(problem)
        if as_json:
            print(json.dumps({"kind": "problem", "path": None, "sentence": sentence}))
        else:
            out.print(Text(one_line(sentence, 2_000)), soft_wrap=True)
        return 1
    lines = [*_lines(loaded.active, holds=True), *_lines(loaded.pending, holds=False)]
    for each in lines:
        if as_json:
            print(json.dumps({"kind": "permission", **each._asdict()}))
        else:
            waits = "" if each.holds else f"  ({NOT_TRUSTED})"
            out.print(Text(one_line(f"{each.list:<5}  {each.rule}  {each.source}{waits}", 2_000)), soft_wrap=True)
    return 0


def _lines(loaded: Permissions, *, holds: bool) -> Iterator[_Line]:
    for rule in loaded.rules:
        yield _Line(rule.effect, rule.text, rule.source, holds)
    for mode in loaded.modes:
        yield _Line("mode", mode.mode, mode.source, holds)
