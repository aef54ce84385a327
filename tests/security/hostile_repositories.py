"""Repositories whose configuration names programs, and a report of which programs run when ramet uses git there.

Run as `python -m tests.security.hostile_repositories FOLDER [WITHOUT [VECTOR…]]`: builds each repository below FOLDER,
takes a worktree through its whole life in it, and prints as JSON which programs ran. WITHOUT names a layer to remove.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from ramet.isolation.git import git as git_module
from ramet.isolation.git import worktree
from ramet.isolation.git.git import NoWorktree

_IMPORTS = "import sys; sys.path.insert(0, sys.argv[1]); from ramet.isolation.git.sandbox import "
#: The launcher of a sandbox, with one of its layers removed.
WITHOUT = {
    "options": f"{_IMPORTS} launcher, options; options.overrides = lambda found, user: []; "
    "options.UNTRUSTED_ENV = {'GIT_CONFIG_NOSYSTEM': '1', 'GIT_CONFIG_GLOBAL': '/dev/null'}; launcher.main()",
    "sandbox": f"{_IMPORTS} launcher, confinement; confinement.attempts = lambda: (lambda request: None,); "
    "confinement.is_apart = lambda attempt: False; confinement.seal = lambda request, is_apart: None; launcher.main()",
}
ATTRIBUTES = "*.txt filter=evil diff=evil merge=evil\n"


class Hostile(NamedTuple):
    """Hostile repository, and the files that its programs make when they run."""

    repo: pathlib.Path
    folder: pathlib.Path  #: that a session is opened in
    outside: pathlib.Path  #: a canary that a sandbox keeps from being made
    inside: pathlib.Path  #: a canary in the repository, where a sandbox may write

    @property
    def command(self) -> str:
        """Return a shell command that makes both canaries."""
        return f"touch '{self.inside}' '{self.outside}'"


def git(repo: pathlib.Path, *args: str) -> str:
    """Run git as a careless user does, and return its output."""
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@localhost", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *args], cwd=repo, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def plain(base: pathlib.Path, name: str, *, attributes: str = ATTRIBUTES) -> Hostile:
    """Make a repository with one commit that is still harmless."""
    repo = base / name
    repo.mkdir(parents=True)
    (repo / "a.txt").write_text("one\n")
    (repo / ".gitattributes").write_text(attributes)
    git(repo, "init", "--quiet", "--initial-branch=main")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "start")
    return Hostile(repo, repo, base / f"{name}.outside", repo / ".git" / "canary")


def smudge(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in its configuration that a checkout runs."""
    made = plain(base, "smudge")
    git(made.repo, "config", "filter.evil.smudge", f"{made.command}; cat")
    return made


