"""Addresses that the holder of a team's key reaches through the server's proxy: a real server, a real listener."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any, Self

import httpx2
import pytest

from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.support.team_keys import ServeProcess, TeamClient, serve_team, team_client

SHELL = {"tools": ["Bash"]}

#: Private addresses by their numbers, in the canonical form; `{}` is the port of a service of the host.
PRIVATE = (
    "127.0.0.1:{}",
    "127.8.9.1:{}",
    "0.0.0.0:{}",
    "[::1]:{}",
    "[::]:{}",
    "[::7f00:1]:{}",
    "[64:ff9b::7f00:1]:{}",
    "[2002:7f00:1::]:{}",
    "[fe80::1]:{}",
    "169.254.169.254:80",
    "168.63.129.16:80",
    "10.0.0.1:443",
)
#: Other spellings of such addresses, which no policy takes.
SPELLINGS = (
    "0x7f.1:{}",
    "127.1:{}",
    "2130706433:{}",
    "0177.0.0.1:{}",
    "[::ffff:127.0.0.1]:{}",
    "[fe80::1%lo]:{}",
    "*.0.0.1:{}",
    "*:{}",
    "１２７.0.0.1:{}",
)

_DIAL = """$ python3 -c "
import os, socket
host, _, port = os.environ['HTTPS_PROXY'].rpartition('://')[2].rstrip('/').rpartition(':')
for target in '{targets}'.split():
    with socket.create_connection((host, int(port)), timeout=5) as there:
        there.sendall(f'CONNECT {{target}} HTTP/1.1\\r\\n\\r\\n'.encode())
        head = there.makefile('rb').readline().decode().split()[1]
        print(target, head)
" """


class Service:
    """Service of the server's host on loopback, which counts its callers."""

    def __init__(self) -> None:
        self.callers = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            with self._listener.accept()[0] as caller:
                if caller.recv(3) == b"end":
                    return
                self.callers += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as caller:
            caller.sendall(b"end")
        self._thread.join()
        self._listener.close()


@pytest.fixture
def service() -> Iterator[Service]:
    """Start a service of the host that no agent was given."""
    with Service() as service:
        yield service


def spawn(client: TeamClient, name: str, *endpoints: str) -> httpx2.Response:
    """Spawn an agent with Bash and these endpoints, and return the response."""
    return client.spawn(name, spawn_info=SHELL, policy={"allowed_endpoints": list(endpoints)})


def schedule(client: TeamClient, *endpoints: str) -> httpx2.Response:
    """Schedule an agent with these endpoints for later, and return the response."""
    policy = {"allowed_endpoints": list(endpoints)}
    asked = {"agent": {"name": "later", "model": "offline"}, "prompt": "x", "in_s": 3600, "policy": policy}
    return client.ask("POST", "/v1/schedules", client.operator, json=asked)


def dial(client: TeamClient, spawned: httpx2.Response, *targets: str) -> dict[str, str]:
    """Return how the proxy answers an agent that asks for tunnels."""
    reply = client.say(spawned.raise_for_status().json(), _DIAL.format(targets=" ".join(targets)))
    return dict(line.split() for line in reply.splitlines() if line.count(" ") == 1)


def assert_refused(answer: httpx2.Response, value: str) -> None:
    """Assert that the refusal names the field, the value, and the rule that would allow the value."""
    assert answer.status_code == 409, (value, answer.text)
    problem: dict[str, Any] = answer.json()
    assert (problem["type"], problem["limit"]) == ("urn:ramet:problem:spawn-refused", "policy.allowed_endpoints")
    assert value in problem["detail"]
    assert "rules.endpoints" in problem["detail"]


def test_a_team_cannot_list_a_private_address(service: Service) -> None:
    """A team without a rule may list public endpoints only, and `*` does not reach the host's own services."""
    with serve_team() as client:
        for number, each in enumerate(PRIVATE):
            endpoint = each.format(service.port)
            assert_refused(spawn(client, f"private-{number}", "example.org:443", endpoint), endpoint)
        assert_refused(spawn(client, "dotted", f"127.0.0.1.:{service.port}"), f"127.0.0.1:{service.port};")
        for number, each in enumerate(SPELLINGS):
            answer = spawn(client, f"spelled-{number}", each.format(service.port))
            assert answer.status_code == 422, each
            assert "policy.allowed_endpoints" in answer.json()["detail"], each
        assert_refused(schedule(client, "[::1]:80"), "[::1]:80")
        assert schedule(client, "example.org:443").status_code == 201

        targets = [f"127.0.0.1:{service.port}", f"localhost:{service.port}", f"[::1]:{service.port}"]
        everything = spawn(client, "everything", "*", f"LOCALHOST.:{service.port}", "8.8.8.8:53")

        assert dial(client, everything, *targets) == dict.fromkeys(targets, "403")
        assert service.callers == 0


def test_a_rule_gives_exactly_its_endpoints(service: Service) -> None:
    """The rule `rules.endpoints` allows its private address by number, and no other endpoint."""
    mine = f"127.0.0.1:{service.port}"
    with serve_team({"rules": {"endpoints": [mine, "*.Example.org:443"]}}) as client:
        for endpoint in ("*", "example.com:443", "8.8.8.8:53", f"127.0.0.1:{service.port + 1}", "[::1]:443"):
            assert_refused(spawn(client, "no", endpoint), endpoint)
        given = spawn(client, "yes", mine, "api.example.org:443")

        assert dial(client, given, mine, f"localhost:{service.port}") == {
            mine: "200",
            f"localhost:{service.port}": "403",
        }
    assert service.callers == 1


def test_a_rule_is_checked_again_after_a_restart(service: Service) -> None:
    """An agent whose endpoint the rules no longer allow fails after a restart, with an error that names the rule."""
    mine = f"127.0.0.1:{service.port}"
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS)
        with ServeProcess(folder, RAMET_RULES_ENDPOINTS=f"'*' {mine}") as first, team_client(folder) as client:
            spawned = spawn(client, "old", mine).raise_for_status().json()["agent"]
            first.kill()
        with ServeProcess(folder, RAMET_RULES_ENDPOINTS="'*'"), team_client(folder, client.key) as client:
            agent = client.ask("GET", f"/v1/agents/{spawned['id']}", client.operator).raise_for_status().json()

    assert (agent["state"], agent["error"]["type"]) == ("failed", "SpawnRefused")
    assert agent["isolation"] == spawned["isolation"] != "none", "it worked in a sandbox, and still says so"
    assert mine in agent["error"]["message"]
    assert "rules.endpoints" in agent["error"]["message"]
