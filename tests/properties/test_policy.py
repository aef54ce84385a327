"""A child has no more than its parent, whatever it asks, and clamps show where it has less than it asked."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy import rights
from ramet.core.policy.policy import (
    DEFAULTS,
    Grant,
    Isolation,
    Policy,
    from_json,
    narrow,
    resolve_root_policy,
    to_json,
    to_public_dict,
)
from ramet.wire.http_connect import Target, is_allowed, parse_target

LIMITS = (
    "cpu_cores",
    "memory_mb",
    "pids",
    "timeout_seconds",
    "tmpfs_size_mb",
    "workspace_size_mb",
    "max_output_bytes",
    "max_sub_agent_depth",
    "max_sub_agents",
)
RIGHTS = (
    "allowed_endpoints",
    "models",
    "ports",
    "readonly_mounts",
    "writable_mounts",
    "allowed_env_vars",
    "env_vars",
    "secrets",
    "allow_sub_agents",
    "isolation",
)

# Few values, so that a parent's and a child's often touch.
ENDPOINTS = [
    "a.org:1",
    "a.org:2",
    "b.a.org:1",
    "c.b.a.org:1",
    "*.a.org:1",
    "*.b.a.org:1",
    "*",
    "[2606:4700::1]:1",
    "[::1]:1",
    "",
]
MOUNTS = ["/data", "/data/a", "/data/a/b", "/data/ab", "/opt", "/opt/x/"]
NAMES = ["A", "B", "C", "D"]

wholes = st.integers(1, 6)
fractions = st.sampled_from([0.5, 1, 1.5, 2.0, 3.25, 7])
names = st.lists(st.sampled_from(NAMES), max_size=3)
values = st.sampled_from(["1", "2"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "cpu_cores": fractions,
    "memory_mb": st.sampled_from([1, 100, 256, 257, 1000]),
    "pids": wholes,
    "timeout_seconds": fractions,
    "tmpfs_size_mb": wholes,
    "workspace_size_mb": wholes,
    "max_output_bytes": wholes,
    "max_sub_agent_depth": st.integers(0, 5),
    "max_sub_agents": st.integers(0, 5),
    "retry_count": st.integers(0, 5),
    "retry_delay_seconds": fractions,
    "allowed_endpoints": st.lists(st.sampled_from(ENDPOINTS), max_size=3),
    "models": st.lists(st.sampled_from(["anthropic:a", "anthropic:a*", "anthropic:*", "openai:b"]), max_size=3),
    "ports": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1, 2, 3]), max_size=2).filter(
        lambda ports: len({*ports.values()}) == len(ports)
    ),
    "readonly_mounts": st.lists(st.sampled_from(MOUNTS), max_size=3),
    "writable_mounts": st.lists(st.sampled_from(MOUNTS), max_size=3),
    "allowed_env_vars": names,
    "env_vars": st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    "secrets": st.dictionaries(st.sampled_from(NAMES), st.none() | values, max_size=3) | names,
    "allow_sub_agents": st.booleans(),
    "isolation": st.sampled_from(list(Isolation)),
}


def policy_of(fields: dict[str, Any]) -> Policy:
    """Return the policy with these fields; a mount that is drawn for both lists is read-only."""
    normal = {each.rstrip("/") for each in fields.get("readonly_mounts", ())}
    writable = fields.get("writable_mounts")
    only = (
        {} if writable is None else {"writable_mounts": [each for each in writable if each.rstrip("/") not in normal]}
    )
    return Policy(**fields | only)


policies = st.fixed_dictionaries({}, optional=FIELDS).map(policy_of)
roots = st.fixed_dictionaries(
    {},
    optional=FIELDS
    | {
        "max_sub_agent_depth": st.integers(3, 5),
        "secrets": st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    },
).map(lambda fields: resolve_root_policy(policy_of(fields)))


def child_of(parent: Grant, asked: Policy) -> Grant:
    """Return the narrowed grant; an example that is refused is skipped."""
    try:
        return narrow(parent, asked)[0]
    except SpawnRefused:
        assume(False)
        raise


def subset_of(grant: Grant, draw: st.DrawFn) -> Policy:
    """Draw a policy for which `grant` has all rights, so that few examples are refused."""
    fields: dict[str, Any] = draw(st.fixed_dictionaries({}, optional={name: FIELDS[name] for name in LIMITS}))
    for name in ("allowed_endpoints", "models", "readonly_mounts", "writable_mounts", "allowed_env_vars", "secrets"):
        if draw(st.booleans()):
            fields[name] = [each for each in getattr(grant, name) if draw(st.booleans())]
    if draw(st.booleans()):
        known = sorted({*grant.allowed_env_vars, *grant.env_vars})
        fields["env_vars"] = {name: draw(values) for name in known if draw(st.booleans())}
    if draw(st.booleans()):
        fields["allow_sub_agents"] = grant.allow_sub_agents and draw(st.booleans())
    if draw(st.booleans()):
        fields["isolation"] = draw(st.sampled_from([each for each in Isolation if each.rank >= grant.isolation.rank]))
    return Policy(**fields)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Grant, Policy, Policy]:
    """Draw a parent's grant, a child's policy and a grandchild's policy, most of them granted."""
    parent = draw(roots)
    first = subset_of(parent, draw) if draw(st.booleans()) else draw(policies)
    child = child_of(parent, first)
    assume(child.max_sub_agent_depth > 0)
    return parent, first, subset_of(child, draw) if draw(st.booleans()) else draw(policies)


