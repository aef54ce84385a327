"""Agents that start agents, each in its own sandbox. No model, no key, no network: plain functions.

    python examples/recursive_function_agents.py [--backend bwrap|local]

A survey may start two regions, a region may start two towns, and a town may start no agent: three levels, every child
with 128 MB. Results are data. Two errors are intended: one town asks for a helper, which its policy does not allow, and
gets the name of the limit; another town uses more memory than it has and is terminated. Its parent gets `oom`, and all
other agents continue. Both backends print the same.
"""

import argparse
import asyncio
import tempfile

from ramet import AgentResult, AgentRuntime, Policy
from ramet.core.errors import SpawnRefused
from ramet.sub_agent_client import map_sub_agents, spawn_sub_agent

PEOPLE = {"Arden": 1200, "Brill": 800, "Corve": 300, "Dunmoor": 2500}
REGIONS = {"north": ["Arden", "Brill"], "south": ["Corve", "Dunmoor"]}


def town(name: str) -> dict[str, str | int]:
    """Count the people of one town. The lowest level: it may start no agent, which Brill shows."""
    report: dict[str, str | int] = {"people": PEOPLE[name]}
    if name == "Brill":
        try:
            spawn_sub_agent(agent=town, args=("Arden",))
        except SpawnRefused as refusal:
            report["refused"] = refusal.limit
    if name == "Corve":
        bytearray(1024 * 1024 * 1024)[:] = b"x" * (1024 * 1024 * 1024)  # a gigabyte, of 128 MB
    return report


def region(name: str) -> list[str]:
    """Count the towns of a region, each by a child. The middle level: a failed town is one line of the result."""
    towns = REGIONS[name]
    children = Policy(memory_mb=128, cpu_cores=0.25, allow_sub_agents=False)
    results = map_sub_agents(town, towns, policy=children)
    return [line_of(each, result) for each, result in zip(towns, results, strict=True)]


def line_of(name: str, result: AgentResult) -> str:
    """Return one line about a town: its people, or the status of its agent."""
    if result.exit_code:
        return f"{name}: {result.status}"
    refused = f" (asked for a helper, refused: {result.output['refused']})" if "refused" in result.output else ""
    return f"{name}: {result.output['people']} people{refused}"


def survey() -> dict[str, list[str]]:
    """Count two regions concurrently. The top level: it may spawn, and its children may spawn one more level."""
    children = Policy(memory_mb=128 * 3, cpu_cores=0.5, allow_sub_agents=True, max_sub_agents=2)
    results = map_sub_agents(region, list(REGIONS), policy=children)
    return {name: result.output for name, result in zip(REGIONS, results, strict=True)}


async def main(backend: str | None) -> None:
    """Run the survey and print its result."""
    with tempfile.TemporaryDirectory() as folder:
        async with AgentRuntime(working_dir=folder, backend=backend) as runtime:
            policy = Policy(memory_mb=1024, cpu_cores=2, allow_sub_agents=True, max_sub_agent_depth=2)
            result = await runtime.run_agent(agent=survey, policy=policy)
    print(f"survey: {result.status}, {result.usage.agents} agents below it")
    for name, lines in (result.output or {}).items():
        print(f"  {name}")
        for line in lines:
            print(f"    {line}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    options.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    asyncio.run(main(options.parse_args().backend))
