"""Conversion of a spec into an assignment: it refuses what the backend cannot give, and prepares the workspace."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.core.policy.mount_rights import Mounts
from ramet.isolation import mounts, safe_walk
from ramet.isolation.assignment import Assignment, ZygoteConfig
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.linux.beneath import open_beneath, open_without_links
from ramet.isolation.writable_mounts.refusals import checked_sources

#: Processor time that a run may use beyond its time limit, so that the time limit ends the run first.
CPU_SLACK_S = 5

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Paths(NamedTuple):
    """The paths of a spec, as they appear inside."""

    workspace: str
    mounts: Mapping[str, str]  #: with the source of each
    writable: tuple[str, ...]  #: those of the mounts that are writable
    import_dir: str | None


def paths_of(spec: SandboxSpec, runs: str) -> Paths:
    """Return the paths of a spec. Raises InvalidValue if no sandbox can have one of them."""
    workspace = absolute(spec.workspace)
    if not workspace.startswith(f"{runs}/"):
        raise InvalidValue("workspace", str(spec.workspace), f"a folder below {runs}")
    readonly, writable = (tuple(map(absolute, each)) for each in spec.grant.mounts)
    sources = checked_sources(Mounts(readonly, writable), spec.mount_roots, runs)
    if spec.cwd is not None and (source := mounts.source_below(absolute(spec.cwd), sources)) is not None:
        _check_cwd(absolute(spec.cwd), source)
    import_dir = None if spec.import_dir is None else absolute(spec.import_dir)
    if import_dir is not None and (
        not import_dir.startswith(f"{runs}/") or not _is_folder_of(runs, import_dir[len(runs) + 1 :])
    ):
        raise InvalidValue("import_dir", str(spec.import_dir), f"a folder below {runs}")
    return Paths(workspace, sources, writable, import_dir)


def build_assignment(spec: SandboxSpec, config: ZygoteConfig, owner: tuple[int, int] | None) -> Assignment:
    """Return the assignment of an agent, and give the workspace to its user. Raises InvalidValue or SandboxFailed."""
    grant, runs = spec.grant, config.runs
    workspace, sources, writable, import_dir = paths_of(spec, runs)
    proxy = None if spec.proxy is None else absolute(spec.proxy)
    if proxy is not None and not proxy.startswith(f"{runs}/"):
        raise InvalidValue("proxy", str(spec.proxy), f"a socket below {runs}")
    machine = "where /run is not memory" if config.mode == "pod" else "on a machine without user namespaces"
    if grant.secrets and not config.has_secrets:
        raise InvalidValue("secrets", tuple(grant.secrets), f"nothing, {machine}")
    machine = "on a kernel whose Landlock does not decide over TCP" if config.mode == "pod" else machine
    if grant.allowed_endpoints and not config.has_endpoints:
        raise InvalidValue("allowed_endpoints", tuple(grant.allowed_endpoints), f"nothing, {machine}")
    if (grant.ports or spec.has_loopback) and not config.has_ports:
        machine = "where a run has no loopback of its own; backend='bwrap' gives it one"
        if grant.ports:
            raise InvalidValue("ports", dict(grant.ports), f"nothing, {machine}")
        raise InvalidValue("models", tuple(grant.models), f"nothing, {machine}")
    if writable and not (config.is_apart and config.has_landlock and config.has_seccomp):
        machine = "where a run has no namespaces, Landlock and seccomp: nothing in a folder could be kept read-only"
        raise InvalidValue("writable_mounts", writable, f"nothing, {machine}")
    if spec.stdio and not config.is_apart:
        raise InvalidValue("stdio", spec.stdio, "nothing, where a run has no namespaces; backend='bwrap' gives them")
    if owner is not None:
        mounts.check_readable(sources)
        try:
            _give(runs, workspace[len(runs) + 1 :].split("/"), owner)
            if import_dir is not None:
                _open_path(runs, import_dir[len(runs) + 1 :].split("/"), owner)
            for fd in spec.stdio:  # So that /dev/stderr can be opened inside.
                os.fchown(fd, *owner)
        except OSError as error:
            raise SandboxFailed(f"workspace {workspace}: {error.strerror}") from error
    return Assignment(
        entry=spec.entry,
        env=dict(spec.env),
        workspace=workspace,
        cwd=workspace if spec.cwd is None else absolute(spec.cwd),
        tmp="/tmp" if "/tmp" in config.in_memory else workspace,
        mounts=sources,
        secrets=grant.secrets,
        proxy=proxy,
        import_dir=import_dir,
        tmpfs_mb=grant.tmpfs_size_mb,
        file_mb=grant.workspace_size_mb,
        memory_mb=grant.memory_mb,
        pids=grant.pids,
        cpu_s=math.ceil(grant.timeout_seconds * max(1.0, grant.cpu_cores)) + CPU_SLACK_S,
        has_unmapped_memory=False,
        ports=tuple(grant.ports.values()),
        has_loopback=spec.has_loopback,
        writable=writable,
        stdio_count=len(spec.stdio),
    )


def allow_traverse(folder: str | int, gid: int) -> None:
    """Let a group traverse a folder of ours, without reading it."""
    status = os.stat(folder)  # noqa: PTH116 - it may be a descriptor
    if status.st_gid != gid:
        os.chown(folder, -1, gid)
    if not status.st_mode & stat.S_IXGRP:
        os.chmod(folder, stat.S_IMODE(status.st_mode) | stat.S_IXGRP)  # noqa: PTH101 - likewise


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path without following links: inside, a path looks as it was written."""
    return os.path.abspath(path)  # noqa: PTH100


def _check_cwd(cwd: str, source: str) -> None:
    """Refuse a folder behind a symbolic link of a mount. A folder that does not exist is an error of the start."""
    try:
        os.close(open_without_links(source))
    except OSError as error:
        if error.errno == errno.ELOOP:
            accepted = "a folder of its mounts: it leads through a symbolic link"
            raise InvalidValue("cwd", cwd, accepted) from error


def _is_folder_of(runs: str, path: str) -> bool:
    """Return whether a folder exists, with no link on the path from the folder of all workspaces."""
    try:
        with safe_walk.open_root(Path(runs)) as root:
            fd = open_beneath(root, path)
    except OSError:
        return False
    try:
        return stat.S_ISDIR(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def _give(runs: str, names: list[str], owner: tuple[int, int]) -> None:
    """Make a user the owner of a folder, and let the user reach it; no link on the path is followed."""
    fd = _walk_to(runs, names, owner[1])
    try:
        os.fchown(fd, *owner)
    finally:
        os.close(fd)


def _open_path(runs: str, names: list[str], owner: tuple[int, int]) -> None:
    """Let a user reach a folder, and no more: the folder stays ours."""
    os.close(_walk_to(runs, names, owner[1]))


def _walk_to(runs: str, names: list[str], gid: int) -> int:
    fd = os.open(runs, _FOLDER)
    try:
        for name in names[:-1]:
            fd = _enter(fd, name)
            allow_traverse(fd, gid)
        return _enter(fd, names[-1])
    except BaseException:
        os.close(fd)
        raise


def _enter(fd: int, name: str) -> int:
    """Open a folder inside another, and close the outer one unless this raises."""
    child = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
    os.close(fd)
    return child


def is_open(path: str) -> bool:
    """Return whether any user may read a file, or enter and list a folder."""
    mode = Path(path).stat().st_mode
    return bool(mode & stat.S_IROTH and (mode & stat.S_IXOTH or not stat.S_ISDIR(mode)))
