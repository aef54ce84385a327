"""Kernels to attack and controls.

Each kernel is a process of its own, of this or an ordinary user, in an outer limit.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.security.attacks.channel import HEAD, message
from tests.security.attacks.trying import DONE
from tests.support.users import own_user

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
#: A user who owns nothing on this machine, and whom no other test becomes.
ORDINARY = own_user(of_attacks=True)
#: Nothing here takes this long; passed only by a scene that hangs.
HANG_S = 180.0

UNSHARED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
#: Whose kernels are attacked, and which backend they use: this user; one who owns nothing; one who, besides, is not
#: let make namespaces, so that only Landlock, seccomp and rlimits stand between an agent and the host (L1).
KERNELS = (("me", "bwrap"), ("ordinary", "bwrap"), ("me", "local"), ("bare", "local"))

#: Where kernels live: not below /tmp, of which every sandbox has one of its own.
OUTSIDE = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
#: What a refusal may be called. Which one depends on the layer that says no first.
REFUSED = frozenset({"EPERM", "EACCES", "ENOENT", "EROFS", "ENOSYS", "ENOTDIR", "ESRCH", "EXDEV", "ENODEV", "ENXIO"})


#: Guests that hold a part of a frame back, or send a byte at a time: what they send, and how long they rest after a
#: byte. A frame has ten seconds, so they begin with their kernel and are looked at last (attack 73).
_LARGE = message({"type": "note", "text": "x" * 5000})
SLOW: dict[str, tuple[bytes, float]] = {
    "part of a head": (_LARGE[:3], 0.0),
    "part of a control": (_LARGE[:20], 0.0),
    "part of a body": (HEAD.pack(2, 100) + b"{}x", 0.0),
    "a byte at a time": (_LARGE, 0.05),
}


class Raised(Exception):
    """Error that a scene raised on the host, as data."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error = error
        super().__init__(f"{error['type']}: {error['message']}")


class Canary(NamedTuple):
    """Secret in two halves, so that a search for the secret does not find itself."""

    first: str
    second: str

    @property
    def text(self) -> str:
        """Return the secret."""
        return self.first + self.second


def canary() -> Canary:
    """Return a new secret that looks like a provider's key."""
    return Canary("sk-canary-" + secrets.token_hex(8), secrets.token_hex(8))


def has_succeeded(outcome: str) -> bool:
    """Return whether an attempt succeeded."""
    return outcome.startswith(DONE)


def assert_refused(tried: Mapping[str, str], *allowed: str) -> None:
    """Assert that no attempt worked, and that each failed with the name of a refusal."""
    assert tried, "nothing was tried"
    names = frozenset(allowed) or REFUSED
    wrong = {name: outcome for name, outcome in tried.items() if outcome not in names}
    assert not wrong, wrong


def assert_works(tried: Mapping[str, str], *but: str) -> None:
    """Assert, as the positive control, that each attempt works without a sandbox."""
    assert tried, "nothing was tried"
    wrong = {name: outcome for name, outcome in tried.items() if not has_succeeded(outcome) and name not in but}
    assert not wrong, wrong


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds. Fail the test if it does not hold in time."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def named(function: Callable[..., Any]) -> str:
    """Return a function's name as "module:qualname"."""
    return f"{function.__module__}:{function.__qualname__}"


