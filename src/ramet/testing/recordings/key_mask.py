"""Keys of a model, and of the environment, and their removal from a recording in every usual form."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit

from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from ramet.core.arguments import check_text
from ramet.core.errors import InvalidValue
from ramet.testing.recordings.text_replacement import TextReplacement

STARS: Final = "***"
#: Shorter values of models and of the environment are words, as "test" is, rather than keys.
MIN_KEY: Final = 8
#: A shorter text that the user names would be masked in too many places.
MIN_GIVEN: Final = 4
#: Ends of the names of variables that hold keys, with or without a number. `PWD` alone is a folder.
_KEY_VARIABLES: Final = re.compile(
    r"(?:(?:^|_)(?:KEYS?|PASS|PASSPHRASE|PAT|CREDENTIALS?)|_PWD|APIKEY|TOKENS?|SECRETS?|PASSWORD|PASSWD)(?:_?\d+)?$",
    re.IGNORECASE,
)
_KEY_HEADERS: Final = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
_SCHEMES: Final = re.compile(r"(?:bearer|basic|token)\s+", re.IGNORECASE)
#: Attributes of models that hold the client of their SDK.
_CLIENTS: Final = ("root_async_client", "root_client", "_async_client", "_client")
#: Base64 encodes three bytes at a time: a key inside a longer text is at one of these distances from such a group.
_OFFSETS: Final = range(3)


class KeyMask:
    """A mask that replaces keys by `***`: raw, quoted for URLs and JSON, in hex, and in base64, alone or in a text."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._forms = {form for key in keys for form in _forms(key)}
        self._replacement = TextReplacement(dict.fromkeys(self._forms, STARS))

    def mask(self, values: list[Any]) -> list[Any]:
        """Return copies of JSON values without keys, also where a key runs on at one place of the next value."""
        return self._replacement.apply(values)

    def mask_end(self, text: str) -> str:
        """Return a text without the beginning of a key at its end."""
        for form in self._forms:
            for length in range(len(form) - 1, MIN_KEY - 1, -1):
                if text.endswith(form[:length]):
                    return text[:-length] + STARS
        return text

    def check(self, line: str) -> None:
        """Raise InvalidValue if a line still has a key: then it must not be written."""
        if self._replacement.is_in(line):
            raise InvalidValue("recording", STARS, "a dialogue whose keys can be masked")


def checked_keys(keys: Iterable[str]) -> frozenset[str]:
    """Return the keys that a caller names. Raises InvalidValue, without the value, for one that is too short."""
    checked = frozenset(keys)
    for key in checked:
        check_text("secrets", key)
        if len(key) < MIN_GIVEN:
            raise InvalidValue("secrets", STARS, f"texts of at least {MIN_GIVEN} characters")
    return checked


def keys_of_environment() -> frozenset[str]:
    """Return the values of the environment variables that hold keys, by their names, and passwords in addresses."""
    keys: set[str] = set()
    for name, value in os.environ.items():
        keys.update((value,) if _KEY_VARIABLES.search(name) else _password_in(value))
    return frozenset(key for key in keys if len(key) >= MIN_KEY)


def keys_of_model(model: BaseChatModel) -> frozenset[str]:
    """Return the keys that a model holds: secret fields, headers, passwords in addresses, and those of its client."""
    keys: set[str] = set()
    for name, value in vars(model).items():
        keys.update(_keys_in(name, value))
    for name in _CLIENTS:
        client = getattr(model, name, None)
        for attribute in ("api_key", "auth_token", "base_url", "_custom_headers"):
            keys.update(
                _keys_in(
                    "key" if attribute in ("api_key", "auth_token") else attribute, getattr(client, attribute, None)
                )
            )
    return frozenset(key for key in keys if len(key) >= MIN_KEY)


def _keys_in(name: str, value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        if _KEY_HEADERS.search(name):
            yield _SCHEMES.sub("", value, count=1)
            yield value
        elif "://" in value:
            yield from _password_in(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _keys_in(str(key), item)
    elif name == "base_url" and value is not None:
        yield from _password_in(str(value))


def _password_in(address: str) -> Iterator[str]:
    try:
        password = urlsplit(address).password
    except ValueError:
        return
    if password:
        yield password


def _forms(key: str) -> Iterator[str]:
    raw = key.encode("utf-8", "surrogatepass")
    yield key
    yield json.dumps(key)[1:-1]
    yield json.dumps(key, ensure_ascii=False)[1:-1]
    yield quote(key, safe="", errors="replace")
    yield quote_plus(key, errors="replace")
    hexadecimal = binascii.hexlify(raw).decode()
    yield hexadecimal
    yield hexadecimal.upper()
    for offset in _OFFSETS:
        # The first characters depend on what stands before the key, the last ones on what follows.
        first, last = -(-offset * 8 // 6), (offset + len(raw)) * 8 // 6
        encoded = base64.b64encode(b"\0" * offset + raw).decode()[first:last]
        if len(encoded) >= MIN_GIVEN:
            yield encoded
            yield encoded.replace("+", "-").replace("/", "_")
