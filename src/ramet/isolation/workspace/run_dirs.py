"""The folder of each logical run, below `<working_dir>/.ramet/runs`: found again by id, until retention removes it.

    <run id>/  workspace/   files that belong to the run, which may write anything there
               artifacts/   copies of files that the run left
               ports/       sockets that lead to its ports, while the run is active
               stdout.log   stderr.log   checkpoint   run.json

Only `workspace` ever belongs to a guest: all other entries belong to the host, in folders that no other user may enter.
A folder appears whole and disappears whole: it is created, and removed, under a name that belongs to no run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.disk.regular_files import read_regular
from ramet.disk.state_folder import checked_state_folder, ensure_folder, state_folder
from ramet.isolation import safe_walk
from ramet.isolation.workspace import checkpoint
from ramet.isolation.workspace.checkpoint import OpenCheckpoint
from ramet.isolation.workspace.folder_retention import Age, FolderLimits, find_expired

PROXY_SOCKET = "proxy.sock"  #: of a run whose policy allows endpoints, in its folder
_IMPORT_DIRS = ".shelves"  #: belongs to no run: files that are loaded into live agents
_SERVER_FOLDERS = ".servers"  #: belongs to no run: folders of servers that agents share
_DRAFT_PREFIX, _REMOVED_PREFIX = ".new-", ".gone-"
#: a backend may let its own user pass through to a workspace; no other user may pass, and none may list it
_MOST = 0o710
_MOST_ABOUT = 1 << 20  #: bytes of the information about a run
_STALE_S = 3600.0  #: the age after which a folder that was being created or removed has no owner
_FOLDERS = ("workspace", "artifacts", "ports")
_OWN_FILES = ("run.json", "stdout.log", "stderr.log", "checkpoint")  #: files whose times of use no guest can change
#: held while run.json is written: the end of a run and a request to keep it come from two threads
_WRITE_LOCK = threading.Lock()
_Time = Annotated[datetime, Meta(tz=True)]


class RunDirInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The information about a run that its folder contains."""

    path: str  #: of the run in its tree
    agent: str
    created: _Time
    ended: _Time | None = None  #: None: the run is active, or its kernel died
    keep: bool = False  #: retention skips the folder