class Kernel:
    """Runtime in another process. A kernel that hangs is killed and started again, so that a fault costs one test."""

    def __init__(self, user: str, backend: str, *, disk_mb: int = 0) -> None:
        """`disk_mb` is the size of a file system that only this kernel's runs use: root alone can make one."""
        self.user, self.backend, self._disk_mb = user, backend, disk_mb
        self.uid = 0 if user == "me" else ORDINARY
        self.has_namespaces = user != "bare"
        self.key = canary()  #: in the environment of this kernel, as a provider's key
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ramet-attacked-", dir=OUTSIDE))
        self.home, self.project = self.base / "home", self.base / "home" / "project"
        self.secret = self.base / "secret.txt"  #: readable by everybody on this machine
        self._furnish()
        self.was_lost = False  #: it hung or died in the middle of a scene
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.base.with_name(self.base.name + ".log")

    def _furnish(self) -> None:
        """Make a home that is closed to others, with a project in it that holds more than its package."""
        for folder in (self.package, self.project / ".git", self.home / "work", self.base / "scratch"):
            folder.mkdir(parents=True)
        (self.home / ".ssh").mkdir()
        for path in (
            self.secret,
            self.home / ".ssh" / "id_test",
            self.project / ".env",
            self.project / ".git" / "config",
        ):
            path.write_text(f"hidden {self.key.text}")
        (self.package / "__init__.py").write_text("")
        (self.package / "helper.py").write_text("FACTOR = 3\n")
        (self.package / "work.py").write_text(WORK)
        if os.geteuid() == 0 and self.uid:
            for path in (self.base, *self.base.rglob("*")):
                os.chown(path, self.uid, self.uid)
        self.base.chmod(0o755)
        self.home.chmod(0o700)
        self.secret.chmod(0o644)

    @property
    def is_bounded(self) -> bool:
        """Return whether an outer limit of processes surrounds the kernel."""
        release = tuple(int(part) for part in os.uname().release.split(".")[:2])
        return os.geteuid() == 0 and release >= (6, 14)

    @property
    def package(self) -> pathlib.Path:
        """Return the folder of its user's package."""
        return self.project / "work_package"

    def start(self) -> None:
        """Start the kernel, within the outer limit where this user can have one."""
        self.was_lost = False
        python = [sys.executable, "-m", "tests.security.driver", self.backend, str(self.base)]
        if os.geteuid() == 0:
            outer = [*UNSHARED, *self._with_disk(), sys.executable, "-I", str(HERE / "outer.py"), str(self.uid)]
            if not self.has_namespaces:
                outer = [sys.executable, "-I", str(HERE / "no_namespaces.py"), *outer]
            python = [*outer, *python]
        env = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")}
        env |= {
            "HOME": str(self.home),
            "PYTHONPATH": f"{PROJECT}:{self.project}",
            "ANTHROPIC_API_KEY": self.key.text,
            "OPENAI_API_KEY": self.key.text,
            "SOME_SERVICE_TOKEN": self.key.text,
            "HOST_PLAIN": "plain words of the host",
            "SSH_AUTH_SOCK": str(self.base / "agent.sock"),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                python, cwd=PROJECT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        reply = self._answer(HANG_S)
        assert reply == {"value": "ready"}, reply

    def _with_disk(self) -> list[str]:
        """Return the beginning of a command that has the file system, which ends with its mount namespace."""
        options = f"size={self._disk_mb}m,mode=755,uid={self.uid},gid={self.uid}"
        mount = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
        return ["sh", "-c", mount, str(self.home / "work")] if self._disk_mb else []

    def begin_slow_ones(self) -> None:
        """Start the guests that send their frames slowly."""
        agent, policy = "tests.security.attacks.channel:drip_hex", {"timeout_seconds": 300}
        for name, (data, rest) in SLOW.items():
            self.play("begin", key=name, agent=agent, args=[data.hex(), rest], policy=policy)

    def stop(self) -> None:
        """End the kernel and each process that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def remove(self) -> None:
        """Remove the folder and the log of the kernel."""
        self._log.unlink(missing_ok=True)
        shutil.rmtree(self.base, ignore_errors=True)

    def play(self, scene: str, **given: Any) -> Any:
        """Play a scene of `tests.security.scenes`, and return its value.

        Raises Raised if the scene raises on the host.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps({"scene": f"tests.security.scenes:{scene}", "given": given})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        reply = self._answer(HANG_S)
        if "error" in reply:
            raise Raised(reply["error"])
        return reply["value"]

    def run(self, agent: Callable[..., Any] | str, *args: Any, **policy: Any) -> dict[str, Any]:
        """Run an agent under a policy to its end, and return its result as plain data."""
        name = agent if isinstance(agent, str) else named(agent)
        found: dict[str, Any] = self.play("run", agent=name, args=list(args), policy=policy)
        return found

    def start_never_ending(self, key: str, mark: str, *, deaf: bool = True) -> list[int]:
        """Start an agent that never ends, with two programs. Return the pids of the programs."""
        self.play("start", key=key, agent="tests.security.attacks.answers:never_end", args=[mark, deaf])
        pids: list[int] = []

        def are_there() -> bool:  # a program has no command line for a moment
            pids[:] = self.play("processes", mark=mark)
            return len(pids) == 2

        wait_until(are_there)
        return pids

    def attack(self, agent: Callable[..., Any], *args: Any, **policy: Any) -> Any:
        """Run an agent that reports its attempts, and return the report."""
        found = self.run(agent, *args, **policy)
        assert found["status"] == "completed", (found["status"], found["error"], found["stderr"][-2000:])
        return found["output"]

    def control(self, agent: Callable[..., Any], *args: Any) -> Any:
        """Run the function of an attack as the same user without a sandbox, and return its report."""
        return self.play("unconfined", agent=named(agent), args=list(args))

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        fd, data, end = self._process.stdout.fileno(), b"", time.monotonic() + seconds
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(fd, 1 << 20) if ready else b""
            if not piece:
                self._give_up("ended" if ready else f"did not answer within {seconds:.0f} s")
            data += piece
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _give_up(self, reason: str) -> None:
        process, self._process, self.was_lost = self._process, None, True
        assert process is not None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        pytest.fail(f"the kernel {reason}; its log ends:\n{self._log.read_text()[-3000:]}", pytrace=False)


#: A user's own package: one module that needs another, and reads what lies beside it.
WORK = '''"""Work of a user's own package."""

import pathlib

from work_package.helper import FACTOR


def triple(number):
    return FACTOR * number


def look_around(project):
    """What of the project can be read from inside."""
    seen = {}
    for name in (".env", ".git/config", "work_package/work.py"):
        try:
            seen[name] = pathlib.Path(project, name).read_text()
        except OSError as problem:
            seen[name] = type(problem).__name__
    return seen
'''


def as_root(agent: Callable[..., Any], *args: Any) -> Any:
    """Run a function as root in scratch namespaces, as the control of what only root can do; None for other users."""
    return _as_root(named(agent), json.dumps(args)) if os.geteuid() == 0 else None


@functools.cache
def _as_root(agent: str, args: str) -> Any:
    script = "import json, sys; from importlib import import_module; sys.path.insert(0, sys.argv[1])\n"
    script += "module, _, name = sys.argv[2].partition(':')\n"
    script += "print('\\n' + json.dumps(getattr(import_module(module), name)(*json.loads(sys.argv[3]))))"
    scratch = tempfile.mkdtemp(prefix="ramet-control-")
    try:
        done = subprocess.run(
            [*UNSHARED, "--uts", "--ipc", sys.executable, "-c", script, str(PROJECT), agent, args],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=True,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])
