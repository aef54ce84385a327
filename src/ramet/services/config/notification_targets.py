"""Targets of notifications in the settings of a server: checked when read, made when the server is made."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name
from ramet.host.notifications.targets import CommandTarget, NotificationTarget, WebhookTarget
from ramet.host.observability.redaction import STARS
from ramet.services.config import validators
from ramet.services.config.settings import SecretReference

_COMMON: Final = ("kinds", "statuses", "all_runs", "with_text", "timeout_s", "max_age_s")
_WEBHOOK: Final = ("format", "allow_private", "stop_when_gone")
_KEYS: Final = ("webhook", "secret", *_WEBHOOK, "command", *_COMMON)
_KIND: Final = "either a webhook or a command"
#: The names of settings whose field in a target has another name.
_SETTING_BY_FIELD: Final = {"url": "webhook", "argv": "command"}


class NotifySettings(Struct, frozen=True, kw_only=True):
    """Settings of a target of notifications. A `webhook` is a URL or where it is, as a URL may be a secret."""

    webhook: str | SecretReference | None = None
    secret: SecretReference | None = None  #: None: notifications are not signed
    command: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}  #: the fields of the target that were set, by name

    def __str__(self) -> str:
        kinds = ", ".join(self.options.get("kinds", ())) or "every kind"
        if self.command:
            return f"command {self.command[0]}: {kinds}"
        place = str(self.webhook)
        if isinstance(self.webhook, str):
            parts = urlsplit(self.webhook)
            place = f"{parts.scheme}://{parts.netloc}/{STARS}"
        return f"webhook {place}: {kinds}" + ("" if self.secret is None else f", secret {self.secret}")

    def __repr__(self) -> str:
        return f"NotifySettings({str(self)!r})"

    def references(self) -> Iterator[tuple[str, SecretReference]]:
        """Yield the references to secrets, by the name of their setting."""
        if isinstance(self.webhook, SecretReference):
            yield "webhook", self.webhook
        if self.secret is not None:
            yield "secret", self.secret

    def target(self, name: str, environ: Mapping[str, str]) -> NotificationTarget:
        """Return the target, with its secrets. Raises InvalidValue."""
        if self.command:
            return _make(name, lambda: CommandTarget(argv=self.command, **self.options))
        url = self.webhook.read(environ) if isinstance(self.webhook, SecretReference) else self.webhook or ""
        secret = None if self.secret is None else self.secret.read(environ)
        return _make(name, lambda: WebhookTarget(url=url, secret=secret, **self.options))


def notify_of(field: str, value: Any, base: pathlib.Path) -> NotifySettings:
    """Return the settings of one target. Raises InvalidValue, which names the setting and shows no secret."""
    checked_name(field, field.partition(".")[2])
    if not isinstance(value, dict):
        raise InvalidValue(field, value, f"a mapping with {_KIND}")
    validators.known_keys(field, value, _KEYS)
    given = {name: each for name, each in value.items() if each is not None}
    if ("webhook" in given) == ("command" in given):
        raise InvalidValue(field, sorted(given), _KIND)
    if "command" in given and (misplaced := sorted({"secret", *_WEBHOOK} & given.keys())):
        raise InvalidValue(f"{field}.{misplaced[0]}", STARS, "nothing: a command takes no such setting")
    options = {name: given[name] for name in (*_COMMON, *_WEBHOOK) if name in given}
    settings = NotifySettings(
        webhook=_webhook_of(f"{field}.webhook", given.get("webhook"), base),
        secret=validators.reference_of(f"{field}.secret", given["secret"], base) if "secret" in given else None,
        command=validators.list_of(_word_of, "words")(f"{field}.command", given.get("command", [])),
        options=options,
    )
    if "command" in given:
        _make(field, lambda: CommandTarget(argv=settings.command, **options))
    else:  # A URL that is a secret is read, and checked, when the server is made.
        url = settings.webhook if isinstance(settings.webhook, str) else "https://localhost/"
        _make(field, lambda: WebhookTarget(url=url, **options))
    return settings


def _make(field: str, make: Callable[[], NotificationTarget]) -> NotificationTarget:
    """Return a target. Raises InvalidValue, which names the setting."""
    try:
        return make()
    except InvalidValue as problem:
        name = _SETTING_BY_FIELD.get(problem.field, problem.field)
        raise InvalidValue(f"{field}.{name}", problem.value, problem.accepted) from None


def _webhook_of(field: str, value: Any, base: pathlib.Path) -> str | SecretReference | None:
    if isinstance(value, str) and value.partition(":")[0] in ("env", "file"):
        return validators.reference_of(field, value, base)
    if value is not None and not isinstance(value, str):
        raise InvalidValue(field, value, "https://host/path, env:NAME or file:/path")
    return value


def _word_of(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue(field, value, "texts: a program and its arguments")
    return value
