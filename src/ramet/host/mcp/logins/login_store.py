"""The user's logins: one file for the exact address of each server, which only the user can read."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ramet.core.errors import InvalidValue
from ramet.disk.regular_files import open_regular, write_all
from ramet.disk.state_folder import open_folder

FOLDER: Final = "mcp-logins"
MAX_BYTES: Final = 64 * 1024
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A login at one server. Its `repr` shows no secret."""

    url: str
    token_endpoint: str
    client_id: str
    access_token: str
    client_secret: str = ""
    auth_method: str = "none"  #: how the client proves itself at the token endpoint
    resource: str = ""
    refresh_token: str = ""
    expires_at: float | None = None  #: seconds since the epoch

    def __repr__(self) -> str:
        return f"Login(url={self.url!r})"


class LoginStore:
    """The logins in the folder of a user."""

    def __init__(self, user_dir: Path) -> None:
        self._folder = user_dir.expanduser().resolve() / FOLDER

    def read(self, url: str) -> Login | None:
        """Return the login at an address. Raises InvalidValue for a file that others may have written or read."""
        try:
            with open_folder(self._folder) as folder, os.fdopen(open_regular(_name(url), folder=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or status.st_nlink != 1:
                    accepted = f"{FOLDER}/{_name(url)} to be a file of mode 0600 of this user: ramet mcp logout NAME"
                    raise InvalidValue("login", url, accepted)
                content = file.read(MAX_BYTES + 1)
        except OSError:
            return None
        try:
            login = msgspec.json.decode(content, type=Login)
        except msgspec.DecodeError:
            accepted = f"JSON of a login in {FOLDER}/{_name(url)}: ramet mcp logout NAME"
            raise InvalidValue("login", url, accepted) from None
        return login if login.url == url else None

    def write(self, login: Login) -> None:
        """Replace the login at its address, at once or not at all. Raises OSError."""
        name = _name(login.url)
        temporary = f"{name}.{os.urandom(6).hex()}"
        with open_folder(self._folder, make=True) as folder:
            file = os.open(temporary, _CREATE_FLAGS, 0o600, dir_fd=folder)
            try:
                write_all(file, msgspec.json.encode(login))
                os.fsync(file)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            finally:
                os.close(file)

    def remove(self, url: str) -> bool:
        """Remove the login at an address; return False if there is none. Raises OSError."""
        try:
            with open_folder(self._folder) as folder:
                os.unlink(_name(url), dir_fd=folder)
        except FileNotFoundError:
            return False
        return True


def _name(url: str) -> str:
    return f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
