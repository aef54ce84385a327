"""Functions by name: a name under which a function is found again, in this process and after a restart.

A reference is `module:qualname`. For a function of a script it is `/its/file.py:qualname`, since `__main__` differs in
every process. For a function typed at a prompt or in a notebook, which is in no file, it is a name that only this
process knows. A reference never leads to a function other than the intended one, unless its owner changed the code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pathlib
import re
import secrets
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from ramet.agent.definition import Agent
from ramet.core.errors import DefinitionMissing, InvalidValue

ACCEPTED: Final = "a function at the top level of a module, or of the script itself, which is found again by its name"
_QUALNAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_MAIN: Final = "__main__"
_MAIN_OF_CHILD: Final = "__mp_main__"  #: the script in a process that `multiprocessing` started
#: Stands for the `__main__` of this process if that has no file.
_PROMPT: Final = f"prompt-{secrets.token_hex(8)}"


def reference_of(function: Callable[..., Any], *, field: str = "agent") -> str:
    """Return the reference of a function. Raises InvalidValue, with the reason, if it cannot be found again.

    Refused are lambdas, functions inside functions, methods of objects, partials, callable objects, and functions whose
    name has another meaning by now.
    """
    if problem := _problem(function):
        raise InvalidValue(field, function, f"{ACCEPTED}; {problem}")
    module = sys.modules[function.__module__]
    return f"{_location_of(module)}:{function.__qualname__}"


def resolve(reference: str) -> Callable[..., Any]:
    """Return the function of a reference; import its module, or run its script under another name, if needed.

    Raises DefinitionMissing if it is not there (any more), or if its module cannot be imported, which is then the
    cause; InvalidValue for an invalid reference.
    """
    if not isinstance(reference, str) or not is_reference(reference):
        raise InvalidValue("reference", reference, "module:function, or /path/of/a/script.py:function")
    location, _, qualname = reference.rpartition(":")
    try:
        module = _module_at(location)
        value: Any = module
        for step in qualname.split("."):
            value = getattr(value, step)
    except (Exception, SystemExit) as problem:  # importing runs code that may raise anything
        raise DefinitionMissing("function", reference) from problem
    value = _undecorate(value)
    if not callable(value):
        raise DefinitionMissing("function", reference)
    return value  # type: ignore[no-any-return]  # it can be called


def is_reference(text: str) -> bool:
    """Return whether a text has the form of a reference."""
    location, colon, qualname = text.rpartition(":")
    return bool(colon and location and _QUALNAME.match(qualname))


def _problem(function: Any) -> str:
    """Return why a function cannot be found again; empty if it can."""
    if inspect.ismethod(function):
        return "this is a method of an object"
    name, qualname = getattr(function, "__name__", None), getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not isinstance(qualname, str):
        return f"a {type(function).__name__} has no name of its own"
    if name == "<lambda>":
        return "this is a lambda"
    if "<locals>" in qualname:
        return "this one is defined inside another function"
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None:
        return "its module is not loaded"
    value: Any = module
    for step in qualname.split("."):
        value = getattr(value, step, None)
    return "" if _undecorate(value) is function else f"{function.__module__}.{qualname} is something else"


def _undecorate(value: Any) -> Any:
    """Return the function itself if its name stands for the definition that a decorator made of it."""
    return value.function if isinstance(value, Agent) and value.function is not None else value


def _location_of(module: types.ModuleType) -> str:
    if module is not sys.modules.get(_MAIN) and module.__name__ != _MAIN_OF_CHILD:
        return _script_of(module) or module.__name__
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name not in (_MAIN, _MAIN_OF_CHILD):  # python -m package.module
        return str(spec.name)
    file = _file_of(module)
    return str(file) if file is not None else _PROMPT


def _module_at(location: str) -> types.ModuleType:
    main = sys.modules[_MAIN]
    if location == _location_of(main):
        return main
    if location.startswith("/"):
        return _script(pathlib.Path(location))
    return importlib.import_module(location)


def _script(file: pathlib.Path) -> types.ModuleType:
    """Return a script as a module under a name of its own, so that its code for `__main__` does not run again."""
    name = _name_for(file)
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _script_of(module: types.ModuleType) -> str:
    """Return the path of the script that `_script` loaded as this module; empty for any other module."""
    file = _file_of(module)
    return str(file) if file is not None and module.__name__ == _name_for(file) else ""


def _name_for(file: pathlib.Path) -> str:
    digest = hashlib.sha256(str(file).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"script_{digest}_{re.sub(r'[^a-zA-Z0-9_]', '_', file.stem)}"


def _file_of(module: types.ModuleType) -> pathlib.Path | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not pathlib.Path(file).is_file():  # "<stdin>", or a notebook's
        return None
    return pathlib.Path(file).resolve()
