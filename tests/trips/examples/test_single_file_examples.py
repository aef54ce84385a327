"""The examples of one file in `examples/` do offline what their docstrings say."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import runpy
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet import Agent, External, ScriptedModel
from tests.support.providers import provider

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MOST_LINES = 120
#: Each has a test below.
NAMES = (
    "agents_write_agents",
    "map_reduce",
    "nightly_schedule",
    "research_team",
    "review_swarm",
    "support_desk",
)


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Yield the module of the example that the parameter names."""
    spec = importlib.util.spec_from_file_location(request.param, EXAMPLES / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[request.param] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[request.param]


def of(name: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test with an example."""
    return pytest.mark.parametrize("example", [name], indirect=True)


@of("support_desk")
async def test_only_the_large_refund_asks_a_person_and_a_refusal_stops_it(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person refuses the refund of 89. The refund of 12.50 is below the bound, and is made without a question."""
    questions: list[Any] = []

    async def refuse(question: Any) -> bool:
        questions.append((str(question.path), question.tool, question.args["amount"]))
        return False

    answers = await example.main(ScriptedModel(example.DIALOGUE), refuse)

    assert questions == [("main/ada", "refund", 89.0)]
    assert answers.splitlines() == ["Ada: Denied: it was not approved", "Ben: refunded 12.50 for order B-02"]
    assert "ben: completed, 2 tool calls" in capsys.readouterr().out


@of("review_swarm")
async def test_each_reviewer_leaves_a_branch_and_the_repository_is_unchanged(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two reviewers change the same file in their own clones. The host has two branches, and an untouched tree."""
    example.make_demo(tmp_path)

    results = await example.main(tmp_path, ScriptedModel(example.DIALOGUE))

    assert "judge: Merge bugs" in capsys.readouterr().out
    texts = {name: example.git(tmp_path, "show", f"{result.branch}:cart.py") for name, result in results.items()}
    assert texts["bugs"].endswith("sum(prices) - rabate\n")
    assert texts["names"].endswith("sum(prices) + discount\n")
    assert (tmp_path / "cart.py").read_text() == example.CART
    assert example.git(tmp_path, "status", "--porcelain", "--", "cart.py") == ""


@of("map_reduce")
async def test_a_document_that_exhausts_its_sandbox_costs_no_other_document(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 20 documents the eighth is a trap: its reader ends as `oom`, and 19 are counted."""
    result = await example.main(20)

    assert result.value.failures == {"oom": 1}
    assert result.value.complaints == {"Arden": 11, "Brill": 7, "Corve": 9}
    assert "documents: 20, failed: 1 oom" in capsys.readouterr().out


@of("agents_write_agents")
async def test_an_agent_that_an_agent_wrote_answers_in_a_later_runtime(example: ModuleType, tmp_path: Path) -> None:
    """The architect's code sorts three letters with the agent that it wrote; a new runtime finds that agent."""
    found, later = await example.main(str(tmp_path), ScriptedModel(example.DIALOGUE))

    assert found == {"kettle": 2, "mug": 1}
    assert later == "mug"


@of("nightly_schedule")
async def test_a_scheduled_report_notifies_and_the_schedule_stays(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report reads the logs in its sandbox. Its notification holds the result; the schedule is on record."""
    sent = await example.main(tmp_path, now=True)

    assert [(each.kind, each.status) for each in sent] == [("ended", "completed")]
    assert sent[0].result.startswith("payments-api.log: 88 errors; settlement.log: 22 errors")
    assert "nightly-report: next at " in capsys.readouterr().out


@of("research_team")
async def test_a_team_finds_the_cause_in_a_code_base(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four readers look at logs, settings, source and documents; the answer gives evidence, and nothing is written."""
    folder = tmp_path / "payment-api"
    shutil.copytree(EXAMPLES / "payment-api", folder, ignore=shutil.ignore_patterns(".ramet"))
    result = await example.main("Why is the payment API failing?", folder, "offline", 1.0)

    assert "config/payments-live.yaml:19: `read_timeout_ms: 1500`" in result.text
    assert result.usage_subtree.agents == 4
    assert "completed: 5 agents" in capsys.readouterr().out
    assert not (folder / ".ramet").exists()


@of("three_makers")
async def test_each_program_has_the_answer_of_the_program_before(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three programs work one after the other, each in its sandbox. Here each is a shell that adds a word."""
    agents = []
    for maker in (example.AUTHOR, example.CRITIC, example.JUDGE):
        command = ["sh", "-c", f'echo "$1 {maker.name}"', "program", "${prompt}"]
        agents.append(Agent(name=maker.name, external=External(command=command, protocol="text")))

    assert await example.main("Why?", 1.0, agents) == 0

    output = capsys.readouterr()
    assert output.out.split() == ["Why?", "author", "critic", "judge"]
    assert output.err == "completed: 0 model calls, 0 tokens, USD 0.00\n"


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_its_command_line_explains_it(name: str) -> None:
    """A reader sees an example whole, and `--help` names the option for a provider."""
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) < MOST_LINES
    assert f"python examples/{name}.py" in path.read_text()
    assert '"--model"' in path.read_text()


def test_the_page_lists_every_example() -> None:
    """A reader finds each file of `examples/` in docs/guides/examples.md."""
    page = (EXAMPLES.parent / "docs" / "guides" / "examples.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"(../../examples/{path.name})" not in page] == []


async def test_an_example_runs_as_a_program_with_a_provider(tmp_path: Path) -> None:
    """`--model` alone makes the agents ask a provider. The person at the terminal says yes, and the refund is made."""
    dialogue = runpy.run_path(str(EXAMPLES / "support_desk.py"))["DIALOGUE"]
    async with provider(dialogue) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLES / "support_desk.py"),
            "--model",
            "openai:gpt-5.4",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=tmp_path,
            env={**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "test"},
        )
        out, err = await asyncio.wait_for(process.communicate(b"y\n"), 120)

    assert (process.returncode, err.decode()) == (0, "")
    assert "main/ada asks: refund {'order': 'A-17', 'amount': 89.0} [y/N] Ada: refunded 89.00" in out.decode()
    assert server.count == 8
