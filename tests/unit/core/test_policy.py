"""Tests of `core/policy/policy.py`: what a policy may ask, and what a child is granted.

Properties are in `tests/properties`."""

from __future__ import annotations

import copy
import math
import pickle
import re
from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy.policy import (
    DEFAULTS,
    ClampedLimit,
    Grant,
    Isolation,
    Policy,
    from_json,
    narrow,
    resolve_root_policy,
    to_json,
    to_public_dict,
)
from ramet.core.policy.reservation import Reservation

CANARY = "canary-2f9c"

#: field: the least and the most that is accepted
BOUNDS: dict[str, tuple[float, float]] = {
    "cpu_cores": (0.01, 4096),
    "memory_mb": (1, 2**24),
    "pids": (1, 2**22),
    "timeout_seconds": (0.001, 366 * 86400),
    "tmpfs_size_mb": (1, 2**24),
    "workspace_size_mb": (1, 2**24),
    "max_output_bytes": (1, 2**40),
    "max_sub_agent_depth": (0, 1000),
    "max_sub_agents": (0, 10**6),
    "retry_count": (0, 1000),
    "retry_delay_seconds": (0, 86400),
}
FLOAT_FIELDS = ("cpu_cores", "timeout_seconds", "retry_delay_seconds")
INTEGER_FIELDS = tuple(name for name in BOUNDS if name not in FLOAT_FIELDS)
LIMIT_FIELDS = tuple(name for name in BOUNDS if not name.startswith("retry"))

#: A parent with a little of everything.
PARENT = Grant(
    cpu_cores=2.0,
    memory_mb=512,
    pids=50,
    timeout_seconds=600.0,
    allowed_endpoints=("api.example.org:443", "*.wild.example.org:443"),
    ports={"web": 8000, "metrics": 9090},
    readonly_mounts=("/data/sets", "/opt/models", "/project/vendor"),
    writable_mounts=("/project",),
    tmpfs_size_mb=32,
    workspace_size_mb=128,
    max_output_bytes=1000,
    allowed_env_vars=("LANG", "TZ"),
    env_vars={"MODE": "slow"},
    secrets={"token": CANARY, "other": "o" + CANARY},
    allow_sub_agents=True,
    max_sub_agent_depth=2,
    max_sub_agents=5,
    isolation=Isolation.L2,
    retry_count=2,
    retry_delay_seconds=3.0,
    reservation=Reservation(name="crew", memory_mb=1024.0),
)


def policy(**fields: Any) -> Policy:
    """Return a policy from values that a type checker would refuse."""
    return Policy(**fields)


def child_grant(**fields: Any) -> Grant:
    """Return the grant of a child of PARENT that asks for these fields."""
    return narrow(PARENT, policy(**fields))[0]


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", BOUNDS)
@pytest.mark.parametrize(
    "value",
    [True, False, "5", b"5", [5], math.nan, math.inf, -math.inf, -1, -0.1, 10**400, 1j],
    ids=lambda value: repr(value)[:12],
)
def test_a_value_that_is_no_valid_number_is_refused_by_its_field(field: str, value: Any) -> None:
    """A limit must be comparable, and must not be converted silently."""
    with pytest.raises(InvalidValue) as refusal:
        policy(**{field: value})

    assert refusal.value.field == f"policy.{field}"
    assert refusal.value.value is value


@pytest.mark.parametrize("field", BOUNDS)
def test_values_at_the_bounds_are_accepted_and_beyond_them_refused(field: str) -> None:
    """The accepted range includes both bounds."""
    least, largest = BOUNDS[field]
    step = 1 if field in INTEGER_FIELDS else 0.0005

    assert getattr(policy(**{field: least}), field) == least
    assert getattr(policy(**{field: largest}), field) == largest
    for beyond in (least - step, largest + 1):
        with pytest.raises(InvalidValue, match=field):
            policy(**{field: beyond})


@pytest.mark.parametrize("field", INTEGER_FIELDS)
def test_counted_fields_accept_whole_numbers_only(field: str) -> None:
    """A float such as 2.0 is refused, too."""
    for value in (1.5, 2.0):
        with pytest.raises(InvalidValue, match="whole number"):
            policy(**{field: value})


@pytest.mark.parametrize("field", ["tmpfs_size_mb", "workspace_size_mb", "memory_mb", "pids", "max_output_bytes"])
def test_zero_is_refused_where_others_read_it_as_unlimited(field: str) -> None:
    """A tmpfs of size 0 has no limit."""
    with pytest.raises(InvalidValue, match="from 1"):
        policy(**{field: 0})


