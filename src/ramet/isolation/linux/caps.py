"""Capabilities, and dropping all of them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os

from ramet.isolation.linux import calls

_CAPGET, _CAPSET = (90, 91) if os.uname().machine == "aarch64" else (125, 126)
_VERSION_3 = 0x2008_0522
_LAST = 63
#: NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock, and the lock of KEEP_CAPS.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x40 | 0x80 | 0x20


def drop_all() -> None:
    """Drop every capability: effective, permitted, inheritable, ambient, and the bounding set.

    Without CAP_SETPCAP the bounding set and the securebits stay unchanged; no_new_privs compensates for that.
    """
    with contextlib.suppress(PermissionError):
        for capability in range(_LAST + 1):
            try:
                calls.prctl(calls.PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:  # beyond the last that this kernel knows
                    raise
                break
        calls.prctl(calls.PR_SET_SECUREBITS, _SECUREBITS)
    # A capability that is not inheritable is not ambient either.
    calls.syscall("capset", _CAPSET, _Header(_VERSION_3, 0), _Sets())


def read_capabilities() -> int:
    """Return the effective and permitted capabilities of this process, as one mask."""
    sets = _Sets()
    calls.syscall("capget", _CAPGET, _Header(_VERSION_3, 0), sets)
    low, high = sets.effective | sets.permitted, sets.effective_high | sets.permitted_high
    return int(low) | int(high) << 32


class _Header(ctypes.Structure):
    """struct __user_cap_header_struct; pid 0 is this thread."""

    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    """Two struct __user_cap_data_struct: capabilities 0 to 31, then the higher ones."""

    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
        ("effective_high", ctypes.c_uint32),
        ("permitted_high", ctypes.c_uint32),
        ("inheritable_high", ctypes.c_uint32),
    ]
