"""The gates of one process, in their closing order: each gate still lets the next one be closed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ramet.core.policy.rights import PROXY_PORT
from ramet.isolation.assignment import SECRETS, SHARED_ROOT, Assignment, ZygoteConfig
from ramet.isolation.linux import calls, caps, landlock, namespaces, procfs, rlimits, seccomp
from ramet.isolation.linux.beneath import open_without_links

UID = 65534  #: the uid of an agent, inside

_MIB = 1024 * 1024
_THREAD_MB = 8  #: of stack, that each thread reserves
_NOFILE = 256
_SIGPENDING = 1024  #: timers and queued signals; all agents of one user of the host share the user's limit
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "full", "random", "urandom"))
_ZERO = "/dev/zero"  #: A process that may write to it can map shared memory of any size.
#: The files of a host's own /etc that programs need; bubblewrap's /etc holds nothing else.
_ETC = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives",
        "ca-certificates",
        "group",
        "hosts",
        "ld.so.cache",
        "localtime",
        "mime.types",
        "nsswitch.conf",
        "passwd",
        "ssl/certs",
        "ssl/openssl.cnf",
        "timezone",
    )
)
#: The allowed files of a /proc that shows the host's processes. "self" is the agent's own, and not its children's.
_PROC = tuple(
    f"/proc/{name}" for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "self", "stat", "uptime", "version")
)


class Confinement(NamedTuple):
    """The data that is computed once for all children of a zygote."""

    config: ZygoteConfig
    baseline: int  #: bytes of private data that the image occupies already
    programs: Mapping[tuple[bool, bool], bytes]  #: filters, by the presence of a network, and of unmapped memory
    read: tuple[str, ...]
    execute: tuple[str, ...]
    write: tuple[str, ...]
    without_unix: bytes = b""  #: a filter for a process with a running relay: no socket that connects to a path

    @classmethod
    def of(cls, config: ZygoteConfig) -> Confinement:
        """Return the confinement for the children of this process."""
        programs, no_unix_program = {}, b""
        if config.has_seccomp:
            no_unix_program = seccomp.program(inet=True, unix=False)
            programs = {
                (network, unmapped): seccomp.program(
                    inet=network,
                    unix=network,
                    unmapped=unmapped,
                    sessions=config.mode != "none",
                    queues=unmapped and config.mode != "none",
                    others=config.is_apart,
                    served=config.is_apart,
                    watches=config.mode not in SHARED_ROOT,
                )
                for network in (False, True)
                for unmapped in (False, True)
            }
        read = ("/etc",) if config.mode == "bwrap" else tuple(filter(os.path.exists, _ETC))
        read += ("/proc", "/run") if config.is_apart else _PROC
        system = [str(path) for path in map(Path, _SYSTEM) if path.is_dir() and not path.is_symlink()]
        return cls(
            config,
            _data_size(),
            programs,
            read,
            (*system, *config.runtime),
            config.in_memory,
            without_unix=no_unix_program,
        )

    def rules(self, *, tcp: bool = False) -> landlock.Rules | None:
        """Return the rights on files that every child has, without the rights on its own files."""
        if not self.config.has_landlock:
            return None
        rules = landlock.Rules(tcp=tcp)
        rules.grant(read=(*self.read, _ZERO), execute=self.execute, write=self.write, devices=_DEVICES)
        return rules

    def apply(self, assignment: Assignment, rules: landlock.Rules | None, stdio: Sequence[int] = ()) -> None:
        """Confine this process permanently. Raises OSError.

        `rules` were made before the process received any data. `stdio` has the descriptors of its program.
        """
        has_namespaces = self.config.is_apart
        if has_namespaces:
            uid, gid = os.getuid(), os.getgid()
            calls.unshare(calls.CLONE_NEWUSER)
            namespaces.map_ids(UID, UID, uid, gid)
        if has_namespaces and assignment.has_network and rules is not None:
            rules.close()
            rules = self.rules(tcp=True)
        self.apply_inside(assignment, rules, stdio)

    def apply_inside(self, assignment: Assignment, rules: landlock.Rules | None, stdio: Sequence[int] = ()) -> None:
        """Confine, as `apply` does, a process that is in its user namespace already."""
        has_network = assignment.has_network
        if not self.config.is_apart:  # A process that shares its memory with it must outlive it.
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
        rlimits.apply(
            nproc=self._nproc(assignment),
            nofile=_NOFILE,
            fsize=assignment.file_mb * _MIB,
            data=self.baseline + (assignment.memory_mb + _THREAD_MB * assignment.pids) * _MIB,
            cpu=assignment.cpu_s,
            memlock=_MIB,
            msgqueue=0,
            sigpending=_SIGPENDING,
        )
        caps.drop_all()
        calls.set_no_new_privs()
        if rules is not None:
            import_dirs = () if assignment.import_dir is None else (assignment.import_dir,)
            secrets = map(Path, (SECRETS,) if assignment.secrets else ())
            devices = (_ZERO,) if assignment.has_unmapped_memory else ()
            rules.grant(read=secrets, execute=import_dirs, write=(assignment.workspace,), devices=devices)
            self._grant_mounts(assignment, rules)
            for fd in filter(os.isatty, stdio):
                rules.grant_terminal(fd)
            if has_network and not self.config.is_apart:
                rules.connect(PROXY_PORT)
            rules.enforce()
            rules.close()
        if self.programs:
            if assignment.writable:
                seccomp.install(seccomp.plain_modes_program())
            seccomp.install(self.programs[has_network, assignment.has_unmapped_memory])

    def forbid_unix_sockets(self) -> None:
        """Forbid sockets that could connect to a path, permanently, where there is a loopback: that filter allows them.

        The relay, which connects to the proxy's socket, is a separate process.

        Landlock does not decide over these sockets, and a service of the host may obey every process of its user.
        """
        if self.without_unix:
            seccomp.install(self.without_unix)

    def _grant_mounts(self, assignment: Assignment, rules: landlock.Rules) -> None:
        """Grant each mount at its place in the host's root, or where it was put back over a folder in memory."""
        for path, source in assignment.mounts.items():
            if self.config.mode == "bwrap":
                is_writable = path in assignment.writable
                rules.grant(execute=() if is_writable else (path,), edit=(path,) if is_writable else ())
                continue
            try:
                fd = open_without_links(source)
            except FileNotFoundError:
                fd = open_without_links(path)
            rules.grant_opened(fd, is_writable=path in assignment.writable)
            os.close(fd)

    def _nproc(self, assignment: Assignment) -> int | None:
        """Return the process limit of the user: the agent's processes, the relay, and in a pod those that keep it."""
        if self.config.mode == "none":
            return None
        own_tasks = assignment.pids + (assignment.proxy is not None)
        return own_tasks + procfs.tasks_outside(os.getppid()) if self.config.mode == "pod" else own_tasks


def _data_size() -> int:
    """Return the bytes of private data of this process, as RLIMIT_DATA counts them."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
