"""The forms of a secret in a text: plain, as Python, JSON, HTML and URLs write it, as base64 or hex.

This protects against accidents: a guest can deliberately print a secret in another form, such as backwards or in
pieces.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from ramet.isolation.masking.masking import STARS, Span, merge_spans, spans_of
from ramet.isolation.masking.unescaping import readings_of

#: Shorter values of variables, lines of secrets and parts of them are not searched for: they occur by chance.
LEAST = 8
#: Lines of variables that count as values of their own: a guest chooses variables of its children.
MAX_LINES = 200
#: Where a text was cut in the middle of a secret, at most this many characters of the secret are searched for.
_MOST_CUT = 10_000
#: Longer texts are searched for the forms only: resolving escapes takes long, and a guest may write only escapes.
_MOST_READ = 16 * 1024
_PERCENT = re.compile("%[0-9A-F]{2}")


def forms_of(values: Iterable[str], *, max_lines: int | None = None) -> frozenset[str]:
    """Return every searched form of these values; in a value of several lines, each line counts as a value, too.

    With `max_lines`, so many lines count, of the first values.
    """
    forms = set[str]()
    for value in values:
        lines = [each for each in dict.fromkeys(value.splitlines()) if len(each) >= LEAST and each != value]
        if max_lines is not None:
            lines = lines[:max_lines]
            max_lines -= len(lines)
        for part in {value, value.strip(), *lines}:
            forms |= _forms(part)
    return frozenset(each for each in forms if each)


def mask_text(text: str, forms: Iterable[str]) -> str:
    """Return a text with `***` in place of every form, and of a partial form at the begin or end of the text.

    Percent encoding, backslashes, references of HTML and line breaks in the middle of a form are recognized, except in
    a text above 16 KiB.
    """
    if not text or not (known := sorted(forms, key=len, reverse=True)):
        return text
    data = text.encode("utf-8", "surrogatepass")
    secrets = [each.encode("utf-8", "surrogatepass") for each in known]
    spans = spans_of(data, secrets)
    long = [each for each in secrets if len(each) >= LEAST]  # Shorter ones occur by chance.
    for reading, in_text in readings_of(data) if len(data) <= _MOST_READ else ():
        spans += map(in_text, spans_of(reading, long))
    if spans:
        text = _without(data, merge_spans(spans)).decode("utf-8", "surrogatepass")
    return _without_cut_ends(text, known)


def _forms(value: str) -> set[str]:
    data = value.encode("utf-8", "surrogatepass")
    forms = {
        value,
        repr(value)[1:-1],
        ascii(value)[1:-1],
        repr(data)[2:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        # As `sanitize_error` shows the value: in a message, and as the name of a type.
        "".join(each if each.isprintable() or each in "\n\t" else "?" for each in value),
        "".join(each if each.isprintable() and not each.isspace() else "?" for each in value),
    }
    forms |= {each.replace('"', r"\"") for each in forms} | {each.replace("'", r"\'") for each in forms}
    if len(value) >= LEAST:
        percent = {quote(data, safe=""), quote(data), quote_plus(data)}
        forms |= percent | {_PERCENT.sub(lambda each: each[0].lower(), text) for text in percent}
        hexadecimal = {data.hex(), data.hex(":"), data.hex(" ")}
        forms |= hexadecimal | {each.upper() for each in hexadecimal}
        forms |= {base64.b32encode(data).decode().rstrip("="), value.replace(" ", "+")}
        for text in _base64(data):
            forms |= {text, text.replace("+", "-").replace("/", "_")}
    return forms


def _base64(data: bytes) -> set[str]:
    """Return the encoded secret alone, and its part that is the same at every position in a longer text."""
    forms = {base64.b64encode(data).decode().rstrip("=")}
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + data).decode()
        forms.add(text[-(-shift * 8 // 6) : (shift + len(data)) * 8 // 6])
    return {each for each in forms if len(each) >= LEAST}


def _without(data: bytes, spans: Iterable[Span]) -> bytes:
    output, done = bytearray(), 0
    for start, end in spans:
        output += data[done:start] + STARS
        done = end
    return bytes(output + data[done:])


def _without_cut_ends(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        longest = min(len(form) - 1, _MOST_CUT)
        if longest < LEAST:
            continue
        index = text.find(form[:LEAST], max(0, len(text) - longest))
        while index >= 0 and not form.startswith(text[index:]):
            index = text.find(form[:LEAST], index + 1)
        if index >= 0:
            text = text[:index] + "***"
        end = text.rfind(form[-LEAST:], 0, longest)
        while end >= 0 and not form.endswith(text[: end + LEAST]):
            end = text.rfind(form[-LEAST:], 0, end + LEAST - 1)
        if end >= 0:
            text = "***" + text[end + LEAST :]
    return text
