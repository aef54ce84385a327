"""Mixed load on a server that restarts: conversations of bounded length, and the fate of each turn.

A turn that was acknowledged must be in the history exactly once; a turn that a restart cut off, at most once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import ramet
from benchmarks.soak.server import Server
from ramet.core.errors import ModelFailed, RametError, TaskFailed
from ramet.core.policy.policy import Policy
from ramet.services.client.client import Client
from ramet.services.contract import SpawnedAgent

TEAM: Final = "soak"
_TRIES: Final = 20  #: to look at the last conversation
_PAUSE_S: Final = 0.2  #: after a request that went wrong
LENGTH: Final = 20  #: turns of a conversation, which is ended then
WORKS: Final = {"function": "benchmarks.soak.agents:works"}
#: What a worker does, each once at first, so that a short soak has all of it; then as the dice say, by these weights.
WEIGHTS: Final = {"say": 76, "cut": 8, "cancel": 4, "fail": 8, "spawn": 4}


class Account:
    """Tally of how the turns of all workers ended."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()  #: turns that were answered as they should be, by what they were
        self.interrupted = 0  #: turns of which nothing more was heard, since the server ended
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.wrong: list[str] = []  #: answers that are none of those that may come

    @property
    def turns(self) -> int:
        """Return the number of turns that were answered."""
        return self.done.total()


class Worker:
    """A client with one conversation at a time. `rounds` counts its acts, whatever came of them."""

    def __init__(self, number: int, seed: int, server: Server, account: Account, is_up: asyncio.Event) -> None:
        """Make a worker. `is_up` is cleared before a server process is ended, and set once the next one listens."""
        self.rounds = 0
        self._number, self._dice = number, random.Random(seed * 1_000 + number)  # noqa: S311, RUF100 - no secrets
        self._server, self._account, self._is_up = server, account, is_up
        self._tokens = 0
        self._agent: SpawnedAgent | None = None
        self._sure: list[str] = []  #: tokens of this conversation whose turns were acknowledged
        self._unsure: list[str] = []  #: of those that may or may not have been
        self._agents = 0
        self._first = list(WEIGHTS)

    async def work(self, key: str, is_over: Callable[[], bool]) -> None:
        """Act until the soak is over, and then check the last conversation."""
        async with ramet.connect(self._server.socket) as client:
            while not is_over():
                await self._try(lambda: self._round(client, key))
                self.rounds += 1
            for _ in range(_TRIES):
                if await self._try(lambda: self._retire(client)):
                    break

    async def _try(self, act: Callable[[], Awaitable[None]]) -> bool:
        """Act while the server is up. Return False if it went down meanwhile, or refused."""
        await self._is_up.wait()
        life = self._server.lives
        try:
            await act()
            return True
        except (RametError, OSError) as problem:
            if self._is_up.is_set() and self._server.lives == life:
                self._account.wrong.append(f"worker {self._number}: {type(problem).__name__}: {problem}"[:300])
                await asyncio.sleep(_PAUSE_S)
            else:
                self._account.interrupted += 1
            return False

    async def _round(self, client: Client, key: str) -> None:
        if len(self._sure) + len(self._unsure) >= LENGTH:
            await self._retire(client)
        if self._agent is None:
            self._agents += 1
            name = f"talker-{self._number}-{self._agents}"
            self._agent = await client.spawn_agent(TEAM, name, "soak", key=key)
        act = self._first.pop(0) if self._first else self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        match act:
            case "say":
                await self._say(client, self._agent)
            case "cut":
                await self._cut(client, self._agent)
            case "cancel":
                await self._cancel(client, self._agent)
            case "fail":
                await self._fail(client, self._agent)
            case _:
                await self._spawn(client, key)

    def _token(self) -> str:
        self._tokens += 1
        return f"t-{self._number}-{self._tokens}"

    async def _say(self, client: Client, agent: SpawnedAgent) -> None:
        token = self._token()
        self._unsure.append(token)
        reply = await client.say(agent.agent.id, body("say", token), key=agent.nonce)
        if token.encode() not in reply:
            self._account.wrong.append(f"{token}: {reply[:100]!r}")
        self._acknowledge(token, "say")

    async def _cut(self, client: Client, agent: SpawnedAgent) -> None:
        """Leave in the middle of an answer: the turn continues, and the next turn waits for its end."""
        token = self._token()
        self._unsure.append(token)
        async with aclosing(client.turn(agent.agent.id, body("say", token), key=agent.nonce)) as chunks:
            await anext(chunks)
        await self._say(client, agent)
        self._acknowledge(token, "cut")

    async def _cancel(self, client: Client, agent: SpawnedAgent) -> None:
        """Interrupt a slow answer. The part that came may be in the history."""
        self._unsure.append(token := self._token())
        async with aclosing(client.turn(agent.agent.id, body("slow", token), key=agent.nonce)) as chunks:
            await anext(chunks)
            await client.interrupt(agent.agent.id, key=agent.nonce)
            async for _ in chunks:
                pass
        self._account.done["cancel"] += 1

    async def _fail(self, client: Client, agent: SpawnedAgent) -> None:
        self._unsure.append(self._token())
        try:
            await client.say(agent.agent.id, body("fail", self._unsure[-1]), key=agent.nonce)
        except (ModelFailed, TaskFailed) as problem:
            if "told to" not in str(problem):  # The server ends.
                raise
            self._account.done["fail"] += 1
            return
        self._account.wrong.append(f"{self._unsure[-1]}: an answer of a model that fails")

    async def _spawn(self, client: Client, key: str) -> None:
        """Spawn an agent in its own sandbox for one turn."""
        self._agents += 1
        name = f"function-{self._number}-{self._agents}"
        spawned = await client.spawn_agent(TEAM, name, "soak-function", WORKS, policy=Policy(), key=key)
        reply = await client.say(spawned.agent.id, body("say", token := self._token()), key=spawned.nonce)
        if token.encode() not in reply:
            self._account.wrong.append(f"{token}: {reply[:100]!r}")
        await client.kill_agent(spawned.agent.id, key=spawned.nonce)
        self._account.done["spawn"] += 1

    def _acknowledge(self, token: str, act: str) -> None:
        self._unsure.remove(token)
        self._sure.append(token)
        self._account.done[act] += 1

    async def _retire(self, client: Client) -> None:
        """Check the history of the conversation for each turn, and end the conversation."""
        agent = self._agent
        if agent is None:
            return
        await self._say(client, agent)  # Behind whatever goes on.
        history = await client.history(agent.agent.id, key=agent.nonce)
        asked = Counter(_last_word(each) for each in history if each["role"] == "user")
        answer_counts = Counter(str(each["content"]).split()[1] for each in history if _is_answer(each))
        for token in self._sure:
            if not asked[token] or not answer_counts[token]:
                self._account.lost.append(token)
        for token in (*self._sure, *self._unsure):
            if asked[token] > 1 or answer_counts[token] > 1:
                self._account.doubled.append(token)
        self._agent, self._sure, self._unsure = None, [], []
        await client.kill_agent(agent.agent.id, key=agent.nonce)


def body(act: str, token: str) -> bytes:
    """Return a message in the format of OpenAI's clients."""
    return json.dumps({"messages": [{"role": "user", "content": f"{act} {token}"}]}).encode()


def _last_word(message: object) -> str:
    assert isinstance(message, dict)
    return (str(message["content"]).split() or [""])[-1]


def _is_answer(message: object) -> bool:
    assert isinstance(message, dict)
    return message["role"] == "assistant" and str(message["content"]).startswith("heard ")
