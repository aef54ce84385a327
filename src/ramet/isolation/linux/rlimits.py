"""Limits of single processes and of a user, lowered permanently."""

from __future__ import annotations

import resource


def apply(
    *,
    nproc: int | None = None,
    nofile: int | None = None,
    fsize: int | None = None,
    data: int | None = None,
    cpu: int | None = None,
    core: int | None = 0,
    memlock: int | None = None,
    msgqueue: int | None = None,
    sigpending: int | None = None,
) -> None:
    """Set soft and hard limits: sizes in bytes, `cpu` in seconds, the others are numbers.

    None leaves a limit unchanged.

    No limit is ever raised: a value above the hard limit is reduced to it. At `cpu` the kernel sends SIGXCPU, one
    second later SIGKILL.
    """
    for resource_id, value in (
        (resource.RLIMIT_NPROC, nproc),
        (resource.RLIMIT_NOFILE, nofile),
        (resource.RLIMIT_FSIZE, fsize),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_CORE, core),
        (resource.RLIMIT_MEMLOCK, memlock),
        (resource.RLIMIT_MSGQUEUE, msgqueue),
        (resource.RLIMIT_SIGPENDING, sigpending),
    ):
        if value is not None:
            _lower(resource_id, value, value)
    if cpu is not None:
        _lower(resource.RLIMIT_CPU, cpu, cpu + 1)


def _lower(resource_id: int, soft: int, hard: int) -> None:
    _, highest = resource.getrlimit(resource_id)
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(resource_id, (soft, hard))
