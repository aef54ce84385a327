"""The tools of a board: TaskCreate, TaskUpdate, TaskList, TaskGet. Agents share the tasks, and complete each once.

Each calls its board; none knows where tasks are stored. The calling run is the claimant: a model cannot claim, or
complete, in the name of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from langchain_core.tools import BaseTool
from pydantic import Field

from ramet.core.errors import Denied, InvalidValue, RametError
from ramet.tools.agents.report_framing import neutralise
from ramet.tools.arguments import Arguments, workspace_tool
from ramet.tools.context import ToolUseContext, current, require_current_call

Status: TypeAlias = Literal["pending", "in_progress", "completed", "deleted"]


class TaskRefused(RametError):
    """The error for a change that is not possible now: `owner` has the task, or `blocked_by` are not completed."""

    def __init__(self, task: str, reason: str, *, owner: str = "", blocked_by: tuple[str, ...] = ()) -> None:
        self.task, self.reason, self.owner, self.blocked_by = task[:200], reason, owner, blocked_by
        super().__init__(f"task {self.task!r}: {reason}")


class Owner(NamedTuple):
    """The run that works on a task, and its path for display."""

    run: str
    path: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task as it was when it was read."""

    id: str
    subject: str
    description: str = ""
    status: Status = "pending"
    owner: Owner | None = None  #: the run that works on it, or completed it
    blocked_by: tuple[str, ...] = ()  #: all tasks it waits for, in order of their numbers
    open_blockers: tuple[str, ...] = ()  #: those that are not completed
    blocks: tuple[str, ...] = ()  #: tasks that wait for it
    metadata: Mapping[str, Any] = field(default_factory=dict)


