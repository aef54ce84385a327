"""The operator alone raises a limit over HTTP, by whole numbers within bounds, and each key counts once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from ramet import Agent, Limits, ScriptedModel
from ramet.core.events import LimitsRaised
from ramet.models.scripted.dialogue import Call
from ramet.services.client.client import Client
from ramet.spawn.handle import Handle
from tests.support.serving import EchoServer
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate

LIMIT = 2


class Paused(NamedTuple):
    """A run of a server's kernel that is paused at its limit."""

    handle: Handle
    server: EchoServer

    @property
    def path(self) -> str:
        """Path of the endpoint that raises its limits."""
        return f"/v1/runs/{self.handle.id}/limits"

    async def send(self, content: bytes | str, key: str | None = None) -> Any:
        """Send a body as it is, with the operator's key unless another is given."""
        operator = self.server.server.operator
        headers = {"content-type": "application/json"}
        sent = content.encode(errors="surrogatepass") if isinstance(content, str) else content
        return await self.server.ask("POST", self.path, operator if key is None else key, content=sent, headers=headers)

    async def add(self, key: str, **add: float) -> Any:
        """Ask for a raise as the operator."""
        return await self.send(json.dumps({"add": add, "key": key}))

    async def raises(self) -> list[LimitsRaised]:
        """Return the raises on record."""
        return [each async for each in _recorded(self) if isinstance(each, LimitsRaised)]

    @property
    def limit(self) -> float:
        """Limit of calls that is in force."""
        return self.handle.run.context.budget.limit("model_calls")

    async def assert_unchanged(self) -> None:
        """Assert that the run is paused at its first limit, and that no raise is on record."""
        assert (self.limit, self.handle.view().state) == (LIMIT, "paused")
        assert await self.raises() == []


async def _recorded(paused: Paused) -> AsyncIterator[Any]:
    from ramet.core.events import decode

    store = await paused.server.server.runtime.open_store()
    for each in await store.read(tree=paused.handle.id):
        yield decode(each.data)


@pytest.fixture
async def paused(echo_server: EchoServer) -> AsyncIterator[Paused]:
    """A run that is paused at its limit, and is cancelled after the test."""
    handle = await _spawn(echo_server)
    await eventually(lambda: handle.view().state == "paused")
    yield Paused(handle, echo_server)
    await handle.cancel()


async def _spawn(echo_server: EchoServer, **limits: Any) -> Handle:
    gate = Gate("note")
    gate.open.set()
    model = ScriptedModel({"go": [*[Call("note", {})] * 30, "done"]})
    given = Limits(**{"model_calls": LIMIT, "at_limit": "pause", **limits})
    return await echo_server.server.runtime.spawn(
        Agent(name="counts", model=model), "go", tools=[gate.tool], limits=given
    )


async def test_the_operator_raises_a_limit(paused: Paused) -> None:
    """The answer shows the new limits, and the run makes exactly the further calls."""
    answer = await paused.add("k", model_calls=3)

    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text).get("limits", json.loads(answer.text))["model_calls"] == LIMIT + 3
    await eventually(lambda: paused.handle.view().usage.model_calls == LIMIT + 3)
    await eventually(lambda: paused.handle.view().state == "paused")
    assert [(each.key, each.run) for each in await paused.raises()] == [("k", paused.handle.id)]


async def test_no_other_key_raises_a_limit(paused: Paused) -> None:
    """A team's key, an agent's keys, a wrong key and none are refused, and nothing is raised."""
    team, team_key = await paused.server.team()
    agent, nonce = await paused.server.agent(name="other")
    narrow = await paused.server.ask("POST", f"/v1/agents/{agent}/keys", nonce, json={"rights": ["info"]})
    keys = {
        "team": team_key,
        "agent": nonce,
        "narrower": narrow.raise_for_status().json()["key"],
        "wrong": "op_wrong",
        "none": "",
        "id of the team": team,
    }
    for name, key in keys.items():
        answer = await paused.send('{"add": {"model_calls": 3}, "key": "k"}', key)
        assert answer.status_code in (401, 403, 404), (name, answer.status_code, answer.text)
    await paused.assert_unchanged()


NUMBERS: dict[str, str] = {
    "negative": "-1",
    "minus zero point five": "-0.5",
    "float": "1.5",
    "exponent": "1e3000",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "minus Infinity": "-Infinity",
    "text": '"3"',
    "true": "true",
    "list": "[3]",
    "object": '{"value": 3}',
    "beyond 2^53": str(2**53 + 1),
    "the limit would be beyond 2^53": str(2**53),
    "400 digits": "1" + "0" * 400,
    "100,000 digits": "9" * 100_000,
}


