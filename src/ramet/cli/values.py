"""Parsers of option values: each returns the value, or reports what would be accepted."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from ramet.core.errors import InvalidValue
from ramet.core.media.attachment import Attachment
from ramet.core.media.media_types import ACCEPTED, MAX_FILE_BYTES, MAX_NAME
from ramet.disk.regular_files import read_regular

MAX_NUMBER = 2**53  #: the limit in code too: larger whole numbers are not exact in JSON


def parse_int(minimum: int) -> Callable[[str], int]:
    """Return a parser of a whole number from `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= MAX_NUMBER:
            accepted = f"a whole number from {minimum} to 2^53"
            raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected {accepted}")
        return value

    return parse


def parse_port(text: str) -> int:
    """Parse the number of a TCP port; 0 is any free one."""
    port = parse_int(0)(text)
    if port > 65_535:
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected a port from 0 to 65535")
    return port


def parse_number(text: str) -> float:
    """Parse a finite number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_NUMBER:  # NaN fails this comparison
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected a number from 0 to 2^53")
    return value


def parse_folder(text: str) -> Path:
    """Parse the path of an existing, readable folder."""
    path = Path(text)
    try:
        path = path.expanduser()
        problem = None if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    except (OSError, ValueError, RuntimeError):  # the name is too long, or has a zero byte
        problem = "is not a usable name of a folder"
    if problem is None and not os.access(path, os.R_OK | os.X_OK):
        problem = "cannot be read"
    if problem is not None:
        raise argparse.ArgumentTypeError(f"{_quote(text)} {problem}; expected a folder that can be read")
    return path.resolve()


def parse_attachment(text: str) -> Attachment:
    """Parse the path of a file that goes to a model, and read it."""
    try:
        data = read_regular(Path(text).expanduser().resolve(), limit=MAX_FILE_BYTES)
        return Attachment(data, "".join(each for each in Path(text).name if each.isprintable())[:MAX_NAME])
    except InvalidValue as refusal:
        problem = f"has {refusal.value}"
    except (OSError, ValueError, RuntimeError) as error:  # It may have a zero byte in its name.
        problem = getattr(error, "strerror", None) or str(error)
    raise argparse.ArgumentTypeError(f"{_quote(text)} {problem}; expected {ACCEPTED}")


def parse_name(text: str) -> str:
    """Parse a name that is not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("'' is not accepted; expected a name")
    return text


def parse_duration(text: str) -> float:
    """Parse a duration in seconds: `90`, `30s`, `5m`, `2h`, `7d`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    unit = units.get(text[-1:])
    try:
        return parse_number(text if unit is None else text[:-1]) * (unit or 1.0)
    except argparse.ArgumentTypeError:
        accepted = "a length of time such as 90, 30s, 5m, 2h, 7d"
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected {accepted}") from None


def parse_memory(text: str) -> int:
    """Parse an amount of memory in MiB: `512M`, `2G`."""
    try:
        return parse_int(1)(text[:-1]) * {"M": 1, "G": 1024}[text[-1:].upper()]
    except (argparse.ArgumentTypeError, KeyError):
        accepted = "an amount of memory such as 512M or 2G"
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected {accepted}") from None


def parse_window(text: str) -> float:
    """Parse a duration above 0 in seconds."""
    seconds = parse_duration(text)
    if not seconds:
        accepted = "a length of time above 0, such as 90, 30s, 5m"
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected {accepted}")
    return seconds


def parse_time(text: str) -> datetime:
    """Parse a time with a UTC offset: ISO 8601."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        accepted = "a time such as 2030-01-31T08:00Z or 2030-01-31T08:00+01:00"
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected {accepted}")
    return time


def _quote(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:100] + "…")


def parse_address(text: str) -> tuple[str, int]:
    """Parse host:port; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port[:6]) > 65_535:
        raise argparse.ArgumentTypeError(f"{_quote(text)} is not accepted; expected HOST:PORT")
    return host, int(port)
