"""Tests of irregular files in repositories: a pipe, device or endless file is refused before git would block on it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest

from ramet.isolation.git.git import Git, NoWorktree
from ramet.isolation.git.sandbox.user_settings import program_folders
from ramet.isolation.git.worktree import create, finish

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(cwd: pathlib.Path, *args: str) -> None:
    """Run git as a user would. Raises CalledProcessError if it fails."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost"]
    subprocess.run(["git", *identity, *args], cwd=cwd, capture_output=True, check=True)


@pytest.fixture
def repo(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create a repository with one commit."""
    path = tmp_path / "repo"
    path.mkdir()
    (path / "a.txt").write_text("one\n")
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "start")
    return path


class TrustCalls:
    """Trust check that returns False and records the folders of its calls, which come just before git starts."""

    def __init__(self) -> None:
        self.folders: list[pathlib.Path] = []

    def __call__(self, folder: pathlib.Path) -> bool:
        self.folders.append(folder)
        return False


def pipe_at(name: str) -> Callable[[pathlib.Path], str]:
    def build(repo: pathlib.Path) -> str:
        (repo / name).unlink(missing_ok=True)
        os.mkfifo(repo / name)
        return name

    build.__name__ = name
    return build


def include_pipe(repo: pathlib.Path) -> str:
    git(repo, "config", "include.path", "../pipe")
    os.mkfifo(repo / "pipe")
    return "pipe"


def named_by(key: str) -> Callable[[pathlib.Path], str]:
    def build(repo: pathlib.Path) -> str:
        git(repo, "config", key, "pipe")
        os.mkfifo(repo / "pipe")
        return "pipe"

    build.__name__ = key
    return build


def named_by_its_whole_path(repo: pathlib.Path) -> str:
    git(repo, "config", "diff.orderFile", str(repo.parent / "pipe"))
    os.mkfifo(repo.parent / "pipe")
    return "pipe"


def named_from_the_home(repo: pathlib.Path) -> str:
    name = os.path.relpath(repo.parent, os.path.expanduser("~"))  # noqa: PTH111 - `..` from the home
    git(repo, "config", "core.excludesFile", f"~/{name}/pipe")
    os.mkfifo(repo.parent / "pipe")
    return "pipe"


def named_if_it_exists(repo: pathlib.Path) -> str:
    git(repo, "config", "core.excludesFile", ":(optional)pipe")
    os.mkfifo(repo / "pipe")
    return "pipe"


def named_by_an_include(repo: pathlib.Path) -> str:
    git(repo, "config", "includeIf.onbranch:ramet/**.path", "more")
    git(repo, "config", "--file", str(repo / ".git" / "more"), "core.attributesFile", "/dev/zero")
    return "/dev/zero"


def named_by_a_worktree(repo: pathlib.Path) -> str:
    git(repo, "config", "extensions.worktreeConfig", "true")
    git(repo, "config", "--worktree", "core.excludesFile", "/dev/zero")
    return "/dev/zero"


def endless_and_named(repo: pathlib.Path) -> str:
    with (repo / "patterns").open("wb") as file:
        file.truncate(1 << 40)
    git(repo, "config", "core.excludesFile", "patterns")
    return "patterns"


def of_the_kernel(repo: pathlib.Path) -> str:
    git(repo, "config", "core.excludesFile", "/proc/self/pagemap")  # It looks like an empty regular file.
    return "/proc/self/pagemap"


def endless_alternates(repo: pathlib.Path) -> str:
    (repo / ".git" / "objects" / "info").mkdir(exist_ok=True)
    with (repo / ".git" / "objects" / "info" / "alternates").open("wb") as file:
        file.truncate(1 << 40)
    return "alternates"


def device(repo: pathlib.Path) -> str:
    (repo / ".git" / "packed-refs").symlink_to("/dev/zero")
    return "packed-refs"


def linked_folder(repo: pathlib.Path) -> str:
    (repo / ".git" / "refs" / "heads").rename(repo / "heads")
    (repo / ".git" / "refs" / "heads").symlink_to("../../heads")
    os.mkfifo(repo / "heads" / "other")
    return "other"


def endless(repo: pathlib.Path) -> str:
    with (repo / ".git" / "packed-refs").open("wb") as file:
        file.truncate(1 << 40)
    return "packed-refs"


def symref(repo: pathlib.Path, name: str) -> None:
    """Make the branch refer to another file of the repository."""
    (repo / ".git" / "refs" / "heads" / "main").write_text(f"ref: {name}\n")


def endless_branch(repo: pathlib.Path) -> str:
    with (repo / ".git" / "refs" / "heads" / "index").open("wb") as file:
        file.truncate(1 << 40)
    symref(repo, "refs/heads/index")
    return "index"


def endless_in_a_folder_of_objects_too(repo: pathlib.Path) -> str:
    (repo / ".git" / "refs" / "heads").rename(repo / "heads")
    (repo / ".git" / "modules" / "sub" / "objects").mkdir(parents=True)
    for name in ("modules/sub/objects/xx", "objects/xx", "refs/heads"):  # In whatever order they come.
        (repo / ".git" / name).symlink_to(repo / "heads")
    with (repo / "heads" / "other").open("wb") as file:
        file.truncate(1 << 40)
    return "refs/heads/other"


BUILDERS = (
    *map(pipe_at, (".git/config", ".git/HEAD", ".git/info/attributes", ".git/refs/heads/main", ".gitattributes")),
    include_pipe,
    *map(named_by, ("core.attributesFile", "core.excludesFile", "mailmap.file", "blame.ignoreRevsFile")),
    named_by_its_whole_path,
    named_from_the_home,
    named_if_it_exists,
    named_by_an_include,
    named_by_a_worktree,
    endless_and_named,
    of_the_kernel,
    endless_alternates,
    device,
    linked_folder,
    endless,
    endless_branch,
    endless_in_a_folder_of_objects_too,
)


def refs_of_devices(repo: pathlib.Path) -> str:
    (repo / ".git" / "refs" / "heads").rename(repo / "heads")
    (repo / ".git" / "refs" / "heads").symlink_to("/dev")
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/zero\n")
    return "refs/heads"


def refs_by_way_of_the_tree(repo: pathlib.Path) -> str:
    (repo / "way").symlink_to("/dev")
    (repo / ".git" / "refs" / "replace").symlink_to("../../way")
    return "refs/replace"


def pack_of_pipes(repo: pathlib.Path) -> str:
    (repo / ".git" / "objects" / "pack").rmdir()
    (repo / ".git" / "objects" / "pack").symlink_to(repo.parent / "outside")
    (repo.parent / "outside").mkdir()
    os.mkfifo(repo.parent / "outside" / f"pack-{'a' * 40}.idx")
    return "objects/pack"


def logs_of_devices(repo: pathlib.Path) -> str:
    shutil.rmtree(repo / ".git" / "logs")
    (repo / ".git" / "logs").symlink_to("/dev")
    return "logs"


def files_of_a_process(repo: pathlib.Path) -> str:
    (repo / ".git" / "rr-cache").symlink_to("/proc/self/fd")
    return "rr-cache"


OUTSIDE_BUILDERS = (refs_of_devices, refs_by_way_of_the_tree, pack_of_pipes, logs_of_devices, files_of_a_process)


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
async def test_a_file_on_which_git_would_block_is_refused(
    repo: pathlib.Path, build: Callable[[pathlib.Path], str], is_trusted: bool
) -> None:
    """The error names the file and the required kind; trust does not matter."""
    name = build(repo)

    with pytest.raises(NoWorktree, match=rf"{name}: it is (not a regular file|a file of the kernel|larger than)"):
        await create(repo, "a", git=Git(timeout_s=60, trusts=lambda _: is_trusted))


@pytest.mark.parametrize("build", OUTSIDE_BUILDERS, ids=lambda build: build.__name__)
async def test_a_folder_of_git_that_leads_out_of_the_repository_is_refused(
    repo: pathlib.Path, build: Callable[[pathlib.Path], str]
) -> None:
    """In an untrusted repository the folder is refused by name, because git would read any file in it."""
    name = build(repo)

    with pytest.raises(NoWorktree, match=rf"\.git/{name}: it leads out of the repository"):
        await create(repo, "a", git=Git(timeout_s=60))


@pytest.mark.parametrize("build", [refs_of_devices, refs_by_way_of_the_tree, pack_of_pipes, logs_of_devices])
async def test_a_linked_folder_of_a_trusted_repository_is_checked(
    repo: pathlib.Path, build: Callable[[pathlib.Path], str]
) -> None:
    """A device or a pipe in it is refused, as in the repository itself."""
    name = build(repo)

    with pytest.raises(NoWorktree, match=rf"\.git/{name}/.*: it is not a regular file"):
        await create(repo, "a", git=Git(timeout_s=60, trusts=lambda _: True))


async def test_objects_on_another_disk_can_be_used_in_a_trusted_repository(repo: pathlib.Path) -> None:
    """Users move this folder and leave a link."""
    (repo / ".git" / "objects").rename(repo.parent / "objects")
    (repo / ".git" / "objects").symlink_to(repo.parent / "objects")

    assert await finish(await create(repo, "a", git=(calm := Git(trusts=lambda _: True))), git=calm) is None


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_folders_that_git_does_not_read_may_be_elsewhere(repo: pathlib.Path, is_trusted: bool) -> None:
    """Hooks, which never run here, and folders of extensions may be links, also in a submodule."""
    (repo.parent / "shared").mkdir()
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(repo), "sub")
    git(repo, "commit", "--quiet", "-m", "sub")
    for name in ("hooks", "lfs", "annex", "modules/sub/hooks", "modules/sub/lfs"):
        shutil.rmtree(repo / ".git" / name, ignore_errors=True)
        (repo / ".git" / name).symlink_to(repo.parent / "shared")

    assert await finish(await create(repo, "a", git=(calm := Git(trusts=lambda _: is_trusted))), git=calm) is None


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_links_of_a_working_tree_may_lead_anywhere(repo: pathlib.Path, is_trusted: bool) -> None:
    """Git treats such a link as a file; in a worktree the repository may link into the main working tree."""
    (repo / "devices").symlink_to("/dev")
    (repo / "rr-cache").mkdir()
    (repo / ".git" / "rr-cache").symlink_to("../rr-cache")
    git(repo, "add", "devices")
    git(repo, "commit", "--quiet", "-m", "link")
    git(repo, "worktree", "add", "--quiet", str(repo.parent / "linked"))

    for folder in (repo, repo.parent / "linked"):
        child = await create(folder, "a", git=(calm := Git(trusts=lambda _: is_trusted)))
        assert await finish(child, git=calm) is None


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("name", ["lfs/pipe", "index2", "objects/info/large", "ORIG_HEAD"])
async def test_a_branch_that_refers_to_a_file_that_is_no_reference_is_refused(
    repo: pathlib.Path, name: str, is_trusted: bool
) -> None:
    """Git would read a file there that ramet does not check, or whose size it does not limit."""
    (repo / ".git" / name).parent.mkdir(exist_ok=True)
    if name == "lfs/pipe":
        os.mkfifo(repo / ".git" / name)
    else:
        with (repo / ".git" / name).open("wb") as file:
            file.truncate(1 << 27)
    symref(repo, name)

    with pytest.raises(NoWorktree, match=r"refs/heads/main: it stands for a file that is no reference"):
        await create(repo, "a", git=Git(timeout_s=60, trusts=lambda _: is_trusted))


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_a_branch_that_refers_to_another_branch_is_accepted(repo: pathlib.Path, is_trusted: bool) -> None:
    """Links, which git once wrote for such branches, are accepted too."""
    git(repo, "branch", "other")
    symref(repo, "refs/heads/other")
    git(repo, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/heads/main")
    (repo / ".git" / "refs" / "heads" / "old").symlink_to("refs/heads/other")
    (repo / ".git" / "COMMIT_EDITMSG").write_text("ref: a message that begins like this\n")

    assert await finish(await create(repo, "a", git=(calm := Git(trusts=lambda _: is_trusted))), git=calm) is None


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("name", ["link", "%(prefix)/../dev/zero"])
async def test_attributes_whose_file_cannot_be_checked_are_refused(
    repo: pathlib.Path, name: str, is_trusted: bool
) -> None:
    """A relative name is a file of the new worktree, where HEAD may have a link; only git knows its own prefix."""
    git(repo, "config", "core.attributesFile", name)

    with pytest.raises(NoWorktree, match=r"config: core\.attributesfile names"):
        await create(repo, "a", git=Git(timeout_s=60, trusts=lambda _: is_trusted))


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_names_on_which_git_does_not_block_are_accepted(repo: pathlib.Path, is_trusted: bool) -> None:
    """The null device, a missing file, a regular file, a folder, and a command are accepted."""
    git(repo, "config", "core.attributesFile", os.devnull)
    git(repo, "config", "core.excludesFile", "missing")
    git(repo, "config", "diff.orderFile", "a.txt")
    git(repo, "config", "init.templateDir", str(repo))
    git(repo, "config", "core.editor", "vi -u NONE")

    assert await finish(await create(repo, "a", git=(calm := Git(trusts=lambda _: is_trusted))), git=calm) is None


@pytest.mark.parametrize("name", ["HEAD", "config", "packed-refs", "refs/heads/x"])
async def test_a_pipe_in_an_embedded_repository_blocks_nothing(repo: pathlib.Path, name: str) -> None:
    """Git reads the HEAD of embedded repositories; the copy is kept, and git is not started."""
    child = await create(repo, "a")
    inner = child.path / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    (inner / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(inner / ".git" / name)
    calls = TrustCalls()

    assert await finish(child, git=Git(timeout_s=60, trusts=calls)) == child.path
    assert not calls.folders, "git was started"


@pytest.mark.parametrize("folder", [".", "inner"])
async def test_a_repository_that_refers_to_itself_blocks_nothing(repo: pathlib.Path, folder: str) -> None:
    """The copy is kept, whether its own `.git` file or that of an embedded repository is circular."""
    child = await create(repo, "a")
    inner = child.path / folder
    inner.mkdir(exist_ok=True)
    (inner / "circle").symlink_to("circle")
    (inner / ".git").write_text("gitdir: circle\n")

    assert await finish(child) == child.path


async def test_a_pipe_in_a_copy_blocks_nothing(repo: pathlib.Path) -> None:
    """The copy counts as changed and is kept."""
    child = await create(repo, "a")
    (child.path / "sub").mkdir()
    (child.path / "sub" / "b").write_text("")
    os.mkfifo(child.path / "sub" / ".gitignore")

    assert await finish(child, git=Git(timeout_s=60)) == child.path


def test_an_unreadable_entry_of_the_path_is_skipped(tmp_path: pathlib.Path) -> None:
    """Programs of the other folders are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = f"/{'x' * 5000}:{folder}"

    assert str(folder) in program_folders("/usr/bin/git", {"PATH": path, "HOME": "/root"}, avoided_folders=[])
