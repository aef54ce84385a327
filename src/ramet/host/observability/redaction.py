"""The masking of secrets in output for people and machines: known secrets, and texts that look like one.

This protects against accidents: it finds a secret in plain form, not an encoded one, and a guess may hit a harmless
word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.isolation.masking.masking import Mask

STARS = "***"
#: A secret up to this length is still found if it crosses the end of the shown text.
MAX_SECRET = 8_192
#: Shorter values of variables are not searched for: they occur by chance.
MIN_SECRET = 8

_NAMED = (
    r"(?:(?:api|access|auth|secret|private|signing|encryption|account|client)[_-]?keys?|secrets?|tokens?"
    r"|passw(?:or)?d|passphrase|credentials?|authorization)"
)
#: Names of fields and settings that hold a secret, and of variables, with a few more names.
_FIELD = re.compile(rf"(?:\A|[_.-]){_NAMED}\Z", re.IGNORECASE)
_VARIABLE = re.compile(rf"(?:(?:\A|_){_NAMED}|_(?:key|pass|pwd|dsn|cookie|pat|auth))\Z", re.IGNORECASE)


class _SecretPattern(NamedTuple):
    """The pattern of a kind of secret. It is only searched if one of `marks` is in the text, in lower case.

    The first group of a match stays. Every repetition is bounded, or possessive: hostile text costs time in proportion
    to its length.
    """

    marks: tuple[str, ...]
    pattern: re.Pattern[str]


_WORD_START = r"()(?<![A-Za-z0-9])"
_SECRET_PATTERNS: Final = (
    _SecretPattern(
        ("private key-----",),
        re.compile(r"()-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
    ),
    # OpenAI, Anthropic, Stripe, OpenRouter, …
    _SecretPattern(
        ("sk-", "sk_", "pk-", "pk_", "rk-", "rk_"), re.compile(_WORD_START + r"[spr]k[-_][A-Za-z0-9_-]{16,}")
    ),
    _SecretPattern(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(_WORD_START + r"gh[pousr]_[A-Za-z0-9]{20,}")),
    _SecretPattern(("github_pat_",), re.compile(_WORD_START + r"github_pat_\w{20,}")),
    _SecretPattern(("glpat-", "gldt-", "glrt-"), re.compile(_WORD_START + r"gl(?:pat|dt|rt)-[\w-]{16,}")),
    _SecretPattern(("xox", "xapp-"), re.compile(_WORD_START + r"(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}")),
    _SecretPattern(("akia", "asia"), re.compile(_WORD_START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])")),
    _SecretPattern(("aiza", "ya29."), re.compile(_WORD_START + r"(?:AIza[\w-]{30,}|ya29\.[\w-]{20,})")),
    _SecretPattern(("hf_", "npm_"), re.compile(_WORD_START + r"(?:hf|npm)_[A-Za-z0-9]{20,}")),
    _SecretPattern(("pypi-", "lsv2_", "dop_v1_"), re.compile(_WORD_START + r"(?:pypi-|lsv2_|dop_v1_)[\w-]{20,}")),
    # JSON web tokens
    _SecretPattern(("eyj",), re.compile(_WORD_START + r"eyJ[\w-]{8,1000}+\.[\w-]{8,}(?:\.[\w-]*)?")),
    _SecretPattern(("bearer",), re.compile(r"(\b[Bb]earer\s)\s{0,8}[A-Za-z0-9._~+/=-]{8,}")),
    # the password of a URL
    _SecretPattern(("://",), re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,1000}+(?=@)")),
    _SecretPattern(
        ("key", "secret", "token", "passw", "passphrase", "credential", "authorization"),
        re.compile(
            rf"((?i:{_NAMED})[\"']{{0,2}}\s{{0,3}}[:=]\s{{0,3}}[\"']?(?:(?i:basic|bearer|token)\s)?+)"
            r"(?!\d{1,20}\b|None\b|null\b|[Tt]rue\b|[Ff]alse\b|\*\*\*)[^\s\"',;&)}\]]{4,}"
        ),
    ),
)


class Redaction:
    """A filter that replaces secrets by `***`: given ones, values of environment variables, and lookalikes."""

    def __init__(self, secrets: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> None:
        """Set `environ`, by default the process's own; variables that are added later count, too."""
        self._secrets = frozenset(_check_secrets(secrets))
        self._environ = os.environ if environ is None else environ
        self._variable_values: list[str] = []
        self._mask = Mask(self._secrets)
        self.read_environment()

    def clean(self, text: str) -> str:
        """Return the text without the secrets that `read_environment` found, and without texts that
        look like a secret.
        """
        data = text.encode("utf-8", "surrogatepass")
        masked_data = self._mask.feed(data, last=True)
        if masked_data != data:
            text = masked_data.decode("utf-8", "replace")
        lowercase = text.lower()
        for marks, pattern in _SECRET_PATTERNS:
            for mark in marks:
                if mark in lowercase:
                    text = pattern.sub(rf"\1{STARS}", text)
                    break
        return text

    def read_environment(self) -> None:
        """Read the environment again; called once for each line to be cleaned."""
        values = [self._environ.get(name, "") for name in self._environ if _holds_secret(name)]
        variable_values = [value for value in values if len(value) >= MIN_SECRET]
        if variable_values != self._variable_values:
            self._variable_values, self._mask = variable_values, Mask(self._secrets.union(variable_values))


def names_secret(name: str, value: object) -> bool:
    """Return whether the value of a field of this name must be hidden; numbers of tokens are shown."""
    if value is None or isinstance(value, bool) or (type(value) is str and not value):
        return False
    if _FIELD.search(name) is None:
        return False
    return not (isinstance(value, int | float) and "token" in name.lower())


@lru_cache(maxsize=4_096)
def _holds_secret(name: str) -> bool:
    return _VARIABLE.search(name) is not None


def _check_secrets(secrets: Iterable[str]) -> list[str]:
    """Return the secrets as a list; no error message shows one."""
    accepted = "a list of texts that are not empty"
    if isinstance(secrets, str | bytes) or not isinstance(secrets, Iterable):
        raise InvalidValue("secrets", type(secrets), accepted)
    listed = list(secrets)
    for index, each in enumerate(listed):
        if not isinstance(each, str) or not each:
            raise InvalidValue(f"secrets[{index}]", type(each), accepted)
    return listed
