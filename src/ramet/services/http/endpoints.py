"""The endpoints of the HTTP API: what a server and its clients share of its operations.

Routes answer them, and `ramet.services.client` calls those that have a name here.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, Literal, TypeVar

from ramet.host.control.run_queries import RunRow
from ramet.host.schedules.view import ScheduleView
from ramet.services.contract import (
    AgentInfo,
    CreatedTeam,
    CreateTeam,
    Delegate,
    DelegatedKey,
    SpawnAgent,
    SpawnedAgent,
    SupplyValues,
    TeamInfo,
)
from ramet.services.http.schemas import (
    After,
    AgentFilter,
    AgentList,
    BundleList,
    History,
    ImageList,
    Interrupted,
    Mail,
    Newest,
    Rotated,
    TeamList,
    TurnOptions,
    WhichTurn,
)
from ramet.services.operator.changes import ChangeOptions
from ramet.services.operator.contract import (
    AddSchedule,
    AnswerApproval,
    ApprovalPage,
    EventOptions,
    ForkedRun,
    ForkRun,
    GatePolicy,
    GatePolicyPage,
    KeepTree,
    KeptTree,
    Paging,
    PassageFilter,
    PassagePage,
    PausedRuns,
    PauseRun,
    PutGatePolicy,
    RaisedLimits,
    RaiseLimits,
    RecipeFilter,
    RecipePage,
    RemovedSession,
    RunDiff,
    RunFilter,
    RunPage,
    SchedulePage,
    Sent,
    SessionPage,
    ShownSession,
    StatePage,
    StateQuery,
    StateVersions,
    Stopped,
    StopRun,
    TickList,
    VersionsOptions,
    WhichFile,
    WhichVersion,
)
from ramet.services.operator.records.record_rows import BoardPage, KernelList, KeyPage, ShownBoard
from ramet.services.packaging.contract import BundleInfo, CreateImage, ImageInfo, Job

T = TypeVar("T")

EVENT_STREAM, BYTES, TAR, JSON = (
    "text/event-stream",
    "application/octet-stream",
    "application/x-tar",
    "application/json",
)


@dataclass(frozen=True)
class Endpoint(Generic[T]):
    """A method and a path, and the structures of the query, the body and the answer.

    `answers` is `bytes` for an answer that is no structure, and the type of None for an empty one or a stream.
    """

    id: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    answers: type[T]
    takes: Any = None
    query: Any = None
    media: str = ""  #: the media type of a body of bytes


# ---- agents

SPAWN_AGENT = Endpoint("spawn_agent", "POST", "/v1/agents", SpawnedAgent, takes=SpawnAgent)
LIST_AGENTS = Endpoint("list_agents", "GET", "/v1/agents", AgentList, query=AgentFilter)
GET_AGENT = Endpoint("get_agent", "GET", "/v1/agents/{agent}", AgentInfo)
KILL_AGENT = Endpoint("kill_agent", "DELETE", "/v1/agents/{agent}", NoneType)
SUPPLY_VALUES = Endpoint("supply_values", "POST", "/v1/agents/{agent}/values", AgentInfo, takes=SupplyValues)
DELEGATE = Endpoint("delegate", "POST", "/v1/agents/{agent}/keys", DelegatedKey, takes=Delegate)
REVOKE = Endpoint("revoke", "DELETE", "/v1/agents/{agent}/keys/{id}", NoneType)
ROTATE = Endpoint("rotate", "POST", "/v1/agents/{agent}/rotate", Rotated)

# ---- images

UPLOAD_BUNDLE = Endpoint("upload_bundle", "POST", "/v1/bundles", BundleInfo, media=TAR)
LIST_BUNDLES = Endpoint("list_bundles", "GET", "/v1/bundles", BundleList)
DELETE_BUNDLE = Endpoint("delete_bundle", "DELETE", "/v1/bundles/{id}", NoneType)
CREATE_IMAGE = Endpoint("create_image", "POST", "/v1/images", Job, takes=CreateImage)
LIST_IMAGES = Endpoint("list_images", "GET", "/v1/images", ImageList)
GET_IMAGE = Endpoint("get_image", "GET", "/v1/images/{id}", ImageInfo)
DELETE_IMAGE = Endpoint("delete_image", "DELETE", "/v1/images/{id}", NoneType)
GET_JOB = Endpoint("get_job", "GET", "/v1/jobs/{id}", Job)

# ---- runs

CHANGES = Endpoint("changes", "GET", "/v1/changes", NoneType, query=ChangeOptions)
LIST_RUNS = Endpoint("list_runs", "GET", "/v1/runs", RunPage, query=RunFilter)
GET_RUN = Endpoint("get_run", "GET", "/v1/runs/{run}", RunRow)
RUN_TREE = Endpoint("run_tree", "GET", "/v1/runs/{run}/tree", RunPage, query=Paging)
RUN_EVENTS = Endpoint("run_events", "GET", "/v1/runs/{run}/events", NoneType, query=EventOptions)
SEND_RUN = Endpoint("send_run", "POST", "/v1/runs/{run}/mail", Sent, takes=Mail)
FORK_RUN = Endpoint("fork_run", "POST", "/v1/runs/{run}/fork", ForkedRun, takes=ForkRun)
STOP_RUN = Endpoint("stop_run", "POST", "/v1/runs/{run}/stop", Stopped, takes=StopRun)
RAISE_LIMITS = Endpoint("raise_limits", "POST", "/v1/runs/{run}/limits", RaisedLimits, takes=RaiseLimits)
PAUSE_RUN = Endpoint("pause_run", "POST", "/v1/runs/{run}/pause", PausedRuns, takes=PauseRun)
RESUME_RUN = Endpoint("resume_run", "POST", "/v1/runs/{run}/resume", NoneType)
RUN_FILE = Endpoint("run_file", "GET", "/v1/runs/{run}/file", bytes, query=WhichFile)
RUN_DIFF = Endpoint("run_diff", "GET", "/v1/runs/{run}/diff", RunDiff)
RUN_BLOB = Endpoint("run_blob", "GET", "/v1/runs/{run}/blobs/{blob}", bytes)
KEEP_RUN = Endpoint("keep_run", "POST", "/v1/runs/{run}/keep", KeptTree, takes=KeepTree)
LIST_APPROVALS = Endpoint("list_approvals", "GET", "/v1/approvals", ApprovalPage, query=Paging)
ANSWER_APPROVAL = Endpoint("answer_approval", "POST", "/v1/approvals/{approval}", NoneType, takes=AnswerApproval)

# ---- safety

LIST_POLICIES = Endpoint("list_policies", "GET", "/v1/safety/policies", GatePolicyPage, query=Paging)
GET_POLICY = Endpoint("get_policy", "GET", "/v1/safety/policies/{policy}", GatePolicy, query=WhichVersion)
PUT_POLICY = Endpoint("put_policy", "POST", "/v1/safety/policies/{policy}", GatePolicy, takes=PutGatePolicy)
PASSAGES = Endpoint("passages", "GET", "/v1/safety/passages", PassagePage, query=PassageFilter)
FOLLOW_PASSAGES = Endpoint("follow_passages", "GET", "/v1/safety/passages/follow", NoneType, query=PassageFilter)

# ---- records

LIST_KERNELS = Endpoint("list_kernels", "GET", "/v1/kernels", KernelList)
LIST_BOARDS = Endpoint("list_boards", "GET", "/v1/boards", BoardPage, query=Paging)
GET_BOARD = Endpoint("get_board", "GET", "/v1/boards/{board}", ShownBoard)
LIST_KEYS = Endpoint("list_keys", "GET", "/v1/keys", KeyPage, query=Paging)

# ---- schedules

LIST_SCHEDULES = Endpoint("list_schedules", "GET", "/v1/schedules", SchedulePage, query=Paging)
ADD_SCHEDULE = Endpoint("add_schedule", "POST", "/v1/schedules", ScheduleView, takes=AddSchedule)
GET_SCHEDULE = Endpoint("get_schedule", "GET", "/v1/schedules/{schedule}", ScheduleView)
REMOVE_SCHEDULE = Endpoint("remove_schedule", "DELETE", "/v1/schedules/{schedule}", NoneType)
PAUSE_SCHEDULE = Endpoint("pause_schedule", "POST", "/v1/schedules/{schedule}/pause", ScheduleView)
RESUME_SCHEDULE = Endpoint("resume_schedule", "POST", "/v1/schedules/{schedule}/resume", ScheduleView)
TRIGGER_SCHEDULE = Endpoint("trigger_schedule", "POST", "/v1/schedules/{schedule}/trigger", ScheduleView)
SCHEDULE_RESULTS = Endpoint("schedule_results", "GET", "/v1/schedules/{schedule}/results", TickList)

# ---- sessions

LIST_SESSIONS = Endpoint("list_sessions", "GET", "/v1/sessions", SessionPage, query=Paging)
GET_SESSION = Endpoint("get_session", "GET", "/v1/sessions/{session}", ShownSession, query=Newest)
REMOVE_SESSION = Endpoint("remove_session", "DELETE", "/v1/sessions/{session}", RemovedSession)

# ---- states

LIST_RECIPES = Endpoint("list_recipes", "GET", "/v1/recipes", RecipePage, query=RecipeFilter)
RUN_STATE = Endpoint("run_state", "GET", "/v1/runs/{run}/state", StatePage, query=StateQuery)
RUN_STATE_VERSIONS = Endpoint(
    "run_state_versions", "GET", "/v1/runs/{run}/state/versions", StateVersions, query=VersionsOptions
)

# ---- teams

CREATE_TEAM = Endpoint("create_team", "POST", "/v1/teams", CreatedTeam, takes=CreateTeam)
LIST_TEAMS = Endpoint("list_teams", "GET", "/v1/teams", TeamList)
GET_TEAM = Endpoint("get_team", "GET", "/v1/teams/{team}", TeamInfo)
DELETE_TEAM = Endpoint("delete_team", "DELETE", "/v1/teams/{team}", NoneType)

# ---- turns

TURN = Endpoint("turn", "POST", "/v1/agents/{agent}/turns", NoneType, query=TurnOptions, media=BYTES)
READ_TURN = Endpoint("read_turn", "GET", "/v1/agents/{agent}/turns/{turn}", NoneType, query=After)
INTERRUPT = Endpoint("interrupt", "POST", "/v1/agents/{agent}/interrupt", Interrupted, query=WhichTurn)
CONTROL: Endpoint[Any] = Endpoint("control", "POST", "/v1/agents/{agent}/control", Any, takes=dict[str, Any])
HISTORY = Endpoint("history", "GET", "/v1/agents/{agent}/history", History, query=Newest)
EVENTS = Endpoint("events", "GET", "/v1/agents/{agent}/events", NoneType, query=After)
MAIL = Endpoint("mail", "POST", "/v1/agents/{agent}/mail", NoneType, takes=Mail)