def clean(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in its configuration that `git status` runs."""
    made = plain(base, "clean")
    git(made.repo, "config", "filter.evil.clean", f"{made.command}; cat")
    return made


def process(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in its configuration that stays for many files."""
    made = plain(base, "process")
    git(made.repo, "config", "filter.evil.process", f"{made.command}; exit 1")
    return made


def odd_name(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter whose name holds the characters of options."""
    made = plain(base, "odd-name", attributes="*.txt filter=a=b.smudge=c\n")
    git(made.repo, "config", "filter.a=b.smudge=c.smudge", f"{made.command}; cat")
    return made


def info_attributes(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter that only `.git/info/attributes` selects."""
    made = plain(base, "info-attributes", attributes="")
    (made.repo / ".git" / "info" / "attributes").write_text(ATTRIBUTES)
    git(made.repo, "config", "filter.evil.smudge", f"{made.command}; cat")
    return made


def included(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in a file that the configuration includes."""
    made = plain(base, "included")
    git(made.repo, "config", "--file", ".git/more", "filter.evil.smudge", f"{made.command}; cat")
    git(made.repo, "config", "include.path", "more")
    return made


def included_if(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in nested files that the configuration includes only on ramet's branches."""
    made = plain(base, "included-if")
    (made.repo / ".git" / "more").mkdir()
    git(made.repo, "config", "--file", ".git/more/last", "filter.evil.smudge", f"{made.command}; cat")
    git(made.repo, "config", "--file", ".git/more/first", "includeIf.onbranch:ramet/**.path", "last")
    git(made.repo, "config", "includeIf.onbranch:ramet/**.path", "more/first")
    return made


def included_in_worktrees(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in a file that the configuration includes only in linked worktrees."""
    made = plain(base, "included-in-worktrees")
    git(made.repo, "config", "--file", ".git/more", "filter.evil.smudge", f"{made.command}; cat")
    git(made.repo, "config", "includeIf.gitdir/i:**/Worktrees/**.path", str(made.repo / ".git" / "more"))
    return made


def worktree_config(base: pathlib.Path) -> Hostile:
    """Make a repository with a filter in the configuration of a worktree."""
    made = plain(base, "worktree-config")
    git(made.repo, "config", "extensions.worktreeConfig", "true")
    git(made.repo, "config", "--worktree", "filter.evil.smudge", f"{made.command}; cat")
    return made


def promisor(base: pathlib.Path) -> Hostile:
    """Make a repository with a missing object that a program of the repository would fetch."""
    made = plain(base, "promisor")
    origin = base / "promisor-origin"
    git(base, "clone", "--quiet", "--bare", str(made.repo), str(origin))
    blob = git(made.repo, "rev-parse", "HEAD:a.txt")
    (made.repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.url": str(origin),
        "remote.evil.promisor": "true",
        "remote.evil.uploadpack": f"{made.command}; git-upload-pack",
        "protocol.allow": "always",
    }.items():
        git(made.repo, "config", key, value)
    return made


def embedded(base: pathlib.Path) -> Hostile:
    """Make a bare repository with its own programs among the files of another repository."""
    outer = plain(base, "embedded")
    inner = outer.repo / "inner"
    shutil.copytree(outer.repo / ".git", inner)
    made = outer._replace(folder=inner, inside=inner / "canary")
    for key, value in {
        "core.bare": "false",
        "core.worktree": str(inner),
        "core.fsmonitor": f"{made.command}; echo",
        "filter.evil.smudge": f"{made.command}; cat",
    }.items():
        git(base, "config", "--file", str(inner / "config"), key, value)
    return made


def nested(base: pathlib.Path) -> Hostile:
    """Make a repository with the place of a submodule, which `work_in` fills with a repository."""
    made = plain(base, "nested")
    link = git(made.repo, "rev-parse", "HEAD")
    git(made.repo, "update-index", "--add", "--cacheinfo", f"160000,{link},sub")
    git(made.repo, "commit", "--quiet", "-m", "link")
    return made._replace(outside=base / "nested.outside", inside=made.repo / ".git" / "canary")


def burglar(base: pathlib.Path, port: int) -> Hostile:
    """Make a repository with a filter that tries to leave its sandbox. The filter records what it could do."""
    made = plain(base, "burglar")
    home = base / "home"
    home.mkdir()
    (home / "secret").write_text("hidden\n")
    (home / "tool").write_text("#!/bin/sh\n")
    (made.repo / ".ramet").mkdir()
    (made.repo / ".ramet" / "operator-token").write_text("hidden\n")
    attempts = {
        "touched": f"touch '{made.outside}'",
        "read": f"grep -q hidden '{home}/secret'",
        "stole": f"grep -q hidden '{made.repo}/.ramet/operator-token'",
        "changed": f"chmod 4755 '{home}/tool'",
        "dated": f"touch -d 2001-01-01 '{home}/tool'",
        "signalled": f"kill -0 {os.getpid()}",
        "connected": f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'",
    }
    tried = "; ".join(f"({attempt}) && echo {name} >> '{made.inside}'" for name, attempt in attempts.items())
    script = made.repo / ".git" / "burglar.sh"
    script.write_text(f"echo ran >> '{made.inside}'; {tried}; cat\n")
    git(made.repo, "config", "filter.evil.smudge", f"sh '{script}' 2>/dev/null")
    return made


BUILDERS: dict[str, Callable[[pathlib.Path], Hostile]] = {
    builder.__name__: builder
    for builder in (
        smudge,
        clean,
        process,
        odd_name,
        info_attributes,
        included,
        included_if,
        included_in_worktrees,
        worktree_config,
        promisor,
        embedded,
        nested,
    )
}


def work_in(path: pathlib.Path, made: Hostile) -> None:
    """Change a file but not its size, so that git must read the file. Fill the place of a submodule."""
    file = path / "a.txt"
    if file.exists():
        file.write_text("two\n")
    sub = path / "sub"
    if made.folder.name == "nested" and sub.is_dir():
        git(made.repo.parent, "clone", "--quiet", str(made.repo), str(sub))
        git(sub, "checkout", "--quiet", "HEAD~1")
        git(sub, "config", "filter.evil.clean", f"{made.command}; cat")
        (sub / "a.txt").write_text("two\n")
        file.write_text("one\n")


async def use_worktree(made: Hostile) -> list[str]:
    """Create, change, finish, restore and prune a worktree. Return the refusals."""
    refusals = []
    try:
        child = await worktree.create(made.folder, "child")
        work_in(child.path, made)
        await worktree.finish(child)
        shutil.rmtree(child.path, ignore_errors=True)
        await worktree.restore(made.folder, str(child.path), branch=child.branch, base=child.base)
        work_in(child.path, made)
    except NoWorktree as refusal:
        refusals.append(str(refusal))
    try:
        await worktree.prune(made.folder)
    except NoWorktree as refusal:
        refusals.append(str(refusal))
    return refusals


def live_unprotected(made: Hostile) -> None:
    """Use the repository with plain git, as the positive control."""
    copy = made.repo.parent / "copy"
    subprocess.run(["git", "worktree", "add", "-b", "ramet/copy", str(copy)], cwd=made.folder, capture_output=True)
    if copy.is_dir():
        work_in(copy, made)
        subprocess.run(["git", "status"], cwd=copy, capture_output=True)


def outcome(made: Hostile, refusals: list[str]) -> dict[str, object]:
    """Return what a repository's programs did."""
    is_there = made.inside.exists()
    return {
        "outside": made.outside.exists(),
        "inside": is_there,
        "did": sorted(set(made.inside.read_text().split())) if is_there else [],
        "refusals": refusals,
    }


async def run_each(base: pathlib.Path, without: str, names: list[str]) -> dict[str, dict[str, object]]:
    """Build each named repository, use it, and return what its programs did."""
    if without:
        git_module._LAUNCHER = WITHOUT[without]
    found: dict[str, dict[str, object]] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name in names or BUILDERS:
            made = burglar(base, server.getsockname()[1]) if name == "burglar" else BUILDERS[name](base)
            refusals = await use_worktree(made)
            found[name] = outcome(made, refusals)
    return found


if __name__ == "__main__":
    folder, without, *vectors = *sys.argv[1:2], *(sys.argv[2:] or [""])
    sys.stdout.write(json.dumps(asyncio.run(run_each(pathlib.Path(folder), without, vectors))))