def is_within(field: str, child: Grant, parent: Grant) -> bool:
    """Return whether a field of one grant holds no more than that of another, without ramet's own rules."""
    mine, above = getattr(child, field), getattr(parent, field)
    match field:
        case "max_sub_agent_depth":
            return bool(mine < above)
        case "retry_count" | "retry_delay_seconds":
            return True
        case "allowed_endpoints":
            return all(any(covers(each, one) for each in above) for one in mine)
        case "models":
            return all(
                any(one == each or (each[-1] == "*" and one.startswith(each[:-1])) for each in above) for one in mine
            )
        case "ports":
            return bool(mine.items() <= above.items())
        case "readonly_mounts":
            return all(mounts_around(parent, one) for one in mine)
        case "writable_mounts":
            return all(may_write(parent, path) for path in (*MOUNT_PATHS, *mine) if may_write(child, path))
        case "allowed_env_vars":
            return set(mine) <= set(above)
        case "env_vars":
            return set(mine) <= {*above, *parent.allowed_env_vars}
        case "secrets":
            return all(above.get(name) == value for name, value in mine.items())
        case "allow_sub_agents":
            return bool(above or not mine)
        case "reservation":
            return bool(mine == above)
        case "isolation":
            return list(Isolation).index(mine) >= list(Isolation).index(above)
        case _:
            return bool(0 <= mine <= above)


#: Paths at and below the drawn mounts.
MOUNT_PATHS = [f"{mount.rstrip('/')}{below}" for mount in MOUNTS for below in ("", "/file")]


def mounts_around(grant: Grant, path: str) -> list[tuple[int, bool]]:
    """Return the depth of each mount that holds a path, and whether it is writable."""
    mounts = [(each, False) for each in grant.readonly_mounts] + [(each, True) for each in grant.writable_mounts]
    parts = path.split("/")
    lengths = [(len(each.split("/")), each.split("/"), is_writable) for each, is_writable in mounts]
    return [(length, is_writable) for length, each, is_writable in lengths if parts[:length] == each]


def may_write(grant: Grant, path: str) -> bool:
    """Return whether the innermost mount around a path is writable."""
    return max(mounts_around(grant, path), default=(0, False))[1]


def covers(pattern: str, endpoint: str) -> bool:
    """Return whether a pattern covers an endpoint, compared label by label."""
    if pattern == endpoint:
        return True
    if pattern == "*":
        return endpoint != "[::1]:1"  # The one among them that is private.
    if endpoint == "*":
        return False
    (host, port), (other, other_port) = pattern.rsplit(":", 1), endpoint.rsplit(":", 1)
    labels, others = host.split("."), other.split(".")
    return (
        port == other_port
        and labels[0] == "*"
        and len(others) >= len(labels)
        and others[len(others) - len(labels) + 1 :] == labels[1:]
    )


def as_policy(grant: Grant) -> Policy:
    """Return the policy that asks for exactly this grant."""
    return Policy(**{name: getattr(grant, name) for name in Grant.__struct_fields__})


# --- narrowing ------------------------------------------------------------------------------------------------------


@given(chains(), st.none() | st.floats(0.001, 10))
def test_a_child_has_no_more_than_its_parent_in_any_field(
    chain: tuple[Grant, Policy, Policy], seconds_left: float | None
) -> None:
    """Every field of the child's grant is within the parent's.

    The child's time is within the parent's remaining time.
    """
    parent, asked, _ = chain

    child, _ = narrow(parent, asked, seconds_left=seconds_left)

    assert [name for name in Grant.__struct_fields__ if not is_within(name, child, parent)] == []
    assert seconds_left is None or child.timeout_seconds <= seconds_left


