"""A swarm of reviewers: each works in a sandbox, in a clone of the repository, and leaves its change as one branch.

    python examples/review_swarm.py
    python examples/review_swarm.py --dir path/to/repository --model anthropic:claude-sonnet-5-5 --usd 3

The reviewers start at the same time, each with one thing to look for. None sees the work of the others, and none can
reach your files, your index or your settings: a reviewer changes its own clone, and at its end the runtime puts the
change into the repository as a branch. A judge then reads all changes and says which to merge. You merge with git.

Without `--model` the agents play a written dialogue about a repository that this program makes.
"""

import argparse
import asyncio
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel

from ramet import (
    Agent,
    AgentRuntime,
    Limits,
    Policy,
    Result,
    ScriptedModel,
    Session,
    SpawnRequest,
    resolve,
    workspace_tools,
)
from ramet.testing import Call

REVIEWS = {
    "bugs": "Look for one wrong result, and correct it.",
    "names": "Look for one misleading name, and change it everywhere.",
}
CART = "def total(prices, rabate):\n    return sum(prices) + rabate\n"


def edit(old: str, new: str) -> list[Call | str]:
    """Return the dialogue of a reviewer: read the file, change it, say so."""
    change = {"file_path": "cart.py", "old_string": old, "new_string": new, "replace_all": True}
    return [Call("Read", {"file_path": "cart.py"}), Call("Edit", change), f"cart.py:1: {old} is now {new}."]


#: What the agents say without a provider. A mapping has one dialogue for each prompt.
DIALOGUE: dict[str, list[Any]] = {
    REVIEWS["bugs"]: edit("+ rabate", "- rabate"),
    REVIEWS["names"]: edit("rabate", "discount"),
    "Which of these": ["Merge bugs: the total was too high. Merge names by hand: both change the same line."],
}


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return what it prints."""
    identity = ("-c", "user.name=Example", "-c", "user.email=example@example.com")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def make_demo(folder: Path) -> None:
    """Make a repository with a bug and a bad name."""
    git(folder, "init", "--quiet")
    (folder / "cart.py").write_text(CART)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Add the cart")


async def main(
    repository: Path, model: BaseChatModel, usd: float = 1.0, backend: Literal["bwrap", "local"] | None = None
) -> dict[str, Result[str]]:
    """Print each change, the word of the judge, and the cost. Return the results of the reviewers by name."""
    reviewer = Agent(
        name="reviewer",
        instructions="You review the repository. Make one small change with Edit, then say in one line what was wrong.",
        tools=["Read", "Glob", "Grep", "Edit", "Bash"],
        policy=Policy(memory_mb=256, network="disabled"),
        isolation="worktree",
        max_turns=20,
    )
    limits = Limits(usd=usd, agents=len(REVIEWS), seconds=900)
    async with (
        AgentRuntime(backend=backend) as runtime,
        Session(model, workspace_tools(), cwd=repository, runtime=runtime, limits=limits, spawn=False) as session,
    ):
        handles = {
            name: await session.spawn(SpawnRequest(prompt=prompt, agent=reviewer, name=name))
            for name, prompt in REVIEWS.items()
        }
        results = {name: await handle.result() for name, handle in handles.items()}
        changes = []
        for name, result in results.items():
            print(f"{name}: {result.status}, {result.branch or 'no change'}\n  {result.text}")
            if result.branch:
                changes.append(f"{name}, branch {result.branch}:\n{git(repository, 'diff', f'HEAD...{result.branch}')}")
        verdict = await session.ask("Which of these changes should be merged?\n\n" + "\n".join(changes))
        used = verdict.usage_subtree
        print(f"judge: {verdict.text}\n{used.agents} reviewers, {used.model_calls} model calls, USD {used.usd:.4f}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="a git repository; with --model")
    parser.add_argument("--model", help="such as anthropic:claude-sonnet-5-5; default: a written dialogue")
    parser.add_argument("--usd", type=float, default=1.0, help="the most that all agents may cost")
    parser.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    options = parser.parse_args()
    chat = resolve(options.model) if options.model else ScriptedModel(DIALOGUE)
    with tempfile.TemporaryDirectory() as demo:
        if options.dir is None or options.model is None:
            make_demo(Path(demo))
            options.dir = Path(demo)
        asyncio.run(main(options.dir, chat, options.usd, options.backend))
