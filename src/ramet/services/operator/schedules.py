"""The schedules of a server, which fire while it runs: its operator lists, adds and controls them."""

from __future__ import annotations

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.policy.policy import Policy
from ramet.host.schedules.request import Options
from ramet.host.schedules.scheduler import AgentScheduler
from ramet.host.schedules.view import ScheduleView
from ramet.models import resolve
from ramet.services.operator.contract import AddSchedule, Paging, PlainAgent, SchedulePage
from ramet.services.operator.runs import checked_limit
from ramet.services.rules import Rules
from ramet.services.teams.validation import limits_of

_TIMES = "exactly one of every_s, in_s, at, cron"


class ScheduleViews:
    """The schedules of an `AgentScheduler` for its operator: pages of them, and new ones."""

    def __init__(self, scheduler: AgentScheduler, rules: Rules) -> None:
        """Apply `rules` to scheduled agents as well: they limit the use of this host."""
        self.scheduler, self._rules = scheduler, rules

    async def page(self, request: Paging) -> SchedulePage:
        """Return a page of schedules, in order of ids."""
        limit = checked_limit(request.limit)
        schedules = [each for each in await self.scheduler.list() if each.id > request.after]
        return SchedulePage(schedules=schedules[:limit], more=schedules[limit - 1].id if len(schedules) > limit else "")

    async def add(self, request: AddSchedule) -> ScheduleView:
        """Add a schedule, or return the existing one if its request was the same. Raises InvalidValue, Unknown.

        Raises SpawnRefused for a policy that requests more of this host than the server allows.
        """
        self._check(request)
        policy = self._rules.policy_of(request.policy, needs_sandbox=False)
        scheduler, agent, options = self.scheduler, _agent(request.agent), _options(request, policy)
        times = {"every_s": request.every_s, "in_s": request.in_s, "at": request.at, "cron": request.cron or None}
        given_names = [name for name, value in times.items() if value is not None]
        if len(given_names) != 1:
            raise InvalidValue(
                given_names[-1] if given_names else "every_s", times[given_names[-1]] if given_names else None, _TIMES
            )
        if bool(request.tz) != bool(request.cron):
            raise InvalidValue("tz", request.tz, "a zone only together with cron, whose times it applies to")
        if request.anchor is not None and request.every_s is None:
            raise InvalidValue("anchor", request.anchor, "none: only every_s has a start time")
        if request.every_s is not None:
            return await scheduler.schedule_agent_interval(request.every_s, agent, anchor=request.anchor, **options)
        if request.in_s is not None:
            return await scheduler.schedule_agent_in(request.in_s, agent, **options)
        if request.at is not None:
            return await scheduler.schedule_agent_at(request.at, agent, **options)
        return await scheduler.schedule_agent_cron(request.cron, agent, tz=request.tz, **options)

    def _check(self, request: AddSchedule) -> None:
        self._rules.grant_of(request.policy)
        if request.in_process and self._rules.sandboxed is not False:
            raise InvalidValue("in_process", True, "false, because rules.sandboxed of this server is not false")
        if isinstance(request.agent, PlainAgent):
            self._rules.check_model("agent.model", request.agent.model)
            _check_model(request.agent.model)
            self._rules.check_tools("agent.tools", request.agent.tools or ())


def _check_model(name: str) -> None:
    """Raise InvalidValue for a model that no provider has: names from the server's settings are only for its agents."""
    if name.strip() == "offline":
        return
    try:
        resolve.parse(name)
    except (InvalidValue, Unknown):
        accepted = "provider:model, such as anthropic:claude-sonnet-5-5, or offline; no name of the server's settings"
        raise InvalidValue("agent.model", name, accepted) from None


def _agent(definition: str | PlainAgent) -> str | Agent:
    if isinstance(definition, str):
        return definition
    return Agent(
        name=definition.name,
        model=definition.model,
        instructions=definition.instructions,
        description=definition.description,
        tools=None if definition.tools is None else tuple(definition.tools),
        max_turns=definition.max_turns,
    )


def _options(request: AddSchedule, policy: Policy | None) -> Options:
    return Options(
        name=request.name,
        args=list(request.args),
        kwargs=request.kwargs,
        prompt=request.prompt,
        policy=policy,
        limits=limits_of(request.limits, {}),
        misfire=request.misfire,
        misfire_max=request.misfire_max,
        overlap=request.overlap,
        jitter_seconds=request.jitter_seconds,
        until=request.until,
        repeatable=request.repeatable,
        in_process=request.in_process,
    )
