"""The gate before every tool call of a tree: intention, votes, decision, each recorded before the next step.

Every failure denies: a voter that raises, takes too long or returns an invalid answer; an unreadable policy; a person
who does not answer. If the journal cannot be written, nothing runs.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import IntentionDecided, IntentionRecorded
from ramet.core.ids import CallId, StepId
from ramet.core.safety import MAX_REASON, VERDICTS, SafetyPolicy, Vote, VoterAnswer, decide
from ramet.host.safety.policies import FixedPolicy, PolicySource, PolicyVersion
from ramet.host.safety.voters import RuleVoter, Voter
from ramet.tools.context import CurrentCall, ToolUseContext, current_call
from ramet.tools.decisions import SafetyDecision

T = TypeVar("T")
TIMEOUT_S = 30.0


class SafetyGate:
    """A gate that lets a tool call run only if the policy's decider commits it.

    The gate covers a whole tree, children and sandboxes included. The policy's rules vote first, then `voters` in their
    order, each for at most `timeout_s` seconds; voting ends once the call is decided. A policy of a store
    (`SafetyPolicies.policy`) is read again for each call, and its version is pinned in the intention.
    """

    def __init__(
        self, policy: SafetyPolicy | PolicySource, voters: Sequence[Voter] = (), *, timeout_s: float = TIMEOUT_S
    ) -> None:
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
            raise InvalidValue("timeout_s", timeout_s, "seconds above 0")
        if not isinstance(policy, SafetyPolicy) and not callable(getattr(policy, "read", None)):
            raise InvalidValue("policy", policy, "a SafetyPolicy, or one of a store: SafetyPolicies(store).policy('…')")
        self._source: PolicySource = FixedPolicy(policy) if isinstance(policy, SafetyPolicy) else policy
        self._voters: tuple[Voter, ...] = (RuleVoter(), *voters)
        names = [getattr(each, "name", None) for each in self._voters]
        for index, (voter, name) in enumerate(zip(self._voters, names, strict=True)):
            if not callable(getattr(voter, "vote", None)) or not isinstance(name, str) or name in names[:index]:
                raise InvalidValue(f"voters[{index - 1}]", voter, "a Voter with a name of its own")
        self._timeout_s = timeout_s

    async def __call__(
        self, context: ToolUseContext, *, call_id: CallId, tool: str, args: dict[str, Any]
    ) -> SafetyDecision:
        """Decide on a call; the decision is durable when this returns.

        Raises StoreFailed if the decision cannot be recorded, Aborted if the run is stopped meanwhile: then the call
        must not run.
        """
        policy_version, problem = await self._policy(context)
        intention = IntentionRecorded(
            **context.run.stamp,
            call_id=call_id,
            tool=tool,
            args=copy.deepcopy(args),
            policy=self._source.name if policy_version is None else policy_version.name,
            version=0 if policy_version is None else policy_version.version,
        )
        intention = context.record(intention)  # type: ignore[assignment]  # it is the same event, numbered
        votes: list[Vote] = []
        decision = VoterAnswer("deny", "there is no decision: the run was stopped, or its journal failed")
        try:
            await context.wait_persisted()
            decision = (
                VoterAnswer("deny", problem)
                if policy_version is None
                else await self._poll(context, intention, policy_version, votes)
            )
        finally:
            context.emit(
                IntentionDecided,
                call_id=call_id,
                tool=tool,
                intention=intention.seq,
                committed=decision.verdict == "allow",
                reason=decision.reason[:MAX_REASON],
                votes=tuple(votes),
            )
        await context.wait_persisted()
        return SafetyDecision(decision.verdict == "allow", decision.reason)

    async def _policy(self, context: ToolUseContext) -> tuple[PolicyVersion | None, str]:
        """Return the present policy, or None and the reason why it cannot be read."""
        try:
            policy_version: Any = await self._in_time(context, self._source.read())  # Any: a source may give anything
        except Exception as problem:
            context.abort.raise_if_aborted()
            return None, f"its policy {self._source.name!r} cannot be read: {_describe_error(problem)}"
        if not isinstance(policy_version, PolicyVersion) or not isinstance(policy_version.policy, SafetyPolicy):
            return None, f"its policy {self._source.name!r} cannot be read: it is not a safety policy"
        return policy_version, ""

    async def _poll(
        self, context: ToolUseContext, intention: IntentionRecorded, policy_version: PolicyVersion, votes: list[Vote]
    ) -> VoterAnswer:
        """Ask the voters in order until the call is decided; if the decision is "ask", ask a person."""
        decided: VoterAnswer | None = None
        for voter in self._voters:
            votes.append(await self._vote(context, voter, intention, policy_version.policy))
            decided = decide(policy_version.policy.decider, votes, len(self._voters))
            if decided is not None:
                break
        if decided is None:  # An undecided call is not committed.
            return VoterAnswer("deny", "the votes came to no decision")
        if decided.verdict != "ask":
            return decided
        votes.append(await self._ask_person(context, intention, decided.reason))
        return VoterAnswer("allow" if votes[-1].verdict == "allow" else "deny", votes[-1].reason)

    async def _vote(
        self, context: ToolUseContext, voter: Voter, intention: IntentionRecorded, policy: SafetyPolicy
    ) -> Vote:
        """Return one voter's vote; no answer is a denial. Raises Aborted if the run is stopped meanwhile."""
        intention_copy = replace(intention, args=copy.deepcopy(intention.args))
        try:
            answer = await self._in_time(context, _ask_voter(voter, intention_copy, policy))
        except Exception as problem:
            context.abort.raise_if_aborted()
            return Vote(voter=voter.name, verdict="deny", reason=f"it could not vote: {_describe_error(problem)}")
        if not isinstance(answer, VoterAnswer) or answer.verdict not in VERDICTS or not isinstance(answer.reason, str):
            return Vote(
                voter=voter.name,
                verdict="deny",
                reason=f"it could not vote: {_describe_type(answer)} is not a valid answer",
            )
        return Vote(voter=voter.name, verdict=answer.verdict, reason=answer.reason[:MAX_REASON])

    async def _ask_person(self, context: ToolUseContext, intention: IntentionRecorded, question: str) -> Vote:
        """Return a person's vote, from the tree's inbox."""
        question, tool = question or "Allow this call?", intention.tool
        if context.hooks is not None and context.hooks.listens("Notification"):
            payload = {"message": f"{tool} waits for approval: {question}", "notification_type": "permission_prompt"}
            await context.hooks.fire("Notification", context, payload, matcher="permission_prompt")
        if context.approve is None:
            return Vote(voter="person", verdict="deny", reason="no person is available to approve it")
        # The question belongs to this call.
        token = current_call.set(CurrentCall(context, CallId(intention.call_id or ""), StepId("")))
        try:
            allowed = await context.approve(context, tool=tool, question=question, args=intention.args)
        except Exception as problem:
            context.abort.raise_if_aborted()
            return Vote(voter="person", verdict="deny", reason=f"no person could be asked: {_describe_error(problem)}")
        finally:
            current_call.reset(token)
        if not allowed:
            return Vote(voter="person", verdict="deny", reason=allowed.denial[:MAX_REASON])
        return Vote(voter="person", verdict="allow", reason="it was approved")

    async def _in_time(self, context: ToolUseContext, work: Coroutine[Any, Any, T]) -> T:
        return await wait_with_timeout(work, clock=context.clock, seconds=self._timeout_s, abort=context.abort)


async def _ask_voter(voter: Voter, intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
    try:
        if inspect.iscoroutinefunction(voter.vote):
            return await voter.vote(intention, policy)  # type: ignore[no-any-return]  # the caller checks the type
        answer = await in_thread(lambda: voter.vote(intention, policy), name="ramet-voter")
        return await answer if inspect.isawaitable(answer) else answer
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # These would end the event loop.
        raise RametError(f"it raised {error!r}") from None


def _describe_error(problem: Exception) -> str:
    text = str(problem)[: MAX_REASON // 2]
    return text if isinstance(problem, RametError | TimeoutError) else f"{type(problem).__name__}: {text}"


def _describe_type(value: object) -> str:
    return f"a value of type {type(value).__name__}"
