"""Attacks 77 to 92 and 116 of the list by the client inside: requests for more than a run may have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.security.attacks import processes, spawning
from tests.security.kit import Kernel, Raised, canary

#: What the parents below may: a little of everything.
PARENT: dict[str, Any] = {
    "allow_sub_agents": True,
    "cpu_cores": 1.0,
    "memory_mb": 400,
    "pids": 32,
    "timeout_seconds": 50,
    "tmpfs_size_mb": 16,
    "workspace_size_mb": 32,
    "max_output_bytes": 1 << 20,
    "max_sub_agent_depth": 2,
    "max_sub_agents": 50,
}

#: Rights that such a parent lacks, by what the refusal must name.
RIGHTS: dict[str, dict[str, Any]] = {
    "readonly_mounts": {"readonly_mounts": ["/var/lib"]},
    "allowed_endpoints": {"network": "allow_list", "allowed_endpoints": ["127.0.0.1:80"]},
    "allowed_env_vars": {"allowed_env_vars": ["ANTHROPIC_API_KEY"]},
    "secrets": {"secrets": {"the_hosts": None}},
    "isolation": {"isolation": "L0"},
}

#: Limits above such a parent's: given, and cut to the parent's.
LIMITS: dict[str, dict[str, Any]] = {
    "cpu_cores": {"cpu_cores": 64.0},
    "pids": {"pids": 10_000},
    "timeout_seconds": {"timeout_seconds": 10_000.0},
    "tmpfs_size_mb": {"tmpfs_size_mb": 10_000},
    "workspace_size_mb": {"workspace_size_mb": 10_000},
    "max_output_bytes": {"max_output_bytes": 1 << 30},
    "max_sub_agent_depth": {"allow_sub_agents": True, "max_sub_agent_depth": 100},
    "max_sub_agents": {"allow_sub_agents": True, "max_sub_agents": 10_000},
}


def test_77_neg_2_a_child_gets_no_right_that_its_parent_lacks(kernel: Kernel) -> None:
    """77, NEG-2: a child that asks for a mount, endpoint, variable, secret or lower isolation is refused by name."""
    outcomes = kernel.attack(spawning.widen, {"as it is": {}, **RIGHTS}, **PARENT, isolation="L1")

    assert outcomes.pop("as it is")["output"] == 1
    for name, refusal in outcomes.items():
        assert refusal["error"] == "SpawnRefused", (name, refusal)
        assert refusal["limit"] == f"policy.{name}"


def test_77_a_public_endpoint_gives_a_child_no_private_address(kernel: Kernel) -> None:
    """77, 55: an agent that may reach each public endpoint cannot spawn a child with an address of loopback."""
    if not kernel.has_namespaces:
        return  # No agent has endpoints there.
    port = kernel.play("listen", key="service", address="127.0.0.1")
    asked = {name: {"allowed_endpoints": [f"{name}:{port}"]} for name in ("127.0.0.1", "[::1]", "example.org")}

    outcomes = kernel.attack(spawning.widen, asked, **PARENT, network="allow_list", allowed_endpoints=["*"])

    assert outcomes.pop("example.org")["output"] == 1
    for name, refusal in outcomes.items():
        assert (refusal["error"], refusal.get("limit")) == ("SpawnRefused", "policy.allowed_endpoints"), name


def test_77_limits_above_the_parents_are_cut_to_the_parents(kernel: Kernel) -> None:
    """77: a child that asks for higher limits is spawned with the parent's limits: its /tmp shows the parent's size."""
    outcomes = kernel.attack(spawning.widen, LIMITS, **PARENT)

    assert {name: each["error"] for name, each in outcomes.items() if each["error"]} == {}
    if kernel.has_namespaces:
        seen = kernel.attack(spawning.what_it_got, {"tmpfs_size_mb": 10_000}, **PARENT)
        assert seen["tmp_mb"] <= 16


def test_77_a_cut_limit_gives_an_event(kernel: Kernel) -> None:
    """77, 59: a limit that is cut gives an event with the limit, the value asked for, and the value granted."""
    outcomes = kernel.attack(spawning.widen, {"many": {"pids": 10_000}}, **PARENT)

    clamps = [
        each["told"] for each in kernel.play("events", run=outcomes["many"]["run"]) if each["type"] == "ClampEvent"
    ]
    assert len(clamps) == 1
    for word in ("pids", "10000", "32"):
        assert word in clamps[0]


def test_78_a_missing_limit_becomes_the_parents(kernel: Kernel) -> None:
    """78: a child that asks for no limit may have no more processes than its parent."""

    found = kernel.attack(spawning.fork_in_child, 100, 2, **{**PARENT, "pids": 16})

    assert found is None or (found["stopped"] == "BlockingIOError" and found["lived"] <= 16)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_80_ac_s0_4_depth_ends_at_the_policys_limit(kernel: Kernel, depth: int) -> None:
    """80, AC-S0-4: a chain of children runs down to the limit. The refusal of the next child names the depth."""
    policy = {"allow_sub_agents": True, "memory_mb": 1024, "cpu_cores": 8, "max_sub_agent_depth": depth}

    *lived, refusal = kernel.attack(spawning.chain, depth + 1, **policy)

    assert lived == ["lived"] * depth
    assert refusal["error"] == "SpawnRefused"
    assert "depth" in refusal["limit"]


def test_80_neg_13_concurrent_spawns_stay_within_the_limit(kernel: Kernel) -> None:
    """80: many spawn requests from forty threads start ten children, the limit. The other requests get a refusal."""
    number = 1000 if kernel.user == "me" else 200
    found = kernel.attack(
        spawning.start_many,
        number,
        40,
        allow_sub_agents=True,
        memory_mb=2048,
        cpu_cores=16,
        pids=64,
        max_sub_agents=10,
    )

    assert (found["born"], found["completed"]) == (10, 10)
    assert sum(found["refused"].values()) == number - 10
    assert [limit for limit in found["refused"] if "sub_agents" not in limit and "children" not in limit] == []


def test_80_ac_s0_5_memory_of_children_stays_within_the_parents(kernel: Kernel) -> None:
    """80, AC-S0-5: a parent of 512 MB never has more than four children of 128 MB at once."""
    found = kernel.attack(
        spawning.start_many,
        40,
        20,
        {"memory_mb": 128, "cpu_cores": 0.05},
        allow_sub_agents=True,
        memory_mb=512,
        cpu_cores=1,
        max_sub_agents=1000,
    )

    assert 1 <= found["born"]
    assert found["born"] == found["completed"]
    assert found["born"] + sum(found["refused"].values()) == 40
    assert found["at_once"] <= 4


def test_neg_13_an_agent_that_copies_itself_is_bounded(kernel: Kernel) -> None:
    """NEG-13: an agent that spawns copies in width and depth ends with no more copies than its limits allow."""
    policy = {
        "allow_sub_agents": True,
        "memory_mb": 4096,
        "cpu_cores": 32,
        "max_sub_agents": 2,
        "max_sub_agent_depth": 2,
    }

    assert 1 < kernel.attack(spawning.replicate, 50, **policy) <= 1 + 2 + 4


def test_82_ac_s0_3_a_run_that_may_not_spawn_is_refused(kernel: Kernel) -> None:
    """82, AC-S0-3: the default policy forbids to spawn, and a parent can forbid it for a child."""
    refusal = kernel.attack(spawning.spawn_one)
    assert (refusal["error"], refusal["limit"]) == ("SpawnRefused", "policy.allow_sub_agents")

    outcome = kernel.attack(spawning.chain_with, {"allow_sub_agents": False}, **PARENT)
    assert outcome["error"] == "SpawnRefused"


BAD_NAMES = [
    "../up",
    "a/b",
    "new\nline",
    "nul\0",
    "x" * 1_000_000,
    "",
    " ",
    "\u202eright-to-left",
    "\ud800",
    "main/x",
    ".",
    "..",
]


def test_86_a_hostile_name_of_a_child_is_refused(kernel: Kernel) -> None:
    """86: names with slashes, newlines, NUL, a megabyte or Unicode tricks are refused, and make no file."""
    outcomes = kernel.attack(spawning.hostile_names, ["plain-name", *BAD_NAMES], **PARENT)

    assert outcomes[0] == {"error": None, "output": 1}
    wrong = [
        name[:20] for name, each in zip(BAD_NAMES, outcomes[1:], strict=True) if each["error"] is None and name.strip()
    ]
    assert wrong == []
    assert kernel.play("named", name="up") == []


LOADERS = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV", "ENV",
    "GCONV_PATH", "IFS", "NODE_OPTIONS", "PERL5OPT", "http_proxy", "HTTPS_PROXY", "ALL_PROXY",
)  # fmt: skip


@pytest.mark.parametrize("name", [*LOADERS, "A=B", "", "NUL\0", "1BAD", "a b"])
def test_90_variables_that_load_code_are_refused(kernel: Kernel, name: str) -> None:
    """90: a root's variable that loads code gives an error that names the field, by value and by name."""
    for policy in ({"env_vars": {name: "/tmp/evil.so"}}, {"allowed_env_vars": [name]}):
        with pytest.raises(Raised) as raised:
            kernel.run(processes.environment, **policy)
        assert raised.value.error["type"] in {"InvalidValue", "SpawnRefused"}
        assert "env_vars" in str(raised.value.error)


