"""Keys are masked in every usual form, and wherever a stream cuts them."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_anthropic import ChatAnthropic

from ramet.core.errors import InvalidValue
from ramet.testing.recordings.key_mask import KeyMask, checked_keys, keys_of_environment, keys_of_model

KEYS = st.text(st.characters(codec="utf-8"), min_size=9, max_size=40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def spellings(key: str, before: str, after: str) -> list[str]:
    """Return texts that hold a key: as it is, and in every encoding that a provider or a tool may use."""
    text = f"{before}{key}{after}"
    raw = text.encode()
    return [
        text,
        json.dumps(text),
        json.dumps(text, ensure_ascii=False),
        quote(text, safe=""),
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    ]


@settings(max_examples=60)
@given(key=KEYS, before=TEXTS, after=TEXTS, cut=st.integers(0, 60))
def test_no_spelling_of_a_key_passes_the_mask(key: str, before: str, after: str, cut: int) -> None:
    """No form of a key is left in any text, in one piece or in two; a line that holds one is refused."""
    mask = KeyMask([key])
    for text in spellings(key, before, after):
        # What surrounds the masked key stays, and each piece stays a piece.
        pieces = mask.mask([{"content": text[:cut]}, {"content": text[cut:]}])
        whole: Any = mask.mask([{"content": [text, 3, None]}])
        joined = "".join(piece["content"] for piece in pieces)
        assert joined == whole[0]["content"][0]
        mask.check(joined)
        assert joined != text
        with pytest.raises(InvalidValue, match="can be masked"):
            mask.check(text)
    assert mask.mask_end(f"{before}: {key[:-1]}").endswith("***")


def test_keys_of_models_and_of_the_environment_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secret fields, headers and passwords of addresses are keys of a model; short values, as "test", are words."""
    monkeypatch.setenv("HOUSE_API_KEY", "key-of-the-house")
    monkeypatch.setenv("SORT_KEY", "timestamp-of-the-row")
    model = ChatAnthropic(  # type: ignore[call-arg]  # its defaults are in pydantic's fields
        model_name="claude-sonnet-5-5",
        api_key="key-of-the-user",  # type: ignore[arg-type]  # as users write it
        base_url="http://me:password-of-proxy@127.0.0.1:9",
        default_headers={"Authorization": "Bearer token-of-proxy", "X-Team": "blue-team-name"},
    )

    found = keys_of_model(model)

    assert {"key-of-the-user", "token-of-proxy", "password-of-proxy"} <= found
    assert not any("blue-team" in key for key in found)
    assert "key-of-the-house" in keys_of_environment()
    assert "timestamp-of-the-row" not in keys_of_environment()
    with pytest.raises(InvalidValue, match="at least 4 characters") as refusal:
        checked_keys(["abc"])
    assert "abc" not in str(refusal.value)