class TaskBoard(Protocol):
    """A list of tasks. Methods raise Unknown for a missing task, TaskRefused, InvalidValue, StoreFailed."""

    async def reserve(self) -> str:
        """Return an id that no other task has or will have."""

    async def create(
        self,
        subject: str,
        description: str = "",
        *,
        blocked_by: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        key: str = "",
    ) -> Task:
        """Add a task to the board; with a `key`, return the task created with this key, if there is one."""

    async def claim(self, id: str, by: Owner) -> Task:
        """Claim a task: exactly one claimant succeeds. Refused while the task waits for others."""

    async def complete(self, id: str, by: Owner) -> Task:
        """Mark a task as completed, by its owner; tasks that waited for it may then be claimed."""

    async def release(self, id: str, by: Owner | None = None) -> Task:
        """Give a task back unfinished; None means the host, which needs no claim."""

    async def delete(self, id: str, by: Owner | None = None) -> Task:
        """Remove a task from the board, unless another run works on it; no task waits for it any more."""

    async def update(
        self,
        id: str,
        *,
        by: Owner | None = None,
        subject: str | None = None,
        description: str | None = None,
        add_blocked_by: Sequence[str] = (),
        add_blocks: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Task:
        """Change a task, unless another run works on it. In `metadata` None removes a key."""

    async def get(self, id: str) -> Task:
        """Return one task."""

    async def list(self) -> Sequence[Task]:
        """Return all tasks, in order of their numbers."""


#: A board for all runs with the tools, or a function that returns one per tree, from the id of its root.
Boards: TypeAlias = "TaskBoard | Callable[[str], TaskBoard]"


class _CreateArgs(Arguments):
    subject: str = Field(description="One line: what is to be done.")
    description: str = Field(default="", description="All that the owner of it needs to know.")
    addBlockedBy: list[str] = Field(default_factory=list, description="Ids of tasks to be completed before it.")
    metadata: dict[str, Any] | None = Field(default=None, description="Anything else worth keeping with it.")


class _UpdateArgs(Arguments):
    taskId: str
    status: Status | None = Field(
        default=None, description="in_progress claims it for you, completed ends it, pending gives it back."
    )
    subject: str | None = None
    description: str | None = None
    addBlocks: list[str] = Field(default_factory=list, description="Ids of tasks that must wait for it.")
    addBlockedBy: list[str] = Field(default_factory=list, description="Ids of tasks that it must wait for.")
    metadata: dict[str, Any] | None = Field(default=None, description="Keys to set; null removes one.")


class _GetArgs(Arguments):
    taskId: str


class _BoardCalls:
    """The calls of the four tools on one board, or on a board for each tree."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards

    def _board(self) -> TaskBoard:
        return self._boards(current().run.root) if callable(self._boards) else self._boards

    async def create(self, args: _CreateArgs) -> str:
        """Add a task; a repeated call after a crash finds the task that it had created."""
        call, board = require_current_call(), self._board()
        hooks, id = call.context.hooks, None
        if hooks is not None and hooks.listens("TaskCreated"):
            id = await board.reserve()
            payload = {"task_id": id, "task_subject": args.subject, "task_description": args.description}
            decision = await hooks.fire("TaskCreated", call.context, payload)
            if decision.verdict == "deny":
                raise Denied("task", decision.reason or "a hook denied it")
        task = await board.create(
            args.subject,
            args.description,
            blocked_by=args.addBlockedBy,
            metadata=args.metadata,
            id=id,
            key=call.step_id,
        )
        return f"Task #{task.id} created: {neutralise(task.subject)[0]}"

    async def update(self, args: _UpdateArgs) -> str:
        """Claim, complete, give back, delete or change a task, for the calling run."""
        context, board, id, task = current(), self._board(), args.taskId, None
        owner = Owner(context.run.id, context.run.path)
        has_texts = args.subject is not None or args.description is not None
        if has_texts or args.addBlocks or args.addBlockedBy or args.metadata is not None:
            task = await board.update(
                id,
                by=owner,
                subject=args.subject,
                description=args.description,
                add_blocks=args.addBlocks,
                add_blocked_by=args.addBlockedBy,
                metadata=args.metadata,
            )
        match args.status:
            case "in_progress":
                task = await board.claim(id, owner)
            case "completed":
                task = await _complete(context, board, id, owner)
            case "pending":
                task = await board.release(id, owner)
            case "deleted":
                task = await board.delete(id, owner)
            case None if task is None:
                raise InvalidValue("status", None, "a status, or anything else to change")
        assert task is not None
        return _line(task)

    async def list(self, _: Arguments) -> str:
        return "\n".join(map(_line, await self._board().list())) or "The board is empty."

    async def get(self, args: _GetArgs) -> str:
        task = await self._board().get(args.taskId)
        more = [f"blocks: {', '.join(task.blocks)}"] if task.blocks else []
        more += [f"{key}: {value}" for key, value in task.metadata.items()]
        return "\n".join([_line(task), neutralise("\n".join([*more, task.description]))[0]]).strip()


async def _complete(context: ToolUseContext, board: TaskBoard, id: str, owner: Owner) -> Task:
    """Complete a task.

    It is claimed first, so that a run without a right to it is refused before hooks see the work.
    """
    task = await board.claim(id, owner)
    hooks = context.hooks
    if task.status != "completed" and hooks is not None and hooks.listens("TaskCompleted"):
        payload = {"task_id": id, "task_subject": task.subject, "task_description": task.description}
        decision = await hooks.fire("TaskCompleted", context, payload)
        if decision.verdict == "deny":
            raise Denied(f"completing task {id}", decision.reason or "a hook denied it")
    return await board.complete(id, owner)


def _line(task: Task) -> str:
    owner = f" ({task.owner.path or task.owner.run})" if task.owner is not None else ""
    blockers = f" [blocked by {', '.join(f'#{id}' for id in task.open_blockers)}]" if task.open_blockers else ""
    return f"#{task.id} [{task.status}] {neutralise(task.subject)[0]}{owner}{blockers}"


def board_tools(boards: Boards) -> tuple[BaseTool, ...]:
    """Return the four tools on one board, or on a board for each tree."""
    calls = _BoardCalls(boards)
    return (
        workspace_tool(
            "TaskCreate",
            "Put a task on the board that you share with other agents.",
            _CreateArgs,
            calls.create,
            concurrency_safe=False,
            repeatable=True,
        ),
        workspace_tool(
            "TaskUpdate",
            "Change a task of the board. status='in_progress' claims it for you: do so before you begin, exactly one "
            "agent gets it. 'completed' ends it, and frees what waited for it. 'pending' gives it back, 'deleted' "
            "removes it.",
            _UpdateArgs,
            calls.update,
            concurrency_safe=False,
            repeatable=True,
        ),
        workspace_tool(
            "TaskList",
            "List the tasks of the board: id, status, subject, owner, and what each depends on.",
            Arguments,
            calls.list,
            concurrency_safe=True,
            read_only=True,
            repeatable=True,
        ),
        workspace_tool(
            "TaskGet",
            "Read one task of the board with its description.",
            _GetArgs,
            calls.get,
            concurrency_safe=True,
            read_only=True,
            repeatable=True,
        ),
    )
