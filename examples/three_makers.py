"""Three programs of three makers in one tree: Claude Code drafts, Codex objects, Gemini CLI decides, under one budget.

    export ANTHROPIC_API_KEY=… OPENAI_API_KEY=… GEMINI_API_KEY=…
    python examples/three_makers.py "How should this service store its sessions?" --usd 2

Each works in a sandbox of its own, without a key. The programs are found in PATH: `claude-agent-acp` or `claude`,
`codex-acp`, and `gemini`.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from ramet import Agent, AgentRuntime, Limits, chain

AUTHOR = Agent(
    name="author",
    external="claude-code",
    model="anthropic:claude-sonnet-5-5",
    instructions="Draft an answer of at most 200 words. Say nothing else.",
)
CRITIC = Agent(
    name="critic",
    external="codex",
    model="openai:gpt-5.5",
    instructions="Repeat the draft below word for word, then add the three strongest objections to it.",
)
JUDGE = Agent(
    name="judge",
    external="gemini",
    model="google_genai:gemini-2.5-pro",
    instructions="Below are a draft and objections to it. Write the final answer.",
)


async def main(question: str, usd: float, agents: Sequence[Agent] = (AUTHOR, CRITIC, JUDGE)) -> int:
    """Print the final answer, and what all of them have cost. Return an exit status."""
    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(chain(*agents), question, limits=Limits(usd=usd))
        result = await handle.result()
    used = result.usage_subtree
    print(result.text)
    print(f"{result.status}: {used.model_calls} model calls, {used.tokens} tokens, USD {used.usd:.2f}", file=sys.stderr)
    if result.error is not None:
        print(result.error.message, file=sys.stderr)
    return result.exit_code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--usd", type=float, default=1.0, help="the most that all three may cost (default: 1)")
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.question, options.usd)))
