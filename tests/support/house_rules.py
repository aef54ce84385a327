"""Policy adapters of an organisation: one keeps the promises of an adapter, and each other one breaks a promise."""

from __future__ import annotations

import asyncio
from typing import Any

import ramet
from ramet.host.policy_adapters import Allow, Narrow, PolicyAnswer, PolicyRequest, Refuse


class HouseRules:
    """An adapter that keeps its promises: no network for functions named `spawn`, and at most two levels of agents."""

    name = "house rules"

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        if request.depth > 2:
            return Refuse("two levels are enough")
        if request.agent == "spawn":
            return Narrow(policy=ramet.Policy(network="disabled"), reason="no network")
        return Allow()


class NoneForUnknownAdapter(HouseRules):
    """An adapter that returns None for agents that it does not know."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        return Allow() if request.agent == "function" else None  # type: ignore[return-value]  # that is the point


class Raising(HouseRules):
    """An adapter that raises KeyError for an agent whose name is not ASCII."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        if not request.agent.isascii():
            raise KeyError(request.agent)
        return Allow()


class Wordless(HouseRules):
    """An adapter that refuses without a reason."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        return Refuse("")


class Moody(HouseRules):
    """An adapter whose answer depends on the identity of the request object."""

    def __init__(self) -> None:
        self._seen: list[PolicyRequest] = []

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        known = any(each is request for each in self._seen)
        self._seen.append(request)
        return Allow() if known or len(self._seen) % 2 else Refuse("not today")


class Busy(HouseRules):
    """An adapter that answers one request at a time, and fails for concurrent requests."""

    _asked = 0

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        self._asked += 1
        try:
            if self._asked > 1:
                raise RuntimeError("one at a time")
            await asyncio.sleep(0)
            return Allow()
        finally:
            self._asked -= 1


class Stuck(HouseRules):
    """An adapter that cannot answer any more once a call was cancelled."""

    _was_cancelled = False

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        if self._was_cancelled:
            raise RuntimeError("the connection was lost")
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._was_cancelled = True
            raise
        return Allow()


class Nameless(HouseRules):
    """An adapter without a name."""

    name: Any = None


no_adapter = dict
