"""Data of a safety gate: rules, the votes on one intended tool call, and the decision from the votes.

The first rule that fits a call says allow, deny or ask (a person). Patterns are globs (`*`, `?`, `[ab]`; upper and
lower case differ), never regular expressions: no argument that a model writes can make a glob slow. An allow rule fits
only if every text of the argument fits. A deny or ask rule fits if any text fits. So a list of paths is not allowed
because of its first path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from ramet.core.errors import InvalidValue

Verdict = Literal["allow", "deny", "ask"]
Decider = Literal["unanimous", "majority", "first"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
DECIDERS: tuple[str, ...] = get_args(Decider)
MAX_RULES = 1_000
#: The number of characters of a reason that are recorded.
MAX_REASON = 1_000
ANY = "*"


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A verdict on calls of the tools that fit `tool`, if their arguments fit too.

    `args` are patterns by the name of an argument, all of which must fit; the name `*` stands for any argument. A
    nested value counts with all texts in it; a value that is not a text counts as JSON writes it; a missing argument
    fits no pattern.
    """

    tool: str = ANY
    args: dict[str, str] = {}
    verdict: Verdict
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not self.tool:
            raise InvalidValue("tool", self.tool, "a pattern of tool names")
        patterns = self.args.items() if isinstance(self.args, dict) else [(None, None)]
        if not all(isinstance(each, str) for pair in patterns for each in pair):
            raise InvalidValue("args", self.args, "patterns by the names of arguments")
        if self.verdict not in VERDICTS:
            raise InvalidValue("verdict", self.verdict, ", ".join(VERDICTS))
        if not isinstance(self.reason, str) or len(self.reason) > MAX_REASON:
            raise InvalidValue("reason", self.reason, f"a text of at most {MAX_REASON} characters")

    def fits(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Return whether the rule applies to this call."""
        if not fnmatchcase(tool, self.tool):
            return False
        return all(self._argument_fits(name, pattern, args) for name, pattern in self.args.items())

    def _argument_fits(self, name: str, pattern: str, args: Mapping[str, Any]) -> bool:
        if name != ANY and name not in args:
            return False
        fits = [fnmatchcase(text, pattern) for text in iter_strings(list(args.values()) if name == ANY else args[name])]
        return bool(fits) and all(fits) if self.verdict == "allow" else any(fits)


class SafetyPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An ordered list of rules, the default verdict, and the way in which votes become a decision.

    `unanimous`: one deny aborts; else one ask asks a person; else the call commits. `majority`: the call commits if
    more than half of all voters allow; else, if more than half allow or ask, a person is asked. `first`: the first
    voter, in voter order, that allows or denies decides alone; if all voters ask, a person is asked.
    """

    rules: tuple[Rule, ...] = ()
    otherwise: Verdict = "deny"
    decider: Decider = "unanimous"

    def __post_init__(self) -> None:
        if not isinstance(self.rules, tuple) or not all(isinstance(each, Rule) for each in self.rules):
            raise InvalidValue("rules", self.rules, "a tuple of Rule")
        if len(self.rules) > MAX_RULES:
            raise InvalidValue("rules", len(self.rules), f"at most {MAX_RULES}")
        if self.otherwise not in VERDICTS:
            raise InvalidValue("otherwise", self.otherwise, ", ".join(VERDICTS))
        if self.decider not in DECIDERS:
            raise InvalidValue("decider", self.decider, ", ".join(DECIDERS))

    def judge(self, tool: str, args: Mapping[str, Any]) -> VoterAnswer:
        """Return the verdict of the rules on a call."""
        for rule in self.rules:
            if rule.fits(tool, args):
                return VoterAnswer(rule.verdict, rule.reason)
        return VoterAnswer(self.otherwise, "no rule matches it")


class VoterAnswer(NamedTuple):
    """The answer of a voter about one intended call."""

    verdict: Verdict
    reason: str = ""


class Vote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A vote as it counts, with its voter; for a voter that could not vote, a deny with the reason."""

    voter: str
    verdict: str
    reason: str = ""


def decide(decider: Decider, votes: Sequence[Vote], voters: int) -> VoterAnswer | None:
    """Return the decision on the votes so far, in voter order, or None while the missing votes still matter.

    An early decision equals the decision after all votes, whatever the missing votes are. Without voters the decision
    is deny.
    """
    if voters < 1:
        return VoterAnswer("deny", "no voter is configured")
    votes_by_verdict: dict[str, list[Vote]] = {
        verdict: [each for each in votes if each.verdict == verdict] for verdict in VERDICTS
    }
    final_verdict: str | None = None
    match decider:
        case "unanimous":
            if votes_by_verdict["deny"]:
                final_verdict = "deny"
            elif len(votes) >= voters:
                final_verdict = "ask" if votes_by_verdict["ask"] else "allow"
        case "majority":
            if 2 * len(votes_by_verdict["allow"]) > voters:
                final_verdict = "allow"
            elif 2 * (voters - len(votes_by_verdict["deny"])) <= voters:
                final_verdict = "deny"
            elif len(votes) >= voters:
                final_verdict = "ask"
        case "first":
            vote = next((each for each in votes if each.verdict != "ask"), None)
            if vote is not None:
                return VoterAnswer(vote.verdict, _reasons([vote]))  # type: ignore[arg-type]  # a vote's verdict is one
            if len(votes) >= voters:
                final_verdict = "ask"
    return None if final_verdict is None else VoterAnswer(final_verdict, _reasons(votes_by_verdict[final_verdict]))  # type: ignore[arg-type]  # one of VERDICTS


def iter_strings(value: Any) -> Iterator[str]:
    """Iterate over every text in a value, names of fields included.

    A value that is not a text is returned as JSON writes it.
    """
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            pending += each.keys()
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += each
        else:
            yield json.dumps(each, default=str)


def encode(policy: SafetyPolicy) -> bytes:
    """Encode a policy as JSON."""
    return msgspec.json.encode(policy)


def decode(data: bytes | str) -> SafetyPolicy:
    """Decode a policy from JSON.

    Raises InvalidValue, with the place of the error, if the text is not a valid policy.
    """
    try:
        return msgspec.json.decode(data, type=SafetyPolicy)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("policy", data[:200], f"a safety policy in JSON ({problem})") from None


def _reasons(votes: Sequence[Vote]) -> str:
    """Join the voters and their reasons, as far as they gave reasons."""
    return "; ".join(f"{each.voter}: {each.reason}" for each in votes if each.reason)[:MAX_REASON]
