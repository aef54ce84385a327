"""Find the data that a function sent by value needs: its globals, its free variables, its defaults."""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

_GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


class Part(NamedTuple):
    """A part of a packed call, and its display name."""

    label: str
    value: Any


class Variable(NamedTuple):
    """A global or free variable of a function."""

    name: str
    value: Any


def find_unpicklable(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_unpicklable: Callable[[Any], bool],
) -> Part | None:
    """Return the smallest part of a call for which `is_unpicklable` is true; None if no single part is."""
    for index, value in enumerate(args):
        if is_unpicklable(value):
            return Part(f"args[{index}]", value)
    for name, value in kwargs.items():
        if is_unpicklable(value):
            return Part(f"kwargs[{name!r}]", value)
    return _find_in(function, is_unpicklable, set())


def parts(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Part]:
    """Yield every part that is sent with a call."""
    yield from (Part(f"args[{index}]", value) for index, value in enumerate(args))
    yield from (Part(f"kwargs[{name!r}]", value) for name, value in kwargs.items())
    yield from _parts_of(function)


def name_of(function: Any) -> str:
    """Return the display name of a function."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))[:200]


def _find_in(function: Any, guilty: Callable[[Any], bool], seen_ids: set[int]) -> Part | None:
    seen_ids.add(id(function))
    for part in _parts_of(function):
        if id(part.value) not in seen_ids and guilty(part.value):
            return _find_in(part.value, guilty, seen_ids) or part
    return None


def _parts_of(function: Any) -> Iterator[Part]:
    if isinstance(function, partial):
        yield from (Part(f"argument {index} of the partial", value) for index, value in enumerate(function.args))
        yield from (Part(f"argument {name!r} of the partial", value) for name, value in function.keywords.items())
    elif isinstance(function, types.MethodType):
        yield Part(f"the object that {name_of(function)!r} is a method of", function.__self__)
    for each in _functions_in(function):
        owner = f"of {each.__qualname__!r}"
        yield from (Part(f"variable {name!r} {owner}", value) for name, value in _variables(each))
        defaults = [*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values()]
        yield from (Part(f"a default {owner}", value) for value in defaults)


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that are sent by value with `value`."""
    while isinstance(value, partial):
        value = value.func
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        if not is_importable(value):
            yield value
    elif isinstance(value, type):
        if not is_importable(value):
            for each in vars(value).values():
                inner = getattr(each, "__func__", getattr(each, "fget", each))
                if isinstance(inner, types.FunctionType):
                    yield inner
    elif not isinstance(value, types.ModuleType) and not is_importable(type(value)):
        yield from _functions_in(type(value))


def _variables(function: types.FunctionType) -> Iterator[Variable]:
    """Yield the variables of a function that are sent by value."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if not _is_by_reference(value):
            yield Variable(name, value)
    for name in _global_names(function.__code__):
        if name in function.__globals__ and not _is_by_reference(function.__globals__[name]):
            yield Variable(name, function.__globals__[name])


def _is_by_reference(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ in sys.modules
    return isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) and is_importable(value)


def is_importable(value: Any) -> bool:
    """Return whether a function or class can be imported by its module and qualified name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "builtins")
    if module is None or module.__name__ == "__main__":
        return False
    target: Any = module
    for step in value.__qualname__.split("."):
        target = inspect.getattr_static(target, step, None)
    return getattr(target, "__func__", target) is value


@lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    names = {step.argval: None for step in dis.get_instructions(code) if step.opname in _GLOBAL_OPS}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(dict.fromkeys(_global_names(inner)))
    return tuple(names)
