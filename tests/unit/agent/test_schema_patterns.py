"""Patterns of JSON schemas: the work to compile and match them is counted before it is done.

No test measures time: each asks for the refusal, or for the answer that is right.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from ramet.agent.files.agent_file import parse_agent
from ramet.agent.output import OutputContract
from ramet.core.errors import InvalidValue

MAX_PATTERNS = 100

#: Patterns of few characters, and what makes each of them large.
LARGE = {
    "a repeated class of all letters": r"\w{1,250}",
    "repeats in repeats": "(?:(?:[a-z]{1,90}){1,90}){1,90}",
    "a repeat of a repeat": "[a-z]{300}{300}",
    "a repeated group of choices": "(?:a|b|[^x]|.){1,9000}",
    "a repeated property of Unicode": r"\p{Alphabetic}{300}",
    "a repeated class with a class in it": r"[^[^\w]]{150}",
    "a class in many classes": "[^" * 240 + r"\w" + "]" * 240,
    "long ranges whose cases are folded": "(?i)" + "[!-\U0010ffff]" * 190,
    "long differences whose cases are folded": r"(?i)[" + r"\W~~\w" * 120 + "]",
    "a long property whose cases are folded": r"(?i)" + r"\p{Any}" * 100,
    "cases that are folded in one group": "a(?i:" + "[!-\uffff]" * 190 + ")",
}


def _many(count: int, pattern: str = "^{0}$") -> dict[str, Any]:
    return {"patternProperties": {pattern.replace("{0}", f"n{at}"): {"type": "integer"} for at in range(count)}}


@pytest.mark.parametrize("pattern", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_compiles_too_large_is_refused(keyword: str, pattern: str) -> None:
    """The error names the pattern and the bound; nothing is compiled."""
    with pytest.raises(InvalidValue, match="size") as refusal:
        OutputContract({keyword: pattern if keyword == "pattern" else {pattern: {}}})

    assert keyword in refusal.value.field
    assert refusal.value.value == pattern


def test_patterns_of_one_schema_share_the_bound_on_their_size(tmp_path: Path) -> None:
    """Forty patterns that are allowed alone are refused together, in an agent file too."""
    schema = {"allOf": [{"pattern": rf"\w{{1,60}}{at}"} for at in range(40)]}

    text = f"---\nname: x\ndescription: d\noutput: {json.dumps(schema)}\n---\nhi\n"

    with pytest.raises(InvalidValue, match="size"):
        OutputContract(schema)
    with pytest.raises(InvalidValue, match="size"):
        parse_agent(text, source=tmp_path / "x.md", scope="project")


def test_a_schema_has_a_bounded_number_of_patterns() -> None:
    """Each pattern is compiled, however short; the error gives the number."""
    with pytest.raises(InvalidValue, match=f"at most {MAX_PATTERNS} patterns"):
        OutputContract(_many(MAX_PATTERNS + 1))


def test_equal_patterns_count_once() -> None:
    """Fields with one pattern need one compiled pattern."""
    name = {"type": "string", "pattern": r"^\w{1,64}$"}
    contract = OutputContract({"properties": {f"f{at}": dict(name) for at in range(200)}})

    assert contract.problem(json.dumps({"f1": "Ärger", "f199": "x"})) is None
    assert contract.problem(json.dumps({"f1": "a b"})) is not None


def test_many_names_are_checked_against_many_patterns() -> None:
    """Each pattern is compiled once per schema, not once per name."""
    contract = OutputContract({**_many(MAX_PATTERNS), "additionalProperties": False})

    assert contract.problem(json.dumps({f"n{at}": at for at in range(MAX_PATTERNS)})) is None
    assert "n7" in str(contract.problem(json.dumps({"n7": "text"})))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(?:[a-z]{1,900}[a-m]{1,900}){1,30}!", "abcdefghij" * 10),
        ("(?:(?:a{0,30}){30}){50}!", "a" * 100),
        ("a.{900}b$", "ab" * 2_000),
        ("(?:a|é){1000}!", "é" * 1_000),
        ("^[a-z]{1,900}[a-m]{1,900}!", "a" * 3_000),
        ("^(?:[a-z]{1,900}){1,9}!", "a" * 1_000),
        ("^[a-z]{1,900}|b[a-z]{1,900}!", "a" * 3_000),
        ("[a-z]{1,900}[a-m]!", "a" * 6_000),
    ],
)
def test_a_match_counts_the_states_of_its_pattern(pattern: str, text: str) -> None:
    """Linear time is the text's length times the number of states that the pattern can be in."""
    contract = OutputContract({"items": {"pattern": pattern}, "patternProperties": {pattern: {}}})

    assert "steps" in str(contract.problem(json.dumps([text] * 10)))
    assert "steps" in str(contract.problem(json.dumps({f"{text[:-2]}{at}": 1 for at in range(10)})))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^\w{1,128}$", "Übergröße_7"),
        (r"^[\w.-]{1,100}$", "a.b-c"),
        (r"^[^\s@]+@[^\s@]+\.[a-z]{2,}$", "a@b.org"),
        (r"^(?:[a-f0-9]{8})-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}$", "01234567-89ab-cdef-0123-456789abcdef"),
        (r"^[\s\S]{1,5000}$", "A line\nand one more. " * 200),
        (r"^.{10,2000}$", "A sentence of some length. " * 60),
        (r"^(?i:yes|no)$", "YES"),
        (r"(?i)^[a-zà-ÿ' -]{1,50}$", "ÉMILE"),
        (r"^\p{L}+$", "é"),
        (r"\S", "x" * 16_000),
        (r"^[]\[{}]$", "]"),
        (r"^a{2}{3}$", "aaaaaa"),
        (r"^\x{41}\u{42}\u0043$", "ABC"),
        (r"^[a-z&&[^x]]+$", "abc"),
    ],
)
def test_usual_patterns_are_matched(pattern: str, text: str) -> None:
    """Names, addresses, ids and long texts match, ten in one answer, and so does syntax that `re` does not know."""
    contract = OutputContract({"type": "array", "items": {"type": "string", "pattern": pattern}})

    assert contract.problem(json.dumps([text] * 10)) is None


def test_a_pattern_is_not_compiled_by_re_first() -> None:
    """`re` would take very long for long ranges: a pattern over the limit reaches no engine."""
    with pytest.raises(InvalidValue, match="1000 characters"):
        OutputContract({"pattern": "(?i)" + "[!-\uffff]" * 12_000})
    with pytest.raises(InvalidValue, match="verbose"):
        OutputContract({"pattern": "(?x) a # [\n" + r"\w{200}"})


def test_compiled_patterns_live_as_long_as_their_schemas() -> None:
    """Schemas that live at the same time share them."""
    from ramet.agent.schemas import patterns

    first = OutputContract({"pattern": "^kept by two$"})
    second = OutputContract({"items": {"pattern": "^kept by two$"}})
    assert "^kept by two$" in patterns.compiled_patterns

    del first
    gc.collect()
    assert "^kept by two$" in patterns.compiled_patterns
    del second
    gc.collect()
    assert "^kept by two$" not in patterns.compiled_patterns
