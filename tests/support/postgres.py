"""Real PostgreSQL servers for tests, each in a temporary folder with a private Unix socket and fsync on.

Nothing is installed here: `make tools` does that.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

_START_S = 180.0  #: what a start may take: after a crash the server reads its log first
_names = itertools.count(1)
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def programs() -> pathlib.Path | None:
    """Return the folder of `initdb` and `postgres`, the newest one; None if they are not installed."""
    debian = pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted(
        debian, key=lambda path: [int(part) for part in path.parent.parent.name.split(".") if part.isdigit()]
    )
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return None if initdb is None else pathlib.Path(initdb).resolve().parent


def account() -> pwd.struct_passwd:
    """Return the user of the server: this process's user, but never root, which PostgreSQL refuses."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LookupError("neither a user postgres nor a user nobody")


def reason_absent() -> str:
    """Return why no server can run here; an empty string if one can."""
    if programs() is None:
        return "PostgreSQL is not installed (initdb, postgres): `make tools` installs it"
    try:
        account()
    except (KeyError, LookupError) as error:
        return f"no user to run PostgreSQL as: {error}"
    return ""


class Server:
    """A server with its own database cluster. It ends with this process, even if this process is killed."""

    def __init__(self, address: str = "") -> None:
        """Start a server. It also listens at `address` of this machine, for everybody in the network of a test."""
        bin_folder = programs()
        assert bin_folder is not None, "look at `reason_absent` first"
        self._bin, self._user = bin_folder, account()
        # Not pytest's folder: it is for its user alone. And the path of a socket is at most 107 bytes long.
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._address = address
        try:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
            data = ["-D", str(self._folder / "data")]
            settings = ["--auth=trust", "--username=ramet", "--encoding=UTF8", "--locale=C", "--no-sync"]
            self._run([str(self._bin / "initdb"), *data, *settings]).communicate()
            if address:
                with (self._folder / "data" / "pg_hba.conf").open("a") as rules:
                    rules.write("host all all samenet trust\n")
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def dsn(self) -> str:
        """Return the connection string of the server."""
        return f"host={self._folder} user=ramet dbname=postgres"

    @property
    def pid(self) -> int:
        """Return the pid of the server's first process."""
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> pathlib.Path:
        """Return the path of the server's socket."""
        return self._folder / ".s.PGSQL.5432"

    def begin(self) -> None:
        """Start the server, without waiting until it is ready."""
        assert self._process is None or self._process.poll() is not None
        options = {
            "listen_addresses": self._address,
            "unix_socket_directories": str(self._folder),
            "fsync": "on",
            "shared_buffers": "32MB",
            "max_connections": "60",
            "synchronous_commit": "off",
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self._process = self._run([str(self._bin / "postgres"), "-D", str(self._folder / "data"), *settings])

    def is_ready(self) -> bool:
        """Return whether the server accepts connections. Fails with the server's log if it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-2000:]}")
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def start(self) -> None:
        """Start the server, and wait until it is ready."""
        self.begin()
        until = time.monotonic() + _START_S
        while not self.is_ready():
            assert time.monotonic() < until, "PostgreSQL did not get ready"
            threading.Event().wait(0.02)

    def crash(self) -> None:
        """End the server at once, like `pg_ctl stop -m immediate`: it writes nothing more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(_START_S)

    def restart(self) -> None:
        """End the server like `pg_ctl stop -m fast`, start it again, and wait until it is ready."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_START_S)
        self.start()

    def signal_all(self, number: signal.Signals) -> None:
        """Signal the server and all processes of its own."""
        assert self._process is not None
        pid = self._process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, number)
        for each in map(int, children):
            with contextlib.suppress(ProcessLookupError):  # It ends as we look.
                os.kill(each, number)

    def stop(self) -> None:
        """End the server and remove its folder; idempotent."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)  # "fast": sessions are ended, not waited for
            try:
                process.wait(_START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a program as the server's user, from the main thread: it ends with the thread that started it."""
        assert threading.current_thread() is threading.main_thread()
        other = os.getuid() != self._user.pw_uid
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
                start_new_session=True,  # Ctrl-C is for the tests
                user=self._user.pw_uid if other else None,
                group=self._user.pw_gid if other else None,
                extra_groups=[] if other else None,
                preexec_fn=_end_with_parent,
            )


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _require_postgres() -> None:
    """Skip the test if PostgreSQL is not installed; fail it in CI."""
    if why := reason_absent():
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)


_shared: list[Server] = []


def shared(config: pytest.Config) -> Server:
    """Return the server for all tests of this session; start it if it does not run. Never stop it.

    Call it in a session fixture: a server that starts within a test counts as left behind by that test.
    """
    if not _shared:
        _shared.append(Server())
        config.add_cleanup(lambda: _shared.pop().stop())
    return _shared[0]


def start_if_used(request: pytest.FixtureRequest) -> None:
    """Start the server of all tests if a selected test has the parameter `postgres`, and PostgreSQL is installed.

    For a session fixture. The test itself reports that PostgreSQL is not installed.
    """
    used = (
        value for item in request.session.items if hasattr(item, "callspec") for value in item.callspec.params.values()
    )
    if not reason_absent() and any(isinstance(value, str) and value == "postgres" for value in used):
        shared(request.config)


def running() -> Server:
    """Return the server that a session fixture has started; skip the test if PostgreSQL is not installed."""
    _require_postgres()
    return _shared[0]


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Server:
    """The server for all tests, which use schemas of their own."""
    # There is one such fixture in every module that imports it, but one server.
    _require_postgres()
    return shared(pytestconfig)


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """A server of this test alone, which the test may stop, crash and start."""
    _require_postgres()
    server = Server()
    try:
        yield server
    finally:
        server.stop()


def fresh_schema() -> str:
    """Return the name of a new schema."""
    return f"ramet_{os.getpid()}_{next(_names)}"
