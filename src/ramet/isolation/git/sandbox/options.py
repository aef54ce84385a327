"""Configuration that keeps git from running programs of a repository: the second layer, inside the sandbox.

Git gets these settings through its environment, above every file. Environment variables take keys with any character;
`-c` does not (`filter.a=b.smudge`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ramet.isolation.git.sandbox.request import Setting

MAX_SETTINGS = 2_000  #: the maximum number of settings of one repository that name programs

#: The settings for every repository, trusted or not.
FIXED = (
    Setting("core.hooksPath", "/dev/null"),
    Setting("core.fsmonitor", "false"),
    Setting("core.pager", "cat"),
    Setting("gc.auto", "0"),
    Setting("maintenance.auto", "false"),
    Setting("safe.bareRepository", "explicit"),
    Setting("submodule.recurse", "false"),
    Setting("protocol.ext.allow", "never"),  # Otherwise an address could be a command.
)
#: The additional environment for an untrusted repository.
UNTRUSTED_ENV: Mapping[str, str] = {
    "GIT_CONFIG_GLOBAL": "/dev/null",  # The user's settings come with the request.
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ASKPASS": "",
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": ":",
    "GIT_SSH_COMMAND": "false",
    "GIT_EXTERNAL_DIFF": "",
}
#: Last parts of keys whose values git passes to a shell, or runs.
_PROGRAMS = (
    "alternaterefscommand|askpass|clean|cmd|command|defaultkeycommand|difffilter|driver|editor|external|fsmonitor|"
    "gitproxy|helper|hookspath|pager|path|process|program|proxycommand|receivepack|smudge|sshcommand|textconv|tool|"
    "uploadpack|vcs|packobjectshook|recentobjectshook|sendmailcmd|tocmd|cccmd|headercmd|smtpserver|templatedir|transfer"
)
_PROGRAM_KEYS = re.compile(
    rf"(?:.*\.(?:{_PROGRAMS})|(?:alias|pager|hook|trailer)\..*|submodule\..*\.update)\Z", re.DOTALL
)
_FILTER = re.compile(r"(filter\..*)\.(?:smudge|clean|process)\Z", re.DOTALL)
#: Keys of files with names and patterns; git runs no program of them.
_HARMLESS = re.compile(r"include(?:if\..*)?\.path\Z|submodule\..*\.path\Z", re.DOTALL)
#: Settings of the user that a repository must not change: they name programs that the user wants to run.
_USER_ONLY = re.compile(r"(?:filter|diff|merge)\.", re.DOTALL)


def names_a_program(key: str) -> bool:
    """Return whether git may run the value of this key, in git's listing form: section and name in lower case."""
    return bool(_PROGRAM_KEYS.match(key)) and not _HARMLESS.match(key)


def overrides(repository: Iterable[Setting], user: Iterable[Setting]) -> list[Setting]:
    """Return settings that disable all programs of a repository's configuration, and keep all of the user's settings.

    Raises ValueError if a repository names more than MAX_SETTINGS programs.
    """
    users = list(user)
    user_keys = {setting.key for setting in users}
    repository_keys = dict.fromkeys(setting.key for setting in repository)
    settings = [setting for setting in users if setting.key not in repository_keys or _USER_ONLY.match(setting.key)]
    programs = [key for key in repository_keys if names_a_program(key)]
    if len(programs) > MAX_SETTINGS:
        raise ValueError(f"its configuration names {len(programs)} programs; accepted are {MAX_SETTINGS}")
    settings += [Setting(key, _neutral(key)) for key in programs if key not in user_keys]
    drivers = dict.fromkeys(match.group(1) for key in programs if (match := _FILTER.match(key)))
    free = [driver for driver in drivers if not any(key.startswith(f"{driver}.") for key in user_keys)]
    settings += [Setting(f"{driver}.required", "false") for driver in free]
    return [*settings, *FIXED]


def as_environment(settings: Iterable[Setting]) -> dict[str, str]:
    """Return the environment variables through which git receives settings."""
    entries = list(settings)
    env = {"GIT_CONFIG_COUNT": str(len(entries))}
    for index, (key, value) in enumerate(entries):
        env[f"GIT_CONFIG_KEY_{index}"] = key
        env[f"GIT_CONFIG_VALUE_{index}"] = "true" if value is None else value
    return env


def parse_settings(output: str) -> list[tuple[str, Setting]]:
    """Parse the output of `git config --list --show-scope -z`: each setting with its scope."""
    fields = output.split("\0")[:-1]
    settings = []
    for scope, entry in zip(fields[::2], fields[1::2], strict=True):
        key, newline, value = entry.partition("\n")
        settings.append((scope, Setting(key, value if newline else None)))
    return settings


def _neutral(key: str) -> str:
    return "none" if key.endswith(".update") else "false" if key == "core.fsmonitor" else ""
