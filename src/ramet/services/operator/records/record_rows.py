"""The answers about kernels, boards and keys: data only, like `ramet.services.operator.contract`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ramet.services.contract import Right
from ramet.tools.agents.board import Status


class KernelRow(Struct, kw_only=True):
    """A kernel of the store: this one, other live ones, and dead ones that left trees.

    `started`, `trees` and `runs` are known of kernels that answer.
    """

    name: str
    epoch: int  #: number of times that a kernel of this name began
    address: str  #: where other kernels reach it; "" if there are none
    is_alive: bool  #: it holds its lease
    started: datetime | None = None
    trees: int | None = None  #: open ones
    runs: int | None = None  #: that have not ended


class KernelList(Struct):
    """The kernels, in order of their names."""

    kernels: Sequence[KernelRow]


class BoardRow(Struct, kw_only=True):
    """A board, and the number of its tasks by status."""

    name: str
    pending: int = 0
    in_progress: int = 0
    completed: int = 0
    error: str = ""  #: why it cannot be read


class BoardPage(Struct, kw_only=True):
    """A page of boards, in order of their names."""

    boards: Sequence[BoardRow]
    more: str = ""


class BoardTask(Struct, kw_only=True):
    """A task of a board, and the run that works on it or completed it."""

    id: str
    subject: str
    description: str
    status: Status
    owner: str  #: the id of the run; "" if it has none
    owner_path: str
    blocked_by: Sequence[str]  #: all tasks that it waits for
    open_blockers: Sequence[str]  #: those that are not completed
    metadata: Mapping[str, Any]


class ShownBoard(Struct, kw_only=True):
    """A board with its tasks, in the order of their creation."""

    name: str
    tasks: Sequence[BoardTask]


class KeyRow(Struct, kw_only=True):
    """The rights of a valid key. The key itself is not known: only its hash is recorded.

    The operator's key and that of a team have all rights there.
    """

    id: str  #: of the row
    kind: Literal["operator", "team", "owner", "delegated"]
    team: str = ""  #: the name or id
    agent: str = ""  #: the path, of a key of an agent
    key: str = ""  #: the id of a delegated key, with which it is revoked
    rights: Sequence[Right] = ()  #: of a key of an agent
    until: datetime | None = None
    made_by: str = ""  #: owner, or the id of a delegated key


class KeyPage(Struct, kw_only=True):
    """A page of keys: the operator's, then those of teams, then those of agents."""

    keys: Sequence[KeyRow]
    more: str = ""
