"""Decide whether a folder may run code: opening a folder runs code as soon as its hooks and servers are used.

A person trusts a folder in its current state. The record has a hash over everything in the folder that names a command,
and over the scripts that those commands name; any change there ends the trust. The settings of a server (`ramet.yaml`)
and the configuration of the folder's git repository are also included. Commands have further effects (`npm test` runs
the scripts of package.json): the hash only shows that the *commands* are those that a person looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ramet.agent.files import frontmatter, safe_yaml
from ramet.agent.files.agent_file import MAX_FILE
from ramet.agent.files.bounded_read import Unreadable, read_text, real_path
from ramet.agent.files.git_programs import git_programs, runs_checkout_commands
from ramet.agent.files.mcp_lock import LOCK_FILE
from ramet.agent.files.mcp_lock import MAX_BYTES as MAX_LOCK
from ramet.agent.files.scripts import Script, ScriptSearch
from ramet.agent.files.search_paths import Candidate, agent_files, project_search_paths
from ramet.core.errors import InvalidValue

#: Files with hooks and permission rules, in the order in which they apply.
HOOK_SETTINGS = (".claude/settings.json", ".claude/settings.local.json", ".ramet/settings.json")
#: Files that only configure what may run.
SETTINGS = (".mcp.json", *HOOK_SETTINGS)
#: Settings of a server in the folder: its operators, and what its agents may do.
SERVER_SETTINGS = "ramet.yaml"
RECORD = "trust.json"
MAX_SETTINGS = 1024 * 1024
MAX_SHOWN = 2000  #: characters of one file's description
#: Settings of a server that may name an object of a module, which is imported.
_OBJECT_KEYS = ("store", "policy_adapter")
_MAX_MODULE_NAME = 256
_RUNNING_KEYS = {"hooks": "hooks", "mcpServers": "mcpServers", "mcp_servers": "mcpServers"}
#: Invisible letters and marks; `str.isprintable` detects the other invisible characters.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class Runnable(NamedTuple):
    """Something in a folder that would run, or name what runs, if the folder were trusted."""

    path: str  #: relative to the folder
    description: str  #: for display; it cannot move a terminal's cursor
    digest: str

    def __str__(self) -> str:
        return f"{_showable(self.path)}: {self.description}"


class Verdict(NamedTuple):
    """The verdict on whether a folder is trusted, with the reason."""

    is_trusted: bool
    reason: str


def find_runnables(folder: Path) -> tuple[Runnable, ...]:
    """Return everything that trusting `folder` would switch on. Raises Unreadable if that cannot be determined."""
    root = real_path(folder)
    scripts = ScriptSearch(root)
    parts = (_settings, _mcp_lock, _server_settings, _agents, _git)
    runnables = {each for part in parts for each in part(root, scripts)}
    return tuple(sorted(runnables))


def trust(folder: Path, user_dir: Path, *, reviewed_items: tuple[Runnable, ...] | None = None) -> tuple[Runnable, ...]:
    """Record that `folder` is trusted in its current state; return what that switches on.

    `reviewed_items` is what a person was shown and approved: if it is out of date, nothing is recorded. An unreadable
    record is moved to `trust.json.bad`, not overwritten. Raises Unreadable.
    """
    root = real_path(folder)
    runnables = find_runnables(root)
    if reviewed_items is not None and reviewed_items != runnables:
        raise Unreadable(root, "it changed while you reviewed it; review it again")
    user_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = user_dir / RECORD
    try:
        records = _read(record)
    except Unreadable:
        record.replace(record.with_name(RECORD + ".bad"))
        records = {}
    _write(record, {**records, str(root): _digest(runnables)})
    return runnables


def untrust(folder: Path, user_dir: Path) -> bool:
    """Remove the trust in `folder`; return True if there was any. Raises Unreadable."""
    records = _read(user_dir / RECORD)
    was_trusted = records.pop(str(folder.resolve()), None) is not None
    if was_trusted:
        _write(user_dir / RECORD, records)
    return was_trusted


def trust_of(folder: Path, user_dir: Path) -> Verdict:
    """Return the verdict on `folder` in its current state.

    Never raises: a folder that cannot be checked is not trusted.
    """
    try:
        root = str(real_path(folder))
        known_digest = _read(user_dir / RECORD).get(root)
        if known_digest is None:
            return Verdict(False, "it was never trusted (ramet trust DIR)")
        if known_digest != _digest(find_runnables(folder)):
            return Verdict(False, "what it would run has changed since it was trusted (ramet trust DIR)")
    except (Unreadable, OSError, RuntimeError) as error:
        return Verdict(False, str(error))
    return Verdict(True, "it is unchanged since it was trusted")


def trusted_items(folder: Path, user_dir: Path) -> tuple[Runnable, ...]:
    """Return what the trust in `folder` switches on. Raises Unreadable if it is not trusted in this very state."""
    runnables = find_runnables(folder)
    if _read(user_dir / RECORD).get(str(real_path(folder))) != _digest(runnables):
        raise Unreadable(folder, trust_of(folder, user_dir).reason)
    return runnables


def is_trusted(folder: Path, user_dir: Path) -> bool:
    """Return whether `folder` was trusted and still names the same commands."""
    return trust_of(folder, user_dir).is_trusted


def may_run_git(folder: Path, user_dir: Path) -> bool:
    """Return whether git may run the repository's programs: `folder` is trusted, and no checkout contains any."""
    try:
        return is_trusted(folder, user_dir) and not runs_checkout_commands(folder)
    except Unreadable:
        return False


