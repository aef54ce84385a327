"""Users for tests. What a user may have counts for all its processes on a machine, also those of another test run."""

from __future__ import annotations

import os

_FIRST, _COUNT = 62_000, 1_700  #: of no account, outside of what backends use, and of a container's 65,536 users


def own_user(*, of_attacks: bool = False) -> int:
    """Return a user for the tests of this process. Another test process almost never has the same.

    The kernels that are attacked live as long as the process, and so have a user of their own.
    """
    return _FIRST + of_attacks * _COUNT + os.getpid() % _COUNT
