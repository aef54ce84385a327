"""Requests and answers that only the HTTP API has, in addition to the contract's structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ramet.services.contract import AgentInfo, BaseRequest, TeamInfo
from ramet.services.packaging.contract import BundleInfo, ImageInfo
from ramet.services.turns.turn import OnLeave


class TurnOptions(BaseRequest):
    """How a message is answered: in which format, and what becomes of the turn when its last reader leaves."""

    format: str = ""
    on_leave: OnLeave = "go_on"


class After(BaseRequest):
    """What is read on from: the number of a chunk, or a cursor of events. The header Last-Event-ID goes before it."""

    after: int = 0


class Newest(BaseRequest):
    """How many of the newest messages are wanted; without a number all of them."""

    last: int | None = None


class WhichTurn(BaseRequest):
    """One turn by its id, under way or waiting; none is the one under way."""

    turn: str = ""


class AgentFilter(BaseRequest):
    """Which agents to list; `label` is `name=value`, and may be given more than once."""

    team: str = ""
    state: str = ""
    under: str = ""
    label: Sequence[str] = ()


class Mail(BaseRequest, omit_defaults=True):
    """A message that an agent reads at its next step."""

    text: str
    dedupe_s: float | None = None  #: seconds in which an equal message is left out; only for agents that can


class Rotated(Struct):
    """The only time that the owner's new key is shown; the old one is dead."""

    nonce: str


class Interrupted(Struct):
    """Whether there was a turn to interrupt; it is over now."""

    interrupted: bool


class History(Struct):
    """The conversation so far: at least `role` and `content` of each message."""

    messages: Sequence[Mapping[str, Any]]


class TeamList(Struct):
    """Teams that a key opens."""

    teams: Sequence[TeamInfo]


class AgentList(Struct):
    """Agents that a key opens."""

    agents: Sequence[AgentInfo]


class BundleList(Struct):
    """Bundles that are kept, by their ids."""

    bundles: Sequence[BundleInfo]


class ImageList(Struct):
    """Images that agents can be spawned from, the oldest first."""

    images: Sequence[ImageInfo]


class Health(Struct):
    """That the server answers, and which version it is of."""

    status: str
    version: str
