"""What a pod is given so that it can come: where to, whom to trust there, and by which key, in a Secret of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, json

from ramet.core.errors import InvalidValue

URL, CA, KEY, POD = "url", "ca.crt", "join-key", "pod"  #: the files, and the Secret's keys
POD_HEADER, KEY_HEADER = "ramet-pod", "ramet-key"  #: who comes; in the answer, the key for the next time
_MAX = 64 * 1024


class JoinToken(Struct, frozen=True, kw_only=True):
    """Where the kernel is (`wss://host:port/path`), its authority in PEM, the join key, and the pod's uid."""

    url: str
    ca: str
    key: str
    pod: str

    def __repr__(self) -> str:
        return f"JoinToken(url={self.url!r}, pod={self.pod!r})"


class _Words(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=_MAX)]
    ca: Annotated[str, Meta(min_length=1, max_length=_MAX)]
    key: Annotated[str, Meta(min_length=1, max_length=_MAX)]


def read(folder: Path, *, pod: str = "") -> JoinToken:
    """What is mounted there. `pod` is the pod's own uid, where the Secret was made before it was known.

    Raises InvalidValue for what is missing or too long; no value is ever in a message.
    """
    said = {POD: pod}
    for name in (URL, CA, KEY) if pod else (URL, CA, KEY, POD):
        file = folder / name
        try:
            with file.open("rb") as opened:
                data = opened.read(_MAX + 1)
            said[name] = data.decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue("invitation", str(file), f"a file of plain text ({type(error).__name__})") from None
        if not said[name] or len(data) > _MAX:
            raise InvalidValue("invitation", str(file), f"a file of 1 to {_MAX} bytes")
    return JoinToken(url=said[URL], ca=said[CA], key=said[KEY], pod=said[POD])


def format_token(invitation: JoinToken) -> bytes:
    """A line of text that says it, without whose it is; for `heard`."""
    return json.encode(_Words(url=invitation.url, ca=invitation.ca, key=invitation.key)) + b"\n"


def parse_token(line: bytes, *, pod: str) -> JoinToken:
    """What such a line says. Raises InvalidValue for any other; no value is ever in a message."""
    try:
        said = json.decode(line, type=_Words)
    except (ValueError, RecursionError):
        raise InvalidValue("invitation", f"{len(line)} bytes", "an object of JSON with url, ca and key") from None
    return JoinToken(url=said.url, ca=said.ca, key=said.key, pod=pod)


def secret_data(invitation: JoinToken) -> dict[str, str]:
    """A Secret's `stringData`; mounted as a folder, it is what `read` reads. Without a uid while there is none."""
    data = {URL: invitation.url, CA: invitation.ca, KEY: invitation.key, POD: invitation.pod}
    return {name: text for name, text in data.items() if text}
