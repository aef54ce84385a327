"""The request to a sandbox for git: data that the host and the launcher share."""

from __future__ import annotations

import json
import os
from typing import NamedTuple, Self

#: The exit status of a launcher that could not confine git, and so did not start it.
UNCONFINED = 121
_HEAD = 8  #: digits of the length before a request


class Setting(NamedTuple):
    """An entry of git's configuration; a value of None is a key without a value."""

    key: str
    value: str | None


class Folder(NamedTuple):
    """A folder that git may write to, and its identity when it was checked."""

    path: str
    device: int
    inode: int


class HiddenFolder(NamedTuple):
    """A state folder of a kernel below the folders that git may read, and the entries that git sees there."""

    path: str
    entries: tuple[str, ...]


class Command(NamedTuple):
    """A git command, and its standard input: a text, or a file that the sandbox shows. Its output may be a new file."""

    args: tuple[str, ...]
    stdin: str = ""
    stdin_file: str = ""
    stdout_file: str = ""


class Request(NamedTuple):
    """Git commands to run in sequence up to the first that fails."""

    program: str  #: the path of git
    commands: tuple[Command, ...]
    mark: str  #: a line after the output of each command, which no one can guess
    cwd: str
    uid: int  #: the owner of the repository
    gid: int
    parent: int  #: pid of the host
    cpu_s: int
    file_bytes: int | None  #: of one file that git writes; None sets no further limit
    write: tuple[Folder, ...]
    read: tuple[str, ...]
    execute: tuple[str, ...]
    hidden_folders: tuple[HiddenFolder, ...]  #: used where namespaces are available
    user: tuple[Setting, ...]  #: the settings of the user's own configuration; see `user_settings`

    def encode(self) -> bytes:
        """Encode this request as bytes with their length before them."""
        data = json.dumps(self).encode()
        return f"{len(data):0{_HEAD}}".encode() + data

    @classmethod
    def receive(cls, fd: int) -> Self:
        """Read one request, and no byte after it. Raises ValueError if the input ends early."""
        request = cls(*json.loads(_exactly(fd, int(_exactly(fd, _HEAD)))))
        return request._replace(
            commands=tuple(Command(tuple(args), *stdin) for args, *stdin in request.commands),
            write=tuple(Folder(*each) for each in request.write),
            read=tuple(request.read),
            execute=tuple(request.execute),
            hidden_folders=tuple(HiddenFolder(path, tuple(entries)) for path, entries in request.hidden_folders),
            user=tuple(Setting(*each) for each in request.user),
        )


def mark_line(mark: str) -> str:
    """Return the line that follows the output of each command."""
    return f"\n{mark}\n"


def _exactly(fd: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        chunk = os.read(fd, length - len(data))
        if not chunk:
            raise ValueError("the request ends too early")
        data += chunk
    return data
