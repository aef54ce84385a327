"""Round of kills of a tree that pauses at a limit of five calls, is raised by three, and pauses again.

The loopback server counts requests as they arrive. A request in flight when its kernel dies counts as used, whether it
arrived or not. So of each limit the server sees at most all, and less only by the requests that kills cut off.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from ramet.core import events
from ramet.core.events import Event
from ramet.core.replay.replay import TreeReplay
from ramet.models.scripted.dialogue import Script
from tests.chaos.checks import check, lines, read_events, the_tree
from tests.chaos.deadly import Kill
from tests.chaos.kernels import Kernel, Orphans, inheriting_orphans, start
from tests.chaos.limited import ABOVE, ANSWERED, GIVEN, RAISE, RAISES, REQUESTS, SCRIPT, TALLIER
from tests.support.http import Answer, Request, serve
from tests.support.providers import Provider

TRIPS = ("one", "nested", "hundred", "one", "talk", "nested", "one", "hundred", "one", "nested")
#: The writes around which kernels are killed, and how many of each a trip of one run makes.
INTERESTING = {"limit_paused": 2, "limits_raised": 2, "model_asked": 12}
PHASES = ("before", "acked", "after")
LENGTH_S = {"one": 0.6, "nested": 0.8, "talk": 1.5, "hundred": 2.0}
WRITES = {"one": 70, "nested": 80, "talk": 80, "hundred": 900}
FURTHER = (0, 1, 1, 2)


class CountingProvider(Provider):
    """Loopback server of the model that notes how many requests it had seen at each mark."""

    def __init__(self, url: str, script: Script) -> None:
        super().__init__(url, script)
        self.marks: dict[str, int] = {}  #: by key of a raise: the requests before it; the first visit counts

    async def answer(self, request: Request, answer: Answer) -> None:
        """Note a mark, or play the next step."""
        if request.path.startswith("/marks/"):
            self.marks.setdefault(request.path.rpartition("/")[2], self.count)
            await answer.send(200, {})
        else:
            await super().answer(request, answer)


@contextlib.asynccontextmanager
async def counting_provider(folder: pathlib.Path, script: Script = SCRIPT) -> AsyncIterator[CountingProvider]:
    """Serve the model of all trips, and leave its address in the folder."""
    made: list[CountingProvider] = []

    async def handle(request: Request, answer: Answer) -> None:
        await made[0].answer(request, answer)

    async with serve(handle) as url:
        made.append(CountingProvider(url, script))
        (folder / "address").write_text(url)
        yield made[0]


@dataclass(frozen=True)
class LimitedRound:
    """Plan of one round. The number and the seed draw the moments, always alike."""

    number: int
    seed: int

    @property
    def trip(self) -> str:
        """Name of the trip."""
        return TRIPS[self.number % len(TRIPS)]

    @property
    def on_server(self) -> bool:
        """True if the journal is on PostgreSQL."""
        return (self.number + self.number // len(TRIPS)) % 2 == 1

    @property
    def cancels(self) -> bool:
        """True if the owner cancels the tree at its second pause."""
        return self.number % 7 == 3

    def moments(self) -> list[Kill | float]:
        """Draw the moments at which kernels are killed in turn."""
        dice = random.Random(f"limits/{self.seed}/{self.number}")  # noqa: S311, RUF100 - dice, no secrets
        turns = [(kind, phase) for kind in INTERESTING for phase in PHASES]
        kind, phase = turns[self.number % len(turns)]
        moments: list[Kill | float] = [Kill(phase, kind, dice.randint(1, self._most(kind)))]
        for _ in range(dice.choice(FURTHER)):
            drawn = dice.random()
            if drawn < 0.3:
                moments.append(dice.uniform(0, LENGTH_S[self.trip]))
            elif drawn < 0.6:
                moments.append(Kill(dice.choice(PHASES), "*", dice.randint(1, WRITES[self.trip])))
            else:
                kind = dice.choice(tuple(INTERESTING))
                moments.append(Kill(dice.choice(PHASES), kind, dice.randint(1, self._most(kind))))
        return moments

    def _most(self, kind: str) -> int:
        if self.trip == "hundred" and kind == "limit_paused":
            return 150
        if self.trip == "hundred" and kind == "model_asked":
            return 20
        return INTERESTING[kind]


async def play(this: LimitedRound, folder: pathlib.Path, server: Sequence[str]) -> None:
    """Play a round. A failure carries a note with the number, seed and kills that play the round again."""
    moments = this.moments()
    if this.cancels:
        (folder / "cancels").touch()
    try:
        async with counting_provider(folder) as model:
            with inheriting_orphans() as orphans:
                for moment in moments:
                    kernel = await start(f"limited {this.trip}", folder, _kill_of(moment), server)
                    code = await (kernel.end() if isinstance(moment, Kill) else kernel.kill_after(moment))
                    await ended(kernel, orphans, code, (0, -signal.SIGKILL))
                    check_bounds(await read_events(folder, server), model)
                kernel = await start(f"limited {this.trip}", folder, None, server)
                await ended(kernel, orphans, await kernel.end(), (0,))
        look(this.trip, folder, await read_events(folder, server), model, cancels=this.cancels)
    except BaseException as problem:
        problem.add_note(f"limited round {this.number} of seed {this.seed}: {this.trip}, killed at {moments}")
        problem.add_note(f"{lines(folder / 'answers')}, {lines(folder / 'deaths')}")
        raise


def _kill_of(moment: Kill | float) -> Kill | None:
    return moment if isinstance(moment, Kill) else None


async def ended(kernel: Kernel, orphans: Orphans | None, code: int, allowed: Sequence[int]) -> None:
    """Check the exit code of a kernel; wait until all its processes have ended, without `orphans` some may stay."""
    if orphans is not None:
        await orphans.wait_ended()
    assert code in allowed, f"it ended with {code}: {kernel.words}"


# --- checks


@dataclass
class Calls:
    """Requests on record: of the run with the limit and all below it, up to some point."""

    limit: int = GIVEN
    asked: int = 0
    replied: int = 0


def check_bounds(trees: dict[str, list[Event]], model: Provider) -> None:
    """Check that at no point more calls are on record than the limit of that point, nor seen than are on record."""
    asked = 0
    for tree_events in trees.values():
        calls_at_raises(tree_events)
        asked += sum(each.requests for each in tree_events if isinstance(each, events.ModelAsked))
    assert model.count <= asked, f"{model.count} requests were seen, {asked} are on record"


def calls_at_raises(tree_events: Sequence[Event]) -> dict[str, Calls]:
    """Return the calls before each raise, by key, and those of the end under "". No raise counts twice."""
    path = _path_of_scope(tree_events)
    now, found = Calls(), dict[str, Calls]()
    for each in tree_events:
        is_below = each.path == path or each.path.startswith(f"{path}/")
        if isinstance(each, events.LimitsRaised):
            assert each.path == path, f"the limit of {each.path} was raised, not that of {path}"
            assert each.key not in found, f"{each.key!r} counts twice"
            found[each.key] = now
            now = Calls(now.limit + _added(each), now.asked, now.replied)
        elif is_below and isinstance(each, events.ModelAsked):
            now.asked += each.requests
            assert now.asked <= now.limit, f"call {now.asked} of {now.limit}: {each}"
        elif is_below and isinstance(each, events.MessageRecorded) and each.message.get("type") == "ai":
            now.replied += 1
    return {**found, "": now}


def _path_of_scope(tree_events: Sequence[Event]) -> str:
    return next((each.path for each in tree_events if each.agent == TALLIER), "main")


def _added(raised: events.LimitsRaised) -> int:
    add = raised.add
    return int(add["model_calls"] if isinstance(add, dict) else add.model_calls or 0)


def look(
    trip: str,
    folder: pathlib.Path,
    trees: dict[str, list[Event]],
    model: CountingProvider,
    *,
    cancels: bool = False,
) -> TreeReplay:
    """Check a tree that has ended: each limit was used in full and never exceeded, and each raise counts once."""
    story = check(folder, trees, [])
    tree_events = the_tree(trees)
    check_bounds(trees, model)
    calls = calls_at_raises(tree_events)
    above = 1 if trip == "nested" else 0  # The root's own call, which the child's limit does not count.
    at_pauses = {"first": calls["first"], "last": calls[""] if cancels else calls["last"]}
    for key, limit in (("first", GIVEN), ("last", GIVEN + RAISE)):
        now = at_pauses[key]
        assert (now.asked, now.limit) == (limit, limit), f"before {key}: {now}"
        cut = now.asked - now.replied
        assert now.asked - cut <= model.marks[key] - above <= now.asked, f"{key}: {model.marks}, {now}"
    _check_pauses(tree_events, cancels=cancels)
    _check_answers(trip, folder)
    _check_repeats(model, calls[""], above)
    result = story.root.result
    assert result is not None
    if cancels:
        assert str(result.status) == "cancelled", f"{result.status}: {result.error}"
    else:
        assert (str(result.status), result.value) == ("completed", ANSWERED[trip]), f"{result.status}: {result.error}"
        replies = Counter(str(each["type"]) for run in story.runs.values() for each in run.messages)["ai"]
        assert replies == REQUESTS[trip], "each reply of the dialogue is in the conversations once"
    return story


def _check_pauses(tree_events: Sequence[Event], *, cancels: bool) -> None:
    """Check that a pause is on record before each raise, as an event and as a state.

    A run that is not reached by a raise stays paused, and records no further pause. So with many runs in line, one
    pause before the first raise is enough. After a kill a raise is repeated at once: the pause that led to it may not
    have reached the disk.
    """
    stay_paused = len({each.run for each in tree_events if isinstance(each, events.LimitPaused)}) > RAISE
    is_paused, was_shown, raised = False, False, list[str]()
    for each in tree_events:
        if isinstance(each, events.RunResumed):
            is_paused = was_shown = True
        is_paused |= isinstance(each, events.LimitPaused)
        was_shown |= isinstance(each, events.StateChanged) and each.state == "paused"
        if isinstance(each, events.LimitsRaised):
            assert is_paused, f"no pause before {each.key}"
            assert was_shown, f"no state `paused` before {each.key}"
            is_paused = was_shown = stay_paused
            raised.append(each.key)
    assert raised == [each.key for each in RAISES][: 1 if cancels else None]
    resources = {each.resource for each in tree_events if isinstance(each, events.LimitPaused)}
    assert resources == {"model_calls"}


def _check_answers(trip: str, folder: pathlib.Path) -> None:
    """Check that each answer shows a limit that the raises so far give, and that too large a raise was refused."""
    totals = {GIVEN + RAISE, RAISES[-1].before + RAISES[-1].calls}
    for each in map(json.loads, lines(folder / "answers")):
        assert each["model_calls"] in totals, each
        assert each["at_limit"] == "pause", each
    if trip == "nested":
        refusals = [json.loads(each) for each in lines(folder / "refusals")]
        assert refusals, "it was never tried"
        for each in refusals:
            assert each["scope"] == "main", each
            assert each["left"] < (ABOVE.model_calls or 0) - GIVEN, each


def _check_repeats(model: Provider, calls: Calls, above: int) -> None:
    """Check that a conversation was sent twice only where a kill cut a request off, which is then on record."""
    sent = Counter(json.dumps(each["messages"], sort_keys=True) for each in model.bodies)
    repeats = sum(number - 1 for number in sent.values())
    assert repeats <= calls.asked - calls.replied + above, f"{repeats} requests were repeated: {calls}"
