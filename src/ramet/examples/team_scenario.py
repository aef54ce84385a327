"""Run an architect and two workers, each in a sandbox, that share a bundle of code and count the words of a poem.

    python -m ramet.examples.team_scenario [--backend local|bwrap] [--config FILE]

The architect splits the poem, each worker counts its part, the architect merges the counts. All of them use the
module `textkit` of their image. With a key in `LLM_API_KEY`, `OPENAI_API_KEY` or `ANTHROPIC_API_KEY` they are models
that write Python and have the skill `word-count` of the image. Without a key they are functions of the image.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, NamedTuple

from ramet import Policy
from ramet.core.errors import RametError
from ramet.examples.running import ask, example_client, image_of, main, real_model, reserved_team
from ramet.services.client.client import Client
from ramet.services.config.load import Config
from ramet.services.contract import CreatedTeam, SpawnedAgent

POEM = """\
The sea is calm tonight.
The tide is full, the moon lies fair
Upon the straits; on the French coast the light
Gleams and is gone; the cliffs of England stand,
Glimmering and vast, out in the tranquil bay.
Come to the window, sweet is the night-air!"""


class Kind(NamedTuple):
    """The agent type of a member of the team, and its settings."""

    agent_type: str
    info: dict[str, Any]


async def team_scenario(config: Config) -> None:
    """Reserve a team, create its image, run the scenario, and delete the team."""
    model = real_model()
    print(f"model: {model}" if model else "model: none (no key is set): functions of the image do the work")
    async with example_client(config) as client:
        async with reserved_team(client, {"agents": 4, "memory_mb": 1024}, "counters") as created:
            image = await image_of(client, "team")
            print(f"team: {created.team.name}, {created.team.free['agents']:g} agents reserved; image {image[:12]}")

            architect, *workers = await asyncio.gather(
                spawn(client, created, "architect", kind_of("architect", model), image),
                spawn(client, created, "worker-1", kind_of("worker", model), image),
                spawn(client, created, "worker-2", kind_of("worker", model), image),
            )
            await work(client, architect, workers)
        print(f"\ndeleted: {created.team.name}, with its {1 + len(workers)} agents")
        print(f"left: {len(await client.list_agents())} agents, {len(await client.list_teams())} teams")


async def spawn(client: Client, team: CreatedTeam, name: str, kind: Kind, image: str) -> SpawnedAgent:
    """Spawn one member of the team in its own sandbox."""
    member = await client.spawn_agent(
        team.team.id,
        name,
        kind.agent_type,
        kind.info,
        image=image,
        transport_format="openai",
        policy=Policy(memory_mb=256, network="disabled"),
        key=team.key,
    )
    print(f"agent: {member.agent.path}, {member.agent.state}, isolation {member.agent.isolation}")
    return member


async def work(client: Client, architect: SpawnedAgent, workers: list[SpawnedAgent]) -> None:
    """Split the text, count the words concurrently, and merge the counts."""
    split = await say(client, architect, f"Split this text between two workers.\n\n{POEM}")
    parts = split.split("\n---\n")
    if len(parts) != len(workers):
        raise RametError(f"the architect made {len(parts)} parts for {len(workers)} workers")
    tasks = [f"Count the words of this part.\n\n{part}" for part in parts]
    counted = await asyncio.gather(*(say(client, worker, task) for worker, task in zip(workers, tasks, strict=True)))
    await say(client, architect, "Put these counts together.\n\n" + "\n\n".join(counted))


async def say(client: Client, agent: SpawnedAgent, text: str) -> str:
    """Run one turn, and print the answer line by line as it arrives. Several turns may run concurrently."""
    name, line = agent.agent.name, ""
    print(f"\n{name} < {text.partition(chr(10))[0]}", flush=True)

    def show(piece: str) -> None:
        nonlocal line
        *whole, line = (line + piece).split("\n")
        for each in whole:
            print(f"{name} > {each}", flush=True)

    answer = await ask(client, agent, text, show)
    show("\n" if line else "")
    return answer


def kind_of(role: str, model: str) -> Kind:
    """Return a model with Python and the skill of the image; without a model, return a function of the image."""
    if not model:
        return Kind("function", {"function": f"textkit:{role}"})
    prompt = f"You are the {role} of a team that counts words."
    return Kind("llm", {"model": model, "system_prompt": prompt, "tools": ["python"], "skills": ["word-count"]})


if __name__ == "__main__":
    sys.exit(main("team_scenario", __doc__ or "", team_scenario))
