"""The operator's key of a server: the one it is given, or one of its folder, which only the server's user reads."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import stat

from ramet.core.errors import InvalidValue

TOKEN = "operator-token"  #: the name of the file
MIN_TOKEN, MAX_TOKEN = 16, 512  #: characters


def operator_token(file: pathlib.Path, given: str | None = None) -> str:
    """The operator's key: the one that is given, or that is in this file, which is made if there is none.

    Raises InvalidValue for one that is too short to be secret, and for a file that others can read.
    """
    if given is not None:
        if not MIN_TOKEN <= len(given) <= MAX_TOKEN or not given.isascii() or not given.isprintable() or " " in given:
            raise InvalidValue(
                "token", f"{len(given)} characters", f"{MIN_TOKEN} to {MAX_TOKEN} printable ones, no blank"
            )
        return given
    with contextlib.suppress(FileExistsError):
        _keep(file, f"op_{secrets.token_urlsafe(32)}\n")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # A pipe would wait.
    except OSError as problem:
        raise InvalidValue("token", str(file), f"a file that can be read ({problem.strerror})") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise InvalidValue("token", str(file), "a regular file of this user")
    with open(descriptor, encoding="ascii", errors="replace") as kept:  # noqa: PTH123 - a descriptor
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise InvalidValue("token", str(file), "a file that only its user can read (chmod 600)")
        return operator_token(file, kept.read(2 * MAX_TOKEN).strip())


def _keep(file: pathlib.Path, text: str) -> None:
    """Make a file that is whole from the moment on that it is there. Raises FileExistsError."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as made:  # noqa: PTH123 - a descriptor
            made.write(text)
        file.hardlink_to(new)
    finally:
        new.unlink()
