"""The files of deploy/ for containers, compose and systemd fit the project and each other."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_the_context_of_the_image_has_what_its_build_reads_and_nothing_else() -> None:
    """Everything is ignored but the sources and the files that pyproject.toml names; each of them exists."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    taken = {line.removeprefix("!") for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert lines[0] == "*"
    assert taken == {"src", "pyproject.toml", "hatch_build.py", "constraints.txt", "LICENSE", project["readme"]}
    assert all((ROOT / name).exists() for name in taken)
    assert all(name.startswith("src/") or name in taken for name in project["license-files"])


def test_the_image_names_no_host_and_runs_as_the_user_of_the_manifests() -> None:
    """Its base is an argument, and its user is the one that deploy/base gives the volumes to."""
    text = (DEPLOY / "Dockerfile").read_text()
    (kernels,) = [each for each in yaml.safe_load_all((DEPLOY / "base" / "kernels.yaml").read_text()) if each]
    user = kernels["spec"]["template"]["spec"]["securityContext"]["runAsUser"]

    assert re.findall(r"(?m)^FROM (\S+)", text) == ["${BASE}", "${BASE}"]
    assert not re.search(r"(?m)^ARG BASE=\S*[./]\S*/", text)
    assert f"USER {user}:{user}" in text
    assert "://" not in text


def test_compose_gives_the_server_no_right_and_no_secret() -> None:
    """Passwords and keys come from the environment, and the port is of this machine only."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    server, values = services["ramet"], services["ramet"]["environment"]

    assert server["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
    assert (server["cap_drop"], server["read_only"], "privileged" in server) == (["ALL"], True, False)
    assert "no-new-privileges" in server["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert "${POSTGRES_PASSWORD:?" in values["RAMET_STORE"]
    assert values["RAMET_OPERATOR_TOKEN"].startswith("${RAMET_OPERATOR_TOKEN:?")
    assert values["OPENAI_API_KEY"] is None
    assert "ports" not in services["postgres"]


def test_the_unit_restricts_nothing_that_sandboxes_are_made_of() -> None:
    """With one of these settings no sandbox of bwrap starts, or none gets limits by control groups."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]  # settings of systemd have capitals
    unit.read_string((DEPLOY / "ramet.service").read_text())
    service = unit["Service"]

    assert service["User"] != "root"
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")
    assert service["Delegate"] == "cpu memory pids"
    assert not {
        "MemoryDenyWriteExecute", "ProtectControlGroups", "ProtectHostname", "RestrictNamespaces", "SystemCallFilter",
    } & set(service)  # fmt: skip