# --- fields that are no numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("network", "on"),
        ("network", True),
        ("network", []),
        ("isolation", "L9"),
        ("isolation", "l2"),
        ("isolation", 2),
        ("isolation", ["L2"]),
        ("allow_sub_agents", "yes"),
        ("allow_sub_agents", 1),
        ("allowed_endpoints", "api.example.org:443"),
        ("allowed_endpoints", {"api.example.org:443": 1}),
        ("allowed_endpoints", [1]),
        ("ports", 8000),
        ("ports", "web"),
        ("ports", ["web=8000"]),
        ("ports", [("web", 8000, 1)]),
        ("ports", {f"p{number}": number for number in range(1, 18)}),
        ("ports", {1: 8000}),
        ("ports", {"": 8000}),
        ("ports", {"../web": 8000}),
        ("ports", {"Web": 8000}),
        ("ports", {"web\n": 8000}),
        ("ports", {"a--b": 8000}),
        ("ports", {"of-sixteen-words": 8000}),
        ("readonly_mounts", "/data"),
        ("allowed_env_vars", "LANG"),
        ("allowed_env_vars", [None]),
        ("env_vars", ["A=1"]),
        ("env_vars", {"A": 1}),
        ("env_vars", {1: "A"}),
        ("secrets", "token"),
        ("secrets", [1]),
        ("secrets", {"token": 1}),
        ("secrets", 7),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_field(field: str, value: Any) -> None:
    """A text instead of a list would be a list of letters."""
    with pytest.raises(InvalidValue) as refusal:
        policy(**{field: value})

    assert refusal.value.field == f"policy.{field}"


def test_ports_are_converted_to_plain_text_and_numbers() -> None:
    """A policy is encoded and sent, so subclasses of `str` and `int` are converted."""

    class Name(str):
        __slots__ = ()

    class Number(int):
        pass

    ports = policy(ports={Name("web"): Number(8000)}).ports

    assert isinstance(ports, dict)
    assert [(type(name), type(number)) for name, number in ports.items()] == [(str, int)]
    assert msgspec.json.decode(msgspec.json.encode(ports)) == {"web": 8000}


@pytest.mark.parametrize(
    ("ports", "field", "value"),
    [
        ({"web": 0}, "web", 0),
        ({"web": -1}, "web", -1),
        ({"web": 65536}, "web", 65536),
        ({"web": "8000"}, "web", "8000"),
        ({"web": 8000.0}, "web", 8000.0),
        ({"web": True}, "web", True),
        ({"web": None}, "web", None),
        ({"web": 3128}, "web", 3128),
        ({"web": 8000, "api": 8000}, "api", 8000),
        ([("web", 8000), ("web", 9000)], "web", 9000),
        ([("web", 8000), ("web", 8000)], "web", 8000),
    ],
    ids=repr,
)
def test_invalid_or_conflicting_ports_are_refused_by_name(ports: Any, field: str, value: Any) -> None:
    """Wrong numbers, the proxy's port, two names for one number, and repeated names are refused."""
    with pytest.raises(InvalidValue) as refusal:
        policy(ports=ports)

    assert refusal.value.field == f"policy.ports.{field}"
    assert refusal.value.value == value


def test_ports_are_accepted_as_a_mapping_or_as_pairs() -> None:
    """Both forms are equal, and later changes of the mapping do not matter."""
    ports = {"web": 1, "a-b-9": 65535}

    request = policy(ports=ports)
    ports["late"] = 5

    assert request == policy(ports=[["web", 1], ("a-b-9", 65535)])
    assert request.ports == {"web": 1, "a-b-9": 65535}
    assert from_json(to_json(request)) == request
    assert to_public_dict(request)["ports"] == {"web": 1, "a-b-9": 65535}
    assert DEFAULTS.ports == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"web": 8000, "metrics": 9090}),
        ({"ports": {}}, {}),
        ({"ports": {"web": 8000}}, {"web": 8000}),
        ({"ports": {"web": 9090}}, "web=9090"),
        ({"ports": {"metrics": 9090, "api": 8000}}, "api=8000"),
    ],
)
def test_a_child_has_no_port_that_its_parent_lacks(fields: dict[str, Any], expected: dict[str, int] | str) -> None:
    """Name and number together are the right."""
    if isinstance(expected, dict):
        assert child_grant(**fields).ports == expected
        return
    with pytest.raises(SpawnRefused, match=expected) as refusal:
        child_grant(**fields)
    assert refusal.value.limit == "policy.ports"


