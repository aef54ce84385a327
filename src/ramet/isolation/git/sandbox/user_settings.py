"""The settings of a user's own git configuration that a sandbox needs: filters, line ends, names of ignored files.

The sandbox receives no other settings: a user's configuration may hold keys of servers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ramet.isolation.git.sandbox import options
from ramet.isolation.git.sandbox.request import Setting

#: Prints the settings of the system and of the user, outside of any repository.
COMMAND = ("config", "--list", "--show-scope", "-z")
ENV: Mapping[str, str] = {"GIT_DIR": "/dev/null"}
_NEEDED = re.compile(
    r"(?:filter\..*|core\.(?:autocrlf|eol|safecrlf|symlinks|ignorecase|precomposeunicode|quotepath|excludesfile|"
    r"attributesfile)|checkout\..*|index\..*|feature\..*)\Z",
    re.DOTALL,
)
_FILES = {"core.excludesfile": "ignore", "core.attributesfile": "attributes"}  #: setting to default file name
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


class UserSettings(NamedTuple):
    """The settings, and the user's files that they name."""

    settings: tuple[Setting, ...]
    files: tuple[str, ...]


NONE = UserSettings((), ())


def parse_settings(output: str, environ: Mapping[str, str]) -> UserSettings:
    """Return the needed settings from the output of `COMMAND`."""
    settings = [setting for _, setting in options.parse_settings(output) if _NEEDED.match(setting.key)]
    file_names = {key: value for key, value in settings if key in _FILES and value}
    home = environ.get("HOME", "")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    effective = [setting for setting in settings if setting.key not in _FILES]
    files = []
    for key, default_name in _FILES.items():
        name = file_names.get(key) or (f"{config}/git/{default_name}" if config else "")
        path = Path(re.sub(r"\A~(?=/)", lambda _: home, name))
        if path.is_absolute() and _test(Path.is_file, path):
            effective.append(Setting(key, str(path.resolve())))
            files.append(str(path.resolve()))
    return UserSettings(tuple(effective), tuple(files))


def program_folders(program: str, environ: Mapping[str, str], *, avoided_folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the folders of programs that git and the user's filters may need: git's own, and those of PATH.

    Folders that hold the user's home are left out, and so are folders in (or around) a folder of `avoided_folders`.
    """
    home = Path(environ.get("HOME") or "/").resolve()
    excluded_folders = [folder.resolve() for folder in avoided_folders]
    folders: dict[str, None] = {}
    for folder in _program_folders(program, environ):
        is_system = any(folder.is_relative_to(each) for each in _SYSTEM)
        holds_home = home.is_relative_to(folder)
        is_excluded = any(folder.is_relative_to(each) or each.is_relative_to(folder) for each in excluded_folders)
        if _test(Path.is_dir, folder) and not (is_system or holds_home or is_excluded):
            folders[str(folder)] = None
    return tuple(folders)


def _program_folders(program: str, environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path(program).resolve().parents[1]
    for name in os.get_exec_path(dict(environ)):
        if name.startswith("/"):
            with contextlib.suppress(OSError, RuntimeError):  # The folder cannot be read, or is a cycle of links.
                yield Path(name).resolve()


def _test(predicate: Callable[[Path], bool], path: Path) -> bool:
    try:
        return predicate(path)
    except OSError:  # The path cannot be read: no program is found there.
        return False
