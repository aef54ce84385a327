"""Functions of an image as tools: name, description and JSON schema, read from the source without running it.

A tool is a function at the top of a module, with a docstring and a type for each parameter: `str`, `int`, `float`,
`bool`, `None`, `Any`, `list[…]`, `dict[str, …]`, `Literal[…]`, unions and `Optional` of these, and `Annotated[…,
"description"]`. The host does not check the types of arguments; the function itself must check them inside the sandbox.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ramet.core.errors import InvalidValue
from ramet.services.agent_types.imports import FunctionReference, parsed, tree_of
from ramet.services.contract import CodeTool

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}\Z")
_MAX_DESCRIPTION = 8 * 1024
MAX_SOURCES: Final = 1024 * 1024  #: bytes of all modules that one request names
_Functions = Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef]
_PLAIN: Final[dict[str, dict[str, Any]]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "dict": {"type": "object"},
    "None": {"type": "null"},
    "Any": {},
}
_TYPES = "str, int, float, bool, None, Any, list[…], dict[str, …], Literal[…], unions of these, Annotated[…, 'text']"


def tools_of(names: Iterable[str], folders: Sequence[Path], field: str) -> tuple[CodeTool, ...]:
    """Return the tool of each name.

    Raises InvalidValue like `tool_of`, for duplicate names, and for too much source in all.
    """
    names = tuple(names)
    files = {file for each in names for file in _files(parsed(each, field), folders)}
    if (size := sum(file.stat().st_size for file in files)) > MAX_SOURCES:
        raise InvalidValue(field, f"modules of {size} bytes", f"modules of at most {MAX_SOURCES} bytes in all")
    tools: dict[str, CodeTool] = {}
    for each in names:
        tool = tool_of(each, folders, field)
        if tool.name in tools:
            raise InvalidValue(field, each, f"one tool of each name; there is {tools[tool.name].reference}")
        tools[tool.name] = tool
    return tuple(tools.values())


def tool_of(name: str, folders: Sequence[Path], field: str) -> CodeTool:
    """Return the tool "module:function" of these folders.

    Raises InvalidValue if it does not exist or cannot be a tool.
    """
    called = parsed(name, field)
    function = _function(called, folders, field)
    where = f"{field}: {called}"
    if not _NAME.match(called.name):
        raise InvalidValue(where, called.name, "a name of at most 64 ASCII letters, digits and '_'")
    description = ast.get_docstring(function) or ""
    if not description.strip() or len(description) > _MAX_DESCRIPTION:
        accepted = f"a docstring of 1 to {_MAX_DESCRIPTION} characters: it tells the model what the tool does"
        raise InvalidValue(where, f"{len(description)} characters", accepted)
    return CodeTool(called.module, called.name, description, _schema(function.args, where))


def _function(called: FunctionReference, folders: Sequence[Path], field: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    for file in _files(called, folders):
        status = file.stat()
        functions = _functions(file, status.st_size, status.st_mtime_ns, field)
        if isinstance(functions, InvalidValue):
            raise InvalidValue(functions.field, functions.value, functions.accepted)
        if called.name in functions:
            return functions[called.name]
    raise InvalidValue(field, str(called), "a function that a module of the image's code defines at its top")


def _files(called: FunctionReference, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of these folders that could be the module."""
    paths = [folder.joinpath(*called.module.split(".")) for folder in folders]
    return tuple(file for each in paths for file in (each.with_suffix(".py"), each / "__init__.py") if file.is_file())


@lru_cache(maxsize=8)  # A tree takes up to a hundred times as much memory as its source.
def _functions(file: Path, size: int, changed_ns: int, field: str) -> _Functions | InvalidValue:
    """Return the functions at the top of a module, reduced to signature and docstring; or the error that prevents it.

    The last definition of a name counts. `size` and `changed_ns` are part of the cache key: they identify one state of
    the file.
    """
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    try:
        for line in tree_of(file, field).body:
            if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef):
                del line.body[1:]
                functions[line.name] = line
    except InvalidValue as problem:
        return problem
    return functions


def _schema(taken: ast.arguments, where: str) -> dict[str, Any]:
    if taken.vararg or taken.kwarg or taken.posonlyargs:
        raise InvalidValue(where, "*args, **kwargs or '/'", "parameters that can each be given by name")
    defaults = [None] * (len(taken.args) - len(taken.defaults)) + list(taken.defaults)
    properties: dict[str, Any] = {}
    required = []
    for each, default in zip((*taken.args, *taken.kwonlyargs), (*defaults, *taken.kw_defaults), strict=True):
        if each.annotation is None:
            raise InvalidValue(f"{where}: {each.arg}", None, f"a type: {_TYPES}")
        properties[each.arg] = _type(each.annotation, f"{where}: {each.arg}")
        if default is None:
            required.append(each.arg)
        elif isinstance(default, ast.Constant) and isinstance(default.value, str | int | float | bool | None):
            properties[each.arg] |= {"default": default.value}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type(said: ast.expr, where: str) -> dict[str, Any]:
    """Return the JSON schema of an annotation. Raises InvalidValue."""
    match said:
        case ast.Constant(value=None):
            return dict(_PLAIN["None"])
        case ast.Constant(value=str() as text):
            return _quoted(text, where)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of([_type(left, where), _type(right, where)])
        case ast.Subscript(value=of, slice=inside):
            return _of(_name(of), list(inside.elts) if isinstance(inside, ast.Tuple) else [inside], said, where)
    if (name := _name(said)) in _PLAIN:
        return dict(_PLAIN[name])
    raise _refused(said, where)


def _of(name: str, inside: list[ast.expr], said: ast.expr, where: str) -> dict[str, Any]:
    match name, inside:
        case (("list" | "List" | "Sequence"), [each]):
            return {"type": "array", "items": _type(each, where)}
        case (("dict" | "Dict" | "Mapping"), [key, value]) if _name(key) == "str":
            return {"type": "object", "additionalProperties": _type(value, where)}
        case "Optional", [each]:
            return _any_of([_type(each, where), dict(_PLAIN["None"])])
        case "Union", [_, *_]:
            return _any_of([_type(each, where) for each in inside])
        case "Literal", [_, *_]:
            values = [each.value for each in inside if isinstance(each, ast.Constant)]
            if len(values) == len(inside) and all(isinstance(each, str | int | bool | None) for each in values):
                return {"enum": values}
        case "Annotated", [each, *notes]:
            texts = [note.value for note in notes if isinstance(note, ast.Constant) and isinstance(note.value, str)]
            return _type(each, where) | ({"description": texts[0]} if texts else {})
    raise _refused(said, where)


def _any_of(several: list[dict[str, Any]]) -> dict[str, Any]:
    flat = [part for each in several for part in (each["anyOf"] if set(each) == {"anyOf"} else [each])]
    return {"anyOf": flat}


def _quoted(text: str, where: str) -> dict[str, Any]:
    try:
        expression = ast.parse(text[:1000], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidValue(where, text, f"a type: {_TYPES}") from None
    if isinstance(expression, ast.Constant):
        raise _refused(expression, where)
    return _type(expression, where)


def _name(said: ast.expr) -> str:
    """Return the last part of a name: the same for `Literal` and `typing.Literal`."""
    return said.id if isinstance(said, ast.Name) else said.attr if isinstance(said, ast.Attribute) else ""


def _refused(said: ast.expr, where: str) -> InvalidValue:
    return InvalidValue(where, ast.unparse(said)[:200], f"a type: {_TYPES}")