def test_90_variables_that_load_code_are_refused_for_a_child(kernel: Kernel) -> None:
    """90: a child that asks for such a variable is refused."""
    outcomes = kernel.attack(spawning.widen, {name: {"env_vars": {name: "/tmp/evil.so"}} for name in LOADERS}, **PARENT)

    assert [name for name, each in outcomes.items() if each["error"] not in {"SpawnRefused", "InvalidValue"}] == []


def test_77_neg_7_a_child_gets_a_secret_only_by_name(kernel: Kernel) -> None:
    """77, NEG-7: a child that asks for its parent's secret gets it. Another child gets none."""
    secret = canary()
    if not kernel.has_namespaces:
        pytest.skip("refused there: see attack 26")
    policy = {**PARENT, "secrets": {"token": secret.text}}

    got = kernel.attack(spawning.secrets_of_children, **policy)

    assert got["asked"] == {"token": secret.text}
    assert got["not asked"] == {}


def test_116_neg_3_a_checkpoint_belongs_to_one_run(kernel: Kernel) -> None:
    """116, NEG-3: a run reads its own checkpoint. Another run of the same function finds none."""
    first = kernel.attack(spawning.checkpoint, {"step": 1, "data": [1.5, "two", None]})
    second = kernel.attack(spawning.checkpoint, {"step": 9})

    assert first == {"before": None, "after": {"step": 1, "data": [1.5, "two", None]}}
    assert second == {"before": None, "after": {"step": 9}}


def test_an_agent_that_is_no_function_is_refused(kernel: Kernel) -> None:
    """A spawn of a number, None, a text, or a function that holds a lock gives a typed error."""
    outcomes = kernel.attack(spawning.spawn_with_many_faces, ["number", "none", "code", "lock"], **PARENT)

    assert [name for name, each in outcomes.items() if each["error"] is None] == []
    assert outcomes["lock"]["error"] == "NotShippable"
    assert {each["error"] for each in outcomes.values()} <= {"NotShippable", "InvalidValue", "TypeError", "Unknown"}


def test_neg_8_an_unknown_id_reads_no_artifact(kernel: Kernel) -> None:
    """NEG-8: an artifact of an id that no run has gives the error `Unknown`."""
    policy: dict[str, Any] = PARENT
    outcomes = kernel.attack(spawning.reach_artifacts, ["report.txt"], "0" * 16, **policy)

    assert [each["error"] for each in outcomes] == ["Unknown"]
