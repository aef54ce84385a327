"""Messages survive encoding and decoding, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.core.errors import InvalidValue
from ramet.models import json_values as rules
from ramet.models.json_values import sanitize
from ramet.models.messages import decode, encode, message_bound

text = st.text(max_size=40)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, plain, max_size=3)
# "tool_calls" there is an older spelling of calls, which LangChain turns into calls.
kwargs = st.dictionaries(text.filter(lambda key: key != "tool_calls"), plain, max_size=3)
block = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "image"])}, optional={"text": text}
)
content = text | st.lists(text | block, max_size=3)
label = st.none() | text
common = {"content": content, "additional_kwargs": kwargs, "response_metadata": objects, "id": label, "name": label}
usage = st.fixed_dictionaries(
    {name: st.integers(0, 10**9) for name in ("input_tokens", "output_tokens", "total_tokens")},
    optional={"input_token_details": st.fixed_dictionaries({}, optional={"cache_read": st.integers(0, 10**6)})},
)
call = st.fixed_dictionaries({"name": text, "args": objects, "id": label})
invalid = st.fixed_dictionaries(
    {"type": st.just("invalid_tool_call"), "name": label, "args": label, "id": label, "error": label}
)

messages: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(lambda fields: HumanMessage(**fields), st.fixed_dictionaries(common)),
    st.builds(lambda fields: SystemMessage(**fields), st.fixed_dictionaries(common)),
    st.builds(
        lambda fields: AIMessage(**fields),
        st.fixed_dictionaries(
            {
                **common,
                "tool_calls": st.lists(call, max_size=2),
                "invalid_tool_calls": st.lists(invalid, max_size=2),
                "usage_metadata": st.none() | usage,
            }
        ),
    ),
    st.builds(
        lambda fields: ToolMessage(**fields),
        st.fixed_dictionaries(
            {
                **common,
                "tool_call_id": text,
                "status": st.sampled_from(["success", "error"]),
                "artifact": plain,
            }
        ),
    ),
)

refused: st.SearchStrategy[Any] = st.sampled_from(
    [b"", (), {1}, 2**53 + 1, float("nan"), float("inf"), "\ud800", object()]
)
anything: st.SearchStrategy[Any] = st.recursive(
    plain | refused | st.integers() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(text | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


spoiled: st.SearchStrategy[Any] = st.recursive(
    plain | st.text(st.characters(codec=None), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=8,
)


@given(messages)
def test_an_encoded_message_decodes_to_itself(message: BaseMessage) -> None:
    """A message survives encoding, also by way of JSON text."""
    data = encode(message)

    assert decode(data) == message
    assert decode(json.loads(json.dumps(data, allow_nan=False))) == message


@given(anything)
def test_a_value_is_encoded_as_json_or_refused(value: Any) -> None:
    """No value is altered on the way: no bytes become text, no tuple a list, no NaN a number."""
    message = HumanMessage("x", additional_kwargs={"x": value})
    try:
        data = encode(message)
    except InvalidValue:
        with pytest.raises(InvalidValue):
            rules.to_json_value(value, "")
        return

    assert json.loads(json.dumps(data, allow_nan=False)) == data
    json.dumps(data, ensure_ascii=False).encode()
    assert decode(data) == message


@given(anything)
def test_decoding_raises_nothing_but_invalid_value(value: Any) -> None:
    """Data of a guest or of a broken file decodes or raises InvalidValue."""
    for data in (value, {"type": "ai", "content": value}, {"type": "ai", "content": "", "tool_calls": value}):
        try:
            decode(data)
        except InvalidValue:
            pass


@given(messages)
def test_the_token_bound_is_never_below_the_bytes_of_the_text(message: BaseMessage) -> None:
    """Tokenizers make at most one token of each byte."""
    if isinstance(message.content, str):
        assert message_bound(message) >= len(message.content.encode())


@given(spoiled)
def test_cleaned_text_can_be_written(value: Any) -> None:
    """Cleaned text can be encoded as UTF-8, and cleaning it again changes nothing."""
    cleaned = sanitize(value)

    json.dumps(cleaned, ensure_ascii=False).encode()
    assert sanitize(cleaned) == cleaned