async def test_a_number_that_is_no_count_raises_nothing(echo_server: EchoServer) -> None:
    """A refusal is a client's error with a problem document; the run is paused as before, and the kernel goes on."""
    handle = await _spawn(echo_server, agents=100, tokens=1_000_000, tool_calls=1_000_000)
    await eventually(lambda: handle.view().state == "paused")
    paused = Paused(handle, echo_server)
    wrong: dict[tuple[str, str], str] = {}
    for resource in ("model_calls", "tokens", "tool_calls", "agents"):
        for name, number in NUMBERS.items():
            answer = await paused.send(f'{{"add": {{"{resource}": {number}}}, "key": "k"}}')
            is_problem = answer.headers["content-type"] == "application/problem+json"
            if not (400 <= answer.status_code < 500 and is_problem):
                wrong[resource, name] = f"{answer.status_code} {answer.text[:200]}"
    assert wrong == {}
    await paused.assert_unchanged()
    for resource in ("tokens", "tool_calls", "agents"):  # The control: proper numbers are accepted.
        assert (await paused.add(f"k {resource}", **{resource: 3})).status_code == 200
    await handle.cancel()


async def test_a_sum_of_money_that_is_none_raises_nothing(echo_server: EchoServer) -> None:
    """The same holds for dollars, which need not be whole."""
    handle = await _spawn(echo_server, usd=5.0)
    paused = Paused(handle, echo_server)
    wrong: dict[str, str] = {}
    for value in ("-1", "NaN", "Infinity", "1e400", '"2"', "true", str(2**54), str(2**53), "[]"):
        answer = await paused.send(f'{{"add": {{"usd": {value}}}, "key": "k"}}')
        if not 400 <= answer.status_code < 500:
            wrong[value] = f"{answer.status_code} {answer.text[:200]}"
    assert wrong == {}
    assert await paused.raises() == []
    assert handle.run.context.budget.limit("usd") == 5.0
    assert (await paused.add("k", usd=0.25)).status_code == 200
    assert handle.run.context.budget.limit("usd") == 5.25
    await handle.cancel()


BODIES: dict[str, str | bytes] = {
    "nothing": b"",
    "no JSON": b"add three",
    "a list": b"[]",
    "null": b"null",
    "no amount": '{"key": "k"}',
    "empty amount": '{"add": {}, "key": "k"}',
    "amount of nothing": '{"add": {"model_calls": null}, "key": "k"}',
    "null amount": '{"add": null, "key": "k"}',
    "amount is a number": '{"add": 3, "key": "k"}',
    "unknown resource": '{"add": {"dollars": 3}, "key": "k"}',
    "unknown field": '{"add": {"model_calls": 3}, "key": "k", "as": "root"}',
    "another end": '{"add": {"model_calls": 3, "at_limit": "end"}, "key": "k"}',
    "key is a number": '{"add": {"model_calls": 3}, "key": 7}',
    "key is null": '{"add": {"model_calls": 3}, "key": null}',
    "key is a list": '{"add": {"model_calls": 3}, "key": ["k"]}',
    "key of 100,000 letters": json.dumps({"add": {"model_calls": 3}, "key": "k" * 100_000}),
    "not UTF-8": b'{"add": {"model_calls": 3}, "key": "\xff\xfe"}',
    "deep": b'{"add": ' + b"[" * 100_000,
    "twenty megabytes": b'{"add": {"model_calls": 3}, "key": "k", "x": "' + b"x" * 20_000_000 + b'"}',
    "one of two amounts is bad": '{"add": {"model_calls": 3, "tool_calls": -1}, "key": "k"}',
}


async def test_a_body_that_is_no_raise_changes_nothing(paused: Paused) -> None:
    """A refusal is a client's error; the run is paused as before, and a proper request works afterwards."""
    wrong: dict[str, str] = {}
    for name, body in BODIES.items():
        answer = await paused.send(body)
        if not 400 <= answer.status_code < 500:
            wrong[name] = f"{answer.status_code} {answer.text[:200]}"
    assert wrong == {}
    await paused.assert_unchanged()
    assert (await paused.add("k", model_calls=3)).status_code == 200
    assert paused.limit == LIMIT + 3


STRANGE_KEYS = ["\x00", "a\nb", "\u202eevil", "k" * 129, "k" * 1_000, "'; DROP TABLE events; --", "../../x", "\ud800"]


async def test_a_strange_key_counts_once_or_not_at_all(paused: Paused) -> None:
    """A key is refused, or it works like any other; never does it fail in the server."""
    wrong, counted = dict[str, Any](), 0
    for key in STRANGE_KEYS:
        answers = [await paused.add(key, model_calls=3) for _ in range(3)]
        codes = {each.status_code for each in answers}
        counted += codes == {200}
        if len(codes) != 1 or not (codes == {200} or all(400 <= each < 500 for each in codes)):
            wrong[ascii(key)] = (codes, answers[0].text[:200])
    assert wrong == {}
    assert len(await paused.raises()) == counted
    assert paused.limit == LIMIT + 3 * counted


