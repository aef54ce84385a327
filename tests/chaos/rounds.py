"""Round of kills: a trip, kernels killed at moments that a seed draws, a last kernel that lives, and the checks."""

from __future__ import annotations

import json
import pathlib
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.agent.history.pairing import groups
from ramet.models.messages import decode
from tests.chaos.checks import Death, check, check_notices, death_of, effects, read_events
from tests.chaos.deadly import Kill
from tests.chaos.functions import FOUND, RUNS
from tests.chaos.kernels import inheriting_orphans, start
from tests.chaos.planned import NOTES

#: What each trip writes when nobody disturbs it: how many of each kind.
WRITES: dict[str, dict[str, int]] = {
    "models": {
        "message_recorded": 32,
        "model_asked": 14,
        "tool_started": 12,
        "tool_ended": 12,
        "turn_started": 6,
        "turn_ended": 6,
        "run_spawned": 5,
        "state_changed": 5,
        "run_ended": 5,
        "mail_pushed": 1,
        "mail_delivered": 1,
        "document": 1,
    },
    "functions": {
        "state_changed": 8,
        "run_spawned": 7,
        "turn_started": 7,
        "sandbox_started": 7,
        "turn_ended": 7,
        "run_ended": 7,
        "document": 1,
    },
    "schedule": {"run_spawned": 1, "turn_started": 1, "turn_ended": 1, "run_ended": 1, "document": 5},
}
#: Which trips are made how often, and for how long a life of each goes on once it is up.
TRIPS = (
    *("models", "local", "postgres", "schedule", "models", "bwrap", "models", "postgres", "models", "outliving"),
    *("models", "talking", "postgres", "schedule", "models", "local", "models", "postgres", "models", "models"),
)
OUTLIVING = frozenset({"outliving", "talking"})  #: what a kernel of these has left at work, the next one goes on with
LENGTH_S = {
    "models": 0.25,
    "postgres": 0.5,
    "local": 1.2,
    "bwrap": 1.2,
    "outliving": 1.2,
    "talking": 2.0,
    "schedule": 0.1,
}
#: How many further kills a round has.
FURTHER = (0, 0, 1, 2)


@dataclass(frozen=True)
class Round:
    """Plan of one round. The number and the seed draw the moments, always alike."""

    number: int
    seed: int

    @property
    def trip(self) -> str:
        """Name of the trip."""
        return TRIPS[self.number % len(TRIPS)]

    @property
    def on_server(self) -> bool:
        """True if the journal is on PostgreSQL: always for that trip, in turns with a file for others."""
        turn = (self.number // 2 + self.number // len(TRIPS)) % 2
        return self.trip == "postgres" or (self.trip != "models" and turn == 1)

    def moments(self) -> list[Kill | float]:
        """Draw the moments at which kernels are killed in turn: at a write, or some seconds after a kernel is up."""
        dice = random.Random(f"{self.seed}/{self.number}")  # noqa: S311, RUF100 - dice, no secrets
        writes = WRITES[kind_of(self.trip)]
        # Every kind of write, before and after it, has its turn as the first; what follows is drawn.
        turns = [(phase, kind) for kind in writes for phase in ("before", "after")]
        random.Random(self.seed).shuffle(turns)  # noqa: S311, RUF100 - as above
        before = sum(kind_of(TRIPS[each % len(TRIPS)]) == kind_of(self.trip) for each in range(self.number))
        phase, kind = turns[before % len(turns)]
        moments: list[Kill | float] = [Kill(phase, kind, dice.randint(1, writes[kind]))]
        for _ in range(dice.choice(FURTHER)):
            if dice.random() < 0.5:
                moments.append(dice.uniform(0, LENGTH_S[self.trip]))
            else:
                moments.append(Kill(dice.choice(("before", "after")), "*", dice.randint(1, sum(writes.values()))))
        if before >= len(turns) and dice.random() < 0.3:
            moments[0] = dice.uniform(0, LENGTH_S[self.trip])
        return moments


def kind_of(trip: str) -> str:
    """Return the kind of writes that a trip makes, wherever it runs."""
    kinds = {"postgres": "models", "talking": "models"}
    kinds |= dict.fromkeys(("local", "bwrap", "outliving"), "functions")
    return kinds.get(trip, trip)


async def play(this: Round, folder: pathlib.Path, server: Sequence[str]) -> None:
    """Play a round. A failure carries a note with the number, seed and kills that play the round again."""
    trip = "models" if this.trip == "postgres" else this.trip
    deaths: list[Death] = []
    moments = this.moments()
    try:
        with inheriting_orphans() as orphans:
            for moment in moments:
                kernel = await start(trip, folder, moment if isinstance(moment, Kill) else None, server)
                code = await (kernel.end() if isinstance(moment, Kill) else kernel.kill_after(moment))
                if trip not in OUTLIVING:
                    await orphans.wait_ended()
                assert code in (0, -signal.SIGKILL), f"it ended with {code}: {kernel.words}"
                deaths.append(death_of(folder, await read_events(folder, server)))
            kernel = await start(trip, folder, None, server)
            code = await kernel.end()
            await orphans.wait_ended()
            assert code == 0, f"the last ended with {code}: {kernel.words}"
        await _look(trip, folder, server, deaths)
    except BaseException as problem:
        kills = ", ".join(map(str, moments))
        problem.add_note(f"round {this.number} of seed {this.seed}: {this.trip}, killed at {kills}")
        raise


async def _look(trip: str, folder: pathlib.Path, server: Sequence[str], deaths: Sequence[Death]) -> None:
    trees = await read_events(folder, server)
    if trip == "schedule":
        return _look_at_schedule(folder, len(trees))
    story = check(folder, trees, deaths)
    check_notices(story)
    result = story.root.result
    assert result is not None
    assert str(result.status) == "completed", f"{result.status}: {result.error}"
    if trip == "models":
        assert sorted(effects(folder)) == NOTES
        assert result.value == "the lead has heard of c"
    elif trip == "talking":
        assert result.value == "the lead has heard of c"
        assert not [
            each for run in story.runs.values() for each in groups(list(map(decode, run.messages))) if each.open
        ]
    else:
        assert result.value == FOUND, result.value
        assert len(story.runs) == RUNS, sorted(f"{run.spawn_event.path}={run.id}" for run in story.runs.values())


def _look_at_schedule(folder: pathlib.Path, trees: int) -> None:
    """Check that a tick begins at most once, and that `completed` is never reported without its effect."""
    statuses = json.loads((folder / "ended").read_text())["statuses"]
    assert len(statuses) == 1, statuses
    assert statuses[0] in ("completed", "lost"), statuses
    done = effects(folder)
    assert trees <= 1, f"{trees} trees for one tick"
    assert all(len(steps) == 1 for steps in done.values()), done
    assert statuses[0] == "lost" or list(done) == ["tick"], "completed without its effect"
