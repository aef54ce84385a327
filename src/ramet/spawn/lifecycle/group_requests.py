"""Requests between a lead and its peers: plans and shutdowns, by mail, each with an answer of its own.

A request is the mail that brings it, and has its id. Its answer is recorded with the run that gives it. A plan has a
call that waits; where none waits any more, the answer goes on as mail. A run that accepts a shutdown is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from ramet.concurrency.deadline import wait_with_timeout
from ramet.core.errors import Denied, InvalidValue, MailRefused, StoreFailed, Unknown
from ramet.core.events import RequestAnswered
from ramet.core.ids import RunId
from ramet.core.replay.request_replay import RequestReplay
from ramet.spawn.lifecycle.mail import MailRequest, MailRouter
from ramet.spawn.lifecycle.supervisor import Supervisor, context_without_call
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.tools.agents.report_framing import message, neutralise
from ramet.tools.decisions import PeerRequest, RequestKind, check_peer_request

_PLAN = "\n\n[This plan waits for you: answer it with AnswerRequest, whose request_id is the id of this message.]"
_SHUTDOWN = "[Your lead asks you to shut down. Answer with AnswerRequest, whose request_id is the id of this message.]"
_INTERRUPTED = "Your lead asks you to shut down: read its message first. Your plan still waits for an answer."
_LEAD_ENDED = "Your lead has ended, and answers no plan any more."


@dataclass(kw_only=True, slots=True, eq=False)
class _Request:
    mail: MailRequest
    sender: RunId
    recipient: RunId
    answer: RequestAnswered | None = None
    waiter: asyncio.Future[str] | None = None  #: of the call that waits

    def resolve(self, text: str) -> bool:
        """End the wait of the call with a text. Return False if no call waits."""
        if self.waiter is None or self.waiter.done():
            return False
        self.waiter.set_result(text)
        return True


class PeerRequests:
    """The requests of one tree: the newest of each kind from each run to each other."""

    def __init__(self, register: RunRegistry, supervisor: Supervisor, post: MailRouter) -> None:
        self._register, self._supervisor, self._post = register, supervisor, post
        self._newest: dict[tuple[RunId, RunId, RequestKind], _Request] = {}
        self._known: dict[tuple[RunId, str], _Request] = {}  #: plans of calls of a process that has ended
        self._shutdowns = set[asyncio.Task[None]]()
        supervisor.on_end.append(self.end_run)

    def restore(self, requests: Iterable[RequestReplay], open_calls: Collection[tuple[str, str]]) -> None:
        """Add the requests of another process. `open_calls`, by run and call, may be made again, and find theirs."""
        for each in requests:
            kind: RequestKind = "plan" if each.kind == "plan" else "shutdown"
            mail = MailRequest(kind=kind, call=each.call, id=each.id)
            request = _Request(
                mail=mail, sender=RunId(each.sender), recipient=RunId(each.recipient), answer=each.answer
            )
            self._newest[request.sender, request.recipient, kind] = request
            if (each.sender, each.call) in open_calls:
                self._known[request.sender, each.call] = request

    async def ask(self, run: Run, request: PeerRequest, request_key: str = "") -> str:
        """Execute a request of a run, and return what came of it.

        Raises MailRefused, Unknown, Denied or InvalidValue.
        """
        check_peer_request(request)
        match request.do:
            case "plan":
                return await self._submit_plan(run, request, request_key)
            case "shutdown":
                return self._request_shutdown(run, request, request_key)
            case "answer":
                return self._answer(run, request)

    def end_run(self, run: Run) -> None:
        """End the waits for a run that has ended."""
        for each in self._newest.values():
            if each.recipient == run.info.id:
                each.resolve(_LEAD_ENDED)

    # ---- plans

    async def _submit_plan(self, run: Run, request: PeerRequest, request_key: str) -> str:
        lead = _lead_of(run)
        plan = self._known.pop((run.info.id, request.call_id or ""), None)
        if plan is None:
            if self._post.awaits_end(lead, run):
                raise MailRefused(lead.path, "it waits for your result: make the plan your answer")
            text = request.text + _PLAN
            plan = self._send(run, lead, "plan", text, request_key, call=request.call_id or "")
        if plan.answer is not None:
            return _plan_answer(plan.answer)
        if self._is_asked_to_shut_down(run, lead):
            return _INTERRUPTED
        plan.waiter = asyncio.get_running_loop().create_future()
        if not lead.is_living:
            return _LEAD_ENDED
        try:
            return await wait_with_timeout(plan.waiter, clock=self._register.services.clock, seconds=request.timeout_s)
        except TimeoutError:
            return f"No answer within {request.timeout_s:g} s. It will come as a message: the plan is {plan.mail.id}."
        finally:
            plan.waiter = None

    def _send(
        self, sender: Run, recipient: Run, kind: RequestKind, text: str, request_key: str, *, call: str = ""
    ) -> _Request:
        mail = MailRequest(kind=kind, call=call)
        self._post.deliver(recipient, text, sender=sender.path, kind="agent", request_id=request_key, request=mail)
        request = _Request(mail=mail, sender=sender.info.id, recipient=recipient.info.id)
        self._newest[request.sender, request.recipient, kind] = request
        return request

    # ---- shutdowns

    def _request_shutdown(self, run: Run, request: PeerRequest, request_key: str) -> str:
        if request_key in self._register.mail_by_request:
            return f"Requested of {request.target}."
        peer = self._register.find(request.target, run)
        if peer.parent is not run or not run.agent.peers:
            raise Denied(f"request a shutdown of {request.target}", "it is not a peer that you lead")
        if not peer.is_living:
            raise MailRefused(peer.path, "it has ended already")
        reason = neutralise(request.text)[0]
        sent = self._send(run, peer, "shutdown", f"{reason}\n\n{_SHUTDOWN}".strip(), request_key)
        for each in self._newest.values():
            if each.sender == peer.info.id and each.recipient == run.info.id:
                each.resolve(_INTERRUPTED)
        return f"Requested of {peer.path} as {sent.mail.id}; the answer comes as a message."

    def _is_asked_to_shut_down(self, run: Run, lead: Run) -> bool:
        """Return whether a run has not read yet that its lead asks it to shut down."""
        asked = self._newest.get((lead.info.id, run.info.id, "shutdown"))
        return asked is not None and any(each.id == asked.mail.id for each in run.context.mailbox.unread)

    async def _shut_down(self, run: Run, reason: str) -> None:
        with suppress(StoreFailed):  # The runtime ends the tree, and reports why.
            await run.context.wait_persisted()
            await self._supervisor.stop(run, reason)

    # ---- answers

    def _answer(self, run: Run, request: PeerRequest) -> str:
        asked = [each for each in self._newest.values() if each.recipient == run.info.id]
        match = next((each for each in asked if each.mail.id == request.target), None)
        if match is None:
            raise Unknown("request", request.target, tuple(each.mail.id for each in asked if each.answer is None))
        if match.answer is not None:
            if match.answer.approved == request.is_approved:
                return "Answered."
            given = "approve" if match.answer.approved else "reject"
            raise InvalidValue("decision", request.target, f"an open request: you answered this one with {given}")
        sender = self._register.runs.get(match.sender)
        if sender is None or not sender.is_living:
            raise MailRefused(request.target, "the agent that asked has ended")
        event = run.context.emit(
            RequestAnswered, request_id=match.mail.id, approved=request.is_approved, text=request.text
        )
        assert isinstance(event, RequestAnswered)
        match.answer = event
        if match.mail.kind == "plan":
            self._pass_on(match, event, sender, run)
        else:
            self._end_request(match, event, sender, run)
        return "Answered."

    def _pass_on(self, plan: _Request, answer: RequestAnswered, sender: Run, lead: Run) -> None:
        """Give the answer to the call that waits, or to one that will be made again, or else as a notice."""
        will_wait = (
            sender.info.id,
            plan.mail.call,
        ) in self._known and plan.mail.call in sender.context.interrupted_calls
        if not plan.resolve(_plan_answer(answer)) and not will_wait:
            self._notify(sender, lead, plan, f"{_plan_answer(answer)} (It was {plan.mail.id}.)")

    def _notify(self, run: Run, by: Run, request: _Request, text: str) -> None:
        """Notify a run of the answer to its request: once, and whatever else is in its mailbox."""
        mail_id = f"answer:{request.mail.id}"
        self._post.notify(run, message(text, sender=by.path, mail_id=mail_id), mail_id=mail_id, sender=by.path)

    def resume(self) -> None:
        """Notify the peers of answers that their calls, which are not made again, did not receive."""
        for request in self._newest.values():
            sender, lead = self._register.runs.get(request.sender), self._register.runs.get(request.recipient)
            is_lost = (request.sender, request.mail.call) in self._known
            if is_lost and request.answer is not None and sender is not None and sender.is_living and lead is not None:
                self._pass_on(request, request.answer, sender, lead)

    def _end_request(self, request: _Request, answer: RequestAnswered, lead: Run, peer: Run) -> None:
        """Notify the lead of an answer to its request; stop a peer that accepted it."""
        word = "accepts" if answer.approved else "refuses"
        reason = f": {answer.text}" if answer.text else "."
        self._notify(lead, peer, request, f"{peer.name} {word} your request {request.mail.id} to shut down{reason}")
        if answer.approved:
            self.shut_down(peer, lead)

    def shut_down(self, peer: Run, lead: Run) -> None:
        """Stop a peer that accepted to shut down, once that is recorded."""
        reason = f"it accepted the request of {lead.path} to shut down"
        task = asyncio.create_task(
            self._shut_down(peer, reason), name=f"{peer.path}: shutdown", context=context_without_call()
        )
        self._shutdowns.add(task)
        task.add_done_callback(self._shutdowns.discard)


def _lead_of(run: Run) -> Run:
    """Return the lead of a peer. Raises Denied for a run that is none."""
    if run.parent is None or not run.parent.agent.peers:
        raise Denied("submit a plan", "no agent leads you")
    return run.parent


def check_mail(sender: Run, recipient: Run) -> None:
    """Raise MailRefused for mail to a peer from a run outside of its group.

    Its lead and the runs above, the lead's other children, and the runs below the peer itself belong to it.
    """
    lead = recipient.parent
    if lead is None or not lead.agent.peers:
        return
    is_inside = sender is lead or sender.parent is lead or sender.is_below(recipient) or lead.is_below(sender)
    if not is_inside:
        raise MailRefused(recipient.path, f"it is one of the peers that {lead.path} leads, and they alone write to it")


def _plan_answer(answer: RequestAnswered) -> str:
    word = "approved" if answer.approved else "rejected"
    feedback = neutralise(answer.text)[0]
    return f"Your lead {word} the plan{f': {feedback}' if feedback else '.'}"
