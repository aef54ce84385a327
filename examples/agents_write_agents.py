"""An agent writes the agent that it needs, uses it, and the host uses the written agent again later.

    python examples/agents_write_agents.py
    python examples/agents_write_agents.py --model anthropic:claude-sonnet-5-5

An architect has letters to sort. Its model writes Python, which runs in the architect's sandbox: the code defines an
agent `sorter` with a typed task, and calls the task for all letters at once. Each call is a run of its own below the
architect. What was written is a recipe in the record, no code of the host: it has no rights that its creator lacks.

The second half is another process in all but name: a new runtime on the same folder finds `sorter`, and asks it.
Without `--model` the agents play a written dialogue.
"""

import argparse
import asyncio
import tempfile
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ramet import Agent, AgentRuntime, Limits, Policy, ScriptedModel, resolve
from ramet.testing import Call

LETTERS = ["The kettle leaks.", "My mug came in two halves.", "The kettle is too loud."]
TASK = f"""\
Sort these letters by product, and return how many there are of each: {LETTERS}
Define an agent `sorter` with a task `product_of(letter: str) -> str`, and call this task for each letter."""

#: What the model of the architect writes: an agent, its task, and calls of that task.
CODE = f'''
with Agent(name="sorter", primer="You name the product that a letter is about, in one word.") as sorter:
    @sorter.task
    def product_of(letter: str) -> str:
        """Name the product of the letter."""

found = [each.result() for each in product_of.map({LETTERS})]
task_success({{product: found.count(product) for product in sorted(set(found))}})
'''


def name_the_product(messages: list[BaseMessage]) -> str:
    """Answer as the model of the sorter would."""
    return "kettle" if "kettle" in messages[-1].text else "mug"


#: What the agents say without a provider. A mapping has one dialogue for each prompt.
DIALOGUE: dict[str, list[Any]] = {
    "Sort these letters": [Call("python", {"code": CODE}), "done"],
    "Name the product": [name_the_product],
}


def architect_of(model: BaseChatModel) -> Agent:
    """Return the only agent that is declared in this program. It may make agents: it has the class `Agent`."""
    architect = Agent(
        name="architect",
        primer="You solve a task with an agent that you write for it.",
        model=model,
        policy=Policy(allow_sub_agents=True, memory_mb=512),
        concludes=True,
    )
    architect.cls(Agent, visibility="high")
    return architect


async def main(
    folder: str, model: BaseChatModel, backend: Literal["bwrap", "local"] | None = None
) -> tuple[object, str]:
    """Print what the architect found and made, and what its agent answers to a new letter. Return both answers."""
    architect = architect_of(model)
    async with AgentRuntime(folder, backend=backend) as runtime:
        handle = await runtime.spawn(architect, TASK, limits=Limits(usd=1.0, model_calls=30, agents=10))
        result = await handle.result()
        used = result.usage_subtree
        print(f"architect: {result.status}, {result.value or result.error}")
        print(f"{used.agents} runs below it, {used.model_calls} model calls, USD {used.usd:.4f}")

    architect = architect_of(model)
    async with AgentRuntime(folder, backend=backend) as runtime:
        print("written agents:", ", ".join(await runtime.dynamic.made_by(architect)))
        sorter = await runtime.dynamic.local(architect, "sorter")
        product_of = await runtime.dynamic.task(f"{sorter}:product_of")
        answer = await product_of("My mug is green. I ordered a red one.")
        print("a new letter is about:", answer)
    return result.value, answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", help="such as anthropic:claude-sonnet-5-5; default: a written dialogue")
    parser.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    options = parser.parse_args()
    chat = resolve(options.model) if options.model else ScriptedModel(DIALOGUE)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder, chat, options.backend))
