"""Reach of a team's key on the machine of a server: real `ramet serve`, real HTTP, real sandboxes."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from tests.support.team_keys import TeamClient, serve_team

SHELL = {"tools": ["Bash"]}
BACKENDS = ("bwrap", "local")


def token_of(client: TeamClient) -> str:
    """Return the command that prints the operator's token, for an agent that can read it."""
    return f"$ cat {client.folder}/.ramet/operator-token"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_with_bash_cannot_read_the_operators_token(backend: str) -> None:
    """An agent without a policy gets the default sandbox. Its shell finds the token in no file and no environment."""
    with serve_team(None, "--backend", backend) as client:
        made = client.spawn("bob", spawn_info=SHELL)
        assert made.status_code == 201, made.text
        spawned = made.json()

        reply = client.say(spawned, token_of(client))

        assert client.operator not in reply
        assert spawned["agent"]["isolation"] in ("L1", "L2")
        assert client.operator not in client.say(spawned, f"$ ls {client.folder}/.ramet; cat /proc/*/environ")


def test_the_operators_rule_lets_agents_work_in_the_host() -> None:
    """Control: with `rules.sandboxed: false` the same attack reads the token, and the answer says `none`."""
    with serve_team({"rules": {"sandboxed": False}}) as client:
        spawned = client.spawn("bob", spawn_info=SHELL).raise_for_status().json()

        assert spawned["agent"]["isolation"] == "none"
        assert client.operator in client.say(spawned, token_of(client))


def test_only_agents_without_tools_run_in_the_host() -> None:
    """A model that only talks runs in the host. An agent with a tool, code or children gets a sandbox."""
    with serve_team() as client:
        asked = {
            "talks": {},
            "reads": {"tools": ["Read"]},
            "greps": {"tools": ["Grep"]},
            "all": {"tools": ["*"]},
            "codes": {"tools": ["python"]},
            "leads": {"spawn": True},
        }
        levels = {
            name: client.spawn(name, spawn_info=info).raise_for_status().json()["agent"]["isolation"]
            for name, info in asked.items()
        }
        program = client.spawn("runs", "command", spawn_info={"argv": ["sh", "-c", "echo ready; cat"]})

        assert levels.pop("talks") == "none"
        assert set(levels.values()) == {"L2"}
        assert "in the host" not in program.text, "a program is started in a sandbox, whatever it says then"


def test_a_machine_without_sandboxes_refuses_agents_with_tools() -> None:
    """An agent with tools never runs in the host for want of bubblewrap: the refusal names what is missing."""
    with serve_team(None, PATH="/nowhere") as client:
        refused = client.spawn("bob", spawn_info=SHELL)
        talks = client.spawn("talks")

        assert refused.status_code == 422, refused.text
        assert refused.json()["type"] == "urn:ramet:problem:isolation-unavailable"
        assert "bwrap" in refused.json()["missing"]
        assert talks.status_code == 201, "a model that only talks needs no sandbox"


def test_requests_outside_of_the_operators_rules_are_refused_by_name() -> None:
    """Each refusal names the field. A request within the rules is accepted."""
    with serve_team(
        {"rules": {"tools": ["Read"], "models": ["shell"], "mounts": ["given"], "variables": ["LANG"]}}
    ) as at:
        (at.folder / "given" / "below").mkdir(parents=True)
        (at.folder / "given" / "out").symlink_to("/etc")
        cases: dict[str, dict[str, Any]] = {
            "spawn_info.tools": {"spawn_info": SHELL},
            "spawn_info.model": {"spawn_info": {"model": "offline"}},
            "policy.allowed_env_vars": {"policy": {"allowed_env_vars": ["RAMET_TOKEN"]}},
            "policy.readonly_mounts": {"policy": {"readonly_mounts": ["/etc"]}},
            "policy.writable_mounts": {"policy": {"writable_mounts": [str(at.folder / "given" / "below")]}},
        }
        for number, (field, asked) in enumerate(cases.items()):
            refused = at.spawn(f"no-{number}", **asked)
            assert refused.status_code in (409, 422), refused.text
            assert field in (refused.json().get("field"), refused.json().get("limit"))
        through = at.spawn("through", policy={"readonly_mounts": [str(at.folder / "given" / "out")]})
        assert through.status_code in (409, 422), "a link below a granted folder leads out of it"
        policy = {"readonly_mounts": [str(at.folder / "given" / "below")], "allowed_env_vars": ["LANG"]}
        assert at.spawn("yes", spawn_info={"tools": ["Read"]}, policy=policy).status_code == 201


def test_rules_in_the_environment_override_the_file() -> None:
    """Variables of the environment replace rules of the file, as for each other setting."""
    settings = {"rules": {"tools": ["Read"], "sandboxed": False}}
    with serve_team(settings, RAMET_RULES_TOOLS="Bash Grep", RAMET_RULES_SANDBOXED="true") as client:
        loop = client.spawn("loop").raise_for_status().json()

        assert client.spawn("bob", spawn_info=SHELL).status_code == 201
        assert client.spawn("ann", spawn_info={"tools": ["Read"]}).status_code == 422
        assert loop["agent"]["isolation"] == "L2", "all agents, those without tools as well"


def test_a_team_may_upload_a_bundle_only_with_a_rule() -> None:
    """The server refuses a team's bundle without `rules.bundles: teams`. The operator may upload."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        module = tarfile.TarInfo("kit.py")
        module.size = 6
        archive.addfile(module, io.BytesIO(b"x = 1\n"))
    bundle = buffer.getvalue()
    with serve_team() as client:
        refused = client.ask("POST", "/v1/bundles", client.key, content=bundle)
        assert refused.status_code == 403, refused.text
        assert refused.json()["type"] == "urn:ramet:problem:denied"
        assert "rules.bundles" in refused.json()["detail"]
        assert client.ask("POST", "/v1/bundles", client.operator, content=bundle).status_code == 201
    with serve_team({"rules": {"bundles": "teams"}}) as client:
        assert client.ask("POST", "/v1/bundles", client.key, content=bundle).status_code == 201
        assert client.ask("POST", "/v1/bundles", "team_wrong", content=bundle).status_code == 401


def test_a_spawn_names_a_bounded_number_of_tools() -> None:
    """A spawn with more than 200 tools is refused, and the refusal names the field."""
    with serve_team() as client:
        refused = client.spawn("many", spawn_info={"tools": [f"kit:f{i}" for i in range(201)]}, policy={})

        assert refused.status_code == 422, refused.text
        assert refused.json()["field"] == "spawn_info.tools"
        assert "at most 200" in refused.json()["detail"]