@given(chains())
def test_a_grandchild_has_no_more_than_its_grandparent(chain: tuple[Grant, Policy, Policy]) -> None:
    """A right that the child lost does not come back for the grandchild."""
    parent, first, second = chain
    child = child_of(parent, first)

    grandchild = child_of(child, second)

    for above in (child, parent):
        assert [name for name in Grant.__struct_fields__ if not is_within(name, grandchild, above)] == []


@given(chains())
def test_asking_for_a_granted_policy_grants_it_unchanged(chain: tuple[Grant, Policy, Policy]) -> None:
    """A second request for the granted policy returns the same grant without clamps."""
    parent, asked, _ = chain
    child = child_of(parent, asked)

    assert narrow(parent, as_policy(child)) == (child, ())


@given(chains(), st.none() | st.floats(0.001, 10))
def test_a_clamp_is_reported_for_each_changed_limit_and_no_other(
    chain: tuple[Grant, Policy, Policy], seconds_left: float | None
) -> None:
    """Each changed limit is reported once, with the asked and the given value. Every other limit is given as asked."""
    parent, asked, _ = chain

    child, clamped = narrow(parent, asked, seconds_left=seconds_left)

    report = {each.field: (each.requested, each.granted) for each in clamped}
    assert len(report) == len(clamped)
    changed = {}
    for name in LIMITS:
        wanted, given_ = getattr(asked, name), getattr(child, name)
        if wanted is not None and wanted != given_:
            changed[name] = (wanted, given_)
            assert given_ < wanted
    assert report == changed


@given(roots, policies)
def test_an_absent_field_is_inherited_or_has_its_default(parent: Grant, asked: Policy) -> None:
    """Absent fields are inherited. Memory, CPU and secrets have defaults of their own, and depth decreases by one."""
    try:
        child, _ = narrow(parent, asked)
    except SpawnRefused:
        return
    for name in LIMITS:
        if getattr(asked, name) is None:
            most = getattr(parent, name) - (name == "max_sub_agent_depth")
            own = min(getattr(DEFAULTS, name), most) if name in ("memory_mb", "cpu_cores") else most
            assert getattr(child, name) == own
    if asked.secrets is None:
        assert child.secrets == {}
    for name in ("models", "readonly_mounts", "allow_sub_agents", "isolation", "retry_count", "retry_delay_seconds"):
        if getattr(asked, name) is None:
            assert getattr(child, name) == getattr(parent, name)
    if asked.writable_mounts is None:
        assert set(child.writable_mounts) == {*parent.writable_mounts}.difference(asked.readonly_mounts or ())
    if asked.allowed_endpoints is None and asked.network is None:
        assert child.allowed_endpoints == parent.allowed_endpoints
    if asked.env_vars is None and asked.allowed_env_vars is None:
        assert (child.env_vars, child.allowed_env_vars) == (parent.env_vars, parent.allowed_env_vars)


#: right: one that no parent below has, and a parent that may lack it
WIDER: dict[str, Any] = {
    "allowed_endpoints": "evil.org:443",
    "models": "openai:evil",
    "ports": {"evil": 4},
    "readonly_mounts": "/etc",
    "writable_mounts": "/srv",
    "allowed_env_vars": "HOME",
    "env_vars": "HOME",
    "secrets": "evil",
    "allow_sub_agents": True,
    "isolation": Isolation.L0,
}


@given(roots, st.sampled_from(RIGHTS), st.data())
def test_one_excessive_right_is_refused_by_its_name(parent: Grant, right: str, data: st.DataObject) -> None:
    """An excessive right among granted ones is refused by name. Parent and policy stay unchanged."""
    parent = msgspec.structs.replace(
        parent,
        allow_sub_agents=parent.allow_sub_agents and right != "allow_sub_agents",
        isolation=Isolation.L2 if right == "isolation" else parent.isolation,
        allowed_endpoints=tuple(each for each in parent.allowed_endpoints if each != "*"),
    )
    fine = as_policy(child_of(parent, data.draw(st.composite(lambda draw: subset_of(parent, draw))())))
    held, wider = getattr(fine, right), WIDER[right]
    if isinstance(held, tuple):
        position = data.draw(st.integers(0, len(held)))
        wider = (*held[:position], wider, *held[position:])
    elif isinstance(held, dict):
        wider = held | (wider if isinstance(wider, dict) else {wider: "x"})
    asked = msgspec.structs.replace(fine, **{right: wider})
    before = (msgspec.json.encode(parent), to_json(asked))

    with pytest.raises(SpawnRefused) as refusal:
        narrow(parent, asked)

    assert refusal.value.limit == f"policy.{right}"
    assert (msgspec.json.encode(parent), to_json(asked)) == before


