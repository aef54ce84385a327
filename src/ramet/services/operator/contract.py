"""The operator's requests to the server's kernel, and the answers: runs, questions, schedules, recipes, state.

This module has data only, like `contract`. Runs are `ramet.host.control.run_queries.RunRow`, schedules are
`ramet.host.schedules.view.ScheduleView`. Lists are split into pages: `more` is the value of `after` for the next page,
or "" if there is no next page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from ramet.core.outcome import NO_USAGE, Usage
from ramet.core.policy.policy import Policy
from ramet.core.replay.paused_limits import PausedLimit
from ramet.core.safety import SafetyPolicy
from ramet.core.schedules.schedule import Misfire, Overlap
from ramet.core.schedules.ticks import TickResult
from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import Kind
from ramet.host.schedules.view import ScheduleView
from ramet.host.sessions.rows import SessionRow
from ramet.services.contract import BaseRequest

MOST = 1_000  #: of one page
USUAL = 100
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Cursor = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RunFilter(BaseRequest):
    """Choose runs of all trees, the oldest tree first; with `ended`, ended runs as well. `after` is a run's id."""

    ended: bool = False
    after: str = ""
    limit: Limit = USUAL


class Paging(BaseRequest):
    """Choose a page: the entries after `after`, at most `limit`."""

    after: str = ""
    limit: Limit = USUAL


class WhichFile(BaseRequest):
    """Name a file below the workspace of a run."""

    path: str


class RunPage(Struct, kw_only=True):
    """A page of runs, without their results; the result is part of a single run."""

    runs: Sequence[RunRow]
    more: str = ""


class SessionPage(Struct, kw_only=True):
    """A page of recorded conversations, the newest first; `after` of the next page is a root."""

    sessions: Sequence[SessionRow]
    more: str = ""


class ShownSession(Struct, kw_only=True):
    """A conversation and its messages, as the journal has them."""

    session: SessionRow
    messages: Sequence[Mapping[str, Any]]


class RemovedSession(Struct, kw_only=True):
    """A conversation that was removed, with all that its tree left; `root` is the id of its former root."""

    session: str
    root: str


class ChangedFile(Struct, kw_only=True):
    """A file that a run changed, and its numbers of new and of missing lines; null for a binary or large file."""

    path: str
    change: Literal["added", "changed", "removed"]
    lines_added: int | None
    lines_removed: int | None


class RunDiff(Struct, kw_only=True):
    """The changes of a run in its worktree or clone since the commit `base`, up to limits.

    Ignored files do not count. Repositories inside the copy are named, and not compared.
    """

    base: str
    files: Sequence[ChangedFile]
    files_left_out: int
    patch: str
    is_cut: bool  #: the patch is longer
    repositories_left_out: Sequence[str]


class EventOptions(BaseRequest):
    """Choose events of a run: after a cursor, of its whole `tree`, and with `follow` also future ones."""

    after: Cursor = 0
    tree: bool = False
    follow: bool = False


class Sent(Struct, kw_only=True):
    """The answer to a message: what became of it."""

    mail: str


class StopRun(BaseRequest):
    """End a run and all below it."""

    reason: str = ""


class Stopped(Struct, kw_only=True):
    """The paths of the runs that ended, and the calls that could not be ended: they continue in threads of the host."""

    stopped: Sequence[str]
    left: Sequence[str]


class RaiseLimits(BaseRequest):
    """Add to the limits of a run: its requests that wait there go on. A repeated `key` adds nothing."""

    add: dict[str, int | float]  #: by name of the limit, such as usd or model_calls
    key: str = ""


class RaisedLimits(Struct, kw_only=True):
    """The limits of a run after they were raised, by name."""

    run: str
    limits: dict[str, Any]


class ForkRun(BaseRequest):
    """Start a tree with the messages of a run, up to the event numbered `at` of its tree, or with all of them.

    With `branch`, the new run works on a branch of the state as of that event. Without a `policy` it works in a sandbox
    if the run did, and if it has tools.
    """

    prompt: str
    at: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    branch: bool = False
    limits: dict[str, int | float] = field(default_factory=dict)
    policy: Policy | None = None


class ForkedRun(Struct, kw_only=True):
    """The new root, which has begun."""

    run: str


class PauseRun(BaseRequest):
    """Pause a run and all below it: nothing new begins. With `now`, what they do is cut."""

    reason: str = ""
    now: bool = False


class PausedRuns(Struct, kw_only=True):
    """The paths of the runs that a pause covers: those that do nothing, and those with work under way."""

    paused: Sequence[str]
    working: Sequence[str]


class KeepTree(BaseRequest):
    """Keep the tree of a run in the journal whatever its age, or stop keeping it."""

    on: bool = True


class KeptTree(Struct, kw_only=True):
    """The tree, and whether it is kept."""

    tree: str
    kept: bool


class Approval(Struct, kw_only=True):
    """A question of an agent that waits for a person, or a run that waits at a limit (`kind` says which).

    `args` are shortened for display; a limit has no tool and no arguments. `usage` is that of the run and all runs
    below it.
    """

    id: str
    run: str
    path: str
    agent: str
    depth: int
    tool: str
    question: str
    args: dict[str, Any]
    asked_at: datetime
    deadline: datetime | None
    kind: str = "question"  #: or limit
    limit: PausedLimit | None = None  #: where the run waits, and what an approval adds to that limit
    usage: Usage = NO_USAGE
    for_run: str = ""  #: later calls of the run that an answer with `for_run` also allows; "": it is for one call only


