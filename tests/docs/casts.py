"""Casts of the documentation in docs/casts, of real sessions at a terminal: `python -m tests.docs.casts [NAME …]`.

Each becomes an asciicast and a picture that plays it. Silences are shortened; nothing else is changed but the folder's
name and the build of the Linux kernel. `--draw` records nothing, and only draws the pictures again.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.docs.cast_picture import draw
from tests.docs.cast_recorder import Cast, Terminal, recording
from tests.docs.test_blocks_run import blocks

ROOT = Path(__file__).parents[2]
CASTS = ROOT / "docs" / "casts"


@dataclass(frozen=True)
class Session:
    """Input of a terminal session that is recorded. Its folder has the examples of this repository."""

    title: str
    script: Callable[[Terminal, Path], object]
    columns: int = 92
    rows: int = 30


def ask(terminal: Terminal, folder: Path) -> None:
    """Ask about a folder, and look at the tree."""
    output = terminal.run('ramet ask "Why is the payment API failing?" --dir examples/payment-api')
    (command,) = re.findall(r"ramet tree run-\w+ --dir \S+", output)
    terminal.run(command)


def first_agent(terminal: Terminal, folder: Path) -> None:
    """Show and run the program of docs/start/first-agent.md."""
    page = (ROOT / "docs" / "start" / "first-agent.md").read_text()
    (folder / "first_agent.py").write_text(blocks(page)[0].code)
    terminal.run("cat first_agent.py")
    terminal.run("python first_agent.py")


def approval(terminal: Terminal, folder: Path) -> None:
    """Approve a refund at the terminal."""
    begin = len(terminal.cast.output)
    terminal.type("python examples/support_desk.py")
    terminal.wait_for(r"\[y/N\] $", begin)
    terminal.pause()
    terminal.run("y")


def command(line: str) -> Callable[[Terminal, Path], object]:
    """Return a session of one command."""
    return lambda terminal, folder: terminal.run(line)


SESSIONS = {
    "ask": Session("five agents explain why a payment API fails", ask),
    "first-agent": Session("the first agent", first_agent, columns=100),
    "kill-and-resume": Session("ten agents survive two kills", command("python examples/survives_kill.py")),
    "approval": Session("a refund waits for a person", approval),
    "review-swarm": Session("a review, and changes as branches", command("python examples/review_swarm.py")),
    "research-team": Session("a team asks about a code base", command("python examples/research_team.py | tail -6")),
    "agents-write-agents": Session("an agent writes an agent", command("python examples/agents_write_agents.py")),
    "map-reduce": Session("a sandbox for each of 1,000 documents", command("python examples/map_reduce.py")),
    "nightly-schedule": Session("a report each night", command("python examples/nightly_schedule.py --now")),
    "doctor": Session("what works on this machine", command("ramet doctor")),
}


def record(name: str) -> None:
    """Record a session, and write its cast."""
    session = SESSIONS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns(".ramet", "__pycache__"))
        with recording(session.title, folder, columns=session.columns, rows=session.rows) as terminal:
            session.script(terminal, folder)
    (CASTS / f"{name}.cast").write_text(terminal.cast.encode())


def main(names: list[str], *, is_recorded_again: bool) -> None:
    """Record sessions, or with `is_recorded_again=False` only draw the pictures of their casts."""
    CASTS.mkdir(exist_ok=True)
    for name in names or SESSIONS:
        if is_recorded_again:
            record(name)
        (CASTS / f"{name}.cast.svg").write_text(draw(Cast.decode((CASTS / f"{name}.cast").read_text())))


if __name__ == "__main__":
    main([each for each in sys.argv[1:] if each != "--draw"], is_recorded_again="--draw" not in sys.argv)
