"""host/prompts.py: what an agent is told before its brief."""

from __future__ import annotations

import json
import math
import pathlib
import sys

from ramet import Agent
from ramet.host.prompts import Prompts


def test_what_an_agent_may_use_is_listed_as_its_visibility_says() -> None:
    """High with its docstring, medium with its signature, low by name, as is what is not loaded here."""
    agent = Agent(name="solver", primer="You solve.")
    agent.module(math, include=["sin"], visibility="high")
    agent.fn(json.dumps)
    agent.module("not_loaded_here.part", visibility="high")

    said = Prompts(None, None).system(agent, pathlib.Path())

    assert said.startswith("You solve.")
    assert "Return the sine of x" in said
    assert "- function dumps(obj, " in said
    assert "- module not_loaded_here.part" in said
    assert "not_loaded_here" not in sys.modules