async def test_a_key_stands_for_one_amount(paused: Paused) -> None:
    """The same key with the same amount counts once. With another amount or resource it is refused."""
    assert [(await paused.add("k", model_calls=3)).status_code for _ in range(3)] == [200] * 3
    adds: list[dict[str, float]] = [{"model_calls": 4}, {"tool_calls": 3}, {"model_calls": 3, "tokens": 1}, {"usd": 3}]
    for add in adds:
        answer = await paused.add("k", **add)
        assert answer.status_code in (409, 422), (add, answer.status_code, answer.text)
    assert len(await paused.raises()) == 1
    assert paused.limit == LIMIT + 3


async def test_concurrent_repeats_of_a_key_count_once(paused: Paused) -> None:
    """A hundred requests with five keys in any order raise five times; each answer comes after its record."""
    keys = [f"key {number}" for number in range(5)] * 20
    random.Random(7).shuffle(keys)  # noqa: S311, RUF100 - dice, no secrets
    answers = await asyncio.gather(*(paused.add(key, model_calls=1) for key in keys))

    assert {each.status_code for each in answers} == {200}
    assert sorted(each.key for each in await paused.raises()) == sorted(set(keys))
    assert paused.limit == LIMIT + 5
    await eventually(lambda: paused.handle.view().usage.model_calls == LIMIT + 5)


async def test_a_key_belongs_to_one_run(paused: Paused) -> None:
    """The same key raises another run as well: it was never used there."""
    other = await _spawn(paused.server)
    await eventually(lambda: other.view().state == "paused")
    assert (await paused.add("k", model_calls=1)).status_code == 200
    assert (await Paused(other, paused.server).add("k", model_calls=2)).status_code == 200

    assert (paused.limit, other.run.context.budget.limit("model_calls")) == (LIMIT + 1, LIMIT + 2)
    await other.cancel()


async def test_a_run_that_has_ended_or_never_was_is_not_raised(paused: Paused) -> None:
    """The answer says so, and nothing is recorded after the end."""
    await paused.handle.cancel()
    ended = await paused.add("k", model_calls=3)
    unknown = await paused.server.ask(
        "POST",
        "/v1/runs/run-nobody/limits",
        paused.server.server.operator,
        json={"add": {"model_calls": 3}, "key": "k"},
    )

    assert ended.status_code in (404, 409, 410, 422), ended.text
    assert unknown.status_code == 404, unknown.text
    assert await paused.raises() == []


async def test_a_raise_before_the_limit_is_reached_counts(echo_server: EchoServer) -> None:
    """The run pauses at the raised limit, not at the first one."""
    handle = await _spawn(echo_server)
    paused = Paused(handle, echo_server)
    assert (await paused.add("early", model_calls=4)).status_code == 200
    await eventually(lambda: handle.view().state == "paused" and handle.view().usage.model_calls == LIMIT + 4)

    await handle.cancel()


async def test_the_client_raises_a_limit(paused: Paused, client: Client) -> None:
    """The typed client sends the same request, and a repeated call counts once."""
    for _ in range(2):
        raised = await client.kernel.raise_limits(paused.handle.id, key="k", model_calls=3)
        assert raised["model_calls"] == LIMIT + 3
    assert len(await paused.raises()) == 1
    row = await client.kernel.run(paused.handle.id)
    assert row.id == paused.handle.id


async def test_the_client_lists_and_approves_a_paused_run(paused: Paused, client: Client) -> None:
    """Each approval adds the one call that the run asks for; the same one again adds nothing."""
    (entry,) = await client.kernel.approvals()
    assert (entry.kind, entry.run, entry.usage.model_calls) == ("limit", paused.handle.id, LIMIT)
    assert entry.limit is not None
    assert (entry.limit.scope_run, entry.limit.amount) == (paused.handle.id, 1)
    for _ in range(2):
        await client.kernel.answer(entry.id, True)
    assert paused.limit == LIMIT + 1
    await eventually(lambda: paused.handle.view().usage.model_calls == LIMIT + 1)
    await eventually(lambda: paused.handle.view().state == "paused")
    (later,) = await client.kernel.approvals()
    assert later.id != entry.id
    await client.kernel.answer(later.id, False, "no")
    assert (await paused.handle.result()).status == "budget_exhausted"
    assert await client.kernel.approvals() == []
    assert [each.key for each in await paused.raises()] == [entry.id]


async def test_no_other_key_answers_a_paused_run(paused: Paused, client: Client) -> None:
    """A wrong key, and none, change nothing."""
    (entry,) = await client.kernel.approvals()
    for key in ("", "wrong"):
        answer = await paused.server.ask("POST", f"/v1/approvals/{entry.id}", key, json={"allowed": True})
        assert answer.status_code in (401, 403)
    await paused.assert_unchanged()
