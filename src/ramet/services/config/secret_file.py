"""A file with a secret, and the check which users of the machine may read or change it.

A cluster mounts a Secret as a file of root that every process in the pod may read, behind links that it swaps. So links
are followed, and root's files may be readable by others. A file of an ordinary user must be readable by that user
alone.
"""

from __future__ import annotations

import os
import pathlib
import stat

from ramet.agent.files.bounded_read import Unreadable

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_ROOT = 0


def read_secret(path: pathlib.Path, *, limit: int) -> str:
    """Return the text of a file with a secret. Never blocks. Raises Unreadable, without the file's content."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(path, "it is not a regular file")
        descriptor = os.open(path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):  # It was replaced after the first check.
                raise Unreadable(path, "it is not a regular file")
            if problem_text := weakness(status, os.geteuid()):
                raise Unreadable(path, problem_text)
            data = os.read(descriptor, limit + 1)
        finally:
            os.close(descriptor)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(path, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unreadable(path, "it is not UTF-8") from None
    if len(data) > limit:
        raise Unreadable(path, f"it is larger than {limit} bytes")
    return text


def weakness(status: os.stat_result, user: int) -> str:
    """Return why a file cannot hold a secret of this user; empty if it can."""
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (user, _ROOT):
        return f"it belongs to another user ({status.st_uid})"
    if mode & 0o022:
        return f"others than its owner can write it; chmod go-w (mode {mode:o})"
    if status.st_uid != _ROOT and mode & 0o077:
        return f"others than its owner can read it; chmod 600 (mode {mode:o})"
    return ""
