"""What a safety gate decides by: rules as data, the votes on one intended tool call, and how they become a decision.

The first rule that fits a call says allow, deny or ask (a person). Patterns are globs (`*`, `?`, `[ab]`; upper and
lower case differ), never regular expressions: no argument that a model writes can make one slow. An allow fits only if
every text of the argument does, a deny or ask if any does: a list of paths is not allowed for the sake of its first.
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
#: Characters of a reason that is kept.
MAX_REASON = 1_000
ANY = "*"


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of calls of the tools that fit `tool`, as far as their arguments fit.

    `args` are patterns by the name of an argument, all of which must fit; the name `*` stands for any argument. What is
    nested counts with all the texts in it, what is no text as JSON writes it; an argument that is not there fits none.
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
        """Whether it speaks of this call."""
        if not fnmatchcase(tool, self.tool):
            return False
        return all(self._argument_fits(name, pattern, args) for name, pattern in self.args.items())

    def _argument_fits(self, name: str, pattern: str, args: Mapping[str, Any]) -> bool:
        if name != ANY and name not in args:
            return False
        fits = [fnmatchcase(text, pattern) for text in iter_strings(list(args.values()) if name == ANY else args[name])]
        return bool(fits) and all(fits) if self.verdict == "allow" else any(fits)


class SafetyPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rules in their order, what is said where none fits, and how votes become a decision.

    `unanimous`: one deny aborts; else one ask asks a person; else it commits. `majority`: it commits if more than half
    of all voters allow; else, if more than half allow or ask, a person is asked. `first`: the first voter, in their
    order, that allows or denies decides alone; if all of them ask, a person does.
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
        """What its rules say of a call."""
        for rule in self.rules:
            if rule.fits(tool, args):
                return VoterAnswer(rule.verdict, rule.reason)
        return VoterAnswer(self.otherwise, "no rule fits it")


class VoterAnswer(NamedTuple):
    """What a voter says of one intended call."""

    verdict: Verdict
    reason: str = ""


class Vote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ballot as it counts, and whose it is; of a voter that could not vote, a deny that says why."""

    voter: str
    verdict: str
    reason: str = ""


def decide(decider: Decider, votes: Sequence[Vote], voters: int) -> VoterAnswer | None:
    """The decision on the votes so far of so many voters, in their order; None as long as those to come count.

    What is decided before all have voted is what would be decided then, whatever they say. Without voters it is deny.
    """
    if voters < 1:
        return VoterAnswer("deny", "nobody votes")
    by: dict[str, list[Vote]] = {verdict: [each for each in votes if each.verdict == verdict] for verdict in VERDICTS}
    settled: str | None = None
    match decider:
        case "unanimous":
            if by["deny"]:
                settled = "deny"
            elif len(votes) >= voters:
                settled = "ask" if by["ask"] else "allow"
        case "majority":
            if 2 * len(by["allow"]) > voters:
                settled = "allow"
            elif 2 * (voters - len(by["deny"])) <= voters:
                settled = "deny"
            elif len(votes) >= voters:
                settled = "ask"
        case "first":
            word = next((each for each in votes if each.verdict != "ask"), None)
            if word is not None:
                return VoterAnswer(word.verdict, _said([word]))  # type: ignore[arg-type]  # a vote's verdict is one
            if len(votes) >= voters:
                settled = "ask"
    return None if settled is None else VoterAnswer(settled, _said(by[settled]))  # type: ignore[arg-type]  # one of VERDICTS


def iter_strings(value: Any) -> Iterator[str]:
    """Every text in a value, names of fields included; what is no text as JSON writes it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        else:
            yield json.dumps(each, default=str)


def encode(policy: SafetyPolicy) -> bytes:
    """A policy as JSON."""
    return msgspec.json.encode(policy)


def decode(data: bytes | str) -> SafetyPolicy:
    """The policy of a JSON text. Raises InvalidValue for what is none, with the place of what is wrong."""
    try:
        return msgspec.json.decode(data, type=SafetyPolicy)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue("policy", data[:200], f"a safety policy in JSON ({problem})") from None


def _said(votes: Sequence[Vote]) -> str:
    """Who said so and why, as far as they said it."""
    return "; ".join(f"{each.voter}: {each.reason}" for each in votes if each.reason)[:MAX_REASON]
