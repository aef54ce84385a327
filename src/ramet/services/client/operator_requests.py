"""The requests of an operator about the server's kernel, as data, in addition to those of `requests`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import GateEventFilter
from ramet.host.scheduler.view import ScheduleView
from ramet.services.client.requests import RequestSpec
from ramet.services.http.schemas import Mail
from ramet.services.operator.contract import (
    AddSchedule,
    AnswerApproval,
    ApprovalPage,
    GatePolicy,
    GatePolicyPage,
    KeepTree,
    KeptTree,
    PassagePage,
    PutGatePolicy,
    RecipePage,
    RemovedSession,
    RunPage,
    SchedulePage,
    Sent,
    SessionPage,
    ShownSession,
    StatePage,
    StateVersions,
    Stopped,
    StopRun,
    TickList,
)


def runs(ended: bool, after: str, limit: int) -> RequestSpec[RunPage]:
    return RequestSpec("GET", "/v1/runs", RunPage, params=_without_none(ended=ended, after=after, limit=limit))


def run(id: str) -> RequestSpec[RunRow]:
    return RequestSpec("GET", _run(id), RunRow)


def tree(id: str, after: str, limit: int) -> RequestSpec[RunPage]:
    return RequestSpec("GET", _run(id, "tree"), RunPage, params=_without_none(after=after, limit=limit))


def sessions(after: str, limit: int) -> RequestSpec[SessionPage]:
    return RequestSpec("GET", "/v1/sessions", SessionPage, params=_without_none(after=after, limit=limit))


def session(id: str, last: int | None = None) -> RequestSpec[ShownSession]:
    params = {} if last is None else {"last": last}
    return RequestSpec("GET", f"/v1/sessions/{quote(id, safe='')}", ShownSession, params=params)


def remove_session(id: str) -> RequestSpec[RemovedSession]:
    return RequestSpec("DELETE", f"/v1/sessions/{quote(id, safe='')}", RemovedSession)


def events(id: str, tree: bool, after: int, follow: bool) -> RequestSpec[None]:
    return RequestSpec("GET", _run(id, "events"), None, params=_without_none(tree=tree, after=after, follow=follow))


def send(id: str, text: str, dedupe_s: float | None) -> RequestSpec[Sent]:
    return RequestSpec("POST", _run(id, "mail"), Sent, Mail(text=text, dedupe_s=dedupe_s))


def stop(id: str, reason: str) -> RequestSpec[Stopped]:
    return RequestSpec("POST", _run(id, "stop"), Stopped, StopRun(reason=reason))


def read_file(id: str, path: str) -> RequestSpec[bytes]:
    return RequestSpec("GET", _run(id, "file"), bytes, params={"path": path})


def keep(id: str, on: bool) -> RequestSpec[KeptTree]:
    return RequestSpec("POST", _run(id, "keep"), KeptTree, KeepTree(on=on))


def approvals(after: str, limit: int) -> RequestSpec[ApprovalPage]:
    return RequestSpec("GET", "/v1/approvals", ApprovalPage, params=_without_none(after=after, limit=limit))


def answer(approval: str, allowed: bool, reason: str) -> RequestSpec[None]:
    path = f"/v1/approvals/{quote(approval, safe='')}"
    return RequestSpec("POST", path, None, AnswerApproval(allowed=allowed, reason=reason))


def schedules(after: str, limit: int) -> RequestSpec[SchedulePage]:
    return RequestSpec("GET", "/v1/schedules", SchedulePage, params=_without_none(after=after, limit=limit))


def add_schedule(request: AddSchedule) -> RequestSpec[ScheduleView]:
    return RequestSpec("POST", "/v1/schedules", ScheduleView, request)


def schedule(id: str) -> RequestSpec[ScheduleView]:
    return RequestSpec("GET", _schedule(id), ScheduleView)


def steer_schedule(id: str, verb: str) -> RequestSpec[ScheduleView]:
    return RequestSpec("POST", _schedule(id, verb), ScheduleView)


def remove_schedule(id: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", _schedule(id), None)


def schedule_results(id: str) -> RequestSpec[TickList]:
    return RequestSpec("GET", _schedule(id, "results"), TickList)


def recipes(place: str, after: str, limit: int) -> RequestSpec[RecipePage]:
    return RequestSpec("GET", "/v1/recipes", RecipePage, params=_without_none(place=place, after=after, limit=limit))


def state(id: str, at: int, commit: str, prefix: str, after: str, limit: int) -> RequestSpec[StatePage]:
    params = _without_none(at=at, commit=commit, prefix=prefix, after=after, limit=limit)
    return RequestSpec("GET", _run(id, "state"), StatePage, params=params)


def state_versions(id: str, limit: int) -> RequestSpec[StateVersions]:
    return RequestSpec("GET", _run(id, "state", "versions"), StateVersions, params={"limit": limit})


def policies(after: str, limit: int) -> RequestSpec[GatePolicyPage]:
    return RequestSpec("GET", "/v1/safety/policies", GatePolicyPage, params=_without_none(after=after, limit=limit))


def policy(name: str, version: int) -> RequestSpec[GatePolicy]:
    return RequestSpec("GET", _policy(name), GatePolicy, params=_without_none(version=version))


def put_policy(name: str, request: PutGatePolicy) -> RequestSpec[GatePolicy]:
    return RequestSpec("POST", _policy(name), GatePolicy, request)


def passages(event_filter: GateEventFilter, after: int, limit: int) -> RequestSpec[PassagePage]:
    return RequestSpec(
        "GET", "/v1/safety/passages", PassagePage, params=_passage_query(event_filter, after) | {"limit": limit}
    )


def follow_passages(event_filter: GateEventFilter, after: int) -> RequestSpec[None]:
    return RequestSpec("GET", "/v1/safety/passages/follow", None, params=_passage_query(event_filter, after))


def _passage_query(event_filter: GateEventFilter, after: int) -> dict[str, Any]:
    query = {
        "tree": event_filter.tree,
        "run": event_filter.run,
        "path": event_filter.path,
        "tool": event_filter.tool,
        "after": after,
    }
    committed_query = {} if event_filter.committed is None else {"committed": event_filter.committed}
    return {**_without_none(**query), **committed_query, "kinds": list(event_filter.kinds)}


def _policy(name: str) -> str:
    return f"/v1/safety/policies/{quote(name, safe='')}"


def _run(*parts: str) -> str:
    return "/".join(["/v1/runs", *(quote(each, safe="") for each in parts)])


def _schedule(*parts: str) -> str:
    return "/".join(["/v1/schedules", *(quote(each, safe="") for each in parts)])


def _without_none(**params: Any) -> Mapping[str, Any]:
    """Return the parameters that are neither false nor empty."""
    return {name: value for name, value in params.items() if value}
