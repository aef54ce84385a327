"""The operator's rule for endpoints, together with the machine's own addresses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy.policy import Policy
from ramet.services.config.load import load
from ramet.services.rules import Rules

OWN = "9.9.9.9:80"

#: In a network namespace whose loopback has a public address.
_ASK = f"""
from ramet import AgentRuntime
from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy.policy import Policy
from ramet.services.rules import Rules
for given in (None, ["*"], ["*", "{OWN}"]):
    for asked in ("{OWN}", "9.9.9.10:80"):
        try:
            print(Rules(endpoints=given).grant_of(Policy(allowed_endpoints=[asked])).allowed_endpoints)
        except SpawnRefused as refusal:
            print(refusal.limit)
placement = AgentRuntime().sandboxes.placement()
placement.check_endpoints(["{OWN}"], parent_endpoints=["*", "{OWN}"])
placement.check_endpoints(["9.9.9.10:80", "own.test:80"], parent_endpoints=["*"])
try:
    placement.check_endpoints(["9.9.9.10:80", "{OWN}"], parent_endpoints=["*"])
except InvalidValue as refusal:
    print(refusal.value)
"""


def grant(rules: Rules, *endpoints: str) -> tuple[str, ...]:
    """Return the endpoints that an agent gets of these."""
    grant = rules.grant_of(Policy(allowed_endpoints=endpoints))
    assert grant is not None
    return grant.allowed_endpoints


def test_a_public_address_of_the_machine_itself_is_refused() -> None:
    """Services that listen on all addresses would be reachable; a rule or a parent may list the address literally."""
    setup = 'ip link set lo up && ip address add 9.9.9.9/32 dev lo && exec "$0" -c "$1"'
    command = ["unshare", "-rn", "sh", "-c", setup, sys.executable, _ASK]
    results = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    message, other = "policy.allowed_endpoints", "('9.9.9.10:80',)"
    assert results == [message, other, message, other, f"('{OWN}',)", other, OWN]


def test_an_empty_rule_allows_no_endpoint() -> None:
    """An agent that asks for no endpoint is not refused."""
    with pytest.raises(SpawnRefused, match=r"example.org:443; rules.endpoints: none"):
        grant(Rules(endpoints=()), "example.org:443")
    assert grant(Rules(endpoints=())) == ()


def test_the_setting_takes_endpoints_in_their_canonical_form() -> None:
    """An invalid endpoint is refused by the setting's name; a variable holds the endpoints as text."""
    config = load(None, {"RAMET_RULES_ENDPOINTS": "'*.Example.ORG.:443' [0:0::1]:80"}, {})
    assert config.rules.endpoints == ("*.example.org:443", "[::1]:80")
    assert load(None, {}, {}).rules.endpoints is None
    for wrong in ("127.1:80", "example.org", "10.0.0.0/8"):
        with pytest.raises(InvalidValue) as refusal:
            load(None, {"RAMET_RULES_ENDPOINTS": wrong}, {})
        assert (refusal.value.field, refusal.value.value) == ("rules.endpoints", wrong)
