"""`ramet init`: write an agent, a tool and a test into a folder, and overwrite nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from rich.text import Text

from ramet.cli.paths import display_path
from ramet.cli.render.console import console
from ramet.cli.render.sanitize import one_line
from ramet.cli.starter.templates import GITIGNORE, TEMPLATES, Template
from ramet.core.errors import InvalidValue
from ramet.disk.installation import packages_command
from ramet.disk.regular_files import create_file
from ramet.disk.state_folder import checked_state_folder

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def init(options: Namespace) -> int:
    """Write the files, and print what to run next."""
    project = Path(options.folder).expanduser().absolute()
    write_project(project)
    out = console(sys.stdout)
    width = max(len(each.path) for each in TEMPLATES)
    for each in TEMPLATES:
        out.print(Text(each.path.ljust(width), "bold").append(f"  {each.purpose}", "none"), soft_wrap=True)
    shown = one_line(display_path(project), 300)
    steps = [] if shown == "." else [f"cd {shown}"]
    if find_spec("pytest") is None:
        steps.append(packages_command(["pytest"]))
    steps += [
        "python -m pytest test_word_agent.py",
        'python word_agent.py "Which texts are here?"',
        'ramet ask "Which texts are here?" --agent writer-helper   # without the tool: it is in the program alone',
    ]
    out.print(Text("next:", "dim"))
    for step in steps:
        out.print(Text(f"  {step}"), soft_wrap=True)
    return 0


def write_project(project: Path) -> None:
    """Write all files, or none. Raises InvalidValue if one exists, or if a folder on the way is a link."""
    try:
        project.mkdir(parents=True, exist_ok=True)
        top = os.open(project, _FOLDER_FLAGS)
    except (OSError, ValueError) as error:
        accepted = f"a folder that can be written to ({getattr(error, 'strerror', None) or error})"
        raise InvalidValue("DIR", str(project), accepted) from None
    written = list[str]()
    try:
        if existing := [each.path for each in TEMPLATES if _exists(top, each.path)]:
            raise InvalidValue("DIR", str(project), f"a folder without {', '.join(existing)}: nothing is overwritten")
        checked_state_folder(project)
        for each in TEMPLATES:
            _write(top, each)
            written.append(each.path)
        with contextlib.suppress(FileExistsError):  # Ours, from an earlier run: it stays as it is.
            _write(top, GITIGNORE)
    except OSError as error:
        _remove(top, written)
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        raise InvalidValue("DIR", str(project), f"a folder that can be written to ({reason})") from None
    finally:
        os.close(top)


def _exists(top: int, path: str) -> bool:
    try:
        with _parent(top, path) as (folder, name):
            os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _write(top: int, template: Template) -> None:
    with _parent(top, template.path, make=True) as (folder, name):
        create_file(name, template.text.encode(), folder=folder)


def _remove(top: int, paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError), _parent(top, path) as (folder, name):
            os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _parent(top: int, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder of a path below `top`, and the name in it. No link is followed on the way."""
    *folders, name = PurePosixPath(path).parts
    current = os.dup(top)
    try:
        for each in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(each, 0o755, dir_fd=current)
            child = os.open(each, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = child
        yield current, name
    finally:
        os.close(current)
