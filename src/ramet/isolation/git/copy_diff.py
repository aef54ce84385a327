"""The difference between a run's own copy of a repository, a worktree or a clone, and the commit that it began at.

The run may still work there, and the copy is a hostile repository. Rules:

- Nothing of the copy's own repository is read: no configuration, index, attribute file or object of its `.git` folder.
  A repository of the host's with an index of its own reads the files, and borrows the commit from the repository that
  the copy was made from. So a run cannot hide a change by its index, or by objects of its own making.
- Git runs in its sandbox, whatever the user trusts: without filters, external programs and text conversion.
- Everything is bounded: files in the copy, time, files in the answer, and its text. A large file counts as binary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import Literal

from ramet.concurrency.threads import in_thread
from ramet.core.outcome import BRANCH_PREFIX
from ramet.isolation.git.git import Done, Git, NoWorktree
from ramet.isolation.git.host_repository import confine, lay_out, make_folder, run_git, shallow_commits
from ramet.isolation.git.sandbox.request import Command
from ramet.isolation.git.worktree import tips_in, tips_of
from ramet.tools.git.git_checkout import Checkout

MAX_FILES = 1_000  #: changed files that are named
MAX_PATCH = 512 << 10  #: bytes of the text
MAX_ENTRIES = 200_000  #: files and folders in the copy
_MAX_INNER = 100
_MAX_OUTPUT = 64 << 20  #: of one file that git writes
_TIMEOUT_S = 30.0
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OPTIONS = ("--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
_BINARY = ("-c", "core.bigFileThreshold=1m")  #: git calls larger files binary
Change = Literal["added", "changed", "removed"]
_CHANGES: dict[str, Change] = {"A": "added", "D": "removed"}


@dataclasses.dataclass(frozen=True)
class ChangedFile:
    """A file that differs, and its numbers of new and of missing lines; None for a binary or large file."""

    path: str
    change: Change
    lines_added: int | None
    lines_removed: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyDiff:
    """The files that differ, and their difference as a patch, both up to their limits."""

    base: str  #: the commit that the copy began at
    files: Sequence[ChangedFile] = ()
    files_left_out: int = 0
    patch: str = ""
    is_cut: bool = False  #: the patch is longer
    repositories_left_out: Sequence[str] = ()  #: inside the copy


async def folder_diff(git: Git, top: pathlib.Path, base: str, source: Checkout) -> CopyDiff:
    """Return what differs in the working tree at `top` from a commit of the repository `source`.

    Ignored files, and repositories inside the tree, do not count. Raises NoWorktree, and OSError.
    """
    _check_id(top, base)
    if os.path.realpath(top) != str(top) or not top.is_dir():  # noqa: ASYNC240 - one look
        raise NoWorktree(top, "it is no longer a folder", "look at it")
    git = dataclasses.replace(confine(git), timeout_s=_TIMEOUT_S, file_bytes=_MAX_OUTPUT)
    inner = await in_thread(lambda: _repositories_in(top), name="ramet-diff")
    with tempfile.TemporaryDirectory(prefix="ramet-diff-") as staging:
        folder = pathlib.Path(staging).resolve()  # noqa: ASYNC240 - one look
        shallow = shallow_commits(source.common_dir)
        reader = lay_out(top, folder / "git", head="none", example=base, shallow=shallow, objects_of=source, like=top)
        output = make_folder(folder / "output", top)
        kept_out = [f":(exclude,top,literal){path}" for path in inner]
        steps = [
            Command(("read-tree", base)),
            Command(("add", "--all", "--intent-to-add", "--", ".", *kept_out)),  # No content is copied.
            Command(("update-index", "-q", "--refresh")),
        ]
        commands = [*steps, *_comparisons(("diff-index",), (base,), output)]
        done = await git.each(reader, commands, write=[output], read=[source.common_dir / "objects"])
        names = tuple(os.fsencode(each).decode(errors="replace") for each in inner)
        result = await in_thread(lambda: _result(base, output, done, len(steps)), name="ramet-diff")
        return dataclasses.replace(result, repositories_left_out=names)


async def branch_diff(git: Git, branch: str, base: str, source: Checkout) -> CopyDiff | None:
    """Return what differs on a branch of a run from a commit; None if the branch is not there. Raises NoWorktree."""
    _check_id(source.top, base)
    if not branch.startswith(BRANCH_PREFIX) or not branch.isprintable():
        raise NoWorktree(source.top, f"{branch[:100]!r} is no branch of a run", "look at it")
    git = dataclasses.replace(confine(git), timeout_s=_TIMEOUT_S, file_bytes=_MAX_OUTPUT)
    [tips] = (await run_git(git, source, [tips_of(f"refs/heads/{branch}")])).outputs
    [tip] = tips_in(tips)
    if not tip:
        return None
    with tempfile.TemporaryDirectory(prefix="ramet-diff-") as staging:
        output = make_folder(pathlib.Path(staging).resolve() / "output", source.common_dir)  # noqa: ASYNC240 - one look
        commands = _comparisons(("diff-tree", "-r"), (base, tip), output)
        done = await git.each(source, commands, at_repository=True, write=[output])
        return await in_thread(lambda: _result(base, output, done, 0), name="ramet-diff")


def _comparisons(command: Sequence[str], commits: Sequence[str], output: pathlib.Path) -> list[Command]:
    """Return the commands that write the list of files, and the patch."""
    lists, patch = ("--raw", "--numstat", "-z"), ("--patch",)
    return [
        Command((*_BINARY, *command, *form, *_OPTIONS, *commits), stdout_file=str(output / name))
        for name, form in (("files", lists), ("patch", patch))
    ]


def _result(base: str, output: pathlib.Path, done: Done, before: int) -> CopyDiff:
    """Read what git wrote, which may take a second: in a thread. A patch that grew too large is read up to there.

    Raises NoWorktree, OSError.
    """
    has_files = len(done.outputs) > before
    if done.failure is not None and not (has_files and _size(output / "patch") >= MAX_PATCH):
        raise done.failure
    files, count = _files_in(_beginning(output / "files", _MAX_OUTPUT))
    data = _beginning(output / "patch", MAX_PATCH + 1)
    is_cut = len(data) > MAX_PATCH
    if is_cut:
        data = data[: data.rfind(b"\n", 0, MAX_PATCH) + 1] or data[:MAX_PATCH]
    patch = data.decode(errors="replace")
    return CopyDiff(base=base, files=files, files_left_out=count - len(files), patch=patch, is_cut=is_cut)


def _files_in(output: bytes) -> tuple[list[ChangedFile], int]:
    """Return the first files of git's lists, and the number of all."""
    fields = output.split(b"\0")[:-1]
    changes, at = dict[bytes, Change](), 0
    while len(fields) > at + 1 and fields[at].startswith(b":"):  # A hostile commit may have one name twice.
        changes[fields[at + 1]] = _CHANGES.get(chr(fields[at].split()[-1][0]), "changed")
        at += 2
    files = list[ChangedFile]()
    for each in fields[at:]:
        added, removed, path = each.split(b"\t", 2)
        if path in changes and len(files) < MAX_FILES:
            lines = [int(number) if number.isdigit() else None for number in (added, removed)]
            files.append(ChangedFile(path.decode(errors="replace"), changes[path], *lines))
    return files, len(changes)


def _beginning(path: pathlib.Path, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(length)


def _size(path: pathlib.Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _repositories_in(top: pathlib.Path) -> list[str]:
    """Return the paths of repositories inside a tree. Raises NoWorktree for a tree with too many entries."""
    paths, entries, waiting = list[str](), 0, [str(top)]
    while waiting:  # Not os.walk, which calls itself in each folder: a run may nest thousands.
        folder, names = waiting.pop(), set[str]()
        with contextlib.suppress(OSError), os.scandir(folder) as listing:  # Git cannot read it either.
            for entry in listing:
                names.add(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                if entries + len(names) > MAX_ENTRIES:
                    reason = f"it has more than {MAX_ENTRIES} files and folders"
                    raise NoWorktree(top, reason, "look at its folder")
        entries += len(names)
        if folder != str(top) and ".git" in names:
            paths.append(os.path.relpath(folder, top))
        if len(paths) > _MAX_INNER:
            raise NoWorktree(top, f"more than {_MAX_INNER} repositories are inside it", "look at its folder")
    return paths


def _check_id(top: pathlib.Path, commit: str) -> None:
    if not _ID.fullmatch(commit):
        raise NoWorktree(top, f"{commit[:100]!r} is no commit", "look at the journal")
