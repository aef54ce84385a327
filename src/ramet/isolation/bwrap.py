"""The backend for untrusted agents: each agent is in namespaces of its own, forked inside bubblewrap."""

from __future__ import annotations

from ramet.isolation.zygote.backend import ZygoteBackend


class BwrapBackend(ZygoteBackend):
    """Level L2: all namespaces, a minimal root, an unprivileged user, Landlock, seccomp."""

    name = "bwrap"
