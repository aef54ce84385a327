"""Tools that another process can rebuild from their names, and tools that are sent to it."""

import re

from langchain_core.tools import StructuredTool

from ramet.tools.builtins import builtin_tools, is_builtin


def test_all_tools_of_ramet_and_no_others_are_builtin() -> None:
    """A user's tool that is called like one of ramet's is sent as code; it does not become ramet's in a sandbox."""

    def read(file_path: str) -> str:
        """Read something else."""
        return file_path

    tools = builtin_tools({"worker": "works"})
    assert {"Read", "Bash", "Agent", "SendMessage", "python"} <= tools.keys()
    assert all(is_builtin(tool) for tool in tools.values())
    assert not is_builtin(StructuredTool.from_function(read, name="Read"))


def test_the_schema_that_a_model_sees_has_no_fields_of_the_tool_itself() -> None:
    """Fields that a tool needs for its calls, such as its function, are neither in its schema nor in the log."""
    tool = builtin_tools({})["TaskStop"]
    assert sorted(tool.args) == ["reason", "task_id"]
    assert not re.search("function|arguments_class", str(tool.model_dump(mode="json")))
