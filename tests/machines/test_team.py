"""Agents are admitted and released in any order: held, spent and free amounts add up to the total.

The oracle keeps no balances. It knows each admission and what each agent used, in exact fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.core.errors import Bug, InvalidValue, OverCapacity
from ramet.core.team import CONSUMED_RESOURCES, Team

quarters = st.integers(0, 24).map(lambda value: value / 4)
totals = st.fixed_dictionaries(
    {"agents": st.integers(0, 4)},
    optional={"cpu": quarters, "memory_mb": st.integers(0, 64), "tokens": st.integers(0, 40), "usd": quarters},
)
needs = st.fixed_dictionaries(
    {"agents": st.just(1), "tokens": st.integers(0, 16), "usd": st.integers(0, 6).map(lambda value: value / 4)},
    optional={"cpu": quarters, "memory_mb": st.integers(0, 32), "gpu": st.integers(0, 3)},
)
indexes = st.integers(0, 11)


class TeamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.team = Team(name="crew", total={"agents": 0})
        self.living: dict[str, dict[str, float]] = {}
        self.used: list[dict[str, float]] = []
        self.beyond = dict.fromkeys(CONSUMED_RESOURCES, Fraction(0))  #: what agents used of more than they held
        self.born = 0

    def spent(self, name: str) -> Fraction:
        return sum((Fraction(each.get(name, 0)) for each in self.used), Fraction(0))

    def free(self, name: str) -> Fraction:
        held = sum((Fraction(each.get(name, 0)) for each in self.living.values()), Fraction(0))
        spent = self.spent(name) if name in CONSUMED_RESOURCES else Fraction(0)
        return max(Fraction(0), Fraction(self.team.total[name]) - held - spent)

    @initialize(total=totals)
    def begin(self, total: dict[str, float]) -> None:
        self.team = Team(name="crew", total=total)

    @rule(need=needs)
    def admit(self, need: dict[str, float]) -> None:
        short = [name for name in self.team.total if name in need and Fraction(need[name]) > self.free(name)]
        before, agent = self.team, f"agent-{self.born}"
        if not short:
            self.team = before.admit(agent, need)
            self.living[agent] = need
            self.born += 1
            return
        with pytest.raises(OverCapacity) as refusal:
            before.admit(agent, need)
        assert refusal.value.resource in short
        assert refusal.value.asked == need[refusal.value.resource]
        assert refusal.value.room == before.free

    @precondition(lambda self: self.living)
    @rule(which=indexes, tokens=st.integers(0, 20), usd=quarters)
    def release(self, which: int, tokens: int, usd: float) -> None:
        agent = sorted(self.living)[which % len(self.living)]
        need, used = self.living.pop(agent), {"tokens": tokens, "usd": usd, "cpu": 1.0}
        self.team = self.team.release(agent, used)
        self.used.append(used)
        for name in ("tokens", "usd"):
            self.beyond[name] += max(Fraction(0), Fraction(used[name]) - Fraction(need[name]))

    @rule(which=indexes)
    def release_an_unknown_agent(self, which: int) -> None:
        before = self.team
        self.team = self.team.release(f"nobody-{which}", {"tokens": 5})
        assert self.team is before

    @precondition(lambda self: self.living)
    @rule(which=indexes)
    def admit_twice(self, which: int) -> None:
        agent = sorted(self.living)[which % len(self.living)]
        with pytest.raises(Bug):
            self.team.admit(agent, self.living[agent])

    @precondition(lambda self: self.living)
    @rule(which=indexes, value=st.sampled_from([-1, math.nan, math.inf, True, "3", None]))
    def refuse_invalid_amounts(self, which: int, value: float) -> None:
        before, agent = self.team, sorted(self.living)[which % len(self.living)]
        with pytest.raises(InvalidValue):
            self.team.admit("new", {"agents": value, "tokens": 0, "usd": 0})
        if "tokens" in self.team.total:
            with pytest.raises(InvalidValue):
                self.team.release(agent, {"tokens": value})
        assert self.team is before

    @invariant()
    def nothing_is_created_or_lost(self) -> None:
        free, holding = self.team.free, self.team.held_amounts
        for name, total in self.team.total.items():
            assert free[name] == self.free(name)
            assert holding[name] == sum(each.get(name, 0) for each in self.living.values())
            whole = Fraction(holding[name]) + Fraction(self.team.spent_amounts.get(name, 0)) + Fraction(free[name])
            assert total <= whole <= total + self.beyond.get(name, 0)

    @invariant()
    def nothing_is_negative(self) -> None:
        for amounts in (self.team.free, self.team.held_amounts, self.team.spent_amounts):
            assert all(value >= 0 for value in amounts.values())

    @invariant()
    def agents_hold_only_counted_resources(self) -> None:
        assert set(self.team.holdings) == set(self.living)
        assert all(set(each) <= set(self.team.total) for each in self.team.holdings.values())
        assert set(self.team.spent_amounts) <= set(CONSUMED_RESOURCES) & set(self.team.total)


TestTeam = TeamMachine.TestCase
TestTeam.settings = settings(max_examples=100, stateful_step_count=25)
