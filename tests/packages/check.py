"""Build the packages, and use the wheel as a stranger would: `python -m tests.packages.check [PYTHON ...]`.

For each Python the three commands of docs/reference/packages.md run in an empty folder without a checkout: make an
environment, install the wheel, ask. Root runs them as the user `nobody`, in a mount namespace where the checkout and
the homes of users are empty. It needs a package index, so it is no part of the tests.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NOBODY = 65534
QUESTION = "Why is the payment API failing?"
#: What every command of a check may take, in seconds.
PATIENCE_S = 300
#: Settings of pip that a user has on this machine, such as where its index is.
KEPT = ("LANG", "PIP_CERT", "PIP_CONFIG_FILE", "PIP_DEFAULT_TIMEOUT", "PIP_INDEX_URL", "SSL_CERT_FILE")


class CheckFailed(Exception):
    """A command that did not do what a user would expect of it."""


def find_pythons(names: Sequence[str]) -> list[pathlib.Path]:
    """Return the interpreters with these names, or those of every version that ramet supports and this machine has."""
    found = []
    for name in names or [f"python{version}" for version in VERSIONS]:
        candidates = [shutil.which(name), *map(str, pathlib.Path.home().glob(f".pyenv/versions/*/bin/{name}"))]
        for candidate in filter(None, candidates):
            line = [
                candidate,
                "-c",
                "import sys, venv; print(sys.base_prefix + '/bin/python%d.%d' % sys.version_info[:2])",
            ]
            asked = subprocess.run(line, capture_output=True, text=True, check=False)
            if asked.returncode == 0:
                found.append(pathlib.Path(asked.stdout.strip()))
                break
        else:
            if names:
                raise CheckFailed(f"{name}: no such Python here")
            print(f"-- {name}: not on this machine")
    return found


def as_stranger(command: Sequence[str], folder: pathlib.Path, python: pathlib.Path) -> list[str]:
    """Return the command line that runs `command` as a user who has nothing but `folder`, where this user is root."""
    if os.geteuid() != 0:
        return list(command)
    prefix, copy = python.parents[1], folder / "prefix"
    hidden = [path for path in (pathlib.Path("/root"), pathlib.Path("/home"), ROOT) if path.is_dir()]
    lines = [f"mount --bind {shlex.quote(str(prefix))} {shlex.quote(str(copy))}"]
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(path))}" for path in hidden]
    if any(prefix.is_relative_to(path) for path in hidden):
        lines += [f"mkdir -p {shlex.quote(str(prefix))}"]
        lines += [f"mount --move {shlex.quote(str(copy))} {shlex.quote(str(prefix))}"]
    lines += [f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all {shlex.join(command)}"]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines)]


class Stranger:
    """A user with an empty folder, one wheel and a folder to ask about."""

    def __init__(self, folder: pathlib.Path, wheel: pathlib.Path, python: pathlib.Path) -> None:
        self.folder, self.python = folder, python
        (folder / "home").mkdir()
        (folder / "prefix").mkdir()
        shutil.copy(wheel, folder)
        shutil.copytree(ROOT / "examples" / "payment-api", folder / "payment-api")
        self.wheel = f"./{wheel.name}"
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)

    def run(self, *command: str, expect: str = "", status: int = 0) -> str:
        """Run a command in the folder, and return what it printed. Raises CheckFailed if that is not as expected."""
        began = time.monotonic()
        with self.start(command) as process:
            try:
                output, _ = process.communicate(timeout=PATIENCE_S)
            except BaseException:
                process.kill()
                raise
        print(f"   {time.monotonic() - began:5.1f} s  {shlex.join(command)}")
        if process.returncode != status or expect not in output:
            raise CheckFailed(f"{shlex.join(command)}: status {process.returncode}\n{output[-3000:]}")
        return output

    def see_page(self, *command: str) -> None:
        """Start the server of the page, fetch the page, and stop the server. Raises CheckFailed."""
        with self.start(command) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                link = re.search(r"http://127\.0\.0\.1:\d+/ui/", line)
                page = urllib.request.urlopen(link.group(), timeout=30).read() if link else b""
            finally:
                process.terminate()
        if b"app.mjs" not in page or process.returncode != 0:
            raise CheckFailed(f"{shlex.join(command)}: status {process.returncode}\n{line}{page[:300]!r}")
        print(f"            {shlex.join(command)}: the page is there")

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command in the folder; what it prints goes to one pipe."""
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        return subprocess.Popen(
            as_stranger(command, self.folder, self.python),
            cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def build(dist: pathlib.Path) -> pathlib.Path:
    """Build the sdist, and the wheel from it; check the metadata of both. Returns the wheel."""
    for old in dist.glob("ramet-*"):
        old.unlink()
    line = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = dist.glob("ramet-*.whl")
    for file in sorted(dist.glob("ramet-*")):
        print(f"-- {file.name}: {file.stat().st_size / 1e6:.1f} MB")
    return wheel


def check(python: pathlib.Path, wheel: pathlib.Path) -> None:
    """Take a stranger from the wheel to a first answer, and on to the page and to every extra."""
    print(f"-- {python.name}")
    with tempfile.TemporaryDirectory(prefix="ramet-packages-") as name:
        pathlib.Path(name).chmod(0o755)
        stranger = Stranger(pathlib.Path(name), wheel, python)
        stranger.run(str(python), "-m", "venv", "agents")
        stranger.run("agents/bin/pip", "install", "-q", stranger.wheel)
        stranger.run("agents/bin/ramet", "ask", QUESTION, "--dir", "payment-api", expect="acquirer.read_timeout_ms")
        stranger.run("agents/bin/ramet", "ui", expect="ramet: the page needs the extra 'server'; install it", status=1)
        stranger.run("agents/bin/pip", "install", "-q", f"{stranger.wheel}[server]")
        stranger.see_page("agents/bin/ramet", "ui", "--no-open")
        stranger.run("agents/bin/pip", "install", "-q", "--dry-run", f"{stranger.wheel}[all]")


def check_uvx(wheel: pathlib.Path, uvx: str) -> None:
    """Ask by the one command of uv, which makes an environment for it."""
    print("-- uvx")
    with tempfile.TemporaryDirectory(prefix="ramet-packages-") as name:
        pathlib.Path(name).chmod(0o755)
        stranger = Stranger(pathlib.Path(name), wheel, pathlib.Path(sys.base_prefix, "bin", "python3"))
        program = shutil.copy(uvx, name) and shutil.copy(pathlib.Path(uvx).with_name("uv"), name)
        python = ["--no-python-downloads", "--python", str(stranger.python), "--from", stranger.wheel]
        command = [
            str(pathlib.Path(program).with_name("uvx")),
            *python,
            "ramet",
            "ask",
            QUESTION,
            "--dir",
            "payment-api",
        ]
        stranger.run(*command, expect="acquirer.read_timeout_ms")


def main(words: Sequence[str]) -> int:
    """Check with each Python, and return 1 if one of them could not be satisfied."""
    parser = argparse.ArgumentParser(prog="python -m tests.packages.check", description="Build and use the packages.")
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument("--wheel", type=pathlib.Path, help="use this wheel, and build none")
    parser.add_argument("pythons", nargs="*", help="names or paths of interpreters")
    options = parser.parse_args(words)
    try:
        wheel = options.wheel.resolve(strict=True) if options.wheel else build(options.dist.resolve())
        for python in find_pythons(options.pythons):
            check(python, wheel)
        if uvx := shutil.which("uvx"):
            check_uvx(wheel, uvx)
    except (CheckFailed, subprocess.TimeoutExpired) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
