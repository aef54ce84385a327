"""Run one agent in a sandbox, print its answer as it arrives, and clean up.

    python -m ramet.examples.simple_agent [--backend local|bwrap] [--config FILE]

Its image is a folder with a log, settings and code. The agent finds out what went wrong. With a key in `LLM_API_KEY`,
`OPENAI_API_KEY` or `ANTHROPIC_API_KEY` it uses a real model, otherwise the offline model, which works by rules.
"""

from __future__ import annotations

import sys

from ramet import Policy
from ramet.examples.running import ask, example_client, image_of, main, real_model, reserved_team
from ramet.services.config.load import Config

QUESTION = "Why is the lamp dark at night?"


async def simple_agent(config: Config) -> None:
    """Spawn the agent, ask it, print its answer, and clean up."""
    model = real_model() or "offline"
    print(f"model: {model}" if model != "offline" else "model: offline (no key is set): it answers by rules")
    async with example_client(config) as client:
        async with reserved_team(client, {"agents": 1, "memory_mb": 256}, "lighthouse") as created:
            keeper = await client.spawn_agent(
                created.team.id,
                "keeper",
                "llm",
                {"model": model, "tools": ["Glob", "Grep", "Read"], "in_image": True},
                image=await image_of(client, "lamp"),
                transport_format="openai",
                policy=Policy(memory_mb=256, network="disabled"),
                key=created.key,
            )
            info = await client.get_agent(keeper.agent.id, key=keeper.nonce)
            print(f"agent: {info.path}, {info.state}, isolation {info.isolation}")

            print(f"\n{QUESTION}\n")
            await ask(client, keeper, QUESTION, show)
            info = await client.get_agent(keeper.agent.id, key=keeper.nonce)
            print(f"\n\ndone: {info.turns} turn, {info.state}, isolation {info.isolation}")
        print(f"left: {len(await client.list_agents())} agents, {len(await client.list_teams())} teams")


def show(piece: str) -> None:
    """Print a piece of the answer immediately."""
    print(piece, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main("simple_agent", __doc__ or "", simple_agent))
