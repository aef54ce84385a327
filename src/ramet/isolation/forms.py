"""The forms in which a secret stands in a text: as it is, as Python, JSON and URLs write it, and as base64 or hex.

This is against accidents: a guest that wants to can print a secret in another form.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from ramet.isolation.masking import Mask

#: Shorter values of variables, lines of secrets and parts of them are not looked for: they occur by chance.
LEAST = 8
#: Where a text was cut in the middle of a secret, at most this many characters of the secret are looked for.
_MOST_CUT = 10_000


def forms_of(values: Iterable[str]) -> frozenset[str]:
    """Return every form of these values that is looked for; of a value of several lines, each line is one, too."""
    forms = set[str]()
    for value in values:
        lines = [each for each in value.splitlines() if len(each) >= LEAST]
        for part in {value, value.strip(), *lines}:
            forms |= _forms(part)
    return frozenset(each for each in forms if each)


def masked(text: str, forms: Iterable[str]) -> str:
    """Return a text with `***` in place of every form, and of a part of one where the text begins or ends in it."""
    known = sorted(forms, key=len, reverse=True)
    if not known or not text:
        return text
    data = text.encode("utf-8", "surrogatepass")
    shown = Mask(known).feed(data, last=True)
    if shown != data:
        text = shown.decode("utf-8", "surrogatepass")
    return _without_cut_ends(text, known)


def _forms(value: str) -> set[str]:
    data = value.encode("utf-8", "surrogatepass")
    plain = base64.b64encode(data).decode().rstrip("=")
    found = {
        value,
        repr(value)[1:-1],
        ascii(value)[1:-1],
        repr(data)[2:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        # As `in_plain_words` shows it: in a message, and as the name of a type.
        "".join(each if each.isprintable() or each in "\n\t" else "?" for each in value),
        "".join(each if each.isprintable() and not each.isspace() else "?" for each in value),
    }
    found |= {each.replace('"', r"\"") for each in found} | {each.replace("'", r"\'") for each in found}
    if len(value) >= LEAST:
        found |= {quote(data, safe=""), quote(data), quote_plus(data)}
        found |= {plain, plain.replace("+", "-").replace("/", "_"), data.hex()}
    return found


def _without_cut_ends(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        for size in range(min(len(form) - 1, len(text), _MOST_CUT), LEAST - 1, -1):
            if text.endswith(form[:size]):
                text = text[:-size] + "***"
                break
        for size in range(min(len(form) - 1, len(text), _MOST_CUT), LEAST - 1, -1):
            if text.startswith(form[-size:]):
                text = "***" + text[size:]
                break
    return text
