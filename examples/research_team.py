"""A research team over a code base: agents read its parts at the same time, and one answers with evidence.

    python examples/research_team.py
    python examples/research_team.py "Where are retries decided?" --dir . --model anthropic:claude-sonnet-5-5 --usd 2

The lead may start readers, and the readers may only read. All of them share one budget: a request to a model that does
not fit is not sent. With `--record` the tree is kept in `.ramet` of the folder, for `ramet ui` and `ramet tree`. A line
of the tree has the tokens of an agent with those of all below it.

Without `--model` the team works by rules (`offline`): it finds lines that belong together, and understands nothing. The
folder is by default the payment API of this folder, which has an error for the team to find.
"""

import argparse
import asyncio
from pathlib import Path

from ramet import Agent, AgentRuntime, Limits, Result, Session, workspace_tools

READER = Agent(
    name="explore",
    description="Reads one part of the code base: logs, settings, source or documents",
    instructions="Answer in at most five lines. Give the evidence of each statement as path:line.",
    tools=["Read", "Glob", "Grep"],
    max_turns=20,
)
LEAD = """\
You lead a research team. Look at the folder, then give each part of it to an agent of the type explore, all in one
reply. Answer in at most ten lines, only with what the readers found, and give path:line for each statement."""


async def main(question: str, folder: Path, model: str, usd: float, record: bool = False) -> Result[str]:
    """Print the answer, the tree with what each agent used, and the cost of all. Return the result of the lead."""
    limits = Limits(usd=usd, model_calls=100, agents=12, seconds=600)
    async with (
        AgentRuntime(folder if record else None) as runtime,
        Session(
            model=model,
            tools=workspace_tools(),
            cwd=folder,
            agents=[READER],
            system_prompt=LEAD,
            limits=limits,
            runtime=runtime,
        ) as session,
    ):
        result = await session.ask(question)
        print(result.text, end="\n\n")
        for run in session.runs():
            print(f"{'  ' * run.depth + run.name:20} {run.state:10} {run.usage.tokens:6} tokens")
        used = result.usage_subtree
        print(f"{result.status}: {used.agents + 1} agents, {used.model_calls} model calls, USD {used.usd:.4f} of {usd}")
        if result.error is not None:
            print(result.error.message)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("question", nargs="?", default="Why is the payment API failing?")
    parser.add_argument("--dir", type=Path, default=Path(__file__).with_name("payment-api"))
    parser.add_argument("--model", default="offline", help="such as anthropic:claude-sonnet-5-5")
    parser.add_argument("--usd", type=float, default=1.0, help="the most that the whole team may cost")
    parser.add_argument("--record", action="store_true", help="keep the tree in .ramet of the folder")
    options = parser.parse_args()
    asyncio.run(main(options.question, options.dir, options.model, options.usd, options.record))
