"""A support desk whose refunds need a person: agents answer customers, and a large refund waits in one inbox.

    python examples/support_desk.py
    python examples/support_desk.py --model anthropic:claude-sonnet-5-5

The desk gives each letter to a clerk, and the clerks work at the same time. A clerk looks the order up and may refund.
A hook sends each refund above 20 to a person. The question names the clerk, the tool and the amount, whatever the
depth of the clerk in the tree. Only that clerk waits. A refusal is told to its model with a reason.

Without `--model` the agents play a written dialogue. The refunds are asked at the terminal in both cases.
"""

import argparse
import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.language_models import BaseChatModel

from ramet import Agent, Limits, ScriptedModel, Session, resolve
from ramet.testing import Call

PAID = {"A-17": 89.0, "B-02": 12.5}  # your database
LETTERS = {"ada": "Order A-17: the kettle leaks.", "ben": "Order B-02: the mug came broken."}
ASK_ABOVE = 20.0
TERMINAL = asyncio.Lock()  # clerks work at the same time: one question after the other

#: What the agents say without a provider. A mapping has one dialogue for each prompt.
DIALOGUE: dict[str, list[Any]] = {
    "Two letters": [
        [
            Call("Agent", {"name": name, "subagent_type": "clerk", "prompt": f"Letter of {name}. {letter}"})
            for name, letter in LETTERS.items()
        ],
        lambda messages: "\n".join(message.text for message in messages[-2:]),
    ],
    "Letter of ada": [
        Call("look_up", {"order": "A-17"}),
        Call("refund", {"order": "A-17", "amount": 89.0}),
        lambda messages: f"Ada: {messages[-1].text}",
    ],
    "Letter of ben": [
        Call("look_up", {"order": "B-02"}),
        Call("refund", {"order": "B-02", "amount": 12.5}),
        lambda messages: f"Ben: {messages[-1].text}",
    ],
}


def look_up(order: str) -> str:
    """Return what was paid for an order."""
    return f"{order}: {PAID[order]} paid" if order in PAID else f"there is no order {order}"


def refund(order: str, amount: float) -> str:
    """Pay an amount of an order back."""
    if amount > PAID[order]:
        raise ValueError(f"order {order} cost only {PAID[order]}")
    return f"refunded {amount:.2f} for order {order}"


def ask_for_large_refunds(payload: dict[str, Any]) -> str | None:
    """Answer `ask` for a refund that a person must approve. No answer lets the call run."""
    return "ask" if payload["tool_input"]["amount"] > ASK_ABOVE else None


async def ask_at_the_terminal(question: Any) -> bool:
    """Return whether the person at the terminal agrees. The end of the input is a no."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    async with TERMINAL:
        print(f"{question.path} asks: {question.tool} {question.args} [y/N] ", end="", flush=True)
        loop.add_reader(0, readable.set)  # no thread: a thread that reads the terminal would outlive Ctrl-C
        try:
            await readable.wait()
        finally:
            loop.remove_reader(0)
        return os.read(0, 1024).strip().lower() in (b"y", b"yes")


async def main(model: BaseChatModel, approver: Callable[[Any], Awaitable[bool]] = ask_at_the_terminal) -> str:
    """Answer the letters, print the answers and the tree, and return the answers."""
    desk = Agent(name="desk", instructions="Give each letter to a clerk, all at once. Then list what the clerks did.")
    clerk = Agent(
        name="clerk",
        description="Answers one letter of a customer",
        instructions="Look the order up. Refund what is broken, in full. Say in one line what you did.",
        tools=[look_up, refund],
        max_turns=6,
    )
    async with Session(
        model,
        agent=desk,
        agents=[clerk],
        hooks={"PreToolUse": [{"matcher": "refund", "hooks": [ask_for_large_refunds]}]},
        approver=approver,
        limits=Limits(model_calls=20, usd=1.0, agents=5),
    ) as session:
        result = await session.ask("Two letters came in.\n" + "\n".join(LETTERS.values()))
        print(result.text)
        for run in session.runs():
            print(f"{'  ' * run.depth}{run.name}: {run.state}, {run.usage.tool_calls} tool calls")
        used = result.usage_subtree
        print(f"{result.status}: {used.model_calls} model calls, {used.tokens} tokens, USD {used.usd:.4f}")
    return result.text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", help="a model such as anthropic:claude-sonnet-5-5; default: a written dialogue")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(resolve(options.model) if options.model else ScriptedModel(DIALOGUE)))