def _settings(root: Path, scripts: ScriptSearch) -> Iterator[Runnable]:
    for name in SETTINGS:
        path = root / name
        if not os.path.lexists(path):
            continue
        text = read_text(path, limit=MAX_SETTINGS, fence=root).text
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
            yield Runnable(name, "is not JSON; its whole text counts", _hash(text.encode()))
        else:
            yield Runnable(name, _summary(content), _hash(text.encode()))
        if isinstance(content, dict):
            content.pop("permissions", None)  # A rule names files that a tool may use, and runs none.
        yield from _named_scripts(root, scripts.named_files(_strings(content)))


def _mcp_lock(root: Path, scripts: ScriptSearch) -> Iterator[Runnable]:
    path = root / LOCK_FILE
    if os.path.lexists(path):
        text = read_text(path, limit=MAX_LOCK, fence=root).text
        yield Runnable(LOCK_FILE, "which packages the commands of MCP servers run", _hash(text.encode()))


def _server_settings(root: Path, scripts: ScriptSearch) -> Iterator[Runnable]:
    path = root / SERVER_SETTINGS
    if not os.path.lexists(path):
        return
    text = read_text(path, limit=MAX_SETTINGS, fence=root).text
    try:
        content = safe_yaml.read(text).data
    except safe_yaml.NotPlain:
        content = None
        yield Runnable(SERVER_SETTINGS, "is not plain YAML; its whole text counts", _hash(text.encode()))
    else:
        yield Runnable(SERVER_SETTINGS, _summary(content), _hash(text.encode()))
    # The audit file is only appended to: its content decides nothing, and it changes while the server runs.
    read_settings = {k: v for k, v in content.items() if k != "audit_file"} if isinstance(content, dict) else content
    names = [each.lstrip().removeprefix("file:") for each in _strings(read_settings)]
    if isinstance(content, dict):
        names += [file for key in _OBJECT_KEYS for file in _files_of_module(content.get(key))]
    yield from _named_scripts(root, scripts.named_files(names), description="a file that the settings of a server name")
    installs = content.get("installs") if isinstance(content, dict) else None
    arguments = installs.get("pip_args") if isinstance(installs, dict) else None
    yield from _named_scripts(root, scripts.pip_files(_strings(arguments)), description="a file that pip would read")


def _files_of_module(reference: Any) -> Iterator[str]:
    """Yield the possible files of the module of "package.module:Name" and its packages, relative to the folder."""
    module, colon, _ = reference.strip().partition(":") if isinstance(reference, str) else ("", "", "")
    parts = module.split(".")
    if not colon or len(module) > _MAX_MODULE_NAME or not all(map(str.isidentifier, parts)):
        return
    for source in ("", "src/"):
        for end in range(1, len(parts) + 1):
            path = source + "/".join(parts[:end])
            yield from (f"{path}.py", f"{path}/__init__.py")


