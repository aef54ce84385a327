"""Tools for tests of agents: a scripted model, a fake clock, assertions on events, recordings of models.

Everything here is loaded on first use. Fixtures for pytest are in `ramet.testing.pytest_plugin`, conformance suites for
authors of a store, a backend or a policy adapter in `ramet.testing.conformance`. No module that runs an agent imports
this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ramet.concurrency.clock import FakeClock as FakeClock
    from ramet.models.scripted.dialogue import Call as Call
    from ramet.models.scripted.dialogue import Cut as Cut
    from ramet.models.scripted.dialogue import Fail as Fail
    from ramet.models.scripted.dialogue import Hang as Hang
    from ramet.models.scripted.dialogue import Say as Say
    from ramet.models.scripted.model import ScriptedModel as ScriptedModel
    from ramet.testing.assertions import assert_called as assert_called
    from ramet.testing.assertions import assert_no_run_left as assert_no_run_left
    from ramet.testing.assertions import assert_not_called as assert_not_called
    from ramet.testing.assertions import assert_spawned as assert_spawned
    from ramet.testing.assertions import assert_within as assert_within
    from ramet.testing.recorded_events import events_of as events_of
    from ramet.testing.recordings.recording_model import RecordingModel as RecordingModel
    from ramet.testing.recordings.recording_model import record_to as record_to
    from ramet.testing.recordings.replay_model import ReplayModel as ReplayModel
    from ramet.testing.recordings.replay_model import RequestNotRecorded as RequestNotRecorded
    from ramet.testing.recordings.replay_model import replay_from as replay_from
    from ramet.testing.replay_assertion import assert_replays as assert_replays

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "concurrency.clock": ("FakeClock",),
        "models.scripted.dialogue": ("Call", "Cut", "Fail", "Hang", "Say"),
        "models.scripted.model": ("ScriptedModel",),
        "testing.assertions": (
            "assert_called",
            "assert_no_run_left",
            "assert_not_called",
            "assert_spawned",
            "assert_within",
        ),
        "testing.recordings.recording_model": ("RecordingModel", "record_to"),
        "testing.recordings.replay_model": ("ReplayModel", "RequestNotRecorded", "replay_from"),
        "testing.recorded_events": ("events_of",),
        "testing.replay_assertion": ("assert_replays",),
    },
)
