"""The safety gate: tool calls that run only after a vote, the policies of the votes, and the events at gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

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

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "core.safety": ("Rule", "SafetyPolicy", "VoterAnswer"),
        "host.safety.gate": ("SafetyGate",),
        "host.safety.inspection": ("GateEventFilter", "follow", "passages"),
        "host.safety.policies": ("SafetyPolicies",),
        "host.safety.voters": ("ModelVoter", "Voter"),
    },
)
