"""The suite that every policy adapter passes: each check is one promise of `ramet.host.policy_adapters.PolicyAdapter`.

    for check in CHECKS:
        await run(check, MyAdapter)

`make` returns an adapter; it is called for each check. A check raises Violation, with the promise that is not kept. No
test framework is needed: `python -m ramet.testing.conformance.policy_adapters package.module:MyAdapter` does the same,
with status 1 if a promise is not kept.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from ramet.core.errors import InvalidValue
from ramet.core.policy.decision import Allow, Narrow, PolicyRequest, Refuse, check_narrow
from ramet.core.policy.policy import Policy, resolve_root_policy, to_public_dict
from ramet.host.policy_adapters.adapter import TIMEOUT_S, PolicyAdapter, check_policy_adapter
from ramet.testing.conformance.checks import Violation as Violation
from ramet.testing.conformance.checks import one_line

PATIENCE_S = TIMEOUT_S  #: the time limit for one answer, and for the end of a cancelled call
_USAGE = "usage: python -m ramet.testing.conformance.policy_adapters package.module:Name"
_CONCURRENT = 100


Make = Callable[[], PolicyAdapter]
Check = Callable[[PolicyAdapter], Awaitable[None]]

_HAS_NETWORK: Final = to_public_dict(resolve_root_policy(Policy(allowed_endpoints=("*",), allow_sub_agents=True)))
_BARE: Final = to_public_dict(resolve_root_policy(Policy()))
#: Spawn requests of every kind, including strange ones: names and prompts come from models.
REQUESTS: Final[tuple[PolicyRequest, ...]] = (
    PolicyRequest(agent="general-purpose"),
    PolicyRequest(agent="function", granted=_HAS_NETWORK, asked={"allowed_endpoints": ["*"]}),
    PolicyRequest(
        agent="general-purpose",
        name="scout",
        root="run-1",
        parent="run-1",
        parent_agent="main",
        parent_path="main",
        depth=1,
        prompt="Look.",
        tools=("Read", "Grep"),
        limits={"tokens": 1000},
    ),
    PolicyRequest(agent="deep", root="run-1", parent="run-9", parent_path="main/1/1", depth=3, inherited=_HAS_NETWORK),
    PolicyRequest(agent="child", root="run-1", parent="run-1", depth=1, inherited=_HAS_NETWORK, granted=_BARE),
    PolicyRequest(agent="main", root="run-1", parent="run-1", depth=1, mode="fork", background=True, detached=True),
    PolicyRequest(agent="", prompt=""),
    PolicyRequest(agent="\x00\u202e'; drop table agents; --", name="../../x", prompt="{{7*7}} " * 1000, depth=1),
    PolicyRequest(agent="ä" * 200, session="s" * 200, model="anthropic:claude-sonnet-4-5", depth=100),
)


async def the_adapter_is_well_formed(adapter: PolicyAdapter) -> None:
    """Check that the adapter has a name of 1 to 100 printable characters, and an async `decide`."""
    try:
        check_policy_adapter("adapter", adapter)
    except InvalidValue as problem:
        raise Violation(problem.accepted) from None


async def every_spawn_gets_a_decision(adapter: PolicyAdapter) -> None:
    """Check that every request gets one of the three answers.

    An adapter refuses requests that it does not understand.
    """
    for request in REQUESTS:
        await _answer(adapter, request)


async def a_decoded_request_gets_the_same_decision(adapter: PolicyAdapter) -> None:
    """Check that a decoded request gets the same answer as the original: only the fields count."""
    for request in REQUESTS:
        decoded = msgspec.json.decode(msgspec.json.encode(request), type=PolicyRequest)
        first, second = await _answer(adapter, request), await _answer(adapter, decoded)
        if type(first) is not type(second):
            raise Violation(f"equal requests about {request.agent!r} were answered {first!r} and {second!r}")


async def concurrent_requests_are_decided(adapter: PolicyAdapter) -> None:
    """Check that spawns of all trees can be decided concurrently."""
    requests = [REQUESTS[each % len(REQUESTS)] for each in range(_CONCURRENT)]
    await asyncio.gather(*(_answer(adapter, each) for each in requests))


async def a_cancelled_call_ends(adapter: PolicyAdapter) -> None:
    """Check that a cancelled call ends, as for a stopped run, and that the adapter answers afterwards."""
    for request in REQUESTS:
        call = asyncio.ensure_future(adapter.decide(request))
        await asyncio.sleep(0)
        call.cancel()
        done, _ = await asyncio.wait({call}, timeout=PATIENCE_S)
        if not done:
            raise Violation(f"a call about {request.agent!r} did not end when it was cancelled")
        if not call.cancelled():
            call.exception()  # The call had ended before, or failed: other checks cover that.
        await _answer(adapter, request)


CHECKS: Final[tuple[Check, ...]] = (
    the_adapter_is_well_formed,
    every_spawn_gets_a_decision,
    a_decoded_request_gets_the_same_decision,
    concurrent_requests_are_decided,
    a_cancelled_call_ends,
)


async def run(check: Check, make: Make) -> None:
    """Run a check. Raises Violation if the promise is not kept."""
    try:
        adapter = make()
    except Exception as error:
        raise Violation(f"the adapter cannot be created: {type(error).__name__}: {error}") from error
    if check is not the_adapter_is_well_formed:
        await the_adapter_is_well_formed(adapter)
    await check(adapter)


async def _answer(adapter: PolicyAdapter, request: PolicyRequest) -> Allow | Narrow | Refuse:
    """Return the answer to one request. Raises Violation if there is none in time, or no valid one."""
    subject = f"a spawn of {request.agent!r}"
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer: Any = await adapter.decide(request)  # Any: a third-party adapter may return anything
    except TimeoutError:
        raise Violation(f"{subject} was not answered within {PATIENCE_S:g} s") from None
    except (Exception, SystemExit) as error:
        raise Violation(f"{subject}: {type(error).__name__} was raised: {error}") from error
    if not isinstance(answer, Allow | Narrow | Refuse):
        raise Violation(f"{subject} was answered with a value of type {type(answer).__name__}")
    if not isinstance(answer.reason, str):
        raise Violation(f"{subject}: the reason is not a text")
    if isinstance(answer, Refuse) and not answer.reason.strip():
        raise Violation(f"{subject} was refused without a reason")
    if isinstance(answer, Narrow):
        try:
            check_narrow(answer)
        except InvalidValue as problem:
            raise Violation(f"{subject}: {problem}") from None
    return answer


def main(arguments: Sequence[str]) -> int:
    """Run all checks on the named adapter; return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-") or ":" not in arguments[0]:
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    try:
        make: Any = importlib.metadata.EntryPoint("adapter", arguments[0], "ramet.policy_adapters").load()
    except Exception as problem:  # The call runs the module's own code.
        sys.stderr.write(f"{arguments[0]} cannot be loaded: {one_line(problem)}\n")
        return 2
    failed = 0
    for check in CHECKS:
        try:
            asyncio.run(run(check, make))
        except Violation as violation:
            failed += 1
            sys.stdout.write(f"failed  {check.__name__}: {one_line(violation)}\n")
        else:
            sys.stdout.write(f"passed  {check.__name__}\n")
    sys.stdout.write(f"{len(CHECKS)} checks, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
