"""Names of code: what can be imported from folders, told without running any of it, and what a reference leads to."""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from ramet.core.errors import InvalidValue
from ramet.wire.code.syntax import parse_module

FIELD: Final = "spawn_info.function"
_REFERENCE = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)\Z")
MAX_SOURCE: Final = 256 * 1024  #: bytes of a module that is looked at: parsing lets no other thread go on meanwhile


class FunctionReference(NamedTuple):
    """A function by its names."""

    module: str
    name: str

    @property
    def top(self) -> str:
        """The outermost package."""
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def top_level(folders: Iterable[Path]) -> tuple[str, ...]:
    """The names of modules and packages that lie at the top of these folders, sorted."""
    return tuple(sorted({name for folder in folders for entry in os.scandir(folder) if (name := _module(entry))}))


def parsed(text: str, field: str = FIELD) -> FunctionReference:
    """Raises InvalidValue for what names no function."""
    found = _REFERENCE.match(text)
    if found is None or len(text) > 256:
        raise InvalidValue(field, text, "'module:name', a function at the top of a module")
    return FunctionReference(found["module"], found["name"])


def imported(called: FunctionReference) -> Callable[..., Any]:
    """Import it here. Raises InvalidValue if it is not there, or cannot be called."""
    try:
        found: Any = getattr(importlib.import_module(called.module), called.name)
    except Exception as problem:  # A module's own code runs in there.
        raise InvalidValue(
            FIELD, str(called), f"what can be imported ({type(problem).__name__}: {str(problem)[:200]})"
        ) from None
    if not callable(found):
        raise InvalidValue(FIELD, str(called), f"a function; it is a {type(found).__name__}")
    return cast("Callable[..., Any]", found)


def check_source(called: FunctionReference, folders: Sequence[Path]) -> None:
    """Look for it in the sources of these folders. Raises InvalidValue if no line there could bind it."""
    parts = called.module.split(".")
    for folder in folders:
        for file in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if file.is_file() and called.name in _bound(file):
                return
    raise InvalidValue(FIELD, str(called), f"a function of the image's code; module {called.module!r} has no such name")


def tree_of(file: Path, field: str) -> ast.Module:
    """The source of a module as a tree. Raises InvalidValue for one that is too large or that cannot be read."""
    with file.open("rb") as source:
        data = source.read(MAX_SOURCE + 1)
    if len(data) > MAX_SOURCE:
        raise InvalidValue(field, file.name, f"a module of at most {MAX_SOURCE} bytes")
    try:
        return parse_module(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise InvalidValue(field, file.name, f"source that can be read ({problem})") from None


def _bound(file: Path) -> set[str]:
    """Names that the top of a module binds; a star import binds whatever there is."""
    tree = tree_of(file, FIELD)
    names = set[str]()
    for line in tree.body:
        match line:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(line.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(each.asname or each.name).partition(".")[0] for each in line.names}
            case ast.Assign():
                names |= {each.id for each in line.targets if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def _module(entry: os.DirEntry[str]) -> str:
    """Its name as code imports it; empty for what is no module, or says by its name that it is nobody else's."""
    is_package = entry.is_dir() and (Path(entry.path) / "__init__.py").is_file()
    name = entry.name if is_package else entry.name.removesuffix(".py") if entry.name.endswith(".py") else ""
    return name if name.isidentifier() and not name.startswith("_") else ""
