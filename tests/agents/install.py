"""Install programs of other makers for tests: `python -m tests.agents.install codex opencode`, or all of them.

`mcp-servers` are the packages of the MCP servers in `mcp_servers`, which `ramet mcp install` installs as users do.

Each comes, with its exact version, into a folder of its own below `.cache/agents`. A folder gets its name when all of
it is there; so what broke off is begun anew, and what is there is not looked at again. Install scripts of packages do
not run: the programs are in the packages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ramet.agent.files.trust import trust
from tests.support.agent_programs import MCP_PROJECT, MCP_SERVERS, Pin, node, pinned_before, pins

ATTEMPTS = 2  # registries fail now and then


def main(names: list[str]) -> int:
    """Install the programs of these names, or all. Return the exit code."""
    known = pins()
    programs_known = [*(name for name in known if name != "node"), MCP_SERVERS]
    wanted = names or programs_known
    unknown = [name for name in wanted if name not in programs_known]
    if unknown:
        programs = ", ".join(programs_known)
        print(f"no such program: {', '.join(unknown)}. Known: {programs}", file=sys.stderr)  # noqa: T201
        return 2
    folder = known["node"].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    with open_folder(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installers = {MCP_SERVERS: install_mcp_servers}
        each = (installers[name]() if name in installers else install(known[name]) for name in ("node", *wanted))
        return 0 if all(each) else 1


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """Open a folder, to lock it."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def install(pin: Pin) -> bool:
    """Install one package unless it is there. Return whether it is there now."""
    if pin.folder.is_dir():
        return True
    for left in pin.folder.parent.glob(f".{pin.name}-*"):  # of an installation that was killed
        shutil.rmtree(left)
    for attempt in range(1, ATTEMPTS + 1):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f".{pin.name}-", dir=pin.folder.parent) as scratch:
            folder = Path(scratch) / "package"
            folder.mkdir()
            done = subprocess.run(_command(pin, folder), cwd=folder, env=_environment(), stdin=subprocess.DEVNULL)
            if done.returncode == 0:
                _replace(pin, folder)
                size = sum(path.lstat().st_size for path in pin.folder.rglob("*")) // 10**6
                _say(f"== {pin.name} {pin.version}: {size} MB, {time.monotonic() - begun:.0f} s")
                return True
        _say(f"== {pin.name} {pin.version}: not installed, attempt {attempt} of {ATTEMPTS}")
    return False


def install_mcp_servers() -> bool:
    """Install the packages of the MCP servers, as their lock file has them. Return whether they are there."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        trust(MCP_PROJECT, Path(home))
        env = _environment()
        env |= {"RAMET_HOME": home, "XDG_CACHE_HOME": str(pins()["node"].folder.parent / MCP_SERVERS)}
        env["PATH"] = f"{write_npm(Path(home))}{os.pathsep}{env['PATH']}"
        command = [sys.executable, "-m", "ramet", "mcp", "install", "--dir", str(MCP_PROJECT)]
        is_done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL).returncode == 0
    _say(f"== {MCP_SERVERS}: {'installed' if is_done else 'not installed'}, {time.monotonic() - begun:.0f} s")
    return is_done


def _command(pin: Pin, folder: Path) -> list[str]:
    if pin.name == "node":
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        return [*pip, f"{pin.package}=={pin.version}"]
    (folder / "package.json").write_text('{"private": true}\n')  # so that npm takes this folder, and not one above it
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--no-update-notifier", "--loglevel=error", "--silent"]
    chosen = ["--ignore-scripts", "--omit=dev", f"--before={pinned_before()}", f"{pin.package}@{pin.version}"]
    return [str(node()), str(_npm()), "install", *quiet, *chosen]


def write_npm(folder: Path) -> Path:
    """Write a program `npm` into a folder, and return the folder: the package of node has only the files of npm."""
    npm = folder / "npm"
    npm.write_text(f'#!/bin/sh\nexec "{node()}" "{_npm()}" "$@"\n')
    npm.chmod(0o755)
    return folder


def _npm() -> Path:
    return node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{node().parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _replace(pin: Pin, folder: Path) -> None:
    """Give the folder its name, and remove other versions of the program."""
    folder.rename(pin.folder)
    for other in pin.folder.parent.glob(f"{pin.name}-[0-9]*"):
        if other != pin.folder:
            shutil.rmtree(other)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