@given(roots, policies)
def test_a_policy_from_json_has_the_same_effect(parent: Grant, asked: Policy) -> None:
    """A policy read from JSON is narrowed or refused like the policy that was written."""
    read = from_json(to_json(asked))

    assert read == asked
    assert msgspec.json.decode(to_json(asked), type=Policy) == asked
    try:
        expected = narrow(parent, asked)
    except SpawnRefused as refusal:
        with pytest.raises(SpawnRefused, match=f"(?s)^{re.escape(str(refusal))}$"):
            narrow(parent, read)
    else:
        assert narrow(parent, read) == expected


# --- writing down ---------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(Policy.__struct_fields__) | st.text(), anything, max_size=4))
def test_plain_data_is_a_policy_or_an_invalid_value_that_names_a_field(data: dict[str, Any]) -> None:
    """A key that is no field is always refused. An accepted policy survives JSON and can be shown."""
    refused = refusal_of(data)
    if refused is not None:
        assert refused.removeprefix("policy.")[:200] in {name[:200] for name in (*data, "network")}
        return
    asked = from_json(data)
    assert set(data) <= set(Policy.__struct_fields__)
    assert from_json(to_json(asked)) == asked
    msgspec.json.encode(to_public_dict(asked))


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_text_that_is_no_policy_is_an_invalid_value(data: bytes | str) -> None:
    """Text and bytes are a policy or an InvalidValue for `policy`, and raise nothing else."""
    assert (refusal_of(data) or "policy").startswith("policy")


def refusal_of(data: Any) -> str | None:
    """Return the field that an InvalidValue names, or None for a policy."""
    try:
        from_json(data)
    except InvalidValue as refusal:
        return refusal.field
    return None


# --- one spelling ---------------------------------------------------------------------------------------------------

hostish = st.text(st.sampled_from("aAzZ09.-_*[]:%@/ \t\n\0xX١ßéÉıİKſ。．１\u200d"), max_size=24)
ports = st.sampled_from(["1", "443", "65535", "65536", "0", "01", "", "x"])


@given(st.builds("{}:{}".format, hostish, ports) | st.text(max_size=40))
def test_the_proxy_reads_an_accepted_endpoint_like_the_policy(text: str) -> None:
    """The canonical form of an endpoint is stable, and names the same target to the proxy."""
    try:
        found = rights.endpoints("f", [text])
    except InvalidValue:
        return
    if not text:
        assert found == ()
        return
    (endpoint,) = found
    assert rights.endpoints("f", [endpoint]) == (endpoint,)
    if not endpoint.startswith("*"):
        target = parse_target(endpoint)
        assert isinstance(target, Target)
        assert target.authority == endpoint
        assert is_allowed([endpoint], target.host, target.port)


@given(
    st.lists(st.sampled_from([each for each in ENDPOINTS if each]), max_size=4),
    st.sampled_from(["a.org:1", "a.org:2", "b.a.org:1", "x.b.a.org:1", "[2606:4700::1]:1", "192.0.2.1:1", "ba.org:1"]),
)
def test_the_proxy_lets_through_exactly_what_a_grant_covers(granted: list[str], endpoint: str) -> None:
    """The proxy and the policy agree on whether a grant covers an endpoint."""
    target = parse_target(endpoint)
    assert isinstance(target, Target)

    assert is_allowed(granted, target.host, target.port) == (not rights.uncovered_endpoints(granted, [endpoint]))


pathish = st.lists(
    st.sampled_from(["", ".", "..", "~", "a", "data", "proc", "dev", "run", "tmp", "x y", "ü", "\n", "\0"])
)


@given(pathish.map("/".join) | pathish.map(lambda parts: "/" + "/".join(parts)) | st.text(max_size=30))
def test_an_accepted_mount_is_absolute_and_normalised(text: str) -> None:
    """The canonical form of a mount is stable, has no `..`, and adds no folder to the given path."""
    try:
        (path,) = rights.mounts("f", [text])
    except InvalidValue:
        return
    parts = path.split("/")
    assert parts[0] == ""
    assert not {"", ".", ".."} & set(parts[1:])
    assert parts[1] not in ("proc", "sys", "dev", "run")
    assert parts[1:] == [part for part in text.split("/") if part not in ("", ".")]
    assert rights.mounts("f", [path]) == (path,)
