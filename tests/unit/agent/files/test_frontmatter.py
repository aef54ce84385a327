"""Front matter: plain, bounded data without aliases, tags or cycles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.files.frontmatter import MAX_HEADER, parse
from ramet.agent.files.safe_yaml import MAX_DEPTH, MAX_NODES
from ramet.core.errors import InvalidValue


def refusal_of(text: str) -> str:
    with pytest.raises(InvalidValue) as refusal:
        parse(text, source="a.md")
    assert refusal.value.field.startswith("a.md: ")
    return str(refusal.value)


def test_keys_and_body_are_split() -> None:
    """Data stands between the `---` lines, and text follows; a later `---` belongs to the text."""
    front = parse("---\nname: x\ntools: [a, b]\n---\n\nHello\n---\nworld\n", source="a.md")

    assert front.keys == {"name": "x", "tools": ["a", "b"]}
    assert front.body == "Hello\n---\nworld"


def test_an_empty_header_has_no_keys() -> None:
    """Missing keys are reported by the reader of the definition."""
    assert parse("---\n---\ntext", source="a.md").keys == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no front matter", "first line"),
        ("", "first line"),
        ("---\nname: x\n", "closing line"),
        ("---\n- a\n- b\n---\n", "key: value"),
        ("---\nname\n---\n", "key: value"),
        ("---\nname: x\nname: y\n---\n", "line 3: a key occurs twice"),
        ("---\nname: [x\n---\n", "line 3"),
        ("---\non: true\n---\n", "YAML reads on, off"),
        ("---\nname: !!python/object/apply:os.system ['true']\n---\n", "tag"),
        ("---\nname: !!python/name:os.system\n---\n", "tag"),
        ("---\na: !!bool foo\n---\n", "line 2: tags"),
        ("---\na: !!int ''\n---\n", "line 2: tags"),
        ("---\na: !!timestamp foo\n---\n", "line 2: tags"),
        ("---\na: &x 1\n---\n", "anchors"),
        ("---\na: *x\n---\n", "anchors"),
        ("---\na:\n  <<: {b: 1}\n---\n", "merge keys"),
        ("---\n? [a, b]\n: 1\n---\n", "unhashable"),
        ("---\na: " + "9" * 5000 + "\n---\n", "Exceeds the limit"),
        ("---\na: 2026-13-40\n---\n", "month"),
        ("---\na: \x00\n---\n", "a character that YAML does not have"),
        ("---\na: 1\n--- # no end\nb: 2\n---\n", "line 3"),
    ],
)
def test_a_value_outside_plain_data_is_refused(text: str, reason: str) -> None:
    """The error names the file, the line if known, and the reason."""
    assert reason in refusal_of(text)


def test_a_bomb_of_aliases_is_refused_before_it_is_built() -> None:
    """The expansion is refused at the first anchor."""
    laughs = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))

    assert "line 2: anchors" in refusal_of(f"---\nl0: &l0 [lol]\n{laughs}---\n")


def test_a_definition_that_contains_itself_is_refused() -> None:
    """A cycle in YAML needs an anchor, and anchors are refused."""
    assert "anchors" in refusal_of("---\nname: x\nhooks: &h\n  again: *h\n---\n")


def test_bounds_are_checked_while_reading() -> None:
    """Depth, number of values and size have limits: no RecursionError and no long wait."""
    assert f"deeper than {MAX_DEPTH}" in refusal_of("---\na: " + "[" * 30_000 + "\n---\n")
    assert f"more than {MAX_NODES}" in refusal_of("---\na: [" + "1," * MAX_NODES + "]\n---\n")
    assert str(MAX_HEADER) in refusal_of("---\na: " + "x" * MAX_HEADER + "\n---\n")


def test_an_error_does_not_quote_the_file() -> None:
    """The file may be a secret under the name of a definition, and others read the report."""
    assert "hunter2" not in refusal_of("---\npassword: hunter2: {\n---\n")
    assert "hunter2" not in refusal_of("hunter2\n")


def test_prose_with_a_colon_is_read_as_written() -> None:
    """Many agent files have `description: Use this when: …` without quotes; a note says how it was read."""
    front = parse("---\nname: x\ndescription: Use when: a \\n <example> # 1\n---\n", source="a.md")

    assert front.keys["description"] == "Use when: a \\n <example> # 1"
    assert [note.split(":")[0] for note in front.notes] == ["description"]


def test_only_prose_is_read_leniently() -> None:
    """An invalid tool list is not repaired."""
    assert "line 3" in refusal_of("---\ndescription: fine\ntools: Read: all\n---\n")


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>\"'#,? \n\t%@`<~.1")))
def test_any_text_is_data_or_a_typed_error(header: str) -> None:
    """No other error escapes."""
    try:
        front = parse(f"---\n{header}\n---\n", source="a.md")
    except InvalidValue:
        return
    assert all(isinstance(key, str) for key in front.keys)