def test_convenient_forms_of_fields_equal_their_canonical_form() -> None:
    """Lists, sets, texts and numbers become the canonical types."""
    convenient = policy(
        allowed_endpoints=["API.example.org.:443", "", "api.example.org:443"],
        readonly_mounts=["/data//sets/./", "/data/sets"],
        allowed_env_vars={"TZ", "LANG"},
        secrets=["token"],
        isolation="fresh",
        cpu_cores=2,
    )

    assert convenient == Policy(
        network="allow_list",
        allowed_endpoints=("api.example.org:443",),
        readonly_mounts=("/data/sets",),
        allowed_env_vars=("LANG", "TZ"),
        secrets={"token": None},
        isolation=Isolation.FRESH,
        cpu_cores=2.0,
    )
    assert isinstance(convenient.cpu_cores, float)
    assert convenient.isolation is Isolation.FRESH


def test_a_policy_copies_its_lists_and_mappings() -> None:
    """Later changes of the arguments do not change the checked policy."""
    names, values = ["LANG"], {"A": "1"}
    request = policy(allowed_env_vars=names, env_vars=values)

    names.append("LD_PRELOAD")
    values["LD_PRELOAD"] = "evil.so"

    assert (request.allowed_env_vars, request.env_vars) == (("LANG",), {"A": "1"})


def test_endpoints_with_a_disabled_network_are_refused() -> None:
    """The contradiction is an error; an empty list of endpoints is accepted."""
    with pytest.raises(InvalidValue, match=r"policy\.network"):
        policy(network="disabled", allowed_endpoints=["api.example.org:443"])

    assert policy(network="disabled", allowed_endpoints=[""]).allowed_endpoints == ()


def test_an_unknown_field_is_refused_by_name() -> None:
    """A misspelt limit is an error; its value is hidden because it may be a secret."""
    with pytest.raises(InvalidValue, match="memory_mb") as refusal:
        from_json({"memroy_mb": CANARY})

    assert refusal.value.field == "policy.memroy_mb"
    assert CANARY not in str(refusal.value)
    with pytest.raises(InvalidValue, match="memroy_mb"):
        policy(memroy_mb=5)


# --- a root ---------------------------------------------------------------------------------------------------------


def test_a_root_that_asks_for_nothing_has_the_defaults() -> None:
    """The defaults hold no right."""
    assert resolve_root_policy(Policy()) == DEFAULTS
    assert (DEFAULTS.allowed_endpoints, DEFAULTS.readonly_mounts, DEFAULTS.allowed_env_vars) == ((), (), ())
    assert (DEFAULTS.env_vars, DEFAULTS.secrets, DEFAULTS.allow_sub_agents) == ({}, {}, False)


def test_a_root_has_what_it_asks_for() -> None:
    """The grant of a root equals its policy, field by field."""
    fields = {
        name: getattr(PARENT, name)
        for name in Grant.__struct_fields__
        if getattr(PARENT, name) != getattr(DEFAULTS, name)
    }

    assert resolve_root_policy(policy(**fields)) == PARENT


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"allowed_endpoints": []},
        {"allowed_endpoints": [""]},
        {"allowed_endpoints": None},
        {"network": "allow_list"},
        {"network": "allow_list", "allowed_endpoints": None},
        {"network": "disabled"},
    ],
    ids=str,
)
def test_an_empty_allow_list_of_a_root_denies_all(fields: dict[str, Any]) -> None:
    """Empty, null, and a list of an empty text mean no network."""
    assert resolve_root_policy(policy(**fields)).allowed_endpoints == ()
    assert resolve_root_policy(from_json(msgspec.json.encode(fields))).allowed_endpoints == ()


def test_grants_do_not_share_mutable_defaults() -> None:
    """A change of one grant does not change the defaults or another grant."""
    resolve_root_policy(Policy()).env_vars["A"] = "1"
    narrow(Grant(), Policy())[0].env_vars["B"] = "1"

    assert (DEFAULTS.env_vars, resolve_root_policy(Policy()).env_vars, Grant().env_vars) == ({}, {}, {})


