"""The join token of a pod, in a Secret of its own: the kernel's address, the trusted CA, and the pod's key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, json

from ramet.core.errors import InvalidValue

URL, CA, KEY, POD = "url", "ca.crt", "join-key", "pod"  #: the files, and the Secret's keys
POD_HEADER, KEY_HEADER = "ramet-pod", "ramet-key"  #: the pod's uid; in the answer, the key for the next connection
_MAX = 64 * 1024


class JoinToken(Struct, frozen=True, kw_only=True):
    """The kernel's URL (`wss://host:port/path`), its authority in PEM, the join key, and the pod's uid."""

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
    """Read the token of a mounted Secret. `pod` is the pod's own uid, for a Secret created before the uid was known.

    Raises InvalidValue for a missing file or one that is too long; no value is ever in a message.
    """
    fields = {POD: pod}
    for name in (URL, CA, KEY) if pod else (URL, CA, KEY, POD):
        file = folder / name
        try:
            with file.open("rb") as stream:
                data = stream.read(_MAX + 1)
            fields[name] = data.decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue("invitation", str(file), f"a file of plain text ({type(error).__name__})") from None
        if not fields[name] or len(data) > _MAX:
            raise InvalidValue("invitation", str(file), f"a file of 1 to {_MAX} bytes")
    return JoinToken(url=fields[URL], ca=fields[CA], key=fields[KEY], pod=fields[POD])


def format_token(token: JoinToken) -> bytes:
    """Encode a token as one line of text, without the pod's uid; for `parse_token`."""
    return json.encode(_Words(url=token.url, ca=token.ca, key=token.key)) + b"\n"


def parse_token(line: bytes, *, pod: str) -> JoinToken:
    """Decode such a line. Raises InvalidValue for any other line; no value is ever in a message."""
    try:
        fields = json.decode(line, type=_Words)
    except (ValueError, RecursionError):
        raise InvalidValue("invitation", f"{len(line)} bytes", "an object of JSON with url, ca and key") from None
    return JoinToken(url=fields.url, ca=fields.ca, key=fields.key, pod=pod)


def secret_data(token: JoinToken) -> dict[str, str]:
    """Return a Secret's `stringData`, which `read` reads when it is mounted as a folder.

    The uid is left out while there is none.
    """
    data = {URL: token.url, CA: token.ca, KEY: token.key, POD: token.pod}
    return {name: text for name, text in data.items() if text}
