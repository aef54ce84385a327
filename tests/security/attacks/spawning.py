"""Attacks 77 to 92 by the client that ramet ships: requests for more than a run has or may do."""

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
    """Return 1, as a child that does nothing."""
    return 1


def say(word: str) -> str:
    """Return the word, as a child that repeats its argument."""
    return word


def stay(seconds: float) -> list[float]:
    """Wait, as a child, and return the start and end on the machine's clock."""
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
    """Return an error as data: its type, the limit or field that it names, and its text."""
    return {
        "error": type(problem).__name__,
        "limit": getattr(problem, "limit", None),
        "field": getattr(problem, "field", None),
        "message": str(problem)[:500],
    }


def widen(policies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Spawn one child under each of these policies, and return the outcome of each."""
    from ramet.sub_agent_client import spawn_sub_agent

    outcomes: dict[str, Any] = {}
    for name, fields in policies.items():
        try:
            result = spawn_sub_agent(agent=one, policy=_policy(fields))
            outcomes[name] = {"error": None, "run": result.session_id, "output": result.output}
        except Exception as problem:
            outcomes[name] = _told(problem)
    return outcomes


def what_it_got(fields: dict[str, Any]) -> Any:
    """Spawn a child under a policy, and return the limits that the child sees."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(agent=limits_inside, policy=_policy(fields)).output


def limits_inside() -> dict[str, Any]:
    """Return the limits and the environment that a child sees."""
    tmp = os.statvfs("/tmp")
    return {"tmp_mb": tmp.f_blocks * tmp.f_frsize >> 20, "variables": sorted(os.environ), "cwd": os.getcwd()}  # noqa: PTH109


def spawn_one(fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Spawn a single child. Return its result, or the error as data."""
    from ramet.sub_agent_client import spawn_sub_agent

    try:
        result = spawn_sub_agent(agent=one, policy=_policy(fields or {}))
    except Exception as problem:
        return _told(problem)
    return {"error": None, "status": str(result.status), "output": result.output}


def fork_in_child(bound: int, seconds: float) -> Any:
    """Let a child with a default policy fork as much as it can."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(agent=fork_much, args=(bound, seconds)).output


def chain_with(fields: dict[str, Any]) -> Any:
    """Let a child under a policy spawn a child."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(agent=spawn_one, policy=_policy(fields)).output


def secrets_of_children() -> dict[str, Any]:
    """Return the secrets of two children: one that asked for its parent's token, and one that did not."""
    from ramet.sub_agent_client import spawn_sub_agent

    asked = spawn_sub_agent(agent=secrets_inside, policy=_policy({"secrets": {"token": None}}))
    return {"asked": asked.output, "not asked": spawn_sub_agent(agent=secrets_inside).output}


def secrets_inside() -> dict[str, str]:
    """Return the secrets in /run/secrets."""
    folder = pathlib.Path("/run/secrets")
    return {file.name: file.read_text() for file in folder.iterdir()} if folder.exists() else {}


def chain(levels: int) -> list[Any]:
    """Spawn a chain of children. Return one entry for each that lived, and the refusal that stopped the chain."""
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
    """Spawn copies in width and depth until refused. Return the number of copies, this one included."""
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
    """Spawn children from many threads at once. Return how many were spawned, and the limits that refused the rest."""
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
                reason = getattr(problem, "limit", None) or name_of(problem)
                with lock:
                    limits[reason] = limits.get(reason, 0) + 1
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
    """Give children names that lead elsewhere, or that are too long."""
    from ramet.sub_agent_client import start_sub_agent

    outcomes: list[Any] = []
    for name in names:
        try:
            outcomes.append({"error": None, "output": start_sub_agent(agent=one, name=name).result().output})
        except Exception as problem:
            outcomes.append(_told(problem))
    return outcomes


def reach_artifacts(names: list[str], run: str | None = None) -> list[Any]:
    """Read artifacts by names that lead elsewhere, of a child or of a given run."""
    from ramet.sub_agent_client import read_artifact, spawn_sub_agent

    if run is None:
        run = spawn_sub_agent(agent=leave_file).session_id
    outcomes: list[Any] = []
    for name in names:
        try:
            outcomes.append({"error": None, "content": bytes(read_artifact(run, name)).decode(errors="replace")})
        except Exception as problem:
            outcomes.append(_told(problem))
    return outcomes


def leave_file(text: str = "left by a child") -> str:
    """Leave a file."""
    with open("report.txt", "w") as file:  # noqa: PTH123
        file.write(text)
    return "left"


def checkpoint(value: Any) -> dict[str, Any]:
    """Load the checkpoint, and save a new one. Return both."""
    from ramet.sub_agent_client import load_checkpoint, save_checkpoint

    before = load_checkpoint()
    save_checkpoint(value)
    return {"before": before, "after": load_checkpoint()}


def spawn_with_many_faces(agents: list[str]) -> dict[str, Any]:
    """Spawn values that are no functions."""
    from ramet.sub_agent_client import spawn_sub_agent

    outcomes: dict[str, Any] = {}
    lock = threading.Lock()
    values: dict[str, Any] = {"number": 7, "lock": lambda: lock, "builtin": os.system, "none": None, "code": "print(1)"}
    for name in agents:
        try:
            result = spawn_sub_agent(agent=values[name])
            outcomes[name] = {"error": None, "status": str(result.status)}
        except Exception as problem:
            outcomes[name] = _told(problem)
    return outcomes