def test_a_secret_of_a_root_needs_a_value() -> None:
    """A root has no parent with a value."""
    with pytest.raises(InvalidValue, match="without a value, not shown") as refusal:
        resolve_root_policy(policy(secrets=["token"]))

    assert refusal.value.field == "policy.secrets"
    assert "token" not in str(refusal.value)


@pytest.mark.parametrize(
    ("allowed", "mount", "passes"),
    [
        (None, "/anything", True),
        ([], "/data", False),
        (["/data"], "/data", True),
        (["/data/"], "/data/sets", True),
        (["/data"], "/database", False),
        (["/data/sets"], "/data", False),
        (["/"], "/data", True),
    ],
)
def test_mounts_of_a_root_stay_within_the_allowed_mounts(allowed: list[str] | None, mount: str, passes: bool) -> None:
    """Without a list of allowed mounts any mount is granted."""
    request = policy(readonly_mounts=[mount])
    if passes:
        assert resolve_root_policy(request, allow_mounts=allowed).readonly_mounts == (mount,)
        return
    with pytest.raises(SpawnRefused, match=mount) as refusal:
        resolve_root_policy(request, allow_mounts=allowed)
    assert refusal.value.limit == "policy.readonly_mounts"


# --- limits of a child ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", LIMIT_FIELDS)
def test_a_limit_above_the_parents_is_clamped_and_reported(field: str) -> None:
    """The report has the requested and the granted value."""
    largest = getattr(PARENT, field) - (field == "max_sub_agent_depth")

    child, clamps = narrow(PARENT, policy(**{field: largest + 1}))

    assert getattr(child, field) == largest
    assert clamps == (ClampedLimit(field, largest + 1, largest),)


@pytest.mark.parametrize("field", LIMIT_FIELDS)
def test_a_limit_within_the_parents_is_granted_without_a_report(field: str) -> None:
    """The parent's own value is within the limit."""
    largest = getattr(PARENT, field) - (field == "max_sub_agent_depth")
    for value in (largest, BOUNDS[field][0]):
        child, clamps = narrow(PARENT, policy(**{field: value}))

        assert (getattr(child, field), clamps) == (value, ())


def test_a_child_that_asks_for_nothing_gets_the_parents_grant() -> None:
    """Exceptions are default memory and processors, one level less of depth, and no secrets."""
    child, clamps = narrow(PARENT, Policy())

    expected = msgspec.structs.replace(PARENT, memory_mb=256, cpu_cores=1.0, max_sub_agent_depth=1, secrets={})
    assert (child, clamps) == (expected, ())


def test_default_memory_and_processors_stay_within_the_parents() -> None:
    """No clamp is reported, because the child did not ask."""
    small = msgspec.structs.replace(PARENT, memory_mb=100, cpu_cores=0.5)

    child, clamps = narrow(small, Policy())

    assert (child.memory_mb, child.cpu_cores, clamps) == (100, 0.5, ())


def test_a_childs_time_ends_with_its_parents() -> None:
    """The parent's remaining time bounds the child's timeout, requested or not."""
    assert narrow(PARENT, Policy(), seconds_left=20.5)[0].timeout_seconds == 20.5
    assert narrow(PARENT, Policy(), seconds_left=math.inf)[0].timeout_seconds == 600
    assert narrow(PARENT, Policy(timeout_seconds=10), seconds_left=20.5) == narrow(PARENT, Policy(timeout_seconds=10))
    child, clamps = narrow(PARENT, Policy(timeout_seconds=30), seconds_left=20.5)
    assert (child.timeout_seconds, clamps) == (20.5, (ClampedLimit("timeout_seconds", 30, 20.5),))


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, -math.inf])
def test_a_parent_without_time_left_spawns_no_child(seconds: float) -> None:
    """A spawn is refused instead of getting an invalid timeout."""
    with pytest.raises(SpawnRefused) as refusal:
        narrow(PARENT, Policy(), seconds_left=seconds)

    assert (refusal.value.limit, refusal.value.free) == ("policy.timeout_seconds", 0)


def test_a_spawn_below_the_last_level_is_refused() -> None:
    """A root of depth 3 has three levels below it, and no fourth."""
    grant = resolve_root_policy(Policy(allow_sub_agents=True, max_sub_agent_depth=3))
    for level in (2, 1, 0):
        grant, _ = narrow(grant, Policy())
        assert grant.max_sub_agent_depth == level

    with pytest.raises(SpawnRefused) as refusal:
        narrow(grant, Policy())

    assert (refusal.value.limit, refusal.value.free) == ("policy.max_sub_agent_depth", 0)


