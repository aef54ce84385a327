"""Commands of `npx` and `uvx`: which package they mean, and what is refused."""

from __future__ import annotations

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.mcp.package_command import PackageCommand, package_command
from ramet.core.mcp.server_entry import McpServer


def parse(line: str) -> PackageCommand | None:
    command, *args = line.split()
    return package_command(McpServer(name="x", command=command, args=args))


@pytest.mark.parametrize(
    ("line", "package", "requirement", "executable", "args"),
    [
        ("npx -y @scope/name@1.2.3 --root /x", "@scope/name", "@scope/name@1.2.3", "", "--root /x"),
        ("/usr/bin/npx --yes -p name@^1 -- run -p", "name", "name@^1", "run", "-p"),
        ("npx --package=name tool", "name", "name", "tool", ""),
        ("uvx -q name@1.2 --from x", "name", "name==1.2", "name", "--from x"),
        ("uvx --with b<2 --with=a name", "name", "name", "name", ""),
        ("uvx name@latest", "name", "name", "name", ""),
        ("uvx --from name[a,b]>=1,<2 tool", "name", "name[a,b]>=1,<2", "tool", ""),
    ],
)
def test_a_command_names_a_package(line: str, package: str, requirement: str, executable: str, args: str) -> None:
    """Options of the client come before the package, what follows belongs to the program."""
    found = parse(line)
    assert found is not None
    assert (found.package, found.requirement, found.executable, " ".join(found.args)) == (
        package,
        requirement,
        executable,
        args,
    )
    assert found.others == (("a", "b<2") if "--with" in line else ())
    assert parse("python3 -m npx") is None


@pytest.mark.parametrize(
    "line",
    [
        "npx",
        "npx -p name",
        "npx -c rm",
        "npx --registry=http://x name",
        "npx --yes=no name",
        "npx github:a/b",
        "npx a/b",
        "npx ./folder",
        "npx name@npm:other",
        "npx name@file:x",
        "npx name@http:x",
        "npx -p name ../x",
        "npx ${NAME}",
        "uvx --from git+https://x name",
        "uvx --default-index x name",
        "uvx --with ./other name",
        "uvx name@http://x",
        "uvx ./x.whl",
        "uvx name;python_version>'3'",
        "uvx " + "n" * 300,
        "bunx name",
        "pnpm dlx name",
        "npm exec name",
        "uv tool run name",
        "pipx run name",
    ],
)
def test_what_cannot_be_installed_beforehand_is_refused(line: str) -> None:
    """An address, a folder, another option or another client is named in the error."""
    with pytest.raises(InvalidValue, match=r"mcp\.x\."):
        parse(line)
