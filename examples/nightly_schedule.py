"""A nightly report on a folder of logs: run by the calendar, in a sandbox that may read the logs, with a notification.

    python examples/nightly_schedule.py --now
    python examples/nightly_schedule.py --model anthropic:claude-haiku-5-5 --webhook env:SLACK_URL

The schedule is kept in `.ramet` of the working folder and outlives this program. Of the nights that nobody was there
for, the newest runs at the next start. A night that is cut off with its process is not repeated silently: its status is
`lost`, and the notification says so. `--now` runs the report once, prints what would be sent, and ends.

Without `--model` the report is a plain function. With it, a model reads the logs.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ramet import Agent, AgentRuntime, AgentScheduler, Limits, Policy
from ramet.host.notifications import CallbackTarget, Notification, WebhookTarget

LOGS = Path(__file__).resolve().with_name("payment-api") / "logs"


def report(folder: str) -> str:
    """Return the number of errors in each log. Runs in a sandbox that has this folder and no other."""
    errors = Counter[str]()
    for log in sorted(Path(folder).iterdir()):
        errors[log.name] = sum(" ERROR " in line for line in log.read_text(errors="replace").splitlines())
    return "; ".join(f"{name}: {count} errors" for name, count in errors.most_common())


def reporter(model: str) -> Agent:
    """Return an agent that does the same with a model. A schedule keeps it as data: a model is given by its name."""
    return Agent(
        name="reporter",
        model=model,
        instructions="Read the logs with grep and sed. Report in three lines what a person must look at first.",
        tools=["Bash"],  # in a sandbox that has no network, and of your files only the logs
        max_turns=20,
    )


async def main(
    working_dir: Path, logs: Path = LOGS, model: str | None = None, webhook: str = "", now: bool = False
) -> list[Notification]:
    """Keep the schedule until the program is stopped, or run it once. Return the notifications that were printed."""
    sent: list[Notification] = []
    arrived = asyncio.Event()

    async def show(notification: Notification) -> None:
        print(f"notification: {notification.text}\n{notification.result or notification.error}")
        sent.append(notification)
        arrived.set()

    targets: dict[str, CallbackTarget | WebhookTarget] = {
        "terminal": CallbackTarget(function=show, kinds=["ended"], with_text=True)
    }
    if webhook:
        url = os.environ[webhook.removeprefix("env:")] if webhook.startswith("env:") else webhook
        targets["chat"] = WebhookTarget(url=url, format="slack", kinds=["ended"], with_text=True)
    work: dict[str, Any] = {"agent": report, "args": [str(logs)]}
    if model:
        work = {"agent": reporter(model), "prompt": f"Report on the logs in {logs}."}
    async with AgentRuntime(working_dir, notify=targets) as runtime, AgentScheduler(runtime) as scheduler:
        schedule = await scheduler.schedule_agent_cron(
            "30 2 * * *",
            tz="Europe/Berlin",
            name="nightly-report",
            policy=Policy(readonly_mounts=[str(logs)], memory_mb=128, timeout_seconds=600),
            limits=Limits(usd=0.50, model_calls=30),
            misfire="once",
            overlap="skip",
            **work,
        )
        print(f"{schedule.id}: next at {schedule.next:%Y-%m-%d %H:%M %Z}")
        if now:
            await scheduler.trigger(schedule.id)
        await (arrived.wait() if now else asyncio.Event().wait())
        for tick in await scheduler.results(schedule.id):
            print(f"{tick.status}: {tick.run}")
    return sent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--logs", type=Path, default=LOGS)
    parser.add_argument("--working-dir", type=Path, help="where the schedule is kept; default: a temporary folder")
    parser.add_argument("--model", help="such as anthropic:claude-haiku-5-5; default: a plain function")
    parser.add_argument("--webhook", default="", help="a URL that takes {text: …}, or env:VARIABLE that holds it")
    parser.add_argument("--now", action="store_true", help="run once, and end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, contextlib.suppress(KeyboardInterrupt):
        folder = options.working_dir or Path(temporary)
        asyncio.run(main(folder, options.logs.resolve(), options.model, options.webhook, options.now))
