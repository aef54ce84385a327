"""The safety gate: tool calls that run only after a vote, the policies of the votes, and the events at gates."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.core.safety import Rule as Rule
    from ramet.core.safety import SafetyPolicy as SafetyPolicy
    from ramet.core.safety import VoterAnswer as VoterAnswer
    from ramet.host.safety.gate import SafetyGate as SafetyGate
    from ramet.host.safety.inspection import GateEventFilter as GateEventFilter
    from ramet.host.safety.inspection import follow as follow
    from ramet.host.safety.inspection import passages as passages
    from ramet.host.safety.policies import SafetyPolicies as SafetyPolicies
    from ramet.host.safety.voters import ModelVoter as ModelVoter
    from ramet.host.safety.voters import Voter as Voter

_WHERE = {
    "VoterAnswer": "core.safety",
    "GateEventFilter": "host.safety.inspection",
    "ModelVoter": "host.safety.voters",
    "Rule": "core.safety",
    "SafetyGate": "host.safety.gate",
    "SafetyPolicies": "host.safety.policies",
    "SafetyPolicy": "core.safety",
    "Voter": "host.safety.voters",
    "follow": "host.safety.inspection",
    "passages": "host.safety.inspection",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(f"ramet.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ramet.host.safety' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
