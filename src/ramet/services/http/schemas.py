"""Requests and answers that only the HTTP API has, in addition to the contract's structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ramet.services.contract import AgentInfo, BaseRequest, TeamInfo
from ramet.services.packaging.contract import BundleInfo, ImageInfo
from ramet.services.turns.turn import OnLeave


class TurnOptions(BaseRequest):
    """Choose how a message is answered: the format, and what happens to the turn when its last reader leaves."""

    format: str = ""
    on_leave: OnLeave = "go_on"


class After(BaseRequest):
    """Choose where reading continues: the number of a chunk, or a cursor of events. The header Last-Event-ID wins."""

    after: int = 0


class Newest(BaseRequest):
    """Choose the number of newest messages; without a number, all of them."""

    last: int | None = None


class WhichTurn(BaseRequest):
    """Choose a turn by its id, running or queued; without an id, the running one."""

    turn: str = ""


class AgentFilter(BaseRequest):
    """Choose the agents to list; `label` is `name=value`, and may be given more than once."""

    team: str = ""
    state: str = ""
    under: str = ""
    label: Sequence[str] = ()


class Mail(BaseRequest, omit_defaults=True):
    """A message that an agent reads at its next step."""

    text: str
    dedupe_s: float | None = None  #: seconds in which an equal message is left out; only for agents that can


class Rotated(Struct):
    """The owner's new key, which is shown only here; the old key no longer works."""

    nonce: str


class Interrupted(Struct):
    """The result of an interruption: whether a turn was running. That turn has ended."""

    interrupted: bool


class History(Struct):
    """The conversation so far: at least `role` and `content` of each message."""

    messages: Sequence[Mapping[str, Any]]


class TeamList(Struct):
    """The teams that a key opens."""

    teams: Sequence[TeamInfo]


class AgentList(Struct):
    """The agents that a key opens."""

    agents: Sequence[AgentInfo]


class BundleList(Struct):
    """The stored bundles, by their ids."""

    bundles: Sequence[BundleInfo]


class ImageList(Struct):
    """The images that agents can be spawned from, the oldest first."""

    images: Sequence[ImageInfo]


class Health(Struct):
    """The state of the server, and its version."""

    status: str
    version: str
