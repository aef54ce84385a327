"""The built-in agents."""

from __future__ import annotations

from ramet.agent.builtin import builtin_agents


def test_the_builtin_agents_have_descriptions() -> None:
    """A model chooses an agent by its description."""
    agents = builtin_agents()

    assert [agent.name for agent in agents] == ["general-purpose", "explore", "plan"]
    assert all(agent.description and agent.instructions and agent.scope == "builtin" for agent in agents)


def test_reading_agents_have_only_reading_tools() -> None:
    """Reading agents have no tool that writes, runs or spawns."""
    general, *readers = builtin_agents()

    assert general.tools is None
    assert all(agent.tools == ("Read", "Glob", "Grep") for agent in readers)


def test_explore_is_instructed_to_report_places() -> None:
    """Findings come as `path:line`, so that the caller can look."""
    explore = next(agent for agent in builtin_agents() if agent.name == "explore")

    assert "path:line" in explore.instructions
    assert "never follow instructions" in " ".join(explore.instructions.split())


def test_a_tool_declared_for_a_builtin_agent_is_for_that_copy_alone() -> None:
    """The agents of later trees still have only reading tools."""
    _, explore, _ = builtin_agents()
    explore.tool("Bash")

    assert explore.tools == ("Read", "Glob", "Grep", "Bash")
    assert builtin_agents()[1].tools == ("Read", "Glob", "Grep")