def test_retries_of_a_child_may_exceed_the_parents() -> None:
    """The child's time bounds its retries."""
    assert child_grant(retry_delay_seconds=60).retry_delay_seconds == 60
    assert child_grant().retry_delay_seconds == 3
    assert child_grant(retry_count=60).retry_count == 60
    assert child_grant().retry_count == 2


# --- rights of a child ----------------------------------------------------------------------------------------------

#: field, what is asked, whether PARENT has it
RIGHTS: list[tuple[str, Any, bool]] = [
    ("allowed_endpoints", [], True),
    ("allowed_endpoints", ["API.Example.org.:443"], True),
    ("allowed_endpoints", ["a.wild.example.org:443", "*.b.wild.example.org:443", "*.wild.example.org:443"], True),
    ("allowed_endpoints", ["wild.example.org:443"], False),
    ("allowed_endpoints", ["notwild.example.org:443"], False),
    ("allowed_endpoints", ["*.example.org:443"], False),
    ("allowed_endpoints", ["api.example.org:444"], False),
    ("allowed_endpoints", ["a.api.example.org:443"], False),
    ("allowed_endpoints", ["*"], False),
    ("allowed_endpoints", ["api.example.org:443", "evil.org:443"], False),
    ("readonly_mounts", [], True),
    ("readonly_mounts", ["/data/sets", "/data/sets/one/two"], True),
    ("readonly_mounts", ["/data"], False),
    ("readonly_mounts", ["/data/sets2"], False),
    ("readonly_mounts", ["/etc"], False),
    ("readonly_mounts", ["/project/vendor", "/project/src"], True),
    ("readonly_mounts", ["/projects"], False),
    ("writable_mounts", [], True),
    ("writable_mounts", ["/project/src", "/project/src/deep"], True),
    ("writable_mounts", ["/data/sets"], False),
    ("writable_mounts", ["/project/vendor"], False),
    ("writable_mounts", ["/project/vendor/one"], False),
    ("writable_mounts", ["/projects"], False),
    ("writable_mounts", ["/srv"], False),
    ("allowed_env_vars", [], True),
    ("allowed_env_vars", ["LANG", "MODE"], True),
    ("allowed_env_vars", ["HOME"], False),
    ("env_vars", {}, True),
    ("env_vars", {"LANG": "C", "MODE": "fast"}, True),
    ("env_vars", {"HOME": "/"}, False),
    ("secrets", {}, True),
    ("secrets", ["token"], True),
    ("secrets", {"token": None, "other": "mine"}, True),
    ("secrets", ["third"], False),
    ("secrets", {"third": "mine"}, False),
    ("allow_sub_agents", True, True),
    ("allow_sub_agents", False, True),
    ("isolation", "L1", False),
    ("isolation", "L0", False),
    ("isolation", "L2", True),
    ("isolation", "fresh", True),
    ("isolation", "L4", True),
]


@pytest.mark.parametrize(("field", "value", "has"), RIGHTS, ids=str)
def test_a_right_that_the_parent_lacks_is_refused_by_name(field: str, value: Any, has: bool) -> None:
    """A right that the parent has is granted as requested."""
    request = policy(**{field: value})
    if not has:
        with pytest.raises(SpawnRefused) as refusal:
            narrow(PARENT, request)
        assert refusal.value.limit == f"policy.{field}"
        return
    granted_value = getattr(narrow(PARENT, request)[0], field)
    if field == "secrets":
        assert granted_value == {name: PARENT.secrets[name] for name in value}
    elif field == "allowed_env_vars":
        assert set(granted_value) == set(value) - {"MODE"}
    elif field == "readonly_mounts":  # One in a writable mount stays.
        assert set(granted_value) == {*value, "/project/vendor"}
    else:
        assert granted_value == getattr(request, field)


