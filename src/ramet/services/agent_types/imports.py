"""Importable names: list the modules of folders without running their code, and resolve references to functions."""

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
MAX_SOURCE: Final = 256 * 1024  #: bytes of a module that is parsed: parsing blocks all other threads


class FunctionReference(NamedTuple):
    """A reference to a function: the names of its module and of the function."""

    module: str
    name: str

    @property
    def top(self) -> str:
        """Return the name of the outermost package."""
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def top_level(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the sorted names of the modules and packages at the top of these folders."""
    return tuple(sorted({name for folder in folders for entry in os.scandir(folder) if (name := _module(entry))}))


def parse_reference(text: str, field: str = FIELD) -> FunctionReference:
    """Parse "module:name". Raises InvalidValue if the text is no reference to a function."""
    match = _REFERENCE.match(text)
    if match is None or len(text) > 256:
        raise InvalidValue(field, text, "'module:name', a function at the top of a module")
    return FunctionReference(match["module"], match["name"])


def import_function(reference: FunctionReference) -> Callable[..., Any]:
    """Import the function into this process. Raises InvalidValue if the function does not exist or is not callable."""
    try:
        function: Any = getattr(importlib.import_module(reference.module), reference.name)
    except Exception as problem:  # The import runs the module's own code.
        raise InvalidValue(
            FIELD, str(reference), f"what can be imported ({type(problem).__name__}: {str(problem)[:200]})"
        ) from None
    if not callable(function):
        raise InvalidValue(FIELD, str(reference), f"a function; it is a {type(function).__name__}")
    return cast("Callable[..., Any]", function)


def check_source(reference: FunctionReference, folders: Sequence[Path]) -> None:
    """Check that the sources of these folders define the function. Raises InvalidValue if no line binds its name."""
    if not any(reference.name in _bound_names(file) for file in sources_of(reference, folders)):
        raise InvalidValue(
            FIELD, str(reference), f"a function of the image's code; module {reference.module!r} has no such name"
        )


def sources_of(reference: FunctionReference, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of these folders that could be the module."""
    paths = [folder.joinpath(*reference.module.split(".")) for folder in folders]
    return tuple(file for each in paths for file in (each.with_suffix(".py"), each / "__init__.py") if file.is_file())


def tree_of(file: Path, field: str) -> ast.Module:
    """Return the syntax tree of a module. Raises InvalidValue if the module is too large or cannot be parsed."""
    with file.open("rb") as source:
        data = source.read(MAX_SOURCE + 1)
    if len(data) > MAX_SOURCE:
        raise InvalidValue(field, file.name, f"a module of at most {MAX_SOURCE} bytes")
    try:
        return parse_module(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise InvalidValue(field, file.name, f"source that can be read ({problem})") from None


def _bound_names(file: Path) -> set[str]:
    """Return the names that the top level of a module binds; the names of a star import are unknown."""
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
    """Return the name to import the entry by; empty if the entry is no module, or is private by its name."""
    is_package = entry.is_dir() and (Path(entry.path) / "__init__.py").is_file()
    name = entry.name if is_package else entry.name.removesuffix(".py") if entry.name.endswith(".py") else ""
    return name if name.isidentifier() and not name.startswith("_") else ""
