"""Adapters of other packages by name: policy adapters and stores, given as entry points or as "package.module:Name".

The groups are "ramet.policy_adapters" and "ramet.stores". An entry point refers to a class or a function that returns
the adapter when it is called. The name of a store's entry point is the scheme of its URLs.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any, Final, cast

from ramet.core.errors import InvalidValue
from ramet.host.policy_adapters.adapter import PolicyAdapter, check_policy_adapter
from ramet.services.config.settings import StoreAdapter
from ramet.store.contract import Store, missing_members

POLICY_ADAPTERS_GROUP: Final = "ramet.policy_adapters"
STORES_GROUP: Final = "ramet.stores"
#: The pattern of a reference to an object of a module.
OBJECT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)
_OWN_STORES: Final = ("memory", "sqlite", "postgres")
_POLICY: Final = "a callable that returns a policy adapter (ramet.host.policy_adapters.PolicyAdapter)"
_STORE: Final = "a callable with `url` and `kernel` that returns a store (ramet.store.contract.Store)"


def is_adapter_named(group: str, name: str) -> bool:
    """Return whether a name is "package.module:Name", or that of an installed entry point."""
    return OBJECT.match(name) is not None or name in importlib.metadata.entry_points(group=group).names


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
        location, point = field, importlib.metadata.EntryPoint(name, name, group)
    else:
        # Duplicates of one entry point (a package twice on the path) count once.
        points = {each.value: each for each in importlib.metadata.entry_points(group=group, name=name)}
        if not points:
            raise InvalidValue(field, name, f"package.module:Name, or an entry point of {group!r}")
        location = f"entry point {name!r} in {group!r}"
        if len(points) > 1:
            raise InvalidValue(location, ", ".join(points), "one adapter of each name")
        [point] = points.values()
    try:
        return location, point.load()(**called_with)
    except (Exception, SystemExit) as problem:  # Loading runs the adapter's own code.
        # With a URL, show only the error's type: its text may contain the URL and its password.
        raise InvalidValue(location, point.value, f"{accepted}; {_error_text(problem, **called_with)}") from problem


def _error_text(problem: BaseException, url: str = "", **_: Any) -> str:
    kind = type(problem).__name__
    return kind if url else f"{kind}: {str(problem)[:200]}"
