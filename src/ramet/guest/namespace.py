"""The namespace of an agent's code: its capabilities by name, and an import hook that knows no other modules.

The namespace guides the code; it does not confine it. Code can find a way around a view, and is then still in its
sandbox, which holds nothing of the host. The host decides what an agent may do outside the sandbox.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Never

from ramet.core.errors import AgentNotResolved
from ramet.core.policy.capabilities import Capability
from ramet.wire.error_codec import message_of

#: Modules that any code may import: they only serve to declare types.
ALWAYS: Final = ("__future__", "dataclasses", "enum", "typing")
#: Names without a module, as recipes may contain them.
WELL_KNOWN: Final = {"Agent": "ramet.agent.definition:Agent"}
_OWN_MODULE_HINT: Final = (
    "your own module is packed as well if the program imports it, and declares it with .module, .fn or .cls"
)


def namespace(agent: str, capabilities: Iterable[Capability], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the initial names of an agent's code.

    Raises AgentNotResolved for a capability that does not exist. If two capabilities have the same last name, neither
    is bound; both can be imported.
    """
    try:
        return _namespace(capabilities, extra or {})
    except _MissingCapability as problem:
        raise AgentNotResolved(agent, "capability", problem.name, problem.reason) from None


class _MissingCapability(Exception):
    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason


def _namespace(capabilities: Iterable[Capability], extra: Mapping[str, Any]) -> dict[str, Any]:
    modules: dict[str, ModuleView] = {}
    pairs: list[tuple[str, Any]] = []
    for name in ALWAYS:
        modules[name] = ModuleView(importlib.import_module(name), name, None)
    for each in capabilities:
        if each.type == "module":
            view = _view(modules, each.name, _module(each, each.name))
            _check_parts(each, view)
            view.__dict__["ramet_capabilities"].append(each)
            pairs.append((each.name.rpartition(".")[2], view))
        elif each.type in ("class", "function"):
            module_name, _, qualname = WELL_KNOWN.get(each.name, each.name).rpartition(":")
            value = _object(each, module_name, qualname)
            pairs.append((qualname.rpartition(".")[2], value))
            if "." not in qualname:
                _view(modules, module_name, sys.modules[module_name]).__dict__["ramet_parts"].setdefault(
                    qualname, value
                )
    for name in list(modules):
        _add_to_package(modules, name)
    entries: dict[str, Any] = {}
    count = Counter(name for name, _ in {(name, id(obj)) for name, obj in pairs})
    for name, obj in pairs:
        if count[name] == 1:
            entries[name] = obj
    namespace_names = dict(vars(builtins))
    namespace_names["__import__"] = _Imports(modules)
    return {**entries, **extra, "__builtins__": namespace_names}


