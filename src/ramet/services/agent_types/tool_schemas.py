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
from ramet.services.agent_types.imports import FunctionReference, parse_reference, sources_of, tree_of
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
    files = {file for each in names for file in sources_of(parse_reference(each, field), folders)}
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
    reference = parse_reference(name, field)
    function = _function(reference, folders, field)
    location = f"{field}: {reference}"
    if not _NAME.match(reference.name):
        raise InvalidValue(location, reference.name, "a name of at most 64 ASCII letters, digits and '_'")
    description = ast.get_docstring(function) or ""
    if not description.strip() or len(description) > _MAX_DESCRIPTION:
        accepted = f"a docstring of 1 to {_MAX_DESCRIPTION} characters: it tells the model what the tool does"
        raise InvalidValue(location, f"{len(description)} characters", accepted)
    return CodeTool(reference.module, reference.name, description, _schema(function.args, location))


def _function(
    reference: FunctionReference, folders: Sequence[Path], field: str
) -> ast.FunctionDef | ast.AsyncFunctionDef:
    for file in sources_of(reference, folders):
        status = file.stat()
        functions = _functions(file, status.st_size, status.st_mtime_ns, field)
        if isinstance(functions, InvalidValue):
            raise InvalidValue(functions.field, functions.value, functions.accepted)
        if reference.name in functions:
            return functions[reference.name]
    raise InvalidValue(field, str(reference), "a function that a module of the image's code defines at its top")


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


def _schema(arguments: ast.arguments, location: str) -> dict[str, Any]:
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise InvalidValue(location, "*args, **kwargs or '/'", "parameters that can each be given by name")
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    properties: dict[str, Any] = {}
    required_names = []
    for each, default in zip(
        (*arguments.args, *arguments.kwonlyargs), (*defaults, *arguments.kw_defaults), strict=True
    ):
        if each.annotation is None:
            raise InvalidValue(f"{location}: {each.arg}", None, f"a type: {_TYPES}")
        properties[each.arg] = _type(each.annotation, f"{location}: {each.arg}")
        if default is None:
            required_names.append(each.arg)
        elif isinstance(default, ast.Constant) and isinstance(default.value, str | int | float | bool | None):
            properties[each.arg] |= {"default": default.value}
    return {"type": "object", "properties": properties, "required": required_names, "additionalProperties": False}


def _type(annotation: ast.expr, location: str) -> dict[str, Any]:
    """Return the JSON schema of an annotation. Raises InvalidValue."""
    match annotation:
        case ast.Constant(value=None):
            return dict(_PLAIN["None"])
        case ast.Constant(value=str() as text):
            return _parse_quoted(text, location)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of([_type(left, location), _type(right, location)])
        case ast.Subscript(value=of, slice=argument):
            return _subscript_schema(
                _name(of), list(argument.elts) if isinstance(argument, ast.Tuple) else [argument], annotation, location
            )
    if (name := _name(annotation)) in _PLAIN:
        return dict(_PLAIN[name])
    raise _refusal(annotation, location)


def _subscript_schema(name: str, arguments: list[ast.expr], annotation: ast.expr, location: str) -> dict[str, Any]:
    match name, arguments:
        case (("list" | "List" | "Sequence"), [each]):
            return {"type": "array", "items": _type(each, location)}
        case (("dict" | "Dict" | "Mapping"), [key, value]) if _name(key) == "str":
            return {"type": "object", "additionalProperties": _type(value, location)}
        case "Optional", [each]:
            return _any_of([_type(each, location), dict(_PLAIN["None"])])
        case "Union", [_, *_]:
            return _any_of([_type(each, location) for each in arguments])
        case "Literal", [_, *_]:
            values = [each.value for each in arguments if isinstance(each, ast.Constant)]
            if len(values) == len(arguments) and all(isinstance(each, str | int | bool | None) for each in values):
                return {"enum": values}
        case "Annotated", [each, *notes]:
            texts = [note.value for note in notes if isinstance(note, ast.Constant) and isinstance(note.value, str)]
            return _type(each, location) | ({"description": texts[0]} if texts else {})
    raise _refusal(annotation, location)


def _any_of(several: list[dict[str, Any]]) -> dict[str, Any]:
    flat = [part for each in several for part in (each["anyOf"] if set(each) == {"anyOf"} else [each])]
    return {"anyOf": flat}


def _parse_quoted(text: str, location: str) -> dict[str, Any]:
    try:
        expression = ast.parse(text[:1000], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidValue(location, text, f"a type: {_TYPES}") from None
    if isinstance(expression, ast.Constant):
        raise _refusal(expression, location)
    return _type(expression, location)


def _name(expression: ast.expr) -> str:
    """Return the last part of a name: the same for `Literal` and `typing.Literal`."""
    return (
        expression.id
        if isinstance(expression, ast.Name)
        else expression.attr
        if isinstance(expression, ast.Attribute)
        else ""
    )


def _refusal(annotation: ast.expr, location: str) -> InvalidValue:
    return InvalidValue(location, ast.unparse(annotation)[:200], f"a type: {_TYPES}")