class RunFolder:
    """The folder of one run. A run that is resumed or retried keeps its folder.

    Checkpoints and removals can take long: call them in a thread.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self._clock = path, clock
        self.id = path.name  #: of the run

    @cached_property
    def workspace(self) -> Path:
        """The run's own folder; its mode is 0700, and the starter of the run sets its owner."""
        return self.path / "workspace"

    @cached_property
    def artifacts(self) -> Path:
        """Copies of files that the run left; missing before the first copy."""
        return self.path / "artifacts"

    @cached_property
    def ports(self) -> Path:
        """Sockets that lead to ports of the run; it exists while the run serves."""
        return self.path / "ports"

    @cached_property
    def stdout(self) -> Path:
        """The run's output, from its first execution on."""
        return self.path / "stdout.log"

    @cached_property
    def stderr(self) -> Path:
        """The run's error output, from its first execution on."""
        return self.path / "stderr.log"

    def read_info(self) -> RunDirInfo:
        """Return the recorded information about the run. Raises Damaged if the file cannot be read."""
        file = self.path / "run.json"
        try:
            return msgspec.json.decode(read_regular(file, limit=_MOST_ABOUT), type=RunDirInfo)
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise Damaged("what is known of a run", file, str(error)) from None

    def check_entries(self) -> None:
        """Raise InvalidValue for an entry that is a link, or of another kind than ramet created.

        No other user may write to the folder, so an entry does not change after the check.
        """
        for name in (*_OWN_FILES, *_FOLDERS):
            with contextlib.suppress(FileNotFoundError):
                status = (self.path / name).lstat()
                is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
                if not (is_file if name in _OWN_FILES else stat.S_ISDIR(status.st_mode)):
                    accepted = f"a {'file with one name' if name in _OWN_FILES else 'folder'} there; remove it"
                    raise InvalidValue("run", str(self.path / name), accepted)

    def record_end(self) -> None:
        """Record that an execution of the run has ended."""
        self._set_ended(self._clock.now())

    def record_resume(self) -> None:
        """Record that another execution of the run has begun."""
        self._set_ended(None)

    def keep(self, keep: bool = True) -> None:
        """Set whether retention skips the folder."""
        with _WRITE_LOCK:
            self._write(structs.replace(self.read_info(), keep=keep))

    def save_checkpoint(self, body: bytes, json_size: int, version: int = 1) -> None:
        """Replace the saved value; the new one is on the disk when this returns. See `checkpoint.save`."""
        checkpoint.save(self.path / "checkpoint", body, json_size, version)

    def open_checkpoint(self) -> OpenCheckpoint | None:
        """Return the last saved value as an open file that the caller closes. Raises Damaged for a part of it."""
        return checkpoint.open_whole(self.path / "checkpoint")

    def clear_workspace(self) -> None:
        """Give the run an empty workspace, for another attempt; the previous content is removed, or set aside.

        No process of the run may be left. Raises OSError only if there is no new workspace.
        """
        with safe_walk.open_root(self.path) as folder:
            safe_walk.rename(folder, "workspace", f"{_REMOVED_PREFIX}{secrets.token_hex(4)}")
            os.mkdir("workspace", 0o700, dir_fd=folder)
            for each in self.path.glob(f"{_REMOVED_PREFIX}*"):
                with contextlib.suppress(OSError):  # Retried the next time, and with the rest of the folder.
                    safe_walk.remove(folder, each.name)

    def restore_workspace(self) -> bool:
        """Create the workspace if it is missing; return True if its content is lost. Raises OSError.

        A kernel that died while it replaced the workspace (`clear_workspace`) lost no content that was to stay.
        """
        try:
            self.workspace.mkdir(0o700)
        except FileExistsError:
            return False
        return not any(self.path.glob(f"{_REMOVED_PREFIX}*"))

    def remove(self) -> None:
        """Remove the whole folder; a missing folder is no error.

        Raises OSError for entries that stay: their folder then belongs to no run.
        """
        removed_folder = self._set_aside()
        if removed_folder is not None:
            safe_walk.remove_path(removed_folder)

    def _set_ended(self, ended: datetime | None) -> None:
        with _WRITE_LOCK:
            self._write(structs.replace(self.read_info(), ended=ended))
        checkpoint.clear_drafts(self.path)

    def _set_aside(self) -> Path | None:
        aside = self.path.with_name(f"{_REMOVED_PREFIX}{self.id}-{secrets.token_hex(4)}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return None
        return aside

    def _write(self, info: RunDirInfo) -> None:
        draft = self.path / f"{_DRAFT_PREFIX}run.json"
        draft.unlink(missing_ok=True)  # Left by a kernel that was killed, or a link: never written through.
        with draft.open("xb") as new:
            new.write(msgspec.json.encode(info))
        draft.replace(self.path / "run.json")

    def last_used(self) -> datetime:
        """Return the time of the host's last write to the folder, which no guest can change. Raises OSError."""
        times = [self.path.stat().st_ctime]
        for name in _OWN_FILES:
            with contextlib.suppress(OSError):
                times.append((self.path / name).lstat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC)


class RunFolders:
    """The run folders of one working directory. Nothing is created before the first run."""

    def __init__(
        self,
        working_dir: Path,
        *,
        limits: FolderLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare access to the folders; `limits` determine the folders that `remove_expired` keeps."""
        self.root = state_folder(working_dir) / "runs"
        self._limits = limits or FolderLimits()
        self._clock = clock or SystemClock()
        self._is_checked = False

    def create(self, run_id: str, *, path: str = "", agent: str = "") -> RunFolder:
        """Create the folder of a new run. Raises InvalidValue if the id is invalid or taken, and OSError."""
        self._check()
        folder = self._folder(run_id)
        draft = self.root / f"{_DRAFT_PREFIX}{run_id}-{secrets.token_hex(4)}"
        try:
            draft.mkdir(0o700)
            (draft / "workspace").mkdir(0o700)
            RunFolder(draft, self._clock)._write(RunDirInfo(path=path, agent=agent, created=self._clock.now()))
            draft.rename(folder.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                safe_walk.remove_path(draft)
            if folder.path.is_dir():
                raise InvalidValue("run", run_id, "an id that no run has had here") from error
            raise
        return folder

    def find(self, run_id: str) -> RunFolder:
        """Return the folder of a run of this or an earlier kernel.

        Raises Unknown, and InvalidValue for an invalid id, or for an entry of the folder that ramet did not create.
        """
        folder = self.find_any(run_id)
        if folder is None:
            raise Unknown("run", run_id, tuple(each.id for each in self.list()))
        folder.check_entries()
        return folder

    def find_any(self, run_id: str) -> RunFolder | None:
        """Return the folder of a run, whatever its content, for removal; None if there is none. Raises InvalidValue."""
        folder = self._folder(run_id)
        return folder if self._exists() and _is_folder(folder.path) else None

    def list(self) -> tuple[RunFolder, ...]:
        """Return all folders, by id."""
        if not self._exists():
            return ()
        names = sorted(each.name for each in self.root.iterdir() if not each.name.startswith("."))
        folders = []
        for name in names:
            with contextlib.suppress(InvalidValue):  # Not a folder of ramet.
                folders.append(self._folder(name))
        return tuple(each for each in folders if _is_folder(each.path))

    def import_dir(self, name: str) -> Path:
        """Return a folder for files that sandboxes receive later, empty if it is new.

        The folder belongs to the caller, until the caller drops it.
        """
        self._check()
        folder = ensure_folder(self.root / _IMPORT_DIRS) / checked_name("import_dir", name)
        ensure_folder(folder, 0o755).chmod(0o755)
        return folder

    def drop_import_dir(self, name: str = "") -> None:
        """Remove one import folder, or all of them; a missing one is no error. Raises OSError."""
        import_dirs = self.root / _IMPORT_DIRS
        if _is_folder(import_dirs):
            safe_walk.remove_path(import_dirs / checked_name("import_dir", name) if name else import_dirs)

    def server_folder(self) -> Path:
        """Return a new folder for a server that belongs to no run, until the caller drops it."""
        self._check()
        folder = ensure_folder(self.root / _SERVER_FOLDERS) / f"server-{secrets.token_hex(8)}"
        folder.mkdir(0o700)
        return folder

    def drop_server_folder(self, name: str = "") -> None:
        """Remove one folder of a server, or all of them; a missing one is no error. Raises OSError."""
        folders = self.root / _SERVER_FOLDERS
        if _is_folder(folders):
            safe_walk.remove_path(folders / checked_name("server_folder", name) if name else folders)

    def remove_sockets(self) -> None:
        """Remove sockets of proxies and ports that a killed process had open. Blocks. Raises OSError."""
        if self._exists():
            for each in self.root.iterdir():
                if (socket := each / PROXY_SOCKET).is_socket():
                    socket.unlink(missing_ok=True)
                if _is_folder(each / "ports"):
                    safe_walk.remove_path(each / "ports")

    async def remove_expired(self, is_needed: Callable[[RunFolder], Awaitable[bool]]) -> tuple[str, ...]:
        """Remove the folders that the limits do not keep; return the ids of their runs.

        Never removes a folder marked to be kept, nor one for which `is_needed`, called at the last moment, returns
        true. Folders that an earlier kernel was creating or removing are removed, too.
        """
        if not self._exists():
            return ()
        now = self._clock.now()
        removed_ids: list[str] = []
        set_aside = [path for path in self.root.iterdir() if _is_stale(path, now)]
        for run in await in_thread(lambda: find_expired(_ages(self.list()), self._limits, now), name="ramet-folder"):
            folder = self._folder(run)
            if _may_remove(folder) and not await is_needed(folder):
                aside = folder._set_aside()
                if aside is not None:
                    set_aside.append(aside)
                    removed_ids.append(folder.id)
        if set_aside:
            await run_shielded(in_thread(lambda: _remove_quietly(set_aside), name="ramet-folder"))
        return tuple(removed_ids)

    def _folder(self, run_id: str) -> RunFolder:
        return RunFolder(self.root / checked_name("run", run_id), self._clock)

    def _exists(self) -> bool:
        if not _is_folder(self.root):
            return False
        self._check()
        return True

    def _check(self) -> None:
        """Create the folder of all folders, which only we may enter, or refuse another entry at its place."""
        if self._is_checked:
            return
        checked_state_folder(self.root.parent.parent)
        self.root.parent.mkdir(0o755, parents=True, exist_ok=True)
        ensure_folder(self.root)
        mode = stat.S_IMODE(self.root.stat().st_mode)
        if mode & ~_MOST:
            self.root.chmod(mode & _MOST)
        self._is_checked = True


def _ages(folders: Iterable[RunFolder]) -> Iterator[Age]:
    for folder in folders:
        with contextlib.suppress(OSError):  # Removed since.
            last = folder.last_used()
            with contextlib.suppress(Damaged):
                last = folder.read_info().ended or last
            yield Age(last, folder.id, folder.path)


def _may_remove(folder: RunFolder) -> bool:
    try:
        return not folder.read_info().keep
    except Damaged:
        return True


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _is_stale(path: Path, now: datetime) -> bool:
    if path.name.startswith(_REMOVED_PREFIX):
        return True
    try:
        return path.name.startswith(_DRAFT_PREFIX) and now.timestamp() - path.lstat().st_mtime > _STALE_S
    except OSError:
        return False


def _remove_quietly(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # Retried the next time.
            safe_walk.remove_path(path)
