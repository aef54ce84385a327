"""The computed cost of a pattern is never below the engine's: the engine refuses no accepted pattern for its size."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ramet.agent.schemas.pattern_cost import UnreadablePattern, cost_of
from ramet.agent.schemas.patterns import MAX_PATTERN, MAX_SIZE

_CHARACTERS = ("a", "é", "𐀀", ".", "^", "$", r"\b", r"\x{1f600}", r"\u{e9}", r"\u00e9", r"\[", r"\{", r"\(", r"\\", "")
_ESCAPES = (r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\pL", r"\p{Greek}", r"\P{Cn}")
_CLASSES = ("[a-z]", "[^x]", "[]a]", "[^]]", "[-]", "[^-]", r"[\]\w]", "[()|{}*]", "[!-\U0010ffff]", "[[:alpha:]]")
_NESTED = ("[a[b]]", r"[^[^\w]]", r"[\w&&[^a]]", r"[\w--\d]")
_ATOMS = st.sampled_from((*_CHARACTERS, *_ESCAPES, *_CLASSES, *_NESTED))
_REPEATS = st.sampled_from(
    ["", "*", "+?", "?", "{7}", "{2,9}", "{30}", "{0,99}", "{400,}", "{0}", "{1,900}", "{3}{50}"]
)
_GROUPS = st.sampled_from(["(", "(?:", "(?i:", "(?P<n>", "(?<n>", "(?s:", "(?i)(?:", "((?s)"])


def _repeated(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.builds(
        lambda some, by: by.join(some), st.lists(parts, min_size=1, max_size=4), st.sampled_from("|,")
    )
    return st.builds(lambda opened, inner, repeat: f"{opened}{inner}){repeat}", _GROUPS, sequences, _REPEATS)


_patterns = st.recursive(st.builds("{}{}".format, _ATOMS, _REPEATS), _repeated, max_leaves=8)


@given(_patterns)
@example("[" * 200 + r"\w" + "]" * 200 + "{90}")
@example(r"\p{L}{1,300}")
@example(r"(\w{9}|\pL{9}){20}")
@example(r"(\w|(?i)(?:a)){400,}")
@example(r"(?s)(?:(?i)\w(?-i)){1,300}")
@example("[]a]{1000}{1000}")
@example(r"(?:[\]]\w{300}|b[)]{9})")
def test_no_pattern_within_the_bound_is_too_large_for_the_engine(pattern: str) -> None:
    """The engine accepts the size of nested repeats, groups, nested classes, escapes, and escaped brackets."""
    if len(pattern) > MAX_PATTERN or cost_of(pattern).size > MAX_SIZE:
        return
    reason = ""
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:  # names of groups that are there twice
        reason = str(error)

    assert "size limit" not in reason


@given(st.text(st.sampled_from("ab-]}[{(?:i<>)^$|*+\\wpxu&~#,0159 \n"), max_size=40))
def test_a_malformed_pattern_has_a_cost_or_is_unreadable(text: str) -> None:
    """Reading any text ends with a cost or UnreadablePattern, and raises nothing else."""
    try:
        cost = cost_of(text)
    except UnreadablePattern:
        return

    assert cost.size > 0
    assert cost.places >= 0
