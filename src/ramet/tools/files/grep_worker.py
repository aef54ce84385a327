"""The search without ripgrep: a separate process with ripgrep's output format, which can be killed at any time.

It uses only the standard library; `ramet.tools.files.grep` starts it with a job as JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO

from ramet.tools.glob_patterns import Pattern

_LINE = 1024 * 1024  #: bytes of a line that are searched
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def main(text: str) -> None:
    """Run a job; the exit status is 0, or 2 if the pattern is invalid."""
    job = json.loads(text)
    try:
        pattern = re.compile(job["pattern"], re.IGNORECASE if job["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stdout.write(f"regex parse error: {error}")
        sys.exit(2)
    for name, file in _files(job):
        with file:
            _search(job, pattern, name, file)
        sys.stdout.flush()


def _files(job: dict[str, Any]) -> Iterator[tuple[str, BinaryIO]]:
    if job["stdin"]:
        yield "<stdin>", sys.stdin.buffer
        return
    # A job has either one negative pattern or only positive ones.
    globs = [Pattern(("!./" + each[1:]) if each[0] == "!" else "./" + each) for each in job["globs"]]
    negated = any(each.is_negated for each in globs)
    for path in _walk(".", frozenset(job["skipped"])):
        name = path[2:]
        if globs and not (all if negated else any)(each.fits(name) for each in globs):
            continue
        try:
            yield path, os.fdopen(os.open(path, _READ), "rb")
        except OSError:
            continue


def _walk(top: str, skipped: frozenset[str]) -> Iterator[str]:
    """Yield plain files below, in the order of their names, without following links."""
    try:
        with os.scandir(top) as directory:
            entries = sorted(directory, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name in skipped:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, skipped)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path


def _search(job: dict[str, Any], pattern: re.Pattern[str], name: str, file: BinaryIO) -> None:
    """Write the matches of one file. A binary file counts as one without a match."""
    if b"\0" in (first := file.read(8192)):
        return
    label = os.fsencode(name) + b"\0"
    out = sys.stdout.buffer
    count, pending_after, last = 0, 0, 0
    before: deque[tuple[int, bytes]] = deque(maxlen=job["before"] or 0)
    for number, line in enumerate(_lines(first, file), 1):
        if b"\0" in line:
            break
        if pattern.search(line.decode("utf-8", "replace")):
            count += 1
            if job["mode"] == "files_with_matches":
                out.write(label)
                return
            if job["mode"] == "content":
                if (job["before"] or job["after"]) and last and number - len(before) > last + 1:
                    out.write(b"--\n")
                for earlier, text in before:
                    out.write(b"%s%d-%s\n" % (label, earlier, text))
                before.clear()
                out.write(b"%s%d:%s\n" % (label, number, line))
                pending_after, last = job["after"], number
        elif pending_after:
            out.write(b"%s%d-%s\n" % (label, number, line))
            pending_after, last = pending_after - 1, number
        else:
            before.append((number, line))
    if count and job["mode"] == "count":
        out.write(b"%s%d\n" % (label, count))


def _lines(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of the data already read and of the rest; of a very long line, its beginning."""
    parts = first.rpartition(b"\n")
    yield from parts[0].split(b"\n") if parts[1] else ()
    start = parts[2]
    while piece := file.readline(_LINE):
        line, start = start + piece, b""
        while not piece.endswith(b"\n") and (piece := file.readline(_LINE)):
            pass
        yield line.rstrip(b"\n")
    if start:
        yield start
