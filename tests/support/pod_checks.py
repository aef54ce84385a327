"""Promises of a sandbox that has a pod of its own, beside those of every backend."""

from __future__ import annotations

from ramet.isolation.conformance.suite import Check

CHECKS: tuple[Check, ...] = ()
