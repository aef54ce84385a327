"""Replay a journal against code, and report the first difference."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterable, Mapping
from typing import Final

from msgspec import Struct

from ramet.agent.loop import mail_text
from ramet.concurrency.mailbox import Kind, Mail
from ramet.core.arguments import check_instance
from ramet.core.events import Event
from ramet.core.ids import RunId
from ramet.core.lifecycle import State
from ramet.host.code_replay.recorded_runs import Input, RecordedRuns
from ramet.host.code_replay.replay_ports import ReplayPorts, next_run_id
from ramet.host.code_replay.replayed_tree import prepare
from ramet.host.code_replay.root_code import RootCode, root_code
from ramet.host.code_replay.step_comparison import Difference, StepComparison
from ramet.host.runtime import AgentRuntime
from ramet.host.trees.factory import OpenTree
from ramet.models.messages import decode
from ramet.spawn.run import Run
from ramet.store.memory import MemoryStore

#: Seconds without a step after which the code counts as stuck.
STALL_S: Final = 30.0
_LOOK_S: Final = 0.01


class ReplayReport(Struct, frozen=True, kw_only=True):
    """Report of a replay. Without a difference the code did all that is on record."""

    runs: int  #: that were replayed
    steps: int  #: that were equal
    difference: Difference | None
    not_compared: tuple[str, ...] = ()  #: runs whose recorded result was returned, and why
    ends_early: bool = False  #: the record ends before the tree does

    @property
    def is_same(self) -> bool:
        """Return whether no difference was found."""
        return self.difference is None


async def replay_code(events: AsyncIterable[Event], code: object, *, stall_s: float = STALL_S) -> ReplayReport:
    """Replay the recorded events of a tree against code, in memory, up to the first difference.

    No model is asked, no tool, hook, server or sandbox runs, and nothing is written. A function that is the root does
    run. Code that does no step for `stall_s` seconds differs. Raises InvalidValue for code that defines no root like
    that of the journal and for a journal that cannot be replayed, DamagedTree, and DefinitionMissing for an argument of
    a function that is not on record.
    """
    check_instance("stall_s", stall_s, (int, float), "seconds")
    record = await RecordedRuns.read(events)
    async with AgentRuntime(store=MemoryStore(), user_texts=False) as runtime:
        root = await root_code(code, record.root, runtime)
        comparison = StepComparison(record, _folders(record, root))
        replay = _Replay(record, comparison, runtime, stall_s)
        try:
            await replay.begin(root)
            difference = await replay.end()
        finally:
            await replay.close()
    replayed = record.replayed_runs
    return ReplayReport(
        runs=len(replayed),
        steps=comparison.steps,
        difference=difference,
        not_compared=tuple(
            f"{each.path}: {each.reason_not_replayed}"
            for each in record.runs.values()
            if not each.is_replayed and record.runs[each.spawn.parent or ""].is_replayed
        ),
        ends_early=not record.is_over,
    )


def _folders(record: RecordedRuns, root: RootCode) -> Mapping[str, str]:
    """Return the recorded folder of the root with the one here: instructions name it."""
    recorded, here = str(record.root.spawn.birth.get("cwd", "")), str(root.cwd)
    return {recorded: here} if len(recorded) > 1 and recorded != here else {}


class _Replay:
    """A replay of one tree: it gives the root what came from outside, and watches for a standstill."""

    def __init__(self, record: RecordedRuns, comparison: StepComparison, runtime: AgentRuntime, stall_s: float) -> None:
        self._record, self._comparison, self._runtime, self._stall_s = record, comparison, runtime, stall_s
        self._ports = ReplayPorts(record, comparison)
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, code: RootCode) -> None:
        """Spawn the root. Raises InvalidValue if its definition is impossible."""
        options = dataclasses.replace(code.options, replace_ports=self._ports.replace)
        await self._runtime.open_store()
        opened = self._runtime.open_tree(options)
        agent = self._ports.in_host(code.agent)
        plan = await opened.tree.spawner.plan_root(agent, code.request, code.limits, tools=code.tools, cwd=code.cwd)
        persistent = bool(self._record.root.spawn.birth.get("persistent"))
        with next_run_id(RunId(self._record.root.id)):
            root = opened.tree.spawner.root(plan, persistent=persistent)
        self._runtime.keep(opened, root)
        prepare(root, opened.tree, self._ports)
        if agent.function is not None:
            opened.tree.supervisor.prompt(root)
        for work in (self._give_inputs(opened, root, agent.initial_prompt), self._watch()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._end_task)
            self._tasks.append(task)

    async def end(self) -> Difference | None:
        """Wait for the first difference, or for the end of the record."""
        return await self._comparison.ended

    async def close(self) -> None:
        """End the tasks of the replay."""
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._comparison.fail(error)

    async def _give_inputs(self, opened: OpenTree, root: Run, initial_prompt: str) -> None:
        """Give the runs prompts and mail from outside, each once all that came before it has happened."""
        recorded_prompt = str(self._record.root.recipe.get("initial_prompt", ""))
        for number, each in enumerate(self._record.inputs):
            await self._comparison.gate.wait_before(each.seq)
            if each.mail is not None:
                self._deliver(opened, each)
                continue
            while root.turns and root.state is not State.IDLE:  # noqa: ASYNC110 - its turn is over: its state follows
                await asyncio.sleep(0)
            message = decode(each.message or {})
            if number == 0 and recorded_prompt != initial_prompt and isinstance(message.content, str):
                prompt = message.content.removeprefix(recorded_prompt).lstrip("\n")
                message = message.model_copy(update={"content": f"{initial_prompt}\n\n{prompt}".strip()})
            opened.tree.supervisor.prompt(root, message)

    def _deliver(self, opened: OpenTree, given: Input) -> None:
        mail, run = given.mail, opened.tree.register.runs.get(RunId(given.run))
        assert mail is not None, "an input without a message is mail"
        if run is None:
            return
        post, number = opened.tree.post, mail.mail_id.removeprefix("mail-")
        if mail.kind == "user":
            post.deliver(run, mail.text, sender=mail.sender, kind="user")
            return
        kind: Kind = "agent" if mail.kind == "agent" else "notice"
        text = mail_text(Mail(id=mail.mail_id, sender=mail.sender, text=mail.text, kind=kind))
        post.notify(run, text, mail_id=mail.mail_id, sender=mail.sender)
        if number.isdecimal():
            post.continue_numbering(int(number))

    async def _watch(self) -> None:
        """End the comparison once nothing has happened for too long."""
        loop, changes = asyncio.get_running_loop(), -1
        since = loop.time()
        while True:
            if (now := self._comparison.gate.changes) != changes:
                changes, since = now, loop.time()
            elif loop.time() - since >= self._stall_s:
                self._comparison.differ_at_standstill(self._stall_s)
                return
            await asyncio.sleep(_LOOK_S if self._stall_s < 1 else self._stall_s / 30)
