"""The lock file of MCP servers, also one that a stranger wrote."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from ramet.agent.files.mcp_lock import LOCK_FILE, read_lock_file, write_lock_file
from ramet.core.errors import InvalidValue
from ramet.core.mcp.package_command import package_command
from ramet.core.mcp.server_entry import McpServer

SHA512 = "sha512-" + "A" * 86 + "=="
NPM = package_command(McpServer(name="x", command="npx", args=["x"]))
PYPI = package_command(McpServer(name="x", command="uvx", args=["x"]))


def read(folder: pathlib.Path, **lock: Any) -> Any:
    (folder / LOCK_FILE).write_text(json.dumps({"version": 1, "commands": {"npm:x": lock, "pypi:x": lock}}))
    return read_lock_file(folder)


def test_a_lock_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    """Another version of one package is another lock, and a project without a file has an empty one."""
    assert NPM is not None
    assert read_lock_file(tmp_path).find(NPM) is None
    package = {"version": "1.0.0", "integrity": SHA512, "dependencies": {"y": "npm:z@^1 || ~2"}}
    first = read(tmp_path, npm={"node_modules/x": package, "node_modules/x/node_modules/@a/y": package})
    write_lock_file(tmp_path, first)
    assert read_lock_file(tmp_path) == first
    second = read(tmp_path, npm={"node_modules/x": {**package, "version": "1.0.1"}})
    locks = [each.find(NPM) for each in (first, second)]
    assert None not in locks
    assert len({each.digest for each in locks if each is not None}) == 2


@pytest.mark.parametrize(
    "lock",
    [
        {"npm": {"node_modules/x": {"version": "1", "integrity": "sha1-x"}}},
        {"npm": {"node_modules/x": {"version": "1", "integrity": SHA512, "resolved": "http://x"}}},
        {"npm": {"node_modules/x": {"version": "http://x", "integrity": SHA512}}},
        {"npm": {"node_modules/x": {"version": "1", "integrity": SHA512, "dependencies": {"y": "git+ssh://x"}}}},
        {"npm": {"node_modules/x": {"version": "1", "integrity": SHA512, "dependencies": {"y": "file:../y"}}}},
        {"npm": {"node_modules/x": {"version": "1", "integrity": SHA512, "dependencies": {"y": ".."}}}},
        {"npm": {"../x": {"version": "1", "integrity": SHA512}}},
        {"npm": {"node_modules/../../x": {"version": "1", "integrity": SHA512}}},
        {"npm": {}},
        {"npm": {f"node_modules/x{number}": {"version": "1", "integrity": SHA512} for number in range(3_001)}},
        {"pypi": {"x": {"version": "1", "sha256": "0" * 63}}},
        {"pypi": {"x": {"version": "1\n", "sha256": "0" * 64}}},
        {"pypi": {"x --pre": {"version": "1", "sha256": "0" * 64}}},
        {"pypi": {"x\n": {"version": "1", "sha256": "0" * 64}}},
    ],
)
def test_a_lock_leads_nowhere_but_to_the_registry(tmp_path: pathlib.Path, lock: Any) -> None:
    """Addresses, folders, options and packages without a good hash are refused before any client reads them."""
    assert NPM is not None
    assert PYPI is not None
    with pytest.raises(InvalidValue, match=r"\.mcp\.lock\.json"):
        read(tmp_path, **lock).find(NPM if "npm" in lock else PYPI)
