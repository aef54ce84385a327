"""Send the sources of a user's own modules along with a function, and serve them from memory in the sandbox.

A module is the user's own if its file is Python source that was not installed: not of the standard library, not below a
site-packages folder, not ramet's. The bundle holds only modules that this process has loaded and that the function
reaches by imports. No other file in their folders is read.
"""

from __future__ import annotations

import ast
import dis
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from ramet.core.errors import NotShippable
from ramet.wire.code.syntax import parse_module

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_EXCLUDED: Final = frozenset({"__main__", "__mp_main__", "ramet"})
_IMPORT: Final = dis.opmap["IMPORT_NAME"]
_STDLIB: Final = pathlib.Path(os.__file__).parent


class Source(Struct, frozen=True, array_like=True):
    name: str
    path: str  #: path of the original file, for tracebacks
    package: bool
    text: str | None  #: None for a namespace package, which has no `__init__`


def is_user_module(module: types.ModuleType) -> bool:
    """Return whether a module must be sent as source, because no other process has it."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and module.__name__.partition(".")[0] not in _EXCLUDED and _is_own_file(file)


def has_user_modules(names: Iterable[str]) -> bool:
    """Return whether one of the named modules is loaded and belongs to the user's code."""
    return any(module is not None and is_user_module(module) for module in map(sys.modules.get, names))


def sources(names: Iterable[str]) -> tuple[Source, ...]:
    """Return the user's own among the named modules, with their packages and imports.

    Raises NotShippable if a source cannot be read.
    """
    queue, result = list(names), dict[str, Source]()
    while queue:
        name = queue.pop()
        module = sys.modules.get(name)
        if name in result or module is None or not is_user_module(module):
            continue
        source = result[name] = _load_source(name, module)
        queue += _imports(source.text or "", name, source.package)
        queue += _object_modules(module)
        while name := name.rpartition(".")[0]:
            queue.append(name)
            parent = sys.modules.get(name)
            if parent is None or getattr(parent, "__file__", None) is None:
                result.setdefault(name, Source(name, "", True, None))
    return tuple(result[name] for name in sorted(result))


def install_importer(modules: Sequence[Source]) -> None:
    """Make these modules importable in this process."""
    if modules:
        sys.meta_path.insert(0, _Bundle(modules))


@lru_cache(maxsize=1024)
def imports_of(code: types.CodeType, package: str) -> frozenset[str]:
    """Return the modules that a function of a package imports when it runs."""
    names, source = set[str](), ""
    if _IMPORT in code.co_code[::2]:
        operands: list[Any] = [0, None]  # operands of the import: the relative level, and the imported names
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                source = _absolute(package, operands[-2], step.argval)
                names.update(_upward(source))
            elif step.opname == "IMPORT_FROM":
                names.add(f"{source}.{step.argval}")
            operands.append(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= imports_of(inner, package)
    return frozenset(names)


def imported_modules(modules: Sequence[Source]) -> frozenset[str]:
    """Return every module that these modules name in their imports."""
    imports = (_imports(each.text, each.name, each.package) for each in modules if each.text is not None)
    return frozenset().union(*imports)


class _Bundle:
    """A finder and loader of bundled modules."""

    def __init__(self, modules: Sequence[Source]) -> None:
        self._modules = {each.name: each for each in modules}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Implement the finder interface of `sys.meta_path`."""
        module = self._modules.get(name)
        if module is None:
            return None
        if module.text is None and (installed_spec := importlib.machinery.PathFinder.find_spec(name, path)):
            return installed_spec  # An installed package uses the same namespace package.
        spec = importlib.machinery.ModuleSpec(name, self, origin=module.path or None, is_package=module.package)  # type: ignore[arg-type]
        spec.has_location = bool(module.path)
        return spec

    def create_module(self, _: importlib.machinery.ModuleSpec) -> None:
        """Return None, so that Python creates an ordinary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        source = self._modules[module.__name__]
        exec(compile(source.text or "", source.path or "<bundle>", "exec", dont_inherit=True), vars(module))

    def get_source(self, name: str) -> str | None:
        """Return the source for tracebacks, `inspect`, and a further bundle."""
        return self._modules[name].text

    def source(self, name: str) -> Source:
        return self._modules[name]


def _is_bundled(module: types.ModuleType) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _Bundle)


@lru_cache(maxsize=4096)
def _is_own_file(file: str) -> bool:
    path = pathlib.Path(file)
    return path.suffix == ".py" and _INSTALLED.isdisjoint(path.parts) and not path.is_relative_to(_STDLIB)


def _load_source(name: str, module: types.ModuleType) -> Source:
    if _is_bundled(module):
        bundle: Any = module.__spec__.loader  # type: ignore[union-attr]
        source: Source = bundle.source(name)
        return source
    file = module.__file__ or ""
    try:
        state = os.stat(file)  # noqa: PTH116 - the key of a cache, used in every spawn
        text = _read(file, state.st_mtime_ns, state.st_size)
    except (OSError, SyntaxError, UnicodeError) as problem:
        raise NotShippable(
            f"module {name!r}",
            f"its source cannot be read ({type(problem).__name__})",
            "restore its file",
        ) from None
    return Source(name, file, hasattr(module, "__path__"), text)


@lru_cache(maxsize=1024)
def _read(file: str, _modified: int, _size: int) -> str:
    return importlib.util.decode_source(pathlib.Path(file).read_bytes())


def _object_modules(module: types.ModuleType) -> Iterator[str]:
    """Yield the modules referenced by a module: modules it holds, and modules of the functions and classes it holds."""
    for name, value in list(vars(module).items()):
        if isinstance(value, types.ModuleType):
            if value.__name__ != f"{module.__name__}.{name}":  # Python sets submodules on packages.
                yield value.__name__
        elif isinstance(value, type | types.FunctionType) and isinstance(value.__module__, str):
            yield value.__module__


@lru_cache(maxsize=1024)
def _imports(text: str, name: str, package: bool) -> frozenset[str]:
    try:
        tree = parse_module(text)
    except SyntaxError:
        return frozenset()
    base = name if package else name.rpartition(".")[0]
    return frozenset(_walk_imports(tree, base))


def _walk_imports(node: ast.AST, base: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield from _upward(alias.name)
        case ast.ImportFrom(module=module, names=names, level=level):
            source = _absolute(base, level, module or "")
            yield from _upward(source)
            for alias in names:
                yield f"{source}.{alias.name}"
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=orelse):
            for each in orelse:
                yield from _walk_imports(each, base)
        case _:
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
                    yield from _walk_imports(inner, base)


def _absolute(package: str, level: int, name: str) -> str:
    start = package.rsplit(".", level - 1)[0] if level else ""
    return ".".join(filter(None, (start, name)))


def _upward(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
