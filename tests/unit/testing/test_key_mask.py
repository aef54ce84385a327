"""Keys are masked in every usual form, and wherever a stream cuts them."""

from __future__ import annotations

import base64
import json
import os
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


def test_keys_of_models_are_found() -> None:
    """Secret fields, headers and passwords of addresses are keys of a model; short values, as "test", are words."""
    model = ChatAnthropic(  # type: ignore[call-arg]  # its defaults are in pydantic's fields
        model_name="claude-sonnet-5-5",
        api_key="key-of-the-user",  # type: ignore[arg-type]  # as users write it
        base_url="http://me:password-of-proxy@127.0.0.1:9",
        default_headers={"Authorization": "Bearer token-of-proxy", "X-Team": "blue-team-name"},
    )

    found = keys_of_model(model)

    assert {"key-of-the-user", "token-of-proxy", "password-of-proxy"} <= found
    assert not any("blue-team" in key for key in found)
    with pytest.raises(InvalidValue, match="at least 4 characters") as refusal:
        checked_keys(["abc"])
    assert "abc" not in str(refusal.value)


def test_variables_that_hold_keys_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a prefix counts, and so does a number at its end; folders and other names are no keys."""
    names = (
        "API_KEY", "TOKEN", "PGPASSWORD", "SIGNING_KEY", "openai_api_key", "OPENAI_API_KEY_2", "APIKEY", "SMTP_PASS",
        "MYSQL_PWD", "SECRET_KEY", "SECRET", "DB_PASSWD", "GITHUB_PAT",
    )  # fmt: skip
    others = ("OLDPWD", "PWD", "MONKEY", "BYPASS", "KEYBOARD", "TOKENIZER", "PATH")
    monkeypatch.setattr("os.environ", {name: f"value-of-{name}" for name in (*names, *others)})
    monkeypatch.setitem(os.environ, "DATABASE_URL", "postgresql://me:word-of-the-store@127.0.0.1/runs")

    assert keys_of_environment() == {*(f"value-of-{name}" for name in names), "word-of-the-store"}


def test_a_block_whose_number_is_no_number_is_masked() -> None:
    """A provider, or a file, may number the blocks of a reply with anything."""
    chunk: dict[str, Any] = {"content": [{"index": [0], "text": "a key: 123456789"}]}

    assert KeyMask(["123456789"]).mask([chunk]) == [{"content": [{"index": [0], "text": "a key: ***"}]}]
