"""Bundles and images of a team are for that team and the operator; the operator's are for each team. Real HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support import scripted_tool_types
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.support.tars import tar
from tests.support.team_keys import ServeProcess, TeamClient, serve_team, team_client

SECRET = "secret-of-other"
PRIVATE = tar({"privmod/__init__.py": f"WORD = '{SECRET}'\n".encode()})
SHARED = tar({"kit.py": b"WORD = 'of the operator'\n"})
INSIDE: dict[str, Any] = {"spawn_info": {"tools": ["Bash"], "in_image": True}}
NOWHERE = "0" * 64
TEAMS = {"rules": {"bundles": "teams"}}


@pytest.fixture
def client() -> Iterator[TeamClient]:
    """Start a server whose teams may upload."""
    with serve_team(TEAMS) as found:
        yield found


def team(client: TeamClient, name: str) -> str:
    """Create a team, and return its key."""
    asked = {"name": name, "resources": {"agents": 4}}
    return str(client.ask("POST", "/v1/teams", client.operator, json=asked).raise_for_status().json()["key"])


def upload(client: TeamClient, key: str, data: bytes = PRIVATE) -> str:
    """Upload a bundle, and return its id."""
    return str(client.ask("POST", "/v1/bundles", key, content=data).raise_for_status().json()["id"])


def image(client: TeamClient, key: str, *bundles: str, base: str = "") -> str:
    """Build an image, and return its id once the image is done."""
    asked = client.ask("POST", "/v1/images", key, json={"bundles": bundles, "base": base})
    job = asked.raise_for_status().json()
    until = time.monotonic() + 60
    while job["state"] in ("queued", "running") and time.monotonic() < until:
        time.sleep(0.01)
        job = client.ask("GET", f"/v1/jobs/{job['id']}", key).raise_for_status().json()
    assert job["state"] == "done", job
    return str(job["image"])


def list_ids(client: TeamClient, kind: str, key: str) -> set[str]:
    """Return the ids of the bundles, or images, that a key may list."""
    return {each["id"] for each in client.ask("GET", f"/v1/{kind}", key).raise_for_status().json()[kind]}


def masked_answer(answer: httpx2.Response, id: str) -> tuple[int, str]:
    """Return the status and text of an answer, with a placeholder for the id that was asked for."""
    return answer.status_code, answer.text.replace(id, "<id>")


def test_a_team_lists_its_own_and_the_operators_uploads(client: TeamClient) -> None:
    """The operator lists each upload. A team's list has no bundle or image of another team."""
    other = team(client, "other")
    private, shared = upload(client, other), upload(client, client.operator, SHARED)
    theirs, everybodys = image(client, other, private), image(client, client.operator, shared)

    assert list_ids(client, "bundles", client.key) == {shared}
    assert list_ids(client, "images", client.key) == {everybodys}
    for key in (other, client.operator):
        assert list_ids(client, "bundles", key) == {private, shared}
        assert list_ids(client, "images", key) == {theirs, everybodys}


def test_a_foreign_bundle_or_image_gets_the_answer_of_a_missing_one(client: TeamClient) -> None:
    """A team gets the same answer for a foreign id and a missing id, in each request that names an id."""
    other = team(client, "other")
    private = upload(client, other)
    theirs = image(client, other, private)
    agent = client.spawn("bob", spawn_info={"tools": ["Bash"]}).raise_for_status().json()
    path = f"/v1/agents/{agent['agent']['id']}"
    narrow = client.ask("POST", f"{path}/keys", agent["nonce"], json={"rights": ["control"]}).raise_for_status().json()
    own = upload(client, client.key, SHARED)

    def answers(bundle: str, image: str) -> dict[str, tuple[int, str]]:
        loads = {"@type": "load_bundle", "bundle": bundle}
        asked = {
            "spawn": (image, client.spawn("spy", image=image, **INSIDE)),
            "get": (image, client.ask("GET", f"/v1/images/{image}", client.key)),
            "job": (image, client.ask("GET", f"/v1/jobs/{image}", client.key)),
            "delete": (image, client.ask("DELETE", f"/v1/images/{image}", client.key)),
            "delete a bundle": (bundle, client.ask("DELETE", f"/v1/bundles/{bundle}", client.key)),
            "build": (bundle, client.ask("POST", "/v1/images", client.key, json={"bundles": [own, bundle]})),
            "on top": (image, client.ask("POST", "/v1/images", client.key, json={"bundles": [own], "base": image})),
            "load": (bundle, client.ask("POST", f"{path}/control", agent["nonce"], json=loads)),
            "load with a narrower key": (bundle, client.ask("POST", f"{path}/control", narrow["key"], json=loads)),
        }
        return {name: masked_answer(answer, id) for name, (id, answer) in asked.items()}

    foreign, missing = answers(private, theirs), answers(NOWHERE, NOWHERE)

    assert foreign == missing
    assert {status for status, _ in foreign.values()} == {404}
    assert list_ids(client, "images", client.key) == set()


def test_an_agent_reads_the_files_of_its_own_team(client: TeamClient) -> None:
    """Control: the same request with the team's own image shows the file."""
    own = image(client, client.key, upload(client, client.key))

    agent = client.spawn("bob", image=own, **INSIDE).raise_for_status().json()

    assert SECRET in client.say(agent, "$ cat privmod/__init__.py")