class ApprovalPage(Struct, kw_only=True):
    """A page of waiting questions and limits, the oldest first."""

    approvals: Sequence[Approval]
    more: str = ""


class AnswerApproval(BaseRequest):
    """Answer a question of an agent, or let a run at a limit go on (or not).

    With `for_run`, an approval also allows the later calls of this run that the question names in its `for_run`.
    """

    allowed: bool
    reason: str = ""
    for_run: bool = False


class PlainAgent(BaseRequest):
    """A definition of an agent as plain data; other definitions are files of the folder, and are named."""

    name: str
    model: str
    instructions: str = ""
    description: str = ""
    tools: Sequence[str] | None = None  #: None for all existing tools
    max_turns: int | None = None


class AddSchedule(BaseRequest):
    """Run an agent later or again: one of `every_s`, `in_s`, `at`, and `cron` with `tz` says when.

    `agent` is `module:function`, the name of a definition of the folder, or a definition.
    """

    agent: str | PlainAgent
    every_s: float | None = None
    anchor: datetime | None = None  #: the time from which `every_s` counts
    in_s: float | None = None
    at: datetime | None = None
    cron: str = ""
    tz: str = ""
    name: str | None = None  #: the id of the schedule
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""
    policy: Policy | None = None  #: None: the default, unless no part of the agent touches the machine
    limits: dict[str, float] = field(default_factory=dict)  #: of each run
    misfire: Misfire = "once"
    misfire_max: int = 10
    overlap: Overlap = "skip"
    jitter_seconds: float = 0.0
    until: datetime | None = None
    repeatable: bool = False  #: a function may be called again after the kernel that called it died
    in_process: bool = False  #: without a sandbox, if a rule of the server lets agents run in the host


class SchedulePage(Struct, kw_only=True):
    """A page of schedules, in order of their ids."""

    schedules: Sequence[ScheduleView]
    more: str = ""


class TickList(Struct, kw_only=True):
    """The newest ticks of a schedule."""

    results: Sequence[TickResult]


class RecipeFilter(BaseRequest):
    """Choose recipes of agents that agents made: those of the agent at `place`, or all. `after` is `place/name`."""

    place: str = ""
    after: str = ""
    limit: Limit = USUAL


class RecipeRow(Struct, kw_only=True):
    """A recipe of an agent that the agent at `place` made; `recipe` is its data."""

    place: str
    name: str
    version: str  #: the hash of its content; "" for an invalid entry
    replaced: Sequence[str]  #: earlier current versions
    recipe: dict[str, Any]


class RecipePage(Struct, kw_only=True):
    """A page of recipes, in order of place and name."""

    recipes: Sequence[RecipeRow]
    more: str = ""


class StateQuery(BaseRequest):
    """Choose values of a run's state: at the event numbered `at`, at a `commit` of its branch, or the newest.

    Of the keys that begin with `prefix`, those behind `after`.
    """

    at: Cursor = 0
    commit: str = ""
    prefix: str = ""
    after: str = ""
    limit: Limit = USUAL


class StatePage(Struct, kw_only=True):
    """Values by key, below the run's own `place`, as they were at a commit; `commit` is "" before the first.

    `owner` is the id of the server's agent in whose state that is, "" for an agent of the program.
    """

    owner: str = ""
    place: str
    branch: str
    commit: str
    values: Mapping[str, Any]
    more: str = ""


class VersionsOptions(BaseRequest):
    """Choose the number of commits, the newest first."""

    limit: Limit = USUAL


class StateVersion(Struct, kw_only=True):
    """A commit that changed a value of a run's state."""

    id: str
    parents: Sequence[str]
    at: datetime
    message: str
    author: str  #: the id of the run that made it, if one did


class StateVersions(Struct, kw_only=True):
    """The newest commits first, and the newest commit of every branch of the agents' state, by its name."""

    branch: str
    versions: Sequence[StateVersion]
    branches: Mapping[str, str]


class PolicyName(Struct, kw_only=True):
    """A safety policy of the server's store."""

    name: str
    version: int  #: the newest


class GatePolicyPage(Struct, kw_only=True):
    """Safety policies in order of their names."""

    policies: Sequence[PolicyName]
    more: str = ""


class WhichVersion(BaseRequest):
    """Choose a version by its number; 0 is the newest."""

    version: Cursor = 0


class GatePolicy(Struct, kw_only=True):
    """A safety policy as it was when it was read."""

    name: str
    version: int
    policy: SafetyPolicy


class PutGatePolicy(BaseRequest):
    """Store a new version of a safety policy; `expected` is the version that it follows, 0 for the first."""

    policy: SafetyPolicy
    expected: Cursor


class PassageFilter(BaseRequest):
    """Choose events of the safety gates after a cursor; a field that is not given does not filter.

    `path` and `tool` are patterns, `kinds` some of intention, decision, output; `committed` is about decisions.
    """

    tree: str = ""
    run: str = ""
    path: str = ""
    tool: str = ""
    kinds: Sequence[Kind] = ()
    committed: bool | None = None
    after: Cursor = 0
    limit: Limit = USUAL


class PassageRow(Struct, kw_only=True):
    """An event of a safety gate as JSON, and its place in the journal."""

    cursor: int
    kind: Kind
    event: dict[str, Any]


class PassagePage(Struct, kw_only=True):
    """A page of gate events, and the cursor to continue from; without `more` the journal has no later ones yet."""

    entries: Sequence[PassageRow]
    cursor: int
    more: bool
