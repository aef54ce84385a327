"""Map-reduce over documents: each document is read in a sandbox of its own, and one function joins the findings.

    python examples/map_reduce.py                                   # 1,000 documents, by a plain function
    python examples/map_reduce.py --documents 20 --model anthropic:claude-haiku-5-5

A document is hostile: a reader sees that one document, no other file and no network, and has 96 MB of memory and 30
seconds. One document of a hundred is a trap that uses more memory than that. Its reader ends as `oom`, a `StepFailure`
takes the place of its findings, and all others are counted. At most eight readers work at the same time.

With `--model` each reader is a language model that answers with the same type.
"""

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from ramet import Agent, AgentRuntime, Limits, Policy, Result, StepFailure, chain, parallel

CITIES = ["Arden", "Brill", "Corve"]
SANDBOX = Policy(memory_mb=96, cpu_cores=0.5, network="disabled")


@dataclass
class Finding:
    """Findings of a reader in one document."""

    city: str
    complaints: int


@dataclass
class Summary:
    """Findings of all readers together, and the reasons why some have none."""

    documents: int
    complaints: dict[str, int]
    failures: dict[str, int]


def documents(number: int) -> list[str]:
    """Return letters to three cities, among them the traps."""
    letters = [f"To the city of {CITIES[i % 3]}.\n" + "The bus was late.\n" * (i % 4) for i in range(number)]
    return ["decompress me" if i % 100 == 7 else letter for i, letter in enumerate(letters)]


def read(text: str) -> Finding:
    """Count the complaints of one document. Runs in a sandbox."""
    if text == "decompress me":
        text = "x" * 10**9  # as a parser does that unpacks a hostile file
    address, *lines = text.splitlines()
    return Finding(address.removeprefix("To the city of ").rstrip("."), sum("late" in line for line in lines))


def join(findings: list[Finding | StepFailure]) -> Summary:
    """Add all findings up."""
    complaints, failures = Counter[str](), Counter[str]()
    for each in findings:
        if isinstance(each, StepFailure):
            failures[each.status] += 1
        else:
            complaints[each.city] += each.complaints
    return Summary(len(findings), dict(sorted(complaints.items())), dict(failures))


def reader(model: str | None) -> Agent:
    """Return the agent that reads one document: a plain function, or a model that answers with the same type."""
    if model is None:
        return Agent(name="reader", function=read, policy=SANDBOX)
    return Agent(
        name="reader",
        model=model,
        instructions="The prompt is a letter. Name the city, and count the complaints in it.",
        output=Finding,
        tools=(),
        policy=SANDBOX,
        max_turns=3,
    )


async def main(
    number: int, model: str | None = None, backend: Literal["bwrap", "local"] | None = None
) -> Result[Summary]:
    """Print what all documents say together, and what that took. Return the result."""
    job = chain(parallel(reader(model), for_each=True, max_parallel=8), join, name="map-reduce")
    started = time.monotonic()
    async with AgentRuntime(backend=backend) as runtime:
        handle = await runtime.spawn(job, args=(documents(number),), limits=Limits(usd=5.0, seconds=1800))
        result = await handle.result()
    if result.error is not None:
        print(result.status, result.error.message)
        return result
    summary, used = result.value, result.usage_subtree
    for city, complaints in summary.complaints.items():
        print(f"{city}: {complaints} complaints")
    failed = ", ".join(f"{count} {status}" for status, count in summary.failures.items()) or "none"
    print(f"documents: {summary.documents}, failed: {failed}, USD {used.usd:.2f}, {time.monotonic() - started:.0f} s")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--model", help="such as anthropic:claude-haiku-5-5; default: a plain function")
    parser.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    options = parser.parse_args()
    asyncio.run(main(options.documents, options.model, options.backend))