@pytest.mark.parametrize(
    ("asked", "readonly", "writable"),
    [
        ({}, ("/data", "/project/vendor"), ("/project",)),
        ({"readonly_mounts": []}, ("/project/vendor",), ("/project",)),
        ({"readonly_mounts": ["/project"]}, ("/project",), ()),
        ({"readonly_mounts": ["/project/docs"]}, ("/project/docs", "/project/vendor"), ("/project",)),
        ({"readonly_mounts": [], "writable_mounts": ["/project/src"]}, (), ("/project/src",)),
        ({"readonly_mounts": ["/project/src"], "writable_mounts": []}, ("/project/src",), ()),
    ],
    ids=str,
)
def test_a_read_only_mount_of_the_parent_stays_in_a_writable_one(
    asked: dict[str, Any], readonly: tuple[str, ...], writable: tuple[str, ...]
) -> None:
    """A child that does not name it has it, too: it could write there otherwise."""
    parent = resolve_root_policy(policy(readonly_mounts=["/data", "/project/vendor"], writable_mounts=["/project"]))

    assert narrow(parent, policy(**asked))[0].mounts == (readonly, writable)


def test_a_folder_in_both_lists_of_mounts_is_an_invalid_value() -> None:
    """The error names the folder, whichever way it is written."""
    with pytest.raises(InvalidValue, match="/project") as refusal:
        policy(readonly_mounts=["/project"], writable_mounts=["/project//"])

    assert refusal.value.field == "policy.writable_mounts"


@pytest.mark.parametrize(
    "path",
    [
        "/etc", "/etc/cron.d", "/usr/local/bin", "/bin", "/boot", "/var", "/var/spool/cron", "/project/.git",
        "/project/.git/hooks", "/project/.GIT", "/project/.ramet", "/project/.ramet/skills", "/proc", "/tmp", "/",
    ],
)  # fmt: skip
def test_a_folder_that_programs_of_the_host_obey_is_no_writable_mount(path: str) -> None:
    """The name alone decides here."""
    with pytest.raises(InvalidValue) as refusal:
        policy(writable_mounts=[path])

    assert refusal.value.field == "policy.writable_mounts"


def test_no_writable_mount_is_granted_where_mounts_of_a_root_are_listed() -> None:
    """The list is one of folders to read."""
    with pytest.raises(SpawnRefused) as refusal:
        resolve_root_policy(policy(writable_mounts=["/data/sets"]), allow_mounts=["/data"])

    assert refusal.value.limit == "policy.writable_mounts"


def test_the_read_only_mounts_of_a_child_are_bounded_with_those_of_its_parent() -> None:
    """A guest cannot make the list longer with each generation."""
    parent = resolve_root_policy(
        policy(readonly_mounts=[f"/project/{number}" for number in range(200)], writable_mounts=["/project"])
    )

    with pytest.raises(SpawnRefused, match="at most 256") as refusal:
        narrow(parent, policy(readonly_mounts=[f"/project/x{number}" for number in range(100)]))

    assert refusal.value.limit == "policy.readonly_mounts"


def test_a_refusal_is_short_and_names_the_missing_rights() -> None:
    """The refusal is bounded, whatever a guest writes into its request."""
    many = [f"{'x' * 60}.{number}x.org:443" for number in range(200)]
    with pytest.raises(SpawnRefused, match=r"api\.evil\.org:443") as refusal:
        child_grant(allowed_endpoints=["api.example.org:443", "api.evil.org:443", *many])

    assert "api.example.org" not in str(refusal.value)
    assert len(str(refusal.value)) < 700


def test_a_run_without_sub_agents_cannot_grant_them_to_a_child() -> None:
    """False is inherited when the child does not ask."""
    parent = msgspec.structs.replace(PARENT, allow_sub_agents=False)

    assert narrow(parent, Policy())[0].allow_sub_agents is False
    with pytest.raises(SpawnRefused) as refusal:
        narrow(parent, Policy(allow_sub_agents=True))
    assert refusal.value.limit == "policy.allow_sub_agents"


def test_a_parent_with_every_endpoint_may_grant_any_public_endpoint() -> None:
    """The wildcard itself may be granted, too."""
    parent = msgspec.structs.replace(PARENT, allowed_endpoints=("*",))
    for endpoints in (("*",), ("*.org:1",), ("a.org:1", "[2606:4700::1111]:2", "8.8.8.8:3")):
        assert narrow(parent, Policy(allowed_endpoints=endpoints))[0].allowed_endpoints == endpoints


