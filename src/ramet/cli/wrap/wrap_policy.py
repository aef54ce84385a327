"""The rights of a program that `ramet wrap` runs: its folder, the models, and its share of the machine."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from ramet.cli.run import read_policy
from ramet.cli.wrap.wrapped_programs import WrappedProgram
from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Policy
from ramet.isolation.writable_mounts.refusals import check_writable


def policy_of(options: Namespace, program: WrappedProgram) -> Policy:
    """Return the policy of a program: what the file of `--policy` says, else the defaults of this command.

    The folder and the program itself are added in any case. Raises InvalidValue for a file that is no policy, and for a
    folder that no sandbox may have.
    """
    requested = read_policy(options.policy) if options.policy is not None else Policy()
    fields: dict[str, Any] = {**_defaults(), **_given(requested)}
    if options.with_tools:
        fields["allow_sub_agents"] = True
    if options.memory is not None:
        fields["memory_mb"] = options.memory
    folder = folder_rights(options.dir)
    try:
        Policy(**folder)
        if options.dir.is_dir():
            check_writable({str(options.dir): os.path.realpath(options.dir)}, "")
    except InvalidValue as problem:
        # Without the option the folder is the current one, and nobody has written this field.
        accepted = f"{problem.accepted}; begin in the folder of a project, or name it by --dir"
        raise InvalidValue("--dir", str(options.dir), accepted) from None
    for name, mounts in (*folder.items(), ("readonly_mounts", program.mounts)):
        fields[name] = tuple(dict.fromkeys((*fields.get(name, ()), *mounts)))
    return Policy(**fields)


def folder_rights(folder: Path) -> dict[str, Any]:
    """Return the fields of a policy by which a program may work in a folder, seen at its own path.

    What ramet or git would run on this machine later, such as `.git` in it, stays read-only.
    """
    return {"writable_mounts": (str(folder),)}


def _given(policy: Policy) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(policy).items() if value is not None}


def _defaults() -> dict[str, Any]:
    """Return what the programs of several makers need; the machine's own processors are all theirs."""
    return {
        "models": ("*",),
        "cpu_cores": float(os.cpu_count() or 1),
        "memory_mb": 2048,
        "pids": 512,
        "tmpfs_size_mb": 256,
        "workspace_size_mb": 1024,
        "timeout_seconds": 30 * 86_400.0,  # A person ends it, or a limit.
    }
