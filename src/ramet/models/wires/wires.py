"""The wires that are known here, by the first part of a path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ramet.models.wires.anthropic import AnthropicWire
from ramet.models.wires.contract import Wire
from ramet.models.wires.google import GoogleWire
from ramet.models.wires.openai import OpenAIWire

WIRES: Final[Mapping[str, Wire]] = {wire.name: wire for wire in (AnthropicWire(), OpenAIWire(), GoogleWire())}
