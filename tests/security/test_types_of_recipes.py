"""Guests make an agent whose types would keep the host busy, and ask for values of the types."""

from __future__ import annotations

import pathlib

from ramet.core.outcome import Status
from tests.trips.isolation.test_code_agents import MAKER, agent, both_backends, code, converse
from tests.trips.kits.isolated import BackendName

#: Speaks the words of the channel without the guest's own checks, and prints what the host says.
ASK = """
load = task_fail.__globals__['__builtins__']['__import__']
line = load('ramet.guest.thread_channel', fromlist=['current_channel']).current_channel()
requests, json = load('ramet.wire.guest_protocol.guest_to_host', fromlist=['CreateAgent']), load('json')
lists = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
integers = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
objects = {"type": "array", "items": {"$ref": "#/types/W"}}

def ask(parameter, value, kind="model", fields=None):
    signature = {"parameters": {"a": parameter}, "order": ["a"], "returns": None}
    tasks = {"go": {"docstring": "Go.", "signature": signature}}
    types = {"W": {"kind": kind, "fields": fields or {}}}
    recipe = {"name": "h", "primer": "", "types": types, "task_definitions": tasks}
    try:
        made = line.ask(requests.CreateAgent, json.dumps(recipe).encode())
        ref = json.loads(bytes(made.data))["ref"]
        line.ask(requests.PerformTask, json.dumps({"a": value}).encode(), ref=ref, task="go")
    except Exception as refusal:
        print(str(refusal)[-150:].replace("\\n", " "))
    else:
        print("done")
"""
ATTACKS = """
large = {"a": {**lists, "default": [[]] * 20_000}}
ask(objects, [{}] * 80, "model", large)
ask(objects, [{}] * 80, "dataclass", large)
ask(integers, [each * (2**61 - 1) for each in range(15_000)])
ask(objects, [], "dataclass", {f"f{each}": {} for each in range(8_000)})
"""


@both_backends
async def test_expensive_types_of_a_guest_are_refused(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A large default in many objects, numbers of one hash, and a class of many fields get an error with the bound."""
    result, shown = await converse(tmp_path, backend, agent(*MAKER), code(ASK + ATTACKS))

    assert result.status is Status.COMPLETED
    first, second, third, fourth = shown[0].removeprefix("ok: ").splitlines()
    assert "steps" in first
    assert "steps" in second
    assert "one hash" in third
    assert "at most 1000 parts" in fourth
