"""A guest's requests on its state end in an answer or an error of ramet, and touch no other agent's state."""

from __future__ import annotations

import asyncio
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue, RametError
from ramet.host.dynamic.registry import REGISTRY, STATE
from ramet.host.dynamic.run_state import RunState
from ramet.host.standalone import standalone_context
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.versioned import Versioned
from ramet.wire.guest_protocol.guest_to_host import UseState

DOES = get_args(get_type_hints(UseState, include_extras=True)["do"])
names = (
    st.text(max_size=20)
    | st.sampled_from(["a", "a/b", "..", "../other/secret", "/other", f"{REGISTRY}", f"x/{REGISTRY}", "__d__", "main"])
    | st.sampled_from(["run-1", "mine/run-1", "a\0b", "k" * 2_000, "0" * 64, "other/secret", "mine", ""])
)
bodies = (
    st.binary(max_size=30)
    | st.sampled_from(
        [b"", b"{}", b"[1]", b"null", b'{"a":1}', b"1e999", b"[" * 5_000, b'"\\ud800"', b"18446744073709551616"]
    )
    | st.sampled_from([b'{"a":{"sides":"x","value":[1]}}', b'{"a":{"sides":7,"value":7}}', b'{"a":7}'])
)
requests = st.builds(
    UseState,
    id=st.just(1),
    do=st.sampled_from(DOES),
    name=names,
    message=st.text(max_size=10),
    on_conflict=st.sampled_from(["retry", "abandon"]),
    recursive=st.booleans(),
    limit=st.integers(0, 2**53),
)


@example([(UseState(id=1, do="remove", name=REGISTRY), b"")])
@example([(UseState(id=1, do="set", name=REGISTRY), b"{}")])
@example([(UseState(id=1, do="set", name="../other/secret"), b"{}")])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(requests, bodies), max_size=25))
def test_a_guest_reaches_only_its_own_state(messages: list[tuple[UseState, bytes]]) -> None:
    """Errors are typed. Keys of other agents and the guest's own registry stay unchanged."""
    asyncio.run(_check_requests(messages))


async def _check_requests(messages: list[tuple[UseState, bytes]]) -> None:
    store = await MemoryStore().open()
    whole = await Versioned.open(store, STATE)
    theirs: dict[str, Any] = {"other/secret": 42, "minefield": 1}
    for key, value in theirs.items():
        whole.set(key, value)
    registry = {"solver": {"primer": "You solve."}}
    Namespaced(whole, "mine").set(REGISTRY, registry)
    await whole.commit()
    delegate = Namespaced(await whole.fork("mine/run-1"), "mine")
    delegate.set("a", "theirs")
    await delegate.commit()

    own = RunState(
        standalone_context(ScriptedModel(["x"])), Namespaced(await whole.open_copy(author="run-0"), "mine"), "mine/"
    )
    for each, body in [*messages, (UseState(id=1, do="checkout"), b""), (UseState(id=1, do="commit"), b"")]:
        try:
            await own.use(each, body)
        except RametError:
            pass

    after = await Versioned.open(store, STATE)
    assert {key: after.get(key) for key in after.keys() if not key.startswith("mine/")} == theirs
    assert Namespaced(after, "mine").get(REGISTRY) == registry
    await store.close()


async def test_a_value_of_too_many_parts_is_refused() -> None:
    """A value of more than 500,000 parts is refused, and its key stays unset."""
    store = await MemoryStore().open()
    whole = await Versioned.open(store, STATE)
    own = RunState(
        standalone_context(ScriptedModel(["x"])), Namespaced(await whole.open_copy(author="run-0"), "mine"), "mine/"
    )

    with pytest.raises(InvalidValue, match="at most 500000 parts"):
        await own.use(UseState(id=1, do="set", name="a"), b"[" + b"0," * 500_001 + b"0]")

    stated, _ = await own.use(UseState(id=2, do="has", name="a"), b"")
    assert not stated.found
    await store.close()
