"""Numbers of system calls on the machines that the filter knows: x86_64, and aarch64 with the generic table."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import NamedTuple

#: The newest known call (file_setattr, Linux 6.17): later calls do not exist in a sandbox.
NEWEST = 469

#: Calls whose arguments are compared, or that install the filter: name → number on x86_64, on aarch64.
_JUDGED = {
    "clone": (56, 220),
    "creat": (85, None),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "prctl": (157, 167),
    "sched_setscheduler": (144, 119),
    "listen": (50, 201),
    "seccomp": (317, 277),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "landlock_create_ruleset": (444, 444),
    "sendto": (44, 206),
    "setsockopt": (54, 208),
    "socket": (41, 198),
    "socketpair": (53, 199),
}

#: Calls that create memory outside of any process: shared memory by descriptor and by key.
UNMAPPED = {"memfd_create": (319, 279), "shmget": (29, 194)}

#: Calls that make a pipe or a socket hold pages of a file: a few bytes pin a folio of up to megabytes, also of a
#: removed file.
PINNING = {"sendfile": (40, 71), "splice": (275, 76), "tee": (276, 77)}

#: Calls that leave a process group, through which all its processes could be ended.
SESSIONS = {"setsid": (112, 157), "setpgid": (109, 154)}

#: System V objects, which belong to all processes of a user in a namespace, and outlive their maker.
QUEUES = {"msgget": (68, 186), "semget": (64, 190)}

#: Calls that affect other processes of the same user by pid: here allowed only for the caller, pid 0.
OTHERS = {
    "ioprio_set": (251, 30),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "setpriority": (141, 140),
}

#: Calls that send, with the position of the flags among the arguments.
SENDING = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}

#: Calls that set the mode of a file, with the position of the mode among the arguments.
MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}

#: Calls that change modes, owners, times and attributes of files, which Landlock does not decide.
METADATA = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}

#: Calls that watch changes in folders, which Landlock does not decide.
WATCHES = {"inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27)}

#: Calls that are refused with any arguments.
DENIED = {
    # namespaces
    "unshare": (272, 97),
    "setns": (308, 268),
    # mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # large parts of the kernel that sandboxes do not need
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_setup": (206, 0),  # Its contexts are counted for the whole machine (fs.aio-max-nr).
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "lsm_set_self_attr": (460, 460),
    # files without their path
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # the machine
    "personality": (135, 92),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    # real-time: the requested policy is behind a pointer
    "sched_setattr": (314, 274),
}


class SyscallTable(NamedTuple):
    """The data of a machine that a filter needs."""

    audit: int  #: AUDIT_ARCH_…: any other value is a foreign ABI
    has_x32: bool  #: whether the same audit value covers a second ABI
    number: Mapping[str, int]


def table_of(machine: str) -> SyscallTable:
    """Return the table of a machine, by its `uname -m`. Raises OSError (ENOTSUP) for an unknown machine."""
    known = {"x86_64": (0, 0xC000_003E, True), "aarch64": (1, 0xC000_00B7, False)}
    if machine not in known:
        raise OSError(errno.ENOTSUP, f"system calls of {machine} are not known; known are {', '.join(known)}")
    column, audit, has_x32 = known[machine]
    tables = {**_JUDGED, **UNMAPPED, **PINNING, **SESSIONS, **QUEUES, **OTHERS, **METADATA, **WATCHES, **DENIED}
    return SyscallTable(
        audit, has_x32, {name: number for name, each in tables.items() if (number := each[column]) is not None}
    )
