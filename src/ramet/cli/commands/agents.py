"""`ramet agents list|check`: the agent types of a folder, and the problems of its files for agents."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from ramet.agent.definition import Agent
from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.definitions import Definitions
from ramet.agent.files.instructions import load_instructions
from ramet.agent.files.mcp_file import read_server_file
from ramet.agent.files.search_paths import Problem
from ramet.agent.files.settings import hooks_in, project_settings
from ramet.cli.paths import display_path
from ramet.cli.project import is_project_trusted, load, permissions, skills
from ramet.cli.render.console import console
from ramet.cli.render.formatting import count
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line, sanitize
from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Permissions


def agents(options: Namespace) -> int:
    """Run the verb; return status 1 if `check` found a problem."""
    definitions = load(options.dir)
    out, err = console(sys.stdout), console(sys.stderr)
    if options.verb == "check":
        status = _check(definitions, options.dir, out, err, as_json=options.json)
        status = max(status, _show_permissions(options.dir, out, as_json=options.json))
        return max(status, _show_hooks(options.dir, out, as_json=options.json))
    if options.json:
        for agent in definitions.values():
            print_json(json.dumps(_as_data(agent), ensure_ascii=True))
    else:
        _list(definitions, out, options.dir)
    if definitions.problems:
        err.print(
            Text(f"{count(len(definitions.problems), 'problem')} in agent files: see ramet agents check"),
            soft_wrap=True,
        )
    return 0


def _list(definitions: Definitions, out: Console, project: Path) -> None:
    rows = [(agent.name, _origin(agent, project), one_line(agent.description, 500)) for agent in definitions.values()]
    name, origin = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    for row in rows:
        text = Text(row[0].ljust(name), "bold", no_wrap=True)
        text.append("  " + row[1].ljust(origin), "dim").append("  " + row[2], "none")
        if out.is_terminal:
            text.truncate(out.width, overflow="ellipsis")
        text.rstrip()
        out.print(text, soft_wrap=True)
    for shadowed in definitions.shadowed_definitions:
        line = f"{shadowed.name}: {shadowed.winner} is used, {shadowed.loser} is not"
        out.print(Text(sanitize(line), "dim"), soft_wrap=True)


def _check(definitions: Definitions, folder: Path, out: Console, err: Console, *, as_json: bool) -> int:
    found = skills(folder)
    of_servers = read_server_file(folder).problems
    problems = (*definitions.problems, *of_servers, *found.problems, *load_instructions(folder, root=folder).problems)
    for kind, remarks in (("problem", problems), ("note", (*definitions.notes, *found.notes))):
        for remark in remarks:
            if as_json:
                path = str(remark.path) if remark.path else None
                print_json(json.dumps({"kind": kind, "path": path, "sentence": remark.sentence}))
            else:
                out.print(Text(_sentence(remark, "" if kind == "problem" else "note: ")), soft_wrap=True)
    if not as_json:
        of_skills = f"{count(len(found.skills), 'skill')}, " if found.skills else ""
        summary = f"{count(len(definitions), 'agent type')}, {of_skills}{count(len(problems), 'problem')}"
        err.print(Text(summary, "dim"), soft_wrap=True)
    return 1 if problems else 0


_WAITS: Final = "  (waits for trust: ramet trust DIR)"


class _Rule(NamedTuple):
    list: str
    rule: str
    source: str
    holds: bool


def _show_permissions(folder: Path, out: Console, *, as_json: bool) -> int:
    """Print every rule with its list and its file; return status 1 if the settings cannot be understood."""
    try:
        loaded = permissions(folder)
    except (Unreadable, InvalidValue) as problem:
        return _show_problem(problem, out, as_json=as_json)
    lines = [*_rules(loaded.active, holds=True), *_rules(loaded.pending, holds=False)]
    for each in lines:
        if as_json:
            print_json(json.dumps({"kind": "permission", **each._asdict()}))
        else:
            waits = "" if each.holds else _WAITS
            out.print(Text(one_line(f"{each.list:<5}  {each.rule}  {each.source}{waits}", 2_000)), soft_wrap=True)
    return 0


def _show_problem(problem: Unreadable | InvalidValue, out: Console, *, as_json: bool) -> int:
    if as_json:
        print_json(json.dumps({"kind": "problem", "path": None, "sentence": str(problem)}))
    else:
        out.print(Text(one_line(str(problem), 2_000)), soft_wrap=True)
    return 1


def _show_hooks(folder: Path, out: Console, *, as_json: bool) -> int:
    """Print the hooks of the folder's settings; return status 1 if a file cannot be understood."""
    files = project_settings(folder)
    holds = bool(files) and is_project_trusted(folder)
    for path in files:
        source = str(path.relative_to(folder))
        try:
            hooks = hooks_in(path, fence=folder)
        except (Unreadable, InvalidValue) as problem:
            return _show_problem(problem, out, as_json=as_json)
        for event, entries in hooks.items():
            text = json.dumps(entries, ensure_ascii=False)
            if as_json:
                print_json(
                    json.dumps({"kind": "hook", "event": event, "hooks": entries, "source": source, "holds": holds})
                )
            else:
                line = one_line(f"hook {event} {text}", 1_000)
                out.print(Text(one_line(f"{line}  {source}{'' if holds else _WAITS}", 2_000)), soft_wrap=True)
    return 0


def _rules(loaded: Permissions, *, holds: bool) -> Iterator[_Rule]:
    for rule in loaded.rules:
        yield _Rule(rule.effect, rule.text, rule.source, holds)
    for mode in loaded.modes:
        yield _Rule("mode", mode.mode, mode.source, holds)


def _sentence(remark: Problem, kind: str) -> str:
    prefix = f"{display_path(remark.path)}: " if remark.path else ""
    return one_line(f"{prefix}{kind}{remark.sentence}", 2_000)


def _origin(agent: Agent, project: Path) -> str:
    if agent.source is None:
        return "built in" if agent.scope == "builtin" else agent.scope
    is_inside = agent.source.is_relative_to(project)
    return one_line(str(agent.source.relative_to(project)) if is_inside else display_path(agent.source), 200)


def _as_data(agent: Agent) -> dict[str, Any]:
    source: Path | None = agent.source
    return {
        "name": agent.name,
        "description": agent.description,
        "scope": agent.scope,
        "source": str(source) if source else None,
        "model": agent.model if isinstance(agent.model, str) else None,
        "tools": None if agent.tools is None else [str(each) for each in agent.tools],
        "disallowed_tools": [str(each) for each in agent.disallowed_tools],
        "max_turns": agent.max_turns,
        "memory": agent.memory,
        "isolation": agent.isolation,
        "background": agent.background,
    }