def _agents(root: Path, scripts: ScriptSearch) -> Iterator[Runnable]:
    for search_path in project_search_paths(root, "agents"):
        for candidate in agent_files(search_path):
            if not isinstance(candidate, Candidate):
                continue  # not loaded either
            try:
                text = read_text(candidate.path, limit=MAX_FILE, fence=root).text
                keys = frontmatter.parse(text, source=candidate.path).keys
            except (Unreadable, InvalidValue):  # not loaded either
                continue
            if keys.get("memory") == "user":
                description = "memory: user: it reads and rewrites your own notes of that agent"
                yield Runnable(_name(root, candidate.path), description, _hash(str(keys.get("name")).encode()))
            if "acceptEdits" in (keys.get("permissionMode"), keys.get("permission_mode")):
                description = "permissionMode: acceptEdits: nobody is asked before it changes files"
                yield Runnable(_name(root, candidate.path), description, _hash(str(keys.get("name")).encode()))
            for key, description in _RUNNING_KEYS.items():
                if content := keys.get(key):
                    canonical = json.dumps(content, sort_keys=True, default=repr)
                    summary, digest = _summary({description: content}), _hash(f"{key} {canonical}".encode())
                    yield Runnable(_name(root, candidate.path), summary, digest)
                    yield from _named_scripts(root, scripts.named_files(_strings(content)))


def _git(root: Path, scripts: ScriptSearch) -> Iterator[Runnable]:
    for file in git_programs(root):
        name = _name(root, file.path)
        yield Runnable(name, _short(file.description), _hash(file.content.encode()))
        if file.checkout_commands:
            description = (
                f"not run for agents with a worktree: each checkout has its own: {'; '.join(file.checkout_commands)}"
            )
            yield Runnable(name, _short(description), _hash(b""))
        yield from _named_scripts(root, scripts.named_files(file.values))


def _named_scripts(
    root: Path, scripts: Iterable[Script], *, description: str = "a script that is named"
) -> Iterator[Runnable]:
    for path, digest in scripts:
        yield Runnable(_name(root, path), description, digest)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _strings(node: Any) -> Iterator[str]:
    """Yield every text in plain data, without recursion: it may be nested as deep as a parser allows."""
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            stack += each.values()
        elif isinstance(each, list):
            stack += each


def _summary(content: Any) -> str:
    """Return the commands and servers, in one line."""
    if not isinstance(content, dict):
        return "its whole text counts"
    try:
        parts = [f"{key} {json.dumps(content[key], ensure_ascii=False, default=repr)}" for key in content]
    except RecursionError:
        return "nested too deep to show"
    return _short("; ".join(parts)) or "nothing"


def _short(text: str) -> str:
    display_text = _showable(text)
    more = len(display_text) - MAX_SHOWN
    return display_text if more <= 0 else f"{display_text[:MAX_SHOWN]} … ({more} characters more: look at the file)"


def _showable(text: str) -> str:
    return "".join(
        each if each.isprintable() and not _INVISIBLE.match(each) else f"\\u{{{ord(each):x}}}" for each in text
    )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(runnables: tuple[Runnable, ...]) -> str:
    return _hash(json.dumps([(each.path, each.description, each.digest) for each in runnables]).encode())


def _read(record: Path) -> dict[str, str]:
    """Return the recorded folders. Raises Unreadable if the record is not private to us or is malformed."""
    if not os.path.lexists(record):
        return {}
    status = record.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Unreadable(record, "it must be your own file, which no other user may read or write; nothing is trusted")
    try:
        content = json.loads(read_text(record, limit=MAX_SETTINGS).text)
        folders = content["folders"]
        if content["version"] != 1 or not all(isinstance(each, str) for each in (*folders, *folders.values())):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unreadable(record, "it is damaged; nothing is trusted until `ramet trust` writes it again") from None
    return dict(folders)


def _write(record: Path, folders: dict[str, str]) -> None:
    """Replace the record atomically, readable by its owner only."""
    text = json.dumps({"version": 1, "folders": folders}, indent=1, sort_keys=True)
    draft = record.with_name(f"{RECORD}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(record)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
