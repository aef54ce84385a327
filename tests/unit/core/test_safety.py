"""Tests of rules, votes and deciders of the safety gate: they are pure and total, and never looser than written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core import safety
from ramet.core.errors import InvalidValue
from ramet.core.safety import DECIDERS, VERDICTS, Rule, SafetyPolicy, Vote, VoterAnswer, decide

#: As somebody calls them who does not look at types.
RULE: Any = Rule
PLAN: Any = SafetyPolicy
verdicts = st.sampled_from(VERDICTS)
deciders: Any = st.sampled_from(DECIDERS)
names = st.text(max_size=12)
policies = st.builds(
    SafetyPolicy,
    rules=st.lists(
        st.builds(
            Rule,
            tool=st.text(min_size=1, max_size=12),
            args=st.dictionaries(names, names, max_size=2),
            verdict=verdicts,
            reason=names,
        ),
        max_size=4,
    ).map(tuple),
    otherwise=verdicts,
    decider=deciders,
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def votes(*words: str) -> list[Vote]:
    """Return votes of a, b, c, … with a reason each."""
    return [Vote(voter="abcdef"[index], verdict=word, reason=f"{word}!") for index, word in enumerate(words)]


def verdict(decider: Any, *words: str, of: int | None = None) -> str | None:
    """Return the decided verdict, or None if undecided."""
    ballot = decide(decider, votes(*words), len(words) if of is None else of)
    return None if ballot is None else ballot.verdict


# ---- rules


def test_the_first_rule_that_fits_decides() -> None:
    """Tool names are globs, and a call without a fitting rule is denied by default."""
    policy = SafetyPolicy(
        rules=(
            Rule(tool="Bash", args={"command": "git push*"}, verdict="ask", reason="it leaves the house"),
            Rule(tool="Bash", args={"command": "git *"}, verdict="allow"),
            Rule(tool="[RG]*", verdict="allow"),
        )
    )

    assert policy.judge("Bash", {"command": "git push -f"}) == VoterAnswer("ask", "it leaves the house")
    assert policy.judge("Bash", {"command": "git status"}).verdict == "allow"
    assert policy.judge("Read", {"file_path": "x"}).verdict == policy.judge("Glob", {}).verdict == "allow"
    assert policy.judge("Bash", {"command": "rm -rf /"}) == VoterAnswer("deny", "no rule matches it")
    assert policy.judge("bash", {"command": "git status"}).verdict == "deny"


def test_a_deny_fits_any_text_and_an_allow_fits_only_if_all_do() -> None:
    """A list or a nested value hides no path from a rule, and every argument of a pattern must fit."""
    deny = Rule(args={"paths": "/etc/*"}, verdict="deny")
    allow = Rule(args={"paths": "/home/*"}, verdict="allow")
    mixed = {"paths": ["/home/a", {"more": "/etc/shadow"}]}

    assert deny.fits("Read", mixed)
    assert not allow.fits("Read", mixed)
    assert allow.fits("Read", {"paths": ["/home/a", "/home/b"]})
    assert Rule(args={"*": "*shadow*"}, verdict="deny").fits("Read", mixed)
    assert not Rule(args={"paths": "*", "mode": "w"}, verdict="deny").fits("Read", mixed)


@pytest.mark.parametrize("word", VERDICTS)
def test_a_missing_argument_fits_no_pattern(word: Any) -> None:
    """An argument without any text fits none either."""
    rule = Rule(args={"path": "*"}, verdict=word)

    assert not rule.fits("Read", {})
    assert not rule.fits("Read", {"path": []})
    assert rule.fits("Read", {"path": ""})
    assert Rule(args={"n": "1*"}, verdict=word).fits("Read", {"n": 12})
    assert Rule(args={"n": "true"}, verdict=word).fits("Read", {"n": True})


@given(policy=policies, tool=names, args=st.dictionaries(names, plain, max_size=3))
def test_every_call_has_a_verdict(policy: SafetyPolicy, tool: str, args: dict[str, Any]) -> None:
    """Any tool name and arguments get one of three verdicts, and the same one each time."""
    ballot = policy.judge(tool, args)

    assert ballot.verdict in VERDICTS
    assert policy.judge(tool, args) == ballot


@given(policies)
def test_an_encoded_policy_decodes_equal(policy: SafetyPolicy) -> None:
    """`decode(encode(policy))` equals the policy."""
    assert safety.decode(safety.encode(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"rules": [{"tool": "x"}]}',
        '{"rules": [{"tool": "", "verdict": "deny"}]}',
        '{"rules": [{"tool": "x", "verdict": "maybe"}]}',
        '{"rules": [{"tool": "x", "verdict": "deny", "arg": {}}]}',
        '{"decider": "whoever"}',
        '{"otherwise": null}',
        '{"rule": []}',
    ],
)
def test_an_invalid_policy_is_refused(text: str) -> None:
    """A misspelt field or word does not become a looser policy."""
    with pytest.raises(InvalidValue, match="safety policy"):
        safety.decode(text)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: RULE(tool="", verdict="deny"), "tool"),
        (lambda: RULE(verdict="no"), "verdict"),
        (lambda: RULE(args={"a": 1}, verdict="deny"), "args"),
        (lambda: RULE(verdict="deny", reason="x" * 1001), "reason"),
        (lambda: PLAN(rules=[Rule(verdict="deny")]), "rules"),
        (lambda: PLAN(rules=("deny",)), "rules"),
        (lambda: PLAN(otherwise="no"), "otherwise"),
        (lambda: PLAN(decider="me"), "decider"),
    ],
    ids=["tool", "verdict", "args", "reason", "list", "no-rule", "otherwise", "decider"],
)
def test_constructors_check_their_fields(wrong: Any, field: str) -> None:
    """The refusal names the field."""
    with pytest.raises(InvalidValue) as refusal:
        wrong()
    assert refusal.value.field == field


# ---- deciders


def test_unanimous_denies_on_one_deny() -> None:
    """One deny decides at once, and an ask counts after all votes."""
    assert verdict("unanimous", "allow", "allow") == "allow"
    assert verdict("unanimous", "allow", "ask") == "ask"
    assert verdict("unanimous", "ask", "deny") == "deny"
    assert verdict("unanimous", "deny", of=3) == "deny"
    assert verdict("unanimous", "allow", "ask", of=3) is None


def test_majority_needs_more_than_half_of_all_voters() -> None:
    """Voters who have not voted count, and half is not enough."""
    assert verdict("majority", "allow", "deny", "allow") == "allow"
    assert verdict("majority", "allow", "allow", of=3) == "allow"
    assert verdict("majority", "allow", "deny") == "deny"
    assert verdict("majority", "allow", of=3) is None
    assert verdict("majority", "allow", "ask", "deny") == "ask"
    assert verdict("majority", "deny", "deny", of=3) == "deny"


def test_first_takes_the_first_vote_that_is_no_ask() -> None:
    """An ask passes the decision on, in the end to a person."""
    assert verdict("first", "deny", of=2) == "deny"
    assert verdict("first", "ask", of=2) is None
    assert verdict("first", "ask", "allow") == "allow"
    assert verdict("first", "ask", "ask") == "ask"


def test_the_reason_names_the_deciding_voter() -> None:
    """The reason goes to the model and to the log."""
    assert decide("unanimous", votes("allow", "deny"), 2) == VoterAnswer("deny", "b: deny!")
    assert decide("first", votes("ask", "allow"), 2) == VoterAnswer("allow", "b: allow!")


@given(decider=deciders, words=st.lists(verdicts, min_size=1, max_size=6), vote_count=st.integers(0, 6))
def test_further_votes_do_not_change_an_early_decision(decider: Any, words: list[str], vote_count: int) -> None:
    """Voting may stop at a decision, and all votes always lead to one."""
    early, late = verdict(decider, *words[:vote_count], of=len(words)), verdict(decider, *words)

    assert late in VERDICTS
    assert early in (None, late)


@given(decider=deciders, words=st.lists(verdicts, max_size=6), index=st.integers(0, 5))
def test_turning_a_vote_into_a_deny_allows_no_further_call(decider: Any, words: list[str], index: int) -> None:
    """A voter that cannot vote counts as a deny."""
    changed_words = [*words]
    if words:
        changed_words[index % len(words)] = "deny"

    if verdict(decider, *words) != "allow":
        assert verdict(decider, *changed_words) != "allow"


@given(decider=deciders, words=st.lists(verdicts.filter(lambda word: word != "allow"), max_size=6))
def test_a_call_without_an_allow_vote_is_not_allowed(decider: Any, words: list[str]) -> None:
    """No decider allows a call without voters."""
    assert verdict(decider, *words) in ("deny", "ask")
