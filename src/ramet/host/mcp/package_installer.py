"""Find the exact packages of a server's command, and install them, by the clients of their registries.

The clients (npm, pip) use the user's own registry, proxy and certificates. They run in a new folder, so that no
configuration file of a project is read. No code of a package runs: npm runs no scripts, pip takes wheels only. What is
installed are the versions and the hashes of the lock, or nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ramet.agent.files.mcp_lock import NpmPackage, PackageLock
from ramet.core.errors import InvalidValue, McpPackageFailed
from ramet.core.mcp.package_command import PackageCommand
from ramet.host.mcp.package_tree import RECORD, TREE, folder_name, is_unchanged, program_of, site_packages, tree_hash

MAX_OUTPUT: Final = 16 * 1024 * 1024  #: bytes of a client's answer
_MAX_REASON: Final = 400
#: Variables of pip that would install to another place, or less.
_PIP_PLACES: Final = ("TARGET", "PREFIX", "ROOT", "USER", "DRY_RUN", "REPORT", "PYTHON", "REQUIREMENT", "EDITABLE")
_NPM_OPTIONS: Final = (
    "--ignore-scripts",
    "--omit=dev",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--no-global",
    "--workspaces=false",
    "--loglevel=error",
)
_PIP_OPTIONS: Final = ("--no-input", "--disable-pip-version-check", "--only-binary", ":all:", "--ignore-installed")
_ROOT: Final = "mcp-server"
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def resolve(command: PackageCommand) -> PackageLock:
    """Return the newest packages that a command may mean, as they would be installed now. Raises McpPackageFailed."""
    with tempfile.TemporaryDirectory(prefix="ramet-mcp-") as scratch:
        find = _resolve_npm if command.registry == "npm" else _resolve_pypi
        try:
            lock = msgspec.convert(find(command, Path(scratch)), PackageLock, strict=True)
            lock.check(command.registry)
        except (msgspec.ValidationError, InvalidValue) as error:
            raise McpPackageFailed(command.requirement, f"its packages cannot be pinned: {error}") from None
    return lock


def install(command: PackageCommand, lock: PackageLock, packages: Path) -> Path:
    """Install the packages of a lock in the user's cache, unless they are there; return their folder.

    What broke off, also by a signal, leaves nothing that could pass for an installation. Raises McpPackageFailed.
    """
    packages.mkdir(mode=0o755, parents=True, exist_ok=True)
    target = packages / folder_name(command, lock)
    with _lock(packages):
        for left in packages.glob(".new-*"):  # of an installation that was killed
            shutil.rmtree(left, ignore_errors=True)
        if is_unchanged(target):
            return target
        with tempfile.TemporaryDirectory(prefix=".new-", dir=packages) as scratch:
            draft = Path(scratch) / target.name
            tree = draft / TREE
            tree.mkdir(parents=True)
            fill = _install_npm if command.registry == "npm" else _install_pypi
            fill(command, lock, tree)
            try:
                program_of(command, tree)
            except InvalidValue as error:
                raise McpPackageFailed(command.requirement, str(error)) from None
            _make_readable(draft)
            record = {"version": 1, "requirement": command.requirement, "lock": lock.digest, "tree": tree_hash(tree)}
            (draft / RECORD).write_text(json.dumps(record) + "\n")
            shutil.rmtree(target, ignore_errors=True)  # files that have changed
            draft.rename(target)
    return target


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_readable(folder: Path) -> None:
    """Let every user read the files: a sandbox may have a user of its own."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


# ---- npm


def _resolve_npm(command: PackageCommand, scratch: Path) -> dict[str, Any]:
    _write_root(command, scratch)
    _run(command, (*_npm(command), "install", "--package-lock-only", *_NPM_OPTIONS), scratch)
    content = json.loads((scratch / "package-lock.json").read_bytes())
    packages = {path: each for path, each in content["packages"].items() if path}
    for path, each in packages.items():
        if each.get("link") or each.get("inBundle") or not each.get("integrity"):
            reason = f"{path.rpartition('node_modules/')[2]} comes from no registry, or has no hash there"
            raise McpPackageFailed(command.requirement, reason)
    known = set(NpmPackage.__struct_encode_fields__)
    return {"npm": {path: {k: v for k, v in each.items() if k in known} for path, each in packages.items()}}


def _install_npm(command: PackageCommand, lock: PackageLock, tree: Path) -> None:
    root = _write_root(command, tree)
    packages = {path: msgspec.to_builtins(each) for path, each in lock.npm.items()}
    content = {"name": _ROOT, "lockfileVersion": 3, "requires": True, "packages": {"": root, **packages}}
    (tree / "package-lock.json").write_text(json.dumps(content))
    _run(command, (*_npm(command), "ci", *_NPM_OPTIONS), tree, lock)
    _check_installed(command, lock, tree)