class ModuleView(types.ModuleType):
    """A read-only view of a module that shows only some names."""

    def __init__(
        self, module: types.ModuleType | None, name: str, capabilities: Sequence[Capability] | None = ()
    ) -> None:
        """Create a view.

        `capabilities` of None shows everything; `module` of None is a package that only leads to others.
        """
        super().__init__(name, getattr(module, "__doc__", None))
        self.__dict__.update(
            ramet_module=module,
            ramet_capabilities=None if capabilities is None else list(capabilities),
            ramet_parts=dict[str, Any](),
        )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module.

        Raises AttributeError if it is not among the capabilities.
        """
        fields = self.__dict__
        parts, module, capabilities = fields["ramet_parts"], fields["ramet_module"], fields["ramet_capabilities"]
        if name in parts:
            return parts[name]
        if name == "__all__":
            return [each for each in dir(self) if not each.startswith("_")]
        if module is not None and (capabilities is None or any(each.has(name) for each in capabilities)):
            value = getattr(module, name)
            if capabilities is None or not isinstance(value, types.ModuleType) or _is_included(capabilities, name):
                return value
            if sys.modules.get(f"{module.__name__}.{name}") is value:  # A submodule, not a module that it imported.
                submodule = ModuleView(
                    value, f"{module.__name__}.{name}", [_submodule_capability(each, name) for each in capabilities]
                )
                return parts.setdefault(name, submodule)
        raise AttributeError(f"{self.__name__}.{name} is not among the capabilities; available: {_list_names(self)}")

    def __setattr__(self, name: str, value: object) -> None:
        """Raise AttributeError: the view is read only."""
        self.__delattr__(name)

    def __delattr__(self, name: str) -> None:
        """Raise AttributeError: the view is read only."""
        raise AttributeError(f"{self.__name__}.{name} cannot be changed: a capability is read only")

    def __dir__(self) -> list[str]:
        fields = self.__dict__
        capabilities = fields["ramet_capabilities"]
        public = dir(fields["ramet_module"]) if fields["ramet_module"] is not None else []
        names = {
            each for each in public if capabilities is None or any(capability.has(each) for capability in capabilities)
        }
        return sorted({each for each in names if _is_readable(self, each)} | set(fields["ramet_parts"]))


class ObjectView:
    """A view of a class, or of an object of it, that shows only some names."""

    def __init__(self, obj: Any, name: str, capability: Capability) -> None:
        self.__dict__.update(ramet_object=obj, ramet_name=name, ramet_capabilities=capability, __doc__=obj.__doc__)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute.

        Raises AttributeError if it is not among the capabilities.
        """
        fields = self.__dict__
        if not fields["ramet_capabilities"].has(name):
            raise AttributeError(f"{fields['ramet_name']}.{name} is not among the capabilities")
        return getattr(fields["ramet_object"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Create an object, wrapped in a view that shows the same names."""
        fields = self.__dict__
        if not isinstance(fields["ramet_object"], type):
            raise TypeError(f"{fields['ramet_name']} cannot be called")
        return ObjectView(
            fields["ramet_object"](*args, **kwargs), f"{fields['ramet_name']}()", fields["ramet_capabilities"]
        )

    def __setattr__(self, name: str, value: object) -> None:
        """Raise AttributeError: the view is read only."""
        raise AttributeError(f"{self.__dict__['ramet_name']}.{name} cannot be changed: a capability is read only")

    def __repr__(self) -> str:
        return f"<the visible part of {self.__dict__['ramet_name']}>"


class _Imports:
    """The `import` statement for an agent's code."""

    def __init__(self, modules: Mapping[str, ModuleView]) -> None:
        self._modules = modules

    def __call__(
        self, name: str, globals: object = None, locals: object = None, fromlist: Sequence[str] = (), level: int = 0
    ) -> types.ModuleType:
        """Return a view of a module.

        Raises ImportError for a module, or a part of one, that is not among the capabilities.
        """
        if level:
            raise ImportError("relative imports are not supported here")
        view = self._find(name)
        for each in fromlist or ():
            if each != "*" and not hasattr(view, each):
                raise ImportError(
                    f"{each!r} of module {name!r} is not among the capabilities; available: {_list_names(view)}"
                )
        return view if fromlist else self._modules.get(name.partition(".")[0], view)

    def _find(self, name: str) -> ModuleView:
        if name in self._modules:
            return self._modules[name]
        package, _, part = name.rpartition(".")
        if package:
            view = self._find(package)
            if any(each.has(part) for each in view.__dict__["ramet_capabilities"] or ()):
                with contextlib.suppress(ImportError):  # The error below reports it.
                    importlib.import_module(name)
            match = getattr(view, part, None)
            if isinstance(match, ModuleView):
                return match
        known_names = ", ".join(sorted(self._modules)[:50])
        raise ModuleNotFoundError(f"module {name!r} is not among the capabilities; available: {known_names}", name=name)


def _view(modules: dict[str, ModuleView], name: str, module: types.ModuleType) -> ModuleView:
    if name not in modules:
        modules[name] = ModuleView(module, name)
    return modules[name]


def _add_to_package(modules: dict[str, ModuleView], name: str) -> None:
    """Add a module to the view of its package: `import a.b` binds `a`, a view that leads to `b` and other parts."""
    package, _, part = name.rpartition(".")
    if package:
        if package not in modules:
            modules[package] = ModuleView(None, package)
        modules[package].__dict__["ramet_parts"].setdefault(part, modules[name])
        _add_to_package(modules, package)


def _module(capability: Capability, name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as problem:  # The module's own code runs here, whatever it does.
        if isinstance(problem, KeyboardInterrupt | MemoryError):
            raise
        why = f"cannot be imported in the sandbox ({type(problem).__name__}: {message_of(problem)})"
        is_unknown = isinstance(problem, ModuleNotFoundError) and problem.name == name.partition(".")[0]
        _missing(capability, f"{why}; {_OWN_MODULE_HINT}" if is_unknown else why)


def _object(capability: Capability, module_name: str, qualname: str) -> Any:
    if not module_name:
        _missing(capability, f"names no module; names without a module are: {', '.join(WELL_KNOWN)}")
    value: Any = _module(capability, module_name)
    for part in qualname.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            _missing(capability, f"has no {part!r}")
    if not (isinstance(value, type) if capability.type == "class" else callable(value)):
        _missing(capability, f"is not a {capability.type}")
    is_restricted = capability.type == "class" and (capability.include is not None or capability.exclude)
    return ObjectView(value, qualname, capability) if is_restricted else value


def _check_parts(capability: Capability, view: ModuleView) -> None:
    module = view.__dict__["ramet_module"]
    for name in capability.include or ():
        if not {"*", "?"} & set(name) and not hasattr(module, name):
            _missing(capability, f"has no {name!r}")


def _missing(capability: Capability, reason: str) -> Never:
    raise _MissingCapability(capability.key, reason) from None


def _is_included(capabilities: Sequence[Capability], name: str) -> bool:
    return any(each.include is not None and name in each.include for each in capabilities)


def _submodule_capability(capability: Capability, part: str) -> Capability:
    return Capability("module", f"{capability.name}.{part}", capability.visibility, None, capability.exclude)


def _is_readable(view: ModuleView, name: str) -> bool:
    try:
        getattr(view, name)
    except Exception:
        return False
    return True


def _list_names(view: ModuleView) -> str:
    names = [each for each in dir(view) if not each.startswith("_")]
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "") if names else "nothing"
