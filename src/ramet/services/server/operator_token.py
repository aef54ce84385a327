"""The operator's key of a server: a given key, or the key in its folder, which only the server's user can read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import stat

from ramet.core.errors import InvalidValue

TOKEN = "operator-token"  #: the name of the file
MIN_TOKEN, MAX_TOKEN = 16, 512  #: characters


def operator_token(file: pathlib.Path, token: str | None = None) -> str:
    """Return the operator's key: the given key, or the key in this file. A missing file is created.

    Raises InvalidValue for a key that is too short to be secret, and for a file that others can read.
    """
    if token is not None:
        if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidValue(
                "token", f"{len(token)} characters", f"{MIN_TOKEN} to {MAX_TOKEN} printable ones, no blank"
            )
        return token
    with contextlib.suppress(FileExistsError):
        _keep(file, f"op_{secrets.token_urlsafe(32)}\n")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # A pipe would block.
    except OSError as problem:
        raise InvalidValue("token", str(file), f"a file that can be read ({problem.strerror})") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise InvalidValue("token", str(file), "a regular file of this user")
    with open(descriptor, encoding="ascii", errors="replace") as stream:  # noqa: PTH123 - a descriptor
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InvalidValue("token", str(file), "a file that only its user can read (chmod 600)")
        return operator_token(file, stream.read(2 * MAX_TOKEN).strip())


def _keep(file: pathlib.Path, text: str) -> None:
    """Create a file atomically: once it exists, it is complete. Raises FileExistsError."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:  # noqa: PTH123 - a descriptor
            stream.write(text)
        file.hardlink_to(new)
    finally:
        new.unlink()
