"""The tools of a board: TaskCreate, TaskUpdate, TaskList, TaskGet. Agents share the tasks, and complete each once.

Each calls its board; none knows where tasks are stored. The calling run is the claimant: a model cannot claim, or
complete, in the name of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from ramet.core.errors import Bug, Denied, InvalidValue, RametError
from ramet.tools.agents.report_framing import neutralise
from ramet.tools.context import CurrentCall, ToolUseContext, require_current_call

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


class _CreateArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")
    subject: str = Field(description="One line: what is to be done.")
    description: str = Field(default="", description="All that the owner of it needs to know.")
    addBlockedBy: list[str] = Field(default_factory=list, description="Ids of tasks to be completed before it.")
    metadata: dict[str, Any] | None = Field(default=None, description="Anything else worth keeping with it.")


class _UpdateArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")
    taskId: str
    status: Status | None = Field(
        default=None, description="in_progress claims it for you, completed ends it, pending gives it back."
    )
    subject: str | None = None
    description: str | None = None
    addBlocks: list[str] = Field(default_factory=list, description="Ids of tasks that must wait for it.")
    addBlockedBy: list[str] = Field(default_factory=list, description="Ids of tasks that it must wait for.")
    metadata: dict[str, Any] | None = Field(default=None, description="Keys to set; null removes one.")


class _ListArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _GetArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")
    taskId: str


class _BoardTool(BaseTool):
    """The base of the four tools: the board."""

    boards: Any  #: Boards; pydantic need not know it

    def _run(self, **kwargs: Any) -> str:
        raise Bug("the tools of a board run in the event loop")

    def _call_and_board(self) -> tuple[CurrentCall, TaskBoard]:
        call = require_current_call()
        board: TaskBoard = self.boards(call.context.run.root) if callable(self.boards) else self.boards
        return call, board


class TaskCreateTool(_BoardTool):
    """A tool that adds a task to the board; a repeated call after a crash finds the task that it had created."""

    name: str = "TaskCreate"
    description: str = "Put a task on the board that you share with other agents."
    args_schema: Any = _CreateArgs
    metadata: dict[str, Any] | None = {"concurrency_safe": False, "repeatable": True}  # noqa: RUF012 - pydantic copies it

    async def _arun(
        self,
        subject: str,
        description: str = "",
        addBlockedBy: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> str:
        call, board = self._call_and_board()
        hooks, id = call.context.hooks, None
        if hooks is not None and hooks.listens("TaskCreated"):
            id = await board.reserve()
            payload = {"task_id": id, "task_subject": subject, "task_description": description}
            decision = await hooks.fire("TaskCreated", call.context, payload)
            if decision.verdict == "deny":
                raise Denied("task", decision.reason or "a hook denied it")
        task = await board.create(
            subject, description, blocked_by=addBlockedBy, metadata=metadata, id=id, key=call.step_id
        )
        return f"Task #{task.id} created: {neutralise(task.subject)[0]}"


class TaskUpdateTool(_BoardTool):
    """A tool that claims, completes, gives back, deletes or changes a task, for the calling run."""

    name: str = "TaskUpdate"
    description: str = (
        "Change a task of the board. status='in_progress' claims it for you: do so before you begin, exactly one agent "
        "gets it. 'completed' ends it, and frees what waited for it. 'pending' gives it back, 'deleted' removes it."
    )
    args_schema: Any = _UpdateArgs
    metadata: dict[str, Any] | None = {"concurrency_safe": False, "repeatable": True}  # noqa: RUF012 - pydantic copies it

    async def _arun(
        self,
        taskId: str,
        status: Status | None = None,
        subject: str | None = None,
        description: str | None = None,
        addBlocks: Sequence[str] = (),
        addBlockedBy: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> str:
        call, board = self._call_and_board()
        context = call.context
        owner = Owner(context.run.id, context.run.path)
        task = None
        if subject is not None or description is not None or addBlocks or addBlockedBy or metadata is not None:
            task = await board.update(
                taskId,
                by=owner,
                subject=subject,
                description=description,
                add_blocks=addBlocks,
                add_blocked_by=addBlockedBy,
                metadata=metadata,
            )
        match status:
            case "in_progress":
                task = await board.claim(taskId, owner)
            case "completed":
                task = await _complete(context, board, taskId, owner)
            case "pending":
                task = await board.release(taskId, owner)
            case "deleted":
                task = await board.delete(taskId, owner)
            case None if task is None:
                raise InvalidValue("status", None, "a status, or anything else to change")
        assert task is not None
        return _line(task)


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


class TaskListTool(_BoardTool):
    """A tool that lists the board, one line per task."""

    name: str = "TaskList"
    description: str = "List the tasks of the board: id, status, subject, owner, and what each depends on."
    args_schema: Any = _ListArgs
    metadata: dict[str, Any] | None = {"concurrency_safe": True, "read_only": True, "repeatable": True}  # noqa: RUF012 - pydantic copies it

    async def _arun(self, **_: Any) -> str:
        board = self._call_and_board()[1]
        return "\n".join(map(_line, await board.list())) or "The board is empty."


class TaskGetTool(_BoardTool):
    """A tool that reads a whole task."""

    name: str = "TaskGet"
    description: str = "Read one task of the board with its description."
    args_schema: Any = _GetArgs
    metadata: dict[str, Any] | None = {"concurrency_safe": True, "read_only": True, "repeatable": True}  # noqa: RUF012 - pydantic copies it

    async def _arun(self, taskId: str, **_: Any) -> str:
        board = self._call_and_board()[1]
        task = await board.get(taskId)
        more = [f"blocks: {', '.join(task.blocks)}"] if task.blocks else []
        more += [f"{key}: {value}" for key, value in task.metadata.items()]
        return "\n".join([_line(task), neutralise("\n".join([*more, task.description]))[0]]).strip()


def _line(task: Task) -> str:
    owner = f" ({task.owner.path or task.owner.run})" if task.owner is not None else ""
    blockers = f" [blocked by {', '.join(f'#{id}' for id in task.open_blockers)}]" if task.open_blockers else ""
    return f"#{task.id} [{task.status}] {neutralise(task.subject)[0]}{owner}{blockers}"


def board_tools(boards: Boards) -> tuple[BaseTool, ...]:
    """Return the four tools on one board, or on a board for each tree."""
    return tuple(each(boards=boards) for each in (TaskCreateTool, TaskUpdateTool, TaskListTool, TaskGetTool))