def _check_installed(command: PackageCommand, lock: PackageLock, tree: Path) -> None:
    """Raise McpPackageFailed if npm installed anything but the lock.

    From a lock without addresses npm takes the versions and not the hashes. It compares what it receives with the hash
    that the registry tells, and writes that one down.
    """
    record = tree / "node_modules" / ".package-lock.json"
    installed = json.loads(record.read_bytes())["packages"]
    for path in sorted(installed.keys() | lock.npm.keys()):
        locked, found = lock.npm.get(path), installed.get(path)
        name = path.rpartition("node_modules/")[2]
        if locked is None:
            raise McpPackageFailed(command.requirement, f"{name} is not in its lock")
        if found is None and not (locked.optional or locked.dev_optional or locked.peer):
            raise McpPackageFailed(command.requirement, f"of the lock, {name} {locked.version}: it was not installed")
        if found is not None and (found.get("version"), found.get("integrity")) != (locked.version, locked.integrity):
            reason = f"of the lock, {name} {locked.version}: the registry has another content"
            raise McpPackageFailed(command.requirement, reason)


def _write_root(command: PackageCommand, folder: Path) -> dict[str, Any]:
    """Write the package that depends on the server's: the client takes this folder, and none above it."""
    _, _, version = command.requirement[1:].partition("@")
    root = {"name": _ROOT, "private": True, "dependencies": {command.package: version or "latest"}}
    (folder / "package.json").write_text(json.dumps(root))
    return {"name": _ROOT, "dependencies": root["dependencies"]}


def _npm(command: PackageCommand) -> tuple[str, ...]:
    found = shutil.which("npm")
    if found is None:
        raise McpPackageFailed(command.requirement, "npm, which installs it, is not in PATH")
    return (found,)


# ---- PyPI


def _resolve_pypi(command: PackageCommand, scratch: Path) -> dict[str, Any]:
    report = scratch / "report.json"
    options = (*_PIP_OPTIONS, "--quiet", "--dry-run", "--report", str(report), "--target", str(scratch / "none"))
    _run(command, (*_pip(command), "install", *options, "--", command.requirement, *command.others), scratch)
    packages: dict[str, Any] = {}
    for each in json.loads(report.read_bytes())["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if each.get("is_direct") or not digest:
            raise McpPackageFailed(command.requirement, f"{name} comes from no registry, or has no hash there")
        packages[name] = {"version": version, "sha256": digest}
    return {"pypi": packages, "python": _PYTHON}


def _install_pypi(command: PackageCommand, lock: PackageLock, tree: Path) -> None:
    if lock.python != _PYTHON:
        reason = f"its lock is for Python {lock.python}, and this is {_PYTHON}: ramet mcp install --update"
        raise McpPackageFailed(command.requirement, reason)
    lines = [f"{name}=={each.version} --hash=sha256:{each.sha256}\n" for name, each in lock.pypi.items()]
    requirements = tree / "requirements.txt"
    requirements.write_text("".join(lines))
    # Without their dependencies: the lock has those, and pip would look for them again where a package names extras.
    options = (*_PIP_OPTIONS, "--quiet", "--no-deps", "--require-hashes", "--target", str(site_packages(tree)))
    _run(command, (*_pip(command), "install", *options, "-r", str(requirements)), tree, lock)
    # An environment without pip. Its interpreter is a link to the one of this process, which every sandbox sees.
    _run(command, (sys.executable, "-I", "-m", "venv", "--without-pip", "--symlinks", str(tree)), tree)


def _pip(command: PackageCommand) -> tuple[str, ...]:
    if importlib.util.find_spec("pip") is None:
        reason = f"pip, which installs it, is not a module of {sys.executable}"
        raise McpPackageFailed(command.requirement, reason)
    return (sys.executable, "-m", "pip")


# ----


def _run(command: PackageCommand, words: Sequence[str], folder: Path, lock: PackageLock | None = None) -> None:
    """Run a client in a folder. Its whole process group ends with it, or with us. Raises McpPackageFailed."""
    places = {f"PIP_{each}" for each in _PIP_PLACES}
    env = {name: value for name, value in os.environ.items() if name not in places}
    with tempfile.TemporaryFile() as output:
        client = subprocess.Popen(
            words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
        finally:
            os.killpg(client.pid, signal.SIGKILL)  # It is not reaped yet, so the group is still its own.
            status = client.wait()
        if status != 0:
            output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_OUTPUT))
            raise McpPackageFailed(command.requirement, _reason(output.read().decode(errors="replace"), lock))


def _reason(text: str, lock: PackageLock | None) -> str:
    """Return why a client failed, in a line that names the package of the lock that it is about."""
    lines = [each.strip() for each in text.splitlines() if each.strip()]
    errors = [each for each in lines if re.match(r"(npm )?(error|ERR!)", each, re.IGNORECASE)] or lines
    names = []
    if lock is not None:
        names = [f"{name} {each.version}" for name, each in lock.pypi.items() if f"{name}=={each.version}" in text]
        names += [
            f"{path.rpartition('node_modules/')[2]} {each.version}"
            for path, each in lock.npm.items()
            if each.integrity in text
        ]
    about = f"of the lock, {', '.join(names[:5])}: " if names else ""
    return f"{about}{' '.join(errors[:4])[:_MAX_REASON] or 'its client said nothing'}"