def test_an_operators_image_with_a_teams_bundle_is_for_that_team(client: TeamClient) -> None:
    """The operator may build on a team's bundle. Other teams neither list nor use the image."""
    other = team(client, "other")
    private, shared = upload(client, other), upload(client, client.operator, SHARED)
    mixed = image(client, client.operator, shared, private)

    assert list_ids(client, "images", other) == {mixed}
    assert list_ids(client, "images", client.key) == set()
    missing = masked_answer(client.spawn("spy", image=NOWHERE, policy={}), NOWHERE)
    assert masked_answer(client.spawn("spy", image=mixed, policy={}), mixed) == missing
    job = masked_answer(client.ask("GET", f"/v1/jobs/{mixed}", client.key), mixed)
    assert job == masked_answer(client.ask("GET", f"/v1/jobs/{NOWHERE}", client.key), NOWHERE)


def test_a_team_builds_from_its_own_and_the_operators_bundles(client: TeamClient) -> None:
    """A team may build on the operator's image, or with the operator's bundle.

    Another team does not list the result.
    """
    other = team(client, "other")
    shared = upload(client, client.operator, SHARED)
    base = image(client, client.operator, shared)
    private = upload(client, client.key)

    beside, on_top = image(client, client.key, shared, private), image(client, client.key, private, base=base)

    assert beside == on_top, "the same bundles in the same order"
    assert list_ids(client, "images", client.key) == {base, beside}
    assert list_ids(client, "images", other) == {base}
    assert client.spawn("bob", image=beside, policy={}).status_code == 201


def test_two_teams_with_the_same_files_do_not_learn_of_each_other(client: TeamClient) -> None:
    """Both teams own the same bundle, and each builds its own image. No answer shows the other team's image."""
    other = team(client, "other")
    private = upload(client, other)
    theirs = image(client, other, private)

    assert upload(client, client.key) == private
    assert list_ids(client, "bundles", client.key) == {private}
    assert list_ids(client, "images", client.key) == set()
    asked = client.ask("POST", "/v1/images", client.key, json={"bundles": [private]})
    assert (asked.status_code, asked.json()["state"]) == (202, "queued")
    ours = image(client, client.key, private)
    assert list_ids(client, "images", client.key) == {ours}
    assert list_ids(client, "images", other) == {theirs}
    assert ours != theirs
    assert client.ask("GET", f"/v1/images/{theirs}", client.key).status_code == 404
    assert client.ask("GET", f"/v1/jobs/{theirs}", client.key).status_code == 404


def test_a_bundle_that_the_operator_uploads_too_is_for_each_team(client: TeamClient) -> None:
    """A team's upload takes no bundle from other teams. The operator's upload gives a bundle to each team."""
    other = team(client, "other")
    private = upload(client, other)
    shared = upload(client, client.operator, SHARED)

    assert upload(client, other, SHARED) == shared
    assert list_ids(client, "bundles", client.key) == {shared}
    assert upload(client, client.operator) == private
    assert list_ids(client, "bundles", client.key) == {private, shared}


def test_the_uploads_of_an_ended_team_are_for_the_operator_only(client: TeamClient) -> None:
    """A later team of the same name does not list the uploads."""
    other = team(client, "other")
    private = upload(client, other)
    theirs = image(client, other, private)
    client.ask("DELETE", "/v1/teams/other", client.operator).raise_for_status()

    again = team(client, "other")

    for key in (again, client.key):
        assert list_ids(client, "bundles", key) == list_ids(client, "images", key) == set()
    assert list_ids(client, "bundles", client.operator) == {private}
    assert list_ids(client, "images", client.operator) == {theirs}


def test_uploads_belong_to_the_same_team_after_a_restart() -> None:
    """Agents of a killed server have their images and loaded bundles again. Other teams list none of them."""
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS + scripted_tool_types.ENTRY_POINTS)
        (folder / "ramet.yaml").write_text('{"rules": {"bundles": "teams"}}')
        with ServeProcess(folder, "--config", str(folder / "ramet.yaml")) as server, team_client(folder) as first:
            other, key = team(first, "other"), first.key
            private, late = upload(first, key), upload(first, key, SHARED)
            ours = image(first, key, private)
            agent = first.spawn("bob", image=ours, **INSIDE).raise_for_status().json()
            path = f"/v1/agents/{agent['agent']['id']}"
            loads = {"@type": "load_bundle", "bundle": late}
            first.ask("POST", f"{path}/control", agent["nonce"], json=loads).raise_for_status()
            server.kill()
        with ServeProcess(folder, "--config", str(folder / "ramet.yaml")), team_client(folder, key) as client:
            there = client.ask("GET", path, agent["nonce"]).raise_for_status().json()

            assert (there["state"], there["bundles"]) == ("idle", [late])
            assert SECRET in client.say(agent, "$ cat privmod/__init__.py")
            assert list_ids(client, "bundles", key) == {private, late}
            assert list_ids(client, "images", key) == {ours}
            assert list_ids(client, "bundles", other) == list_ids(client, "images", other) == set()
