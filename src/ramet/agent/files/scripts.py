"""Find the files that commands name: a changed script is a different command.

A command is not parsed, because only a shell can do that. Each piece that may be a name is tried in each folder that
may be meant. So more files are found than are run. Not found are files whose names a program composes (`check$N.sh`,
`*.sh`, `python -m check`), and files named by a script.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_bytes
from ramet.tools.git.git_checkout import NoCheckout, find

MAX_COMMAND = 128 * 1024  #: maximum characters of one command: the system starts no program with a longer argument
MAX_TEXT = 2 * 1024 * 1024  #: maximum characters of all commands, with their parts
MAX_TRIES = 200_000  #: maximum paths that are examined
MAX_FILES = 2_000
MAX_SCRIPT = 64 * 1024 * 1024  #: maximum bytes of one file
MAX_TOTAL = 256 * 1024 * 1024  #: maximum bytes of all files
MAX_LIST = 1024 * 1024  #: maximum bytes of a list of requirements
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_SHELL_SEPARATORS = re.compile(r"\$\w+|[\s\"'`;&|()<>{}$\\]+")  #: characters that may end a name for a shell
_PROGRAM_SEPARATORS = re.compile(r"\$\w+|[\s\"'`;&|()<>{}$\\=,:@!]+")  #: and for programs: `PATH=a:b`, `@file`
_MAX_SUFFIXES = 32  #: of one path
_MAX_OPTION_LETTERS = 8  #: letters of options in one word before a name: `-nEfclean.sed`
_COMMENT = re.compile(r"(?:^|\s)#.*")  #: in a list of requirements
_NAMES_FILES = re.compile(r"\s*[-.]|.*(?:/|\.(?:whl|zip|t))")  #: a line of such a list that is more than a package
_ARCHIVE = re.compile(rb"PK\x03\x04|\x1f\x8b|\xfd7zXZ|BZh[1-9]1AY")
_SKIPPED_FOLDERS = (".git", ".ramet")


class Script(NamedTuple):
    """A file that a command names."""

    path: Path
    digest: str  #: of its content; of the target path, for a link out of the checkout


class ScriptSearch:
    """A search for files of a folder and its checkout that commands name, within limits for all commands together."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: tuple[Path, ...] = (root,)
        try:
            checkout = find(root)
        except (NoCheckout, OSError):
            pass
        else:
            self._folders = tuple(dict.fromkeys((root, checkout.top, checkout.main)))
        self._digests: dict[str, str] = {}
        self._length = self._tries = self._size = 0

    def named_files(self, texts: Iterable[str]) -> Iterator[Script]:
        """Yield every file that one of the commands, or a part of it, may name. Raises Unreadable beyond a limit."""
        for path in self._paths(texts, self._folders):
            yield from self._script(path)

    def pip_files(self, arguments: Iterable[str]) -> Iterator[Script]:
        """Yield every file that pip would read, including files of folders and of nested lists of requirements.

        Raises Unreadable beyond a limit.
        """
        queue, visited = [(list(arguments), self._folders)], set[str]()
        while queue:
            for path in self._paths(*queue.pop()):
                yield from self._script(path)
                real = os.path.realpath(path)
                if real in visited or not self._is_inside(real):
                    continue
                visited.add(real)
                if path.is_dir():
                    for each in _files_below(path):
                        yield from self._script(each)
                else:
                    queue.append((_lines(Path(real)), (path.parent, *self._folders)))

    def _paths(self, texts: Iterable[str], folders: Iterable[Path]) -> Iterator[Path]:
        """Yield each named regular file and folder, also below a named folder of the checkout."""
        candidates = dict.fromkeys(name for piece in self._pieces(texts) for name in names(piece))
        queue = list(dict.fromkeys(os.path.realpath(each) for each in folders))
        visited, tried_paths = set(queue), set[str]()
        while queue:
            folder = queue.pop(0)
            for name in candidates:
                path = os.path.join(folder, name)  # noqa: PTH118 - like a shell: Path would drop `./`
                if path in tried_paths:
                    continue
                tried_paths.add(path)
                self._tries += 1
                self._refuse_beyond(self._tries, MAX_TRIES, "paths")
                mode = _mode(path)
                if stat.S_ISDIR(mode) and self._is_inside(real := os.path.realpath(path)) and real not in visited:
                    visited.add(real)
                    queue.append(real)
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                    yield Path(path)

    def _pieces(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield each text, its words and its quoted parts, to any depth."""
        queue, visited = list(texts), set[str]()
        while queue:
            text = queue.pop()
            if not text or text in visited:
                continue
            if len(text) > MAX_COMMAND:
                raise Unreadable(self._root, f"a command is longer than {MAX_COMMAND} characters")
            visited.add(text)
            self._length += len(text)
            self._refuse_beyond(self._length, MAX_TEXT, "characters")
            yield text
            queue += (text.replace("\\\n", ""), *text.split("\n"))
            queue += _words(text)
            queue += (*_SHELL_SEPARATORS.split(text), *_PROGRAM_SEPARATORS.split(text))

    def _script(self, path: Path) -> Iterator[Script]:
        real = os.path.realpath(path)
        if self._is_inside(real):
            digest = self._digest(Path(real))
            if digest:
                yield Script(Path(real), digest)
        elif self._is_inside(lexical := os.path.normpath(path)):
            yield Script(Path(lexical), hashlib.sha256(os.fsencode(real)).hexdigest())

    def _digest(self, real: Path) -> str:
        """Return the digest of a file's content; empty if it is no regular file.

        An unreadable program may still run: its size, inode and times of change then replace its content.
        """
        if (known_digest := self._digests.get(str(real))) is not None:
            return known_digest
        if not stat.S_ISREG(_mode(str(real))):
            return ""
        digest, size = hashlib.sha256(), 0
        try:
            file = open(real, "rb", opener=lambda path, _: os.open(path, _FLAGS))
        except PermissionError:
            status = real.stat()
            return f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
        except OSError as error:
            raise Unreadable(real, f"a command names this file, and it cannot be read: {error.strerror}") from None
        with file:
            while piece := file.read(1024 * 1024):
                size += len(piece)
                if size > MAX_SCRIPT:
                    raise Unreadable(real, f"a command names this file, and it is larger than {MAX_SCRIPT} bytes")
                self._refuse_beyond(self._size + size, MAX_TOTAL, "bytes of files")
                digest.update(piece)
        self._size += size
        self._digests[str(real)] = digest.hexdigest()
        self._refuse_beyond(len(self._digests), MAX_FILES, "files")
        return digest.hexdigest()

    def _is_inside(self, path: str) -> bool:
        return any(Path(path).is_relative_to(each) for each in self._folders)

    def _refuse_beyond(self, count: int, limit: int, unit: str) -> None:
        if count > limit:
            raise Unreadable(self._root, f"its commands name more than {limit} {unit}")


def _words(text: str) -> Iterator[str]:
    """Yield the words of a command without their quotes, up to an unclosed quote."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        yield from lexer
    except ValueError:
        return


def names(piece: str) -> Iterator[str]:
    """Yield the names in a piece of a command: itself, itself without a leading option, and each suffix of a path.

    The beginning of a path may be a variable's value, or a folder of a container.
    """
    options = len(piece) - len(piece.lstrip("-"))
    texts = [piece]
    if options == 1:
        letters = re.match(r"\w*", piece[1:])
        count = min(letters.end() if letters else 0, _MAX_OPTION_LETTERS)
        texts += [piece[2 + offset :] for offset in range(count)]
    if piece.startswith("~"):
        texts.append(os.path.expanduser(piece))  # noqa: PTH111 - Path raises for an unknown user
    for text in filter(None, texts):
        yield text
        parts = text.rsplit("/", _MAX_SUFFIXES)
        yield from filter(None, ("/".join(parts[begin:]) for begin in range(1, len(parts))))


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - many paths, most of which do not exist
    except (OSError, ValueError):  # ValueError: not a valid file name, for example with a zero byte
        return 0


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in _SKIPPED_FOLDERS]
        yield from (Path(parent, name) for name in names if stat.S_ISREG(_mode(str(Path(parent, name)))))


def _lines(path: Path) -> list[str]:
    """Return the lines of a requirements list that name more than a package; none of an archive. Raises Unreadable."""
    data = read_bytes(path, limit=MAX_LIST, cut=True).data
    if _ARCHIVE.match(data):
        return []
    if len(data) == MAX_LIST:
        raise Unreadable(path, f"a list for pip is not smaller than {MAX_LIST} bytes")
    text = data.replace(b"\0", b"").decode("utf-8", "surrogateescape")  # pip also reads UTF-16.
    lines = (_COMMENT.sub("", line) for line in text.replace("\\\n", "").splitlines())
    return [line for line in lines if _NAMES_FILES.match(line)]
