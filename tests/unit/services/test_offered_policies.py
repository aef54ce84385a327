"""Safety policies of a server, as the spawner of an agent sees them."""

from __future__ import annotations

import pytest

from ramet.core.errors import InvalidValue
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.policies import POLICY
from ramet.services.agent_types.gates import gate_of
from ramet.store.memory import MemoryStore


async def test_an_unreadable_policy_is_refused_without_its_text() -> None:
    """The operator owns the policy: holders of a team's key must not see its text."""
    async with AgentRuntime(store=MemoryStore()) as runtime:
        await (await runtime.open_store()).put(POLICY, "newer", b'{"only_of_a_newer_ramet": "Bash"}')
        with pytest.raises(InvalidValue) as refusal:
            await gate_of(runtime, "newer")

    assert (refusal.value.field, refusal.value.value) == ("spawn_info.gate", "newer")
    assert "only_of_a_newer_ramet" not in str(refusal.value)
    assert refusal.value.__cause__ is None
