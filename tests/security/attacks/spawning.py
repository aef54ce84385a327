"""Attacks 77 to 92 by the client that ramet ships: asking for more than one has, more often than one may."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import threading
import time
from typing import Any

from tests.security.attacks.resources import fork_much
from tests.security.attacks.trying import name_of


def one() -> int:
    """A child that does nothing."""
    return 1


def say(word: str) -> str:
    """A child that repeats what it was told."""
    return word


def stay(seconds: float) -> list[float]:
    """A child that takes its time; says from when to when it lived, by the machine's clock."""
    began = time.monotonic()
    time.sleep(seconds)
    return [began, time.monotonic()]


def _policy(fields: dict[str, Any]) -> Any:
    import ramet

    for key in ("allowed_endpoints", "readonly_mounts", "allowed_env_vars"):
        if isinstance(fields.get(key), list):
            fields = {**fields, key: tuple(fields[key])}
    return ramet.Policy(**fields)


def _told(problem: BaseException) -> dict[str, Any]:
    """An error as data: its type, what stood against it, its words."""
    return {
        "error": type(problem).__name__,
        "limit": getattr(problem, "limit", None),
        "field": getattr(problem, "field", None),
        "message": str(problem)[:500],
    }


def widen(policies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ask for one child under each of these policies; says what became of each."""
    from ramet.sub_agent_client import spawn_sub_agent

    said: dict[str, Any] = {}
    for name, fields in policies.items():
        try:
            result = spawn_sub_agent(agent=one, policy=_policy(fields))
            said[name] = {"error": None, "run": result.session_id, "output": result.output}
        except Exception as problem:
            said[name] = _told(problem)
    return said


def what_it_got(fields: dict[str, Any]) -> Any:
    """Ask for a child under a policy that tells what it found: its limits as it can see them."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(agent=limits_inside, policy=_policy(fields)).output


def limits_inside() -> dict[str, Any]:
    """What a child sees of its limits and its surroundings."""
    tmp = os.statvfs("/tmp")
    return {"tmp_mb": tmp.f_blocks * tmp.f_frsize >> 20, "variables": sorted(os.environ), "cwd": os.getcwd()}  # noqa: PTH109


def spawn_one(fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask for a single child; an error is data."""
    from ramet.sub_agent_client import spawn_sub_agent

    try:
        result = spawn_sub_agent(agent=one, policy=_policy(fields or {}))
    except Exception as problem:
        return _told(problem)
    return {"error": None, "status": str(result.status), "output": result.output}


def fork_in_child(bound: int, seconds: float) -> Any:
    """Let a child that asked for nothing fork as much as it can."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(agent=fork_much, args=(bound, seconds)).output


def chain_with(fields: dict[str, Any]) -> Any:
    """Let a child under a policy ask for a child."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(agent=spawn_one, policy=_policy(fields)).output


def secrets_of_children() -> dict[str, Any]:
    """What two children find in /run/secrets: one that asked for its parent's token, one that did not."""
    from ramet.sub_agent_client import spawn_sub_agent

    asked = spawn_sub_agent(agent=secrets_inside, policy=_policy({"secrets": {"token": None}}))
    return {"asked": asked.output, "not asked": spawn_sub_agent(agent=secrets_inside).output}


def secrets_inside() -> dict[str, str]:
    """The secrets that are there."""
    folder = pathlib.Path("/run/secrets")
    return {file.name: file.read_text() for file in folder.iterdir()} if folder.exists() else {}


def chain(levels: int) -> list[Any]:
    """Each level asks for the next; returns from the deepest that lived, with the refusal that stopped it."""
    from ramet.sub_agent_client import spawn_sub_agent

    if levels == 0:
        return []
    try:
        result = spawn_sub_agent(agent=chain, args=(levels - 1,), policy=_policy({"allow_sub_agents": levels > 1}))
    except Exception as problem:
        return [_told(problem)]
    if result.exit_code:
        return [{"error": "child", "status": str(result.status), "message": str(result.error)}]
    return ["lived", *result.output]


def replicate(width: int) -> int:
    """Copy oneself as often and as deep as is let; returns how many copies there were, this one included."""
    from ramet.sub_agent_client import start_sub_agent

    handles = []
    for _ in range(width):
        try:
            handles.append(start_sub_agent(agent=replicate, args=(width,), policy=_policy({"allow_sub_agents": True})))
        except Exception as problem:
            if type(problem).__name__ != "SpawnRefused":
                raise
            break
    return 1 + sum(result.output or 0 for result in (handle.result() for handle in handles))


def start_many(number: int, threads: int, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask for children from many threads at once; says how many were born, and what stood against the others."""
    from ramet.sub_agent_client import start_sub_agent

    gate = threading.Barrier(threads)
    limits: dict[str, int] = {}
    handles: list[Any] = []
    lock = threading.Lock()

    def ask(count: int) -> None:
        gate.wait()
        for _ in range(count):
            try:
                handle = start_sub_agent(agent=stay, args=(0.2,), policy=_policy(fields or {}))
            except Exception as problem:
                said = getattr(problem, "limit", None) or name_of(problem)
                with lock:
                    limits[said] = limits.get(said, 0) + 1
            else:
                with lock:
                    handles.append(handle)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for waiting in [pool.submit(ask, number // threads) for _ in range(threads)]:
            waiting.result()
    results = [handle.result() for handle in handles]
    lives = [result.output for result in results if result.exit_code == 0]
    at_once = max((sum(began <= at < ended for began, ended in lives) for at, _ in lives), default=0)
    return {"born": len(handles), "completed": len(lives), "at_once": at_once, "refused": limits}


def hostile_names(names: list[str]) -> list[Any]:
    """Give children names that lead elsewhere, or that do not end."""
    from ramet.sub_agent_client import start_sub_agent

    said: list[Any] = []
    for name in names:
        try:
            said.append({"error": None, "output": start_sub_agent(agent=one, name=name).result().output})
        except Exception as problem:
            said.append(_told(problem))
    return said


def reach_artifacts(names: list[str], run: str | None = None) -> list[Any]:
    """Ask for files by names that lead elsewhere: of a child, or of a run that is told."""
    from ramet.sub_agent_client import read_artifact, spawn_sub_agent

    if run is None:
        run = spawn_sub_agent(agent=leave_file).session_id
    said: list[Any] = []
    for name in names:
        try:
            said.append({"error": None, "content": bytes(read_artifact(run, name)).decode(errors="replace")})
        except Exception as problem:
            said.append(_told(problem))
    return said


def leave_file(text: str = "left by a child") -> str:
    """Leave a file."""
    with open("report.txt", "w") as file:  # noqa: PTH123
        file.write(text)
    return "left"


def checkpoint(value: Any) -> dict[str, Any]:
    """What was kept before, and keep something now."""
    from ramet.sub_agent_client import load_checkpoint, save_checkpoint

    before = load_checkpoint()
    save_checkpoint(value)
    return {"before": before, "after": load_checkpoint()}


def spawn_with_many_faces(agents: list[str]) -> dict[str, Any]:
    """Ask for children that are no functions at all."""
    from ramet.sub_agent_client import spawn_sub_agent

    said: dict[str, Any] = {}
    lock = threading.Lock()
    things: dict[str, Any] = {"number": 7, "lock": lambda: lock, "builtin": os.system, "none": None, "code": "print(1)"}
    for name in agents:
        try:
            result = spawn_sub_agent(agent=things[name])
            said[name] = {"error": None, "status": str(result.status)}
        except Exception as problem:
            said[name] = _told(problem)
    return said
