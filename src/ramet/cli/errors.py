"""Report errors on one line; a traceback only with RAMET_LOG_LEVEL=DEBUG."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from ramet.cli.paths import display_path, log_dir
from ramet.cli.render.sanitize import one_line
from ramet.core.errors import Bug, Damaged, InvalidValue, RametError, Unknown

USAGE, FAILURE = 2, 1
_MAX_SHOWN = 5  #: ids in an error
_FULL = (errno.ENOSPC, errno.EDQUOT)


def set_up_logging() -> bool:
    """Show logs and warnings of libraries at RAMET_LOG_LEVEL, otherwise none; return whether any are shown."""
    level = logging.getLevelNamesMapping().get(os.environ.get("RAMET_LOG_LEVEL", "").strip().upper())
    if level is None:
        logging.getLogger().addHandler(logging.NullHandler())
    else:
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.captureWarnings(True)
    return level is not None


def print_error(text: str) -> None:
    """Print one line on stderr, whatever the text contains."""
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed; the exit status still reports the error
        print(f"ramet: {one_line(text, 1_000)}", file=sys.stderr, flush=True)


def report_damage(errors: Iterable[Damaged]) -> int:
    """Print the skipped trees, one per line, and return the exit status: 1 if there are any."""
    status = 0
    for each in errors:
        print_error(str(each))
        status = FAILURE
    return status


def ambiguous_prefix(ids: Sequence[str]) -> str:
    """Return the accepted input for an ambiguous prefix of several ids."""
    others = f", and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
    return f"the id of a run, or a prefix of exactly one id: {', '.join(ids[:_MAX_SHOWN])}{others}"


def report(error: BaseException) -> int:
    """Print an error and return the exit status: 2 for an error of the caller's input, 1 for any other."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    debugging = os.environ.get("RAMET_LOG_LEVEL", "").strip().upper() == "DEBUG"
    if isinstance(error, RametError) and not isinstance(error, Bug):
        print_error(str(error) or type(error).__name__)
    elif isinstance(error, OSError) and error.filename is not None:
        print_error(f"{error.filename}: {error.strerror}")
    elif isinstance(error, OSError) and error.errno in _FULL:
        print_error(f"{error.strerror}: the output, or a disk that ramet writes to, is full")
    elif isinstance(error, FileNotFoundError) and not _has_folder():
        print_error("the current folder no longer exists; change to another one")
        return USAGE
    else:
        details = "" if debugging else _write_details(error)
        print_error(f"unexpected {type(error).__name__}: {error}{details}")
    if debugging:
        traceback.print_exception(error)
    return USAGE if isinstance(error, InvalidValue | Unknown) else FAILURE


def _has_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - whether it exists
    except FileNotFoundError:
        return False
    return True


def _write_details(error: BaseException) -> str:
    """Write the details to a file that only this user can read; return a text with its path."""
    for folder in (_log_dir, lambda: Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError, RametError):
            descriptor, path = tempfile.mkstemp(prefix="ramet-", suffix=".log", dir=folder())
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as log:  # noqa: PTH123 - a descriptor
                traceback.print_exception(error, file=log)
            return f" (details: {display_path(Path(path))})"
    return ""


def _log_dir() -> Path:
    folder = log_dir()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
