"""Policy adapters: an authority, besides the limits of a tree, over the permissions of agents.

The public names are here, and loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ramet.core.policy.decision import Allow as Allow
    from ramet.core.policy.decision import Narrow as Narrow
    from ramet.core.policy.decision import PolicyAnswer as PolicyAnswer
    from ramet.core.policy.decision import PolicyRequest as PolicyRequest
    from ramet.core.policy.decision import Refuse as Refuse
    from ramet.host.policy_adapters.adapter import PolicyAdapter as PolicyAdapter

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "core.policy.decision": ("Allow", "Narrow", "PolicyAnswer", "PolicyRequest", "Refuse"),
        "host.policy_adapters.adapter": ("PolicyAdapter",),
    },
)
