"""The targets of notifications, as a user configures them: a webhook, a command, or a Python function.

Each target takes the kinds of notifications that it names. An invalid value raises InvalidValue, which names the field.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from ramet.core.arguments import check_bool
from ramet.core.errors import InvalidValue
from ramet.core.events import Event, RunEnded
from ramet.core.ids import checked_name
from ramet.core.outcome import Status
from ramet.host.notifications.notification import KIND_BY_TAG, KINDS, Notification, tag_of
from ramet.host.observability.redaction import STARS

SECRET_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = (24, 64)  #: fewest and most bytes of a webhook's key, as Standard Webhooks has them
_URL: Final = "https://host/path, or http:// for a host of allow_private"


@dataclass(frozen=True, kw_only=True)
class NotificationTarget:
    """The settings that all targets have."""

    kinds: Sequence[str] = KINDS
    statuses: Sequence[str] = ()  #: of the kind `ended`; empty: every status
    all_runs: bool = False  #: `ended` of every run; False: of roots
    with_text: bool = False  #: the text of results is sent, too: it may repeat a conversation
    timeout_s: float = 10.0  #: time of one attempt
    max_age_s: float = 86_400.0  #: age at which an undelivered notification is given up
    first_retry_s: float = 1.0  #: wait after the first failure; it doubles with each further one
    longest_retry_s: float = 300.0

    def __post_init__(self) -> None:
        _check_choices("kinds", self.kinds, KINDS)
        _check_choices("statuses", self.statuses, tuple(map(str, Status)))
        if not self.kinds:
            raise InvalidValue("kinds", list(self.kinds), f"some of {', '.join(KINDS)}")
        check_bool("all_runs", self.all_runs)
        check_bool("with_text", self.with_text)
        for name in ("timeout_s", "max_age_s", "first_retry_s", "longest_retry_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InvalidValue(name, value, "seconds above 0")

    def accepts(self, event: Event) -> bool:
        """Return whether the target wants a notification about an event."""
        kind = KIND_BY_TAG.get(tag_of(event))
        if kind is None or kind not in self.kinds:
            return False
        if not isinstance(event, RunEnded):
            return True
        has_status = not self.statuses or event.result.status in self.statuses
        return has_status and (self.all_runs or event.run == event.root)


@dataclass(frozen=True, kw_only=True)
class WebhookTarget(NotificationTarget):
    """An HTTP endpoint that notifications are posted to, each signed as Standard Webhooks describes.

    The address of its host must be public, and its connection encrypted, unless `allow_private` lists the host.
    """

    url: str = field(repr=False)  #: may itself be a secret, as those of Slack are
    secret: str | None = field(default=None, repr=False)  #: `whsec_` and a key in base64; None: nothing is signed
    format: Literal["json", "slack"] = "json"
    allow_private: Sequence[str] = ()  #: names or addresses of hosts
    stop_when_gone: bool = False  #: an answer 410 ends the target until the next start

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_texts("allow_private", self.allow_private, "a list of hosts")
        if self.format not in ("json", "slack"):
            raise InvalidValue("format", self.format, "json or slack")
        check_bool("stop_when_gone", self.stop_when_gone)
        if self.secret is not None:
            webhook_key(self.secret)
        self._check_url()

    def _check_url(self) -> None:
        """Raise InvalidValue, which does not show the URL."""
        text = self.url
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or " " in text:
            raise InvalidValue("url", STARS, _URL)
        try:
            parts = urlsplit(text)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise InvalidValue("url", STARS, _URL) from None
        if not is_valid or "@" in parts.netloc or parts.fragment or "\\" in text:
            raise InvalidValue("url", STARS, f"{_URL}, without a user and without a fragment")
        if parts.scheme == "http" and not self.is_private_allowed(parts):
            raise InvalidValue("url", f"http://{parts.hostname}/…", "https://, as allow_private does not list its host")

    def is_private_allowed(self, parts: SplitResult) -> bool:
        """Return whether `allow_private` lists the host of a URL."""
        return canonical_host(parts.hostname or "") in {canonical_host(each) for each in self.allow_private}


@dataclass(frozen=True, kw_only=True)
class CommandTarget(NotificationTarget):
    """A command that gets the notification as JSON on its standard input. No shell reads it; its output is dropped.

    It gets the variables that find programs, and no keys. Status 0 means that the notification was delivered.
    """

    argv: Sequence[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_texts("argv", self.argv, "a list: a program and its arguments")
        if not self.argv or not self.argv[0] or any("\0" in each for each in self.argv):
            raise InvalidValue("argv", list(self.argv), "a list: a program and its arguments")


@dataclass(frozen=True, kw_only=True)
class CallbackTarget(NotificationTarget):
    """A function of one notification. A synchronous one is called in a thread. A return means that it was delivered."""

    function: Callable[[Notification], Awaitable[Any] | Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InvalidValue("function", self.function, "a function of one notification")


#: A target, or a function that gets notifications of every kind.
Notifiable = NotificationTarget | Callable[[Notification], Any]


def webhook_key(secret: object) -> bytes:
    """Return the key of a webhook's secret. Raises InvalidValue, which does not show the secret."""
    least, most = _KEY_BYTES
    accepted = f"{SECRET_PREFIX} and {least} to {most} bytes in base64"
    if not isinstance(secret, str) or not secret.startswith(SECRET_PREFIX):
        raise InvalidValue("secret", STARS, accepted)
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue("secret", STARS, accepted) from None
    if not least <= len(key) <= most:
        raise InvalidValue("secret", STARS, accepted)
    return key


def canonical_host(host: str) -> str:
    """Return a host in lower case, without brackets and a final dot."""
    return host.strip("[]").removesuffix(".").lower()


def checked_targets(targets: object) -> dict[str, NotificationTarget]:
    """Return the targets of a runtime by their names; a plain function is one that takes every kind.

    Raises InvalidValue, which names the entry.
    """
    if targets is None:
        return {}
    if not isinstance(targets, Mapping):
        raise InvalidValue("notify", targets, "a mapping of names to targets")
    checked = dict[str, NotificationTarget]()
    for name, each in targets.items():
        checked_name("notify", name)
        if isinstance(each, NotificationTarget):
            checked[name] = each
        elif callable(each) and not inspect.isclass(each):
            checked[name] = CallbackTarget(function=each)
        else:
            accepted = "a WebhookTarget, CommandTarget or CallbackTarget of ramet.host.notifications, or a function"
            raise InvalidValue(f"notify.{name}", each, accepted)
    return checked


def _check_texts(name: str, value: object, accepted: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise InvalidValue(name, value, accepted)


def _check_choices(name: str, value: Any, known: Sequence[str]) -> None:
    _check_texts(name, value, f"a list of some of {', '.join(known)}")
    for each in value:
        if each not in known:
            raise InvalidValue(name, each, f"some of {', '.join(known)}")
