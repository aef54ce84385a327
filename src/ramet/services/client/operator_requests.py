"""The requests of an operator about the server's kernel, as data, beside those of `asking`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ramet.host.control.run_queries import RunRow
from ramet.host.safety.inspection import Filter
from ramet.host.scheduler.view import ScheduleView
from ramet.services.client.requests import Ask
from ramet.services.http.schemas import Mail
from ramet.services.operator.contract import (
    AddSchedule,
    AnswerApproval,
    ApprovalPage,
    GatePolicy,
    GatePolicyPage,
    KeepTree,
    Kept,
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


def runs(ended: bool, after: str, limit: int) -> Ask[RunPage]:
    return Ask("GET", "/v1/runs", RunPage, params=_said(ended=ended, after=after, limit=limit))


def run(id: str) -> Ask[RunRow]:
    return Ask("GET", _run(id), RunRow)


def tree(id: str, after: str, limit: int) -> Ask[RunPage]:
    return Ask("GET", _run(id, "tree"), RunPage, params=_said(after=after, limit=limit))


def sessions(after: str, limit: int) -> Ask[SessionPage]:
    return Ask("GET", "/v1/sessions", SessionPage, params=_said(after=after, limit=limit))


def session(id: str, last: int | None = None) -> Ask[ShownSession]:
    params = {} if last is None else {"last": last}
    return Ask("GET", f"/v1/sessions/{quote(id, safe='')}", ShownSession, params=params)


def remove_session(id: str) -> Ask[RemovedSession]:
    return Ask("DELETE", f"/v1/sessions/{quote(id, safe='')}", RemovedSession)


def events(id: str, tree: bool, after: int, follow: bool) -> Ask[None]:
    return Ask("GET", _run(id, "events"), None, params=_said(tree=tree, after=after, follow=follow))


def send(id: str, text: str, dedupe_s: float | None) -> Ask[Sent]:
    return Ask("POST", _run(id, "mail"), Sent, Mail(text=text, dedupe_s=dedupe_s))


def stop(id: str, reason: str) -> Ask[Stopped]:
    return Ask("POST", _run(id, "stop"), Stopped, StopRun(reason=reason))


def read_file(id: str, path: str) -> Ask[bytes]:
    return Ask("GET", _run(id, "file"), bytes, params={"path": path})


def keep(id: str, on: bool) -> Ask[Kept]:
    return Ask("POST", _run(id, "keep"), Kept, KeepTree(on=on))


def approvals(after: str, limit: int) -> Ask[ApprovalPage]:
    return Ask("GET", "/v1/approvals", ApprovalPage, params=_said(after=after, limit=limit))


def answer(approval: str, allowed: bool, reason: str) -> Ask[None]:
    path = f"/v1/approvals/{quote(approval, safe='')}"
    return Ask("POST", path, None, AnswerApproval(allowed=allowed, reason=reason))


def schedules(after: str, limit: int) -> Ask[SchedulePage]:
    return Ask("GET", "/v1/schedules", SchedulePage, params=_said(after=after, limit=limit))


def add_schedule(asked: AddSchedule) -> Ask[ScheduleView]:
    return Ask("POST", "/v1/schedules", ScheduleView, asked)


def schedule(id: str) -> Ask[ScheduleView]:
    return Ask("GET", _schedule(id), ScheduleView)


def steer_schedule(id: str, verb: str) -> Ask[ScheduleView]:
    return Ask("POST", _schedule(id, verb), ScheduleView)


def remove_schedule(id: str) -> Ask[None]:
    return Ask("DELETE", _schedule(id), None)


def schedule_results(id: str) -> Ask[TickList]:
    return Ask("GET", _schedule(id, "results"), TickList)


def recipes(place: str, after: str, limit: int) -> Ask[RecipePage]:
    return Ask("GET", "/v1/recipes", RecipePage, params=_said(place=place, after=after, limit=limit))


def state(id: str, at: int, commit: str, prefix: str, after: str, limit: int) -> Ask[StatePage]:
    params = _said(at=at, commit=commit, prefix=prefix, after=after, limit=limit)
    return Ask("GET", _run(id, "state"), StatePage, params=params)


def state_versions(id: str, limit: int) -> Ask[StateVersions]:
    return Ask("GET", _run(id, "state", "versions"), StateVersions, params={"limit": limit})


def policies(after: str, limit: int) -> Ask[GatePolicyPage]:
    return Ask("GET", "/v1/safety/policies", GatePolicyPage, params=_said(after=after, limit=limit))


def policy(name: str, version: int) -> Ask[GatePolicy]:
    return Ask("GET", _policy(name), GatePolicy, params=_said(version=version))


def put_policy(name: str, asked: PutGatePolicy) -> Ask[GatePolicy]:
    return Ask("POST", _policy(name), GatePolicy, asked)


def passages(wanted: Filter, after: int, limit: int) -> Ask[PassagePage]:
    return Ask("GET", "/v1/safety/passages", PassagePage, params=_wanted(wanted, after) | {"limit": limit})


def follow_passages(wanted: Filter, after: int) -> Ask[None]:
    return Ask("GET", "/v1/safety/passages/follow", None, params=_wanted(wanted, after))


def _wanted(wanted: Filter, after: int) -> dict[str, Any]:
    said = {"tree": wanted.tree, "run": wanted.run, "path": wanted.path, "tool": wanted.tool, "after": after}
    whether = {} if wanted.committed is None else {"committed": wanted.committed}
    return {**_said(**said), **whether, "kinds": list(wanted.kinds)}


def _policy(name: str) -> str:
    return f"/v1/safety/policies/{quote(name, safe='')}"


def _run(*parts: str) -> str:
    return "/".join(["/v1/runs", *(quote(each, safe="") for each in parts)])


def _schedule(*parts: str) -> str:
    return "/".join(["/v1/schedules", *(quote(each, safe="") for each in parts)])


def _said(**params: Any) -> Mapping[str, Any]:
    """What was asked for, without what is usual."""
    return {name: value for name, value in params.items() if value}
