"""Repositories that the host itself writes, and packs of objects, the only thing that passes between repositories."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import stat
from collections.abc import Iterator, Sequence

from ramet.disk.regular_files import read_regular
from ramet.isolation import safe_walk
from ramet.isolation.git.git import Done, Git, trusts_none
from ramet.isolation.git.sandbox.request import Command
from ramet.tools.git.git_checkout import Checkout

_STAGING = ".clone"  #: in the run's folder, where only the host may write
_MAX_SHALLOW = 16 << 20
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CONFIG = """[core]
\trepositoryformatversion = {version}
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
{extensions}[user]
\tname = ramet
\temail = ramet@localhost
"""


async def write_pack(
    git: Git,
    repo: Checkout,
    revisions: str,
    into: pathlib.Path,
    *,
    first: Sequence[Command] = (),
    reads_tree: bool = False,
) -> pathlib.Path:
    """Write the objects of revisions as a pack that needs no others, after other commands; return its file.

    Raises NoWorktree, and OSError.
    """
    file = into / "pack"
    args = ("pack-objects", "--quiet", "--revs", "--delta-base-offset", "--stdout")
    commands = [*first, Command(args, revisions, stdout_file=str(file))]
    await run_git(git, repo, commands, reads_tree=reads_tree, write=[into])
    return check_regular(file)


def read_pack(pack: pathlib.Path, *options: str) -> Command:
    """Return the command that adds a pack to a repository."""
    return Command(("index-pack", "--stdin", *options), stdin_file=str(pack))


async def run_git(
    git: Git,
    checkout: Checkout,
    commands: Sequence[Command],
    *,
    reads_tree: bool = False,
    write: Sequence[pathlib.Path] = (),
) -> Done:
    done = await git.each(checkout, commands, shows_tree=reads_tree, write=write)
    if done.failure is not None:
        raise done.failure
    return done


def confine(git: Git) -> Git:
    """Return git as a clone needs it: nothing that a repository or the user configured runs, in any repository."""
    return dataclasses.replace(git, trusts=trusts_none, has_user_settings=False)


@contextlib.contextmanager
def staging_folder(workspace: pathlib.Path) -> Iterator[pathlib.Path]:
    """Provide an empty folder beside a workspace, which no guest reaches, and remove it."""
    folder = workspace.parent.resolve() / _STAGING
    safe_walk.remove_path(folder)  # A killed kernel left it.
    folder.mkdir(0o700)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            safe_walk.remove_path(folder)


def lay_out(
    top: pathlib.Path,
    git_dir: pathlib.Path,
    *,
    head: str,
    example: str,
    shallow: str,
    objects_of: Checkout | None = None,
    like: pathlib.Path | None = None,
) -> Checkout:
    """Write the files of an empty repository with ids like `example`.

    It belongs to whoever owns `like`, by default the repository that it borrows objects of.
    """
    is_sha256 = len(example) == 64
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (git_dir / name).mkdir(parents=True)
    extensions = "[extensions]\n\tobjectformat = sha256\n" if is_sha256 else ""
    (git_dir / "config").write_text(_CONFIG.format(version=int(is_sha256), extensions=extensions))
    (git_dir / "HEAD").write_text(f"ref: refs/heads/{head}\n")
    if shallow:
        (git_dir / "shallow").write_text(shallow)
    if objects_of is not None:
        (git_dir / "objects" / "info" / "alternates").write_text(f"{objects_of.common_dir / 'objects'}\n")
        give_like(git_dir, objects_of.common_dir if like is None else like)
    return Checkout(top, pathlib.Path(), git_dir, git_dir, True)


def shallow_commits(common_dir: pathlib.Path) -> str:
    """Return the commits at which a history was cut off, one a line; nothing else of the file is taken."""
    try:
        lines = read_regular(common_dir / "shallow", limit=_MAX_SHALLOW).decode("ascii", "replace").split()
    except OSError:
        return ""
    return "".join(f"{each}\n" for each in lines if _ID.fullmatch(each))


def make_folder(path: pathlib.Path, like: pathlib.Path) -> pathlib.Path:
    path.mkdir(0o700)
    give_like(path, like)
    return path


def give_like(path: pathlib.Path, like: pathlib.Path) -> None:
    """Give a folder of the host to the owner of another one, as whom git works there."""
    status = like.lstat()
    give(path, status.st_uid, status.st_gid)


def give(path: pathlib.Path, uid: int, gid: int) -> None:
    if os.geteuid() != 0:
        return  # Everything is ours already.
    os.lchown(path, uid, gid)
    for folder, names, files in os.walk(path):
        for name in (*names, *files):
            os.lchown(os.path.join(folder, name), uid, gid)  # noqa: PTH118 - a path for each file takes long


def check_regular(path: pathlib.Path) -> pathlib.Path:
    """Return the path of a file that git wrote. Raises OSError for another kind of entry."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(0, "it is not a regular file", str(path))
    return path


def parse_id(output: str) -> str:
    if not _ID.fullmatch(output.strip()):
        raise OSError(0, f"git printed no id: {output[:100]!r}")
    return output.strip()
