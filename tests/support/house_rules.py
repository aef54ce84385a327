"""Policy adapters of an organisation: one that keeps its promises, and some that each break one."""

from __future__ import annotations

import asyncio
from typing import Any

import ramet
from ramet.host.policy_adapters import Allow, Narrow, PolicyAnswer, PolicyRequest, Refuse


class HouseRules:
    """No network for functions named `spawn`, no agents deeper than two levels."""

    name = "house rules"

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        if request.depth > 2:
            return Refuse("two levels are enough")
        if request.agent == "spawn":
            return Narrow(policy=ramet.Policy(network="disabled"), reason="no network")
        return Allow()


class Silent(HouseRules):
    """Answers nothing about what it does not know."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        return Allow() if request.agent == "function" else None  # type: ignore[return-value]  # that is the point


class Raising(HouseRules):
    """Fails where a birth is strange."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        if not request.agent.isascii():
            raise KeyError(request.agent)
        return Allow()


class Wordless(HouseRules):
    """Refuses, and does not say why."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        return Refuse("")


class Moody(HouseRules):
    """Answers by which object it is asked with."""

    def __init__(self) -> None:
        self._seen: list[PolicyRequest] = []

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        known = any(each is request for each in self._seen)
        self._seen.append(request)
        return Allow() if known or len(self._seen) % 2 else Refuse("not today")


class Busy(HouseRules):
    """Takes one question at a time, and fails for the others."""

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
    """Cannot answer once a call of it was cancelled."""

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
    """Has no name."""

    name: Any = None


no_adapter = dict
