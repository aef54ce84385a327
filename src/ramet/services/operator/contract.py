"""The operator's requests to the server's kernel, and the answers: runs, questions, schedules, recipes, state.

This module has data only, like `contract`. Runs are `ramet.host.control.run_queries.RunRow`, schedules are
`ramet.host.scheduler.view.ScheduleView`. Lists are split into pages: `more` is the value of `after` for the next page,
or "" if there is no next page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from ramet.core.policy.policy import Policy
from ramet.core.safety import SafetyPolicy
from ramet.core.schedules.schedule import Misfire, Overlap
from ramet.core.schedules.ticks import TickResult
from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import Kind
from ramet.host.scheduler.view import ScheduleView
from ramet.host.sessions.rows import SessionRow
from ramet.services.contract import BaseRequest

MOST = 1_000  #: of one page
USUAL = 100
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Cursor = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RunFilter(BaseRequest):
    """Runs of all trees, the oldest tree first; with `ended` those that are over as well. `after` is a run's id."""

    ended: bool = False
    after: str = ""
    limit: Limit = USUAL


class Paging(BaseRequest):
    """A page: what stands behind `after`, at most `limit`."""

    after: str = ""
    limit: Limit = USUAL


class WhichFile(BaseRequest):
    """A file by its name below the workspace of a run."""

    path: str


class RunPage(Struct, kw_only=True):
    """Runs as they stand, each without its result: that is told of one run."""

    runs: Sequence[RunRow]
    more: str = ""


class SessionPage(Struct, kw_only=True):
    """Conversations on record, the newest first; `after` of the next page is a root."""

    sessions: Sequence[SessionRow]
    more: str = ""


class ShownSession(Struct, kw_only=True):
    """A conversation and what was said in it: messages as the journal has them."""

    session: SessionRow
    messages: Sequence[Mapping[str, Any]]


class RemovedSession(Struct, kw_only=True):
    """A conversation that is gone, with all that its tree left; `root` is the id that its root had."""

    session: str
    root: str


class EventOptions(BaseRequest):
    """Which events of a run: behind a cursor, of its whole `tree`, and with `follow` those that come."""

    after: Cursor = 0
    tree: bool = False
    follow: bool = False


class Sent(Struct, kw_only=True):
    """A message that was accepted, by its id."""

    mail: str


class StopRun(BaseRequest):
    """End a run and all below it."""

    reason: str = ""


class Stopped(Struct, kw_only=True):
    """The paths of the runs that were ended, and the calls that could not be: they go on in threads of the host."""

    stopped: Sequence[str]
    left: Sequence[str]


class KeepTree(BaseRequest):
    """Keep the tree of a run on record whatever its time is, or no longer."""

    on: bool = True


class KeptTree(Struct, kw_only=True):
    """The tree that is kept, or no longer."""

    tree: str
    kept: bool


class Approval(Struct, kw_only=True):
    """A question of an agent that waits for a person. `args` are bounded for showing."""

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


class ApprovalPage(Struct, kw_only=True):
    """Questions that wait, the oldest first."""

    approvals: Sequence[Approval]
    more: str = ""


class AnswerApproval(BaseRequest):
    """A person's word on a question."""

    allowed: bool
    reason: str = ""


class PlainAgent(BaseRequest):
    """A definition as plain data; further ones are files of the folder, and named."""

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
    """Schedules as they stand, in order of their ids."""

    schedules: Sequence[ScheduleView]
    more: str = ""


class TickList(Struct, kw_only=True):
    """A schedule's newest ticks, as they stand."""

    results: Sequence[TickResult]


class RecipeFilter(BaseRequest):
    """Recipes of agents that agents made: of the one who stands at `place`, or of all. `after` is `place/name`."""

    place: str = ""
    after: str = ""
    limit: Limit = USUAL


class RecipeRow(Struct, kw_only=True):
    """An agent that was written down by the one who stands at `place`; `recipe` is what it is made of."""

    place: str
    name: str
    version: str  #: the hash of its content; "" for an invalid entry
    replaced: Sequence[str]  #: earlier current versions
    recipe: dict[str, Any]


class RecipePage(Struct, kw_only=True):
    """Recipes in order of place and name."""

    recipes: Sequence[RecipeRow]
    more: str = ""


class StateQuery(BaseRequest):
    """Which values of a run's state: as of the event numbered `at`, or of a `commit` of its branch, or the newest.

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
    """How many commits, the newest first."""

    limit: Limit = USUAL


class StateVersion(Struct, kw_only=True):
    """One commit that changed something of a run's state."""

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
    """A version by its number; 0 is the newest."""

    version: Cursor = 0


class GatePolicy(Struct, kw_only=True):
    """A safety policy as it was when it was read."""

    name: str
    version: int
    policy: SafetyPolicy


class PutGatePolicy(BaseRequest):
    """Another version of a safety policy; `expected` is the one that it follows, 0 for the first."""

    policy: SafetyPolicy
    expected: Cursor


class PassageFilter(BaseRequest):
    """What came to the safety gates behind a cursor; what is not said does not matter.

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
    """One event at a gate, as JSON has it, and where it stands in the journal."""

    cursor: int
    kind: Kind
    event: dict[str, Any]


class PassagePage(Struct, kw_only=True):
    """Some passages, and the cursor to go on from; without `more` the journal ended here, for now."""

    entries: Sequence[PassageRow]
    cursor: int
    more: bool
