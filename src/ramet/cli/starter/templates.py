"""The files that `ramet init` writes. A test runs them as they are."""

from __future__ import annotations

from typing import Final, NamedTuple

from ramet.disk import state_folder


class Template(NamedTuple):
    """A file: its path below the project, its purpose in a few words, its text."""

    path: str
    purpose: str
    text: str


_AGENT: Final = """\
---
name: writer-helper
description: Answers questions about the texts of this folder, with figures
tools: Read, Glob, Grep, count_words
maxTurns: 20
---
Answer questions about the texts of this folder. Look before you answer, and name files as `path:line`.
For the length of a text call `count_words`; do not estimate.
"""

_PROGRAM: Final = '''\
"""An agent with a tool of its own: python word_agent.py "How long is README.md?" """

import asyncio
import sys
from pathlib import Path
from typing import Any

from ramet import Limits, Session, workspace_tools

FOLDER = Path(__file__).resolve().parent


def count_words(path: str) -> int:
    """Return the number of words in a text file of this folder."""
    file = (FOLDER / path).resolve()
    if not file.is_relative_to(FOLDER):
        raise ValueError(f"{path!r} is outside of {FOLDER}")
    return len(file.read_text(encoding="utf-8").split())


async def answer(question: str, model: Any = "offline") -> str:
    """Return the agent's answer. "offline" needs no key; "anthropic:claude-sonnet-5-5" is a model of a provider."""
    tools = [*workspace_tools(), count_words]
    async with Session(model, tools, cwd=FOLDER, agent="writer-helper", limits=Limits(model_calls=20)) as session:
        result = await session.ask(question)
    return str(result.value if result.value is not None else result.error)


if __name__ == "__main__":
    print(asyncio.run(answer(" ".join(sys.argv[1:]) or "Which texts are here?")))
'''

_TEST: Final = '''\
"""The agent of word_agent.py, with a model that plays a written dialogue: no key, no network."""

import asyncio

from ramet.testing import Call, ScriptedModel
from word_agent import answer, count_words


def test_the_agent_counts_with_its_tool():
    """The model calls the tool; its result is in the model's next request."""
    model = ScriptedModel([Call("count_words", {"path": "word_agent.py"}), "It is a short program."])

    assert asyncio.run(answer("How long is word_agent.py?", model)) == "It is a short program."
    assert model.requests[1].messages[-1].content == str(count_words("word_agent.py"))
'''

#: Version control ignores the records of runs in `.ramet`, and sees the files that people write, this one among them.
GITIGNORE: Final = Template(".ramet/.gitignore", "", state_folder.GITIGNORE.replace("*\n", "*\n!.gitignore\n", 1))

TEMPLATES: Final = (
    Template(".ramet/agents/writer-helper.md", "an agent: its instructions and tools", _AGENT),
    Template("word_agent.py", "a tool, and a program that asks the agent", _PROGRAM),
    Template("test_word_agent.py", "a test, with a model that plays a written dialogue", _TEST),
)
