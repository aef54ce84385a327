"""Checks of a grant against the backend that is to keep it."""

from __future__ import annotations

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import Backend

_OWN_MACHINE = {
    "models": "requests are forwarded for sandboxes of the kernel's own machine",
    "writable_mounts": "folders on another machine are copies",
}


def can_be_fresh(backend: Backend, offered: Isolation, grant: Grant) -> bool:
    """Return whether a backend that offers L2 with a zygote can also offer L2 without one."""
    return backend.name == "bwrap" and grant.isolation is Isolation.FRESH and offered is Isolation.L2


def check_remote(grant: Grant, backend: str) -> None:
    """Raise InvalidValue for a right that no sandbox on another machine has."""
    for field, reason in _OWN_MACHINE.items():
        if value := getattr(grant, field):
            raise InvalidValue(f"policy.{field}", list(value), f"nothing on {backend}: {reason}")
