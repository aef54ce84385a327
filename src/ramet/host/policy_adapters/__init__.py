"""Policy adapters: an authority, besides the limits of a tree, over the permissions of agents.

The public names are here, and loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.core.policy.decision import Allow as Allow
    from ramet.core.policy.decision import Narrow as Narrow
    from ramet.core.policy.decision import PolicyAnswer as PolicyAnswer
    from ramet.core.policy.decision import PolicyRequest as PolicyRequest
    from ramet.core.policy.decision import Refuse as Refuse
    from ramet.host.policy_adapters.adapter import PolicyAdapter as PolicyAdapter

_WHERE = {
    "Allow": "core.policy.decision",
    "Narrow": "core.policy.decision",
    "PolicyAdapter": "host.policy_adapters.adapter",
    "PolicyAnswer": "core.policy.decision",
    "PolicyRequest": "core.policy.decision",
    "Refuse": "core.policy.decision",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"ramet.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ramet.host.policy_adapters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
