"""Backends by name: ramet's own, and those of other packages, found by the entry points "ramet.backends".

Such an entry point refers to a class or a function that creates a backend from `runs`: the folder, which may not exist
yet, for the run folders of one working directory.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
from typing import Final, cast, get_args

from ramet.core.errors import InvalidValue
from ramet.host.sandbox.sandboxes import BackendName
from ramet.isolation.contract import Backend
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.config.validators import BACKENDS_GROUP

_METHODS: Final = ("probe", "start", "adopt", "reap", "close")
_ACCEPTED: Final = "a callable with `runs` that returns a backend (ramet.isolation.contract.Backend)"


def find_backend(name: str, working_dir: pathlib.Path) -> BackendName | Backend:
    """Return the name of a backend of ramet, or the backend of an entry point. Names of ramet take precedence.

    Raises InvalidValue, naming the entry point, if it cannot be loaded or is no backend.
    """
    if name in get_args(BackendName):
        return cast("BackendName", name)
    # Duplicates of one entry point (a package twice on the path) count once.
    points = {each.value: each for each in importlib.metadata.entry_points(group=BACKENDS_GROUP, name=name)}
    if not points:
        raise InvalidValue("backend", name, f"one of {', '.join(get_args(BackendName))}, or of {BACKENDS_GROUP!r}")
    location = f"entry point {name!r} in {BACKENDS_GROUP!r}"
    if len(points) > 1:
        raise InvalidValue(location, ", ".join(points), "one backend of each name")
    [(value, point)] = points.items()
    try:
        backend = point.load()(runs=RunFolders(working_dir).root)
    except (Exception, SystemExit) as problem:  # Loading runs the backend's own code.
        reason = f"{type(problem).__name__}: {str(problem)[:200]}"
        raise InvalidValue(location, value, f"{_ACCEPTED}; {reason}") from problem
    if not isinstance(getattr(backend, "name", None), str):
        raise InvalidValue(location, value, f"{_ACCEPTED}; it has no name")
    for method in _METHODS:
        if not callable(getattr(backend, method, None)):
            raise InvalidValue(location, value, f"{_ACCEPTED}; it has no method {method!r}")
    return cast("Backend", backend)
