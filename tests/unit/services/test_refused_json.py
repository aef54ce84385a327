"""Refusals of JSON of a wrong type: each names the field, its value and the accepted values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Policy
from ramet.services.contract import decode


class Inner(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    size: int = 0


class Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    amount: int
    of: str = ""


class Nothing(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An operation without arguments."""


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    resources: dict[str, float] = {}
    inner: Inner = Inner()
    sizes: list[int] = []
    kind: Literal["red", "blue"] = "red"
    parts: list[Part] = []
    named: dict[str, Inner] = {}
    policy: Policy | None = None
    nothing: Nothing = Nothing()
    few: Annotated[int, msgspec.Meta(le=5)] = 2


REFUSED = {
    '{"name": "a", "nmae": "b"}': "info.nmae: 'nmae' is not accepted; expected one of the fields name, resources, ",
    "{}": "info.name is missing; expected text",
    '{"name": "a", "parts": [{}]}': "info.parts[0].amount is missing; expected a whole number",
    '{"name": 1}': "info.name: 1 is not accepted; expected str, not int",
    '{"name": "a", "inner": {"siz": 1}}': "info.inner.siz: 'siz' is not accepted; expected one of the fields size",
    '{"name": "a", "parts": [{"amuont": 1}]}': "info.parts[0].amuont: 'amuont' is not accepted; expected one of the fi",
    '{"name": "a", "named": {"x": {"z": 1}}}': "info.named[...].z: 'z' is not accepted; expected one of the fields s",
    '{"name": "a", "policy": {"memory": 64}}': "info.policy.memory: 'memory' is not accepted; expected one of the fi",
    '{"name": "a", "nothing": {"z": 1}}': "info.nothing.z: 'z' is not accepted; expected no field at all",
    '{"name": "a", "inner": {"size": "x"}}': "info.inner.size: 'x' is not accepted; expected int, not str",
    '{"name": "a", "sizes": [1, "x"]}': "info.sizes[1]: 'x' is not accepted; expected int, not str",
    '{"name": "a", "resources": {"cpu": "x"}}': 'info.resources[...]: \'{"cpu":"x"}\' is not accepted; expected float',
    '{"name": "a", "kind": "green"}': "info.kind: 'green' is not accepted; expected ",
    '{"name": "a", "few": 9}': "info.few: 9 is not accepted; expected `int` <= 5",
    '{"name": 1, "x": ' + "[" * 9_000: "info.",
    '{"name": ' + "7" * 9_000 + "}": "info.name: ",
    "[]": "info: '[]' is not accepted; expected object, not array",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_a_refusal_names_field_value_and_what_is_accepted(text: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        decode(Outer, text.encode(), "info")

    assert str(refusal.value).startswith(REFUSED[text])
