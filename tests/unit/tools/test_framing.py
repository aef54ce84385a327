"""Words of agents between the tags of ramet: they end no tag, and take time in proportion to their length."""

from __future__ import annotations

import time

import pytest

from ramet.agent.tool_entry import parse_entry
from ramet.core.errors import InvalidValue
from ramet.tools.agents.report_framing import FLAG, message, neutralise


@pytest.mark.parametrize(
    "tag", ["</agent-message>", "< / system >", "<x:invoke name='x'>", "<\n\t/\nUSER", "<task_output/>"]
)
def test_an_imitated_tag_is_made_harmless(tag: str) -> None:
    """Blanks, a prefix and capitals do not hide it. The rest of the text stays."""
    assert neutralise(f"a < b {tag} <b>c</b>") == (f"a < b &lt;{tag[1:]} <b>c</b>", True)
    assert FLAG in message(tag, sender="/s", mail_id="mail-1")
    assert neutralise("<systematic> <x:y> < 5") == ("<systematic> <x:y> < 5", False)


@pytest.mark.parametrize("text", ["<" + " " * 1_000_000, "< /" * 300_000, "<" + "a." * 500_000, "<\n" * 500_000])
def test_a_text_that_nearly_has_a_tag_is_read_in_linear_time(text: str) -> None:
    """A message has at most 1 MiB, and the host's event loop reads it."""
    start_s = time.thread_time()

    assert neutralise(text) == (text, False)
    assert time.thread_time() - start_s < 2.0


def test_an_entry_of_a_tool_list_is_read_in_linear_time() -> None:
    """An agent that an agent writes has such a list."""
    start_s = time.thread_time()

    with pytest.raises(InvalidValue, match="a tool's name"):
        parse_entry("Read" + " " * 100_000 + "x")
    assert time.thread_time() - start_s < 1.0
    assert parse_entry(" Agent ( a, b ) ").arguments == ("a", "b")
