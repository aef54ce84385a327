"""Tests of encoded secrets: texts are masked in every form that programs write, and nothing else is."""

from __future__ import annotations

import base64
import html
import json
import time
from urllib.parse import quote, quote_from_bytes

import pytest

from ramet.isolation.masking.secret_forms import forms_of, mask_text
from tests.support.processor_time import QUADRATIC_S

SECRET = "pä\"ss/w<o>rd+&\\'~ 0123456789"
DATA = SECRET.encode()
LONG = "long-" + "0123456789abcdef" * 12


def percent(text: str) -> str:
    """Return every byte percent-encoded, as some clients do."""
    return "".join(f"%{each:02x}" for each in text.encode())


FORMS = {
    "upper-case hex": DATA.hex().upper(),
    "base16": base64.b16encode(DATA).decode(),
    "base32": base64.b32encode(DATA).decode(),
    "hex with colons": DATA.hex(":"),
    "lower-case percent": quote(SECRET, safe="").replace("%C3%A4", "%c3%a4").lower(),
    "every byte percent": percent(SECRET),
    "a browser's percent": quote(SECRET, safe="!~*'()"),
    "percent of bytes": quote_from_bytes(DATA, safe="/&+"),
    "repr of bytes": repr(DATA),
    "bytes in a repr": repr({"body": repr(DATA)}),
    "escapes of all bytes": "".join(f"\\x{each:02x}" for each in DATA),
    "JSON in JSON": json.dumps({"body": json.dumps({"key": SECRET})}),
    "JSON of Go": json.dumps(SECRET, ensure_ascii=False)
    .replace("<", r"\u003c")
    .replace(">", r"\u003e")
    .replace("&", r"\u0026"),
    "JSON of PHP": json.dumps(SECRET).replace("/", r"\/"),
    "HTML": html.escape(SECRET),
    "encodebytes": base64.encodebytes(DATA).decode(),
    **{
        f"Basic auth, alignment {len(user) % 3}": base64.b64encode(f"{user}:{SECRET}@h".encode()).decode()
        for user in ("a", "bc", "def")
    },
    "URL-safe in a token": base64.urlsafe_b64encode(f"1:{SECRET}".encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_masked_in_the_forms_of_programs(form: str) -> None:
    """The surrounding text stays, and of base64 the characters that the secret shares with its neighbours."""
    text = f"refused: {FORMS[form]} today"
    masked_text = mask_text(text, forms_of([SECRET]))

    assert "***" in masked_text
    assert masked_text.startswith("refused: ")
    assert masked_text.endswith(" today")
    assert len(masked_text) <= len("refused:  today") + len("***") + 27, masked_text


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\\n", "\\r\\n"])
@pytest.mark.parametrize("before", ["", "user:", "x" * 50, "x" * 70])
def test_base64_is_masked_across_its_line_breaks(before: str, breaks: str) -> None:
    """The secret may begin anywhere in a longer text, and `repr` may show the line breaks."""
    text = base64.encodebytes(f"{before}{LONG}, and more".encode()).decode().replace("\n", breaks)

    masked_text = mask_text(f"sent {text} to the server", forms_of([LONG]))

    body = base64.b64encode(LONG.encode()).decode()
    assert "***" in masked_text
    assert masked_text.endswith(" to the server")
    assert not [at for at in range(0, len(body) - 12) if body[at : at + 12] in masked_text]


def test_text_without_a_secret_is_unchanged() -> None:
    """Line breaks, hex and base64 of other data stay."""
    text = f"{base64.encodebytes(bytes(range(256))).decode()} {bytes(range(64)).hex()}\nthe end\\n"

    assert mask_text(text, forms_of([SECRET, LONG])) == text


def test_a_short_secret_is_not_masked_in_encoded_forms() -> None:
    """Encoded forms of a short secret would occur by chance."""
    assert mask_text("61 62 YWI= ab", forms_of(["ab"])) == "61 62 YWI= ***"


def test_masking_a_large_text_with_many_variables_is_quick() -> None:
    """A long repetitive secret and a similar text do not make masking slow."""
    values = [f"value-{number:04d}-of-a-variable" for number in range(60)] + ["a" * 5_000]
    forms = forms_of(values)
    text = "a" * 4_999 + "value-0007-of-a-variable " * 20_000

    begin = time.process_time()
    masked_text = mask_text(text, forms)

    assert "value-" not in masked_text
    assert time.process_time() - begin < QUADRATIC_S
