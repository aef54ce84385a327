"""Adapters of other packages by name: backends, policy adapters and stores.

They are given as entry points. Policy adapters and stores may also be given as "package.module:Name". An entry point
refers to a class or a function that returns the adapter when it is called. Backends are created from `runs`: the
folder, which may not exist yet, for the run folders of one working directory. The name of a store's entry point is the
scheme of its URLs.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
from typing import Any, Final, cast, get_args

from ramet.core.errors import InvalidValue
from ramet.host.policy_adapters.adapter import PolicyAdapter, check_policy_adapter
from ramet.host.sandbox.sandboxes import BackendName
from ramet.isolation.contract import Backend
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.config.settings import StoreAdapter
from ramet.store.contract import Store, missing_members

BACKENDS_GROUP: Final = "ramet.backends"
POLICY_ADAPTERS_GROUP: Final = "ramet.policy_adapters"
STORES_GROUP: Final = "ramet.stores"
#: The pattern of a reference to an object of a module.
OBJECT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)
_BACKEND_METHODS: Final = ("probe", "start", "adopt", "reap", "close")
_OWN_STORES: Final = ("memory", "sqlite", "postgres")
_BACKEND: Final = "a callable with `runs` that returns a backend (ramet.isolation.contract.Backend)"
_POLICY: Final = "a callable that returns a policy adapter (ramet.host.policy_adapters.PolicyAdapter)"
_STORE: Final = "a callable with `url` and `kernel` that returns a store (ramet.store.contract.Store)"


def is_adapter_named(group: str, name: str) -> bool:
    """Return whether a name is "package.module:Name", or that of an installed entry point."""
    return OBJECT.match(name) is not None or name in importlib.metadata.entry_points(group=group).names


def find_backend(name: str, working_dir: pathlib.Path) -> BackendName | Backend:
    """Return the name of a backend of ramet, or the backend of an entry point. Names of ramet take precedence.

    Raises InvalidValue, naming the entry point, if it cannot be loaded or is no backend.
    """
    if name in (own := get_args(BackendName)):
        return cast("BackendName", name)
    unknown = f"one of {', '.join(own)}, or of {BACKENDS_GROUP!r}"
    point = _find_entry_point(BACKENDS_GROUP, name, "backend", unknown)
    location = _location(point)
    backend = _call(point, location, _BACKEND, runs=RunFolders(working_dir).root)
    if not isinstance(getattr(backend, "name", None), str):
        raise InvalidValue(location, point.value, f"{_BACKEND}; it has no name")
    for method in _BACKEND_METHODS:
        if not callable(getattr(backend, method, None)):
            raise InvalidValue(location, point.value, f"{_BACKEND}; it has no method {method!r}")
    return cast("Backend", backend)


def find_policy_adapter(name: str) -> PolicyAdapter:
    """Return the policy adapter of that name. Raises InvalidValue if it cannot be loaded or is no policy adapter."""
    location, adapter = _call_adapter(POLICY_ADAPTERS_GROUP, name, "policy_adapter", _POLICY)
    try:
        check_policy_adapter(location, adapter)
    except InvalidValue as problem:
        raise InvalidValue(location, name, problem.accepted) from None
    return cast("PolicyAdapter", adapter)


def find_store(adapter: StoreAdapter, kernel: str) -> Store:
    """Create the store of an adapter.

    Raises InvalidValue, which shows no URL, if that fails or the object is no store.
    """
    location, store = _call_adapter(STORES_GROUP, adapter.name, "store", _STORE, url=adapter.url, kernel=kernel)
    if missing := missing_members(store):
        raise InvalidValue(location, adapter.name, f"{_STORE}; it has no {', '.join(missing)}")
    try:
        own_name = store.name
    except Exception as problem:  # The property runs the store's own code.
        accepted = f"{_STORE}; its `name` raised {type(problem).__name__}"
        raise InvalidValue(location, adapter.name, accepted) from None
    if own_name in _OWN_STORES:
        accepted = f"{_STORE}; its `name` is that of one of ramet's own stores"
        raise InvalidValue(location, own_name, accepted)
    return cast("Store", store)


def _call_adapter(group: str, name: str, field: str, accepted: str, **called_with: Any) -> tuple[str, Any]:
    """Load and call the named object; return it with the field name for errors. Raises InvalidValue."""
    if OBJECT.match(name):
        return field, _call(importlib.metadata.EntryPoint(name, name, group), field, accepted, **called_with)
    point = _find_entry_point(group, name, field, f"package.module:Name, or an entry point of {group!r}")
    location = _location(point)
    return location, _call(point, location, accepted, **called_with)


def _find_entry_point(group: str, name: str, field: str, unknown: str) -> importlib.metadata.EntryPoint:
    """Return the entry point of that name. Raises InvalidValue for none, and for several."""
    # Duplicates of one entry point (a package twice on the path) count once.
    points = {each.value: each for each in importlib.metadata.entry_points(group=group, name=name)}
    if not points:
        raise InvalidValue(field, name, unknown)
    if len(points) > 1:
        kind = "backend" if group == BACKENDS_GROUP else "adapter"
        raise InvalidValue(_location(next(iter(points.values()))), ", ".join(points), f"one {kind} of each name")
    return next(iter(points.values()))


def _location(point: importlib.metadata.EntryPoint) -> str:
    return f"entry point {point.name!r} in {point.group!r}"


def _call(point: importlib.metadata.EntryPoint, location: str, accepted: str, **called_with: Any) -> Any:
    try:
        return point.load()(**called_with)
    except (Exception, SystemExit) as problem:  # Loading runs the adapter's own code.
        # With a URL, show only the error's type: its text may contain the URL and its password.
        raise InvalidValue(location, point.value, f"{accepted}; {_error_text(problem, **called_with)}") from problem


def _error_text(problem: BaseException, url: str = "", **_: Any) -> str:
    kind = type(problem).__name__
    return kind if url else f"{kind}: {str(problem)[:200]}"