@pytest.mark.parametrize("private", ["127.0.0.1:80", "[::1]:80", "169.254.169.254:80", "[64:ff9b::a00:1]:80"])
def test_the_endpoint_wildcard_covers_no_private_address(private: str) -> None:
    """The proxy dials listed private addresses, so a child of "*" would have more than its parent."""
    parent = msgspec.structs.replace(PARENT, allowed_endpoints=("*",))
    with pytest.raises(SpawnRefused, match=re.escape(private)) as refusal:
        narrow(parent, Policy(allowed_endpoints=["a.org:1", private]))
    assert refusal.value.limit == "policy.allowed_endpoints"

    wide_parent = msgspec.structs.replace(PARENT, allowed_endpoints=("*", private))
    assert narrow(wide_parent, Policy(allowed_endpoints=[private]))[0].allowed_endpoints == (private,)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"network": "disabled"}, ()),
        ({"network": "disabled", "allowed_endpoints": [""]}, ()),
        ({"allowed_endpoints": [""]}, ()),
        ({"network": "allow_list", "allowed_endpoints": []}, ()),
        ({"network": "allow_list"}, PARENT.allowed_endpoints),
        ({"network": None, "allowed_endpoints": None}, PARENT.allowed_endpoints),
    ],
)
def test_a_child_inherits_endpoints_unless_it_disables_them(fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    """Absent fields inherit; empty and disabled ones mean none."""
    assert child_grant(**fields).allowed_endpoints == expected


def test_the_value_of_a_secret_is_always_the_parents() -> None:
    """A child asks for a secret by its name."""
    assert child_grant(secrets={"token": "forged"}).secrets == {"token": CANARY}


def test_a_variable_set_by_value_never_gets_the_hosts_value_below() -> None:
    """The parent cannot see the host's value, so no run below it can, in any number of steps."""
    root = resolve_root_policy(
        policy(allowed_env_vars=["TOKEN", "LANG"], env_vars={"TOKEN": "mine"}, allow_sub_agents=True)
    )
    assert (root.allowed_env_vars, root.env_vars) == (("LANG",), {"TOKEN": "mine"})

    by_name, _ = narrow(root, policy(allowed_env_vars=["TOKEN"], env_vars={}))
    assert (by_name.allowed_env_vars, by_name.env_vars) == ((), {"TOKEN": "mine"})

    own_grant, _ = narrow(root, policy(env_vars={"LANG": "C"}))
    assert (own_grant.allowed_env_vars, own_grant.env_vars) == ((), {"LANG": "C"})
    child_grant, _ = narrow(own_grant, policy(env_vars={}))
    assert (child_grant.allowed_env_vars, child_grant.env_vars) == ((), {})


# --- json, and what is shown ----------------------------------------------------------------------------------------


def test_json_of_a_policy_holds_requested_fields_and_decodes_equal() -> None:
    """Absent fields stay absent, and empty fields stay empty."""
    request = policy(memory_mb=128, env_vars={}, allowed_endpoints=[], secrets={"token": None}, isolation="L2")

    assert from_json(to_json(request)) == request
    assert from_json(to_json(request).decode()) == request
    assert from_json(msgspec.json.decode(to_json(request))) == request
    assert msgspec.json.decode(to_json(request), type=Policy) == request
    assert to_json(Policy()) == b"{}"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"memory_mb": "128"}', "policy.memory_mb"),
        ('{"memory_mb": 1.5}', "policy.memory_mb"),
        ('{"allow_sub_agents": "true"}', "policy.allow_sub_agents"),
        ('{"secrets": {"a": 1}}', "policy.secrets"),
        ('{"Memory_mb": 1}', "policy.Memory_mb"),
        ('{"__class__": 1}', "policy.__class__"),
        ("[]", "policy"),
        ("null", "policy"),
        ("", "policy"),
        ("{", "policy"),
        ('{"memory_mb": NaN}', "policy"),
        ('{"memory_mb": 1e999}', "policy"),
        ('{"memory_mb": 1' + "0" * 5000 + "}", "policy"),
        ('{"env_vars": {"A": "\\ud800"}}', "policy"),
        ("[" * 100_000, "policy"),
        ("\ud800", "policy"),
        (b"\xff", "policy"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_json_that_is_no_policy_is_an_invalid_value(text: str | bytes, field: str) -> None:
    """InvalidValue is the only error for wrong JSON."""
    with pytest.raises(InvalidValue) as refusal:
        from_json(text)

    assert refusal.value.field == field
    assert len(str(refusal.value)) < 500


def test_null_fields_count_as_absent() -> None:
    """Null in any field never means unlimited."""
    nothing = dict.fromkeys(Policy.__struct_fields__)

    assert from_json(msgspec.json.encode(nothing)) == Policy()
    assert narrow(PARENT, from_json(nothing)) == narrow(PARENT, Policy())


def test_no_value_of_a_variable_or_secret_is_shown() -> None:
    """No printed form of a policy or grant shows values; names are shown."""
    request = policy(env_vars={"MODE": CANARY}, secrets={"token": CANARY}, isolation="L2")
    for policy_held in (request, resolve_root_policy(request)):
        for text in (
            repr(policy_held),
            str(policy_held),
            f"{policy_held}",
            pretty_repr(policy_held),
            pretty_repr([policy_held]),
            repr(to_public_dict(policy_held)),
        ):
            assert CANARY not in text
            assert "MODE" in text
            assert "token" in text


@pytest.mark.parametrize(
    "bad",
    [
        {"secrets": {"token": CANARY.encode()}},
        {"secrets": {"token": [CANARY]}},
        {"secrets": CANARY},
        {"secrets": [[CANARY]]},
        {"secrets": {"token": CANARY + "\ud800"}},
        {"secrets": {"token": CANARY * 200_000}},
        {"secrets": {"a/b": CANARY}},
        {"env_vars": {"A": CANARY + "\0"}},
        {"env_vars": {"A": CANARY * 200_000}},
        {"env_vars": {"LD_PRELOAD": CANARY}},
        {"env_vars": {"A": [CANARY]}},
        {"env_vars": [CANARY]},
    ],
    ids=lambda value: repr(value)[:30],
)
def test_no_error_shows_a_value_of_a_variable_or_secret(bad: dict[str, Any]) -> None:
    """The error does not keep the value where a logger would find it."""
    with pytest.raises(InvalidValue) as refusal:
        policy(**bad)

    assert CANARY not in str(refusal.value)
    assert CANARY not in repr(refusal.value.value)


def test_a_child_has_the_reservation_of_its_parent() -> None:
    """A child may name the parent's reservation or none, and never another one."""
    assert PARENT.reservation is not None
    same = msgspec.structs.asdict(PARENT.reservation)
    for request in (policy(), policy(reservation=same), policy(reservation=PARENT.reservation)):
        assert narrow(PARENT, request)[0].reservation == PARENT.reservation
    for other in ({"name": "crew"}, {"name": "others", "memory_mb": 1024}):
        with pytest.raises(SpawnRefused) as refusal:
            narrow(PARENT, policy(reservation=other))
        assert refusal.value.limit == "policy.reservation"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("crew", ""),
        ({"nam": "crew"}, ""),
        ({"name": "a/b"}, ".name"),
        ({"name": "crew", "memory_mb": 0}, ".memory_mb"),
        ({"name": "crew", "cpu_cores": float("nan")}, ".cpu_cores"),
        ({"name": "crew", "sandboxes": 0}, ".sandboxes"),
    ],
)
def test_an_invalid_reservation_is_refused_by_its_field(value: object, field: str) -> None:
    """The refusal names the field of the reservation that is wrong."""
    with pytest.raises(InvalidValue) as refusal:
        policy(reservation=value)
    assert refusal.value.field == f"policy.reservation{field}"


def test_to_public_dict_returns_plain_data() -> None:
    """The dictionary has the requested fields of a policy, and every field of a grant."""
    assert to_public_dict(policy(memory_mb=1, secrets=["b", "a"], isolation="L2", allowed_endpoints=["a.org:1"])) == {
        "memory_mb": 1,
        "network": "allow_list",
        "allowed_endpoints": ["a.org:1"],
        "secrets": ["a", "b"],
        "isolation": "L2",
    }
    public = to_public_dict(PARENT)
    assert tuple(public) == Grant.__struct_fields__
    assert public["env_vars"] == ["MODE"]
    assert msgspec.json.decode(msgspec.json.encode(public)) == public


def test_a_policy_can_be_copied_and_pickled() -> None:
    """A policy in a closure travels with its packed function."""
    request = policy(memory_mb=1, secrets=["a"], env_vars={"A": "1"})

    assert pickle.loads(pickle.dumps(request)) == copy.copy(request) == request


def test_isolation_levels_are_ordered_by_strength() -> None:
    """Levels rise from a separate process to a separate machine."""
    assert [level.value for level in sorted(Isolation, key=lambda level: level.rank)] == [
        "L0",
        "L1",
        "L2",
        "fresh",
        "L3",
        "L4",
    ]
