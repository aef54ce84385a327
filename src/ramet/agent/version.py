"""The version of a definition, as a short text: it changes with the code, the prompts and the permissions.

The version of a function covers its code, its defaults, its closure, and the functions and data of its own module that
it names. It does not cover other modules, and data read from disk or network.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, NotShippable
from ramet.wire.values.journal_values import to_record


def version_of(agent: Agent, *extra: Any) -> str:
    """Return the version of a definition; `extra` is further data. Raises InvalidValue if there can be none.

    There is none for a function that closes over an object that is not data: two such functions may look alike and
    differ.
    """
    digest = hashlib.sha256(canonical(list(extra)))
    for function in _functions(agent):
        digest.update(code_digest(function).encode())
    return digest.hexdigest()


def canonical(value: Any) -> bytes:
    """Return data as canonical JSON. Raises NotShippable if the value is not data."""
    return msgspec.json.encode(to_record(value), order="deterministic")


def code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a function's behaviour. Raises InvalidValue for parts that cannot be inspected."""
    digest = hashlib.sha256()
    _digest(function, digest, set())
    return digest.hexdigest()


def _functions(agent: Agent) -> Iterator[Callable[..., Any]]:
    function = agent.function
    if isinstance(function, Composition):
        yield from function.decision_functions()
        for part in function.parts():
            yield from _functions(part)
    elif function is not None:
        yield function
    for tool in agent.tool_entries or ():
        for name in ("func", "coroutine"):
            own = getattr(tool, name, None)
            if callable(own):
                yield own


def _digest(function: Any, digest: hashlib._Hash, visited: set[int]) -> None:
    if isinstance(function, partial):
        _digest(function.func, digest, visited)
        digest.update(_data("arguments of a partial", [list(function.args), function.keywords]))
        return
    if isinstance(function, types.BuiltinFunctionType | type):
        digest.update(f"{function.__module__}.{function.__qualname__}".encode())
        return
    if isinstance(function, types.MethodDescriptorType):
        digest.update(f"{function.__objclass__.__module__}.{function.__qualname__}".encode())
        return
    if not isinstance(function, types.FunctionType):
        raise InvalidValue("function", function, "a function: the effect of an object's state cannot be inspected")
    if id(function) in visited:
        return
    visited.add(id(function))
    digest.update(_code(function.__code__))
    digest.update(_data("defaults", [list(function.__defaults__ or ()), function.__kwdefaults__ or {}]))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        _name(name, value, function, digest, visited, must=True)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            _name(name, function.__globals__[name], function, digest, visited, must=False)


def _name(
    name: str, value: Any, function: types.FunctionType, digest: hashlib._Hash, visited: set[int], *, must: bool
) -> None:
    """Add the meaning of a name in a function: code of its own module, data, or an object known only by name."""
    if isinstance(value, Agent) and value.function is not None:
        value = value.function
    digest.update(name.encode())
    if isinstance(value, types.FunctionType):
        if must or value.__module__ == function.__module__:
            _digest(value, digest, visited)
        else:
            digest.update(f"{value.__module__}.{value.__qualname__}".encode())
    elif isinstance(value, types.ModuleType):
        digest.update(value.__name__.encode())
    elif isinstance(value, type | types.BuiltinFunctionType):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
    else:
        try:
            digest.update(_data(name, value))
        except InvalidValue:
            if must:
                raise
            digest.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())


def _data(label: str, value: Any) -> bytes:
    try:
        return canonical(value)
    except NotShippable as problem:
        raise InvalidValue(label, value, f"data, so that the effect of the function is known ({problem.why})") from None


def _code(code: types.CodeType) -> bytes:
    """Return instructions, names and constants, without file and line."""
    parts = [code.co_code, repr((code.co_names, code.co_varnames, code.co_argcount, code.co_flags)).encode()]
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            parts.append(_code(each))
        elif isinstance(each, frozenset):
            parts.append(repr(sorted(map(repr, each))).encode())
        else:
            parts.append(f"{type(each).__name__}:{each!r}".encode())
    return b"\0".join(parts)


def _names(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
