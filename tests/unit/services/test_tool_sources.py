"""Tools from the source of functions, and the manifests of bundles."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.agent_types.tool_schemas import tool_of, tools_of
from ramet.services.packaging.service import PackagingService
from tests.support.tars import tar

STRING, WHOLE = {"type": "string"}, {"type": "integer"}


def schema_of(folder: pathlib.Path, signature: str) -> dict[str, Any]:
    """Return the schema of a function with these parameters."""
    (folder / "kit.py").write_text(f"raise SystemExit('run')\ndef tool({signature}):\n    '''What it does.'''\n")
    return dict(tool_of("kit:tool", [folder], "tools").schema)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("x: str", STRING),
        ("x: int | None", {"anyOf": [WHOLE, {"type": "null"}]}),
        ("x: typing.Optional[int]", {"anyOf": [WHOLE, {"type": "null"}]}),
        ("x: Union[int, str, bool]", {"anyOf": [WHOLE, STRING, {"type": "boolean"}]}),
        ("x: dict[str, float]", {"type": "object", "additionalProperties": {"type": "number"}}),
        ("x: Literal['a', 1]", {"enum": ["a", 1]}),
        ("x: Annotated[str, 'of whom']", {"type": "string", "description": "of whom"}),
        ("x: 'list[str]'", {"type": "array", "items": STRING}),
        ("x: Any", {}),
    ],
)  # fmt: skip
def test_a_parameter_type_becomes_json_schema(tmp_path: pathlib.Path, annotation: str, schema: dict[str, Any]) -> None:
    """The module's code is not run."""
    assert schema_of(tmp_path, annotation) == {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
    }


def test_parameters_with_defaults_are_optional(tmp_path: pathlib.Path) -> None:
    """A plain default appears in the schema."""
    schema = schema_of(tmp_path, "a: str, b: int = 3, *, c: list[str] = [], d: str")
    assert schema["required"] == ["a", "d"]
    assert schema["properties"]["b"] == {"type": "integer", "default": 3}
    assert schema["properties"]["c"] == {"type": "array", "items": STRING}


@pytest.mark.parametrize(
    "annotation", ["x", "*x: str", "**x: str", "x: str, /", "x: Path", "x: dict[int, str]", "x: 'x y'"]
)
def test_a_parameter_that_no_model_could_give_is_refused(tmp_path: pathlib.Path, annotation: str) -> None:
    """The module's code is not run."""
    with pytest.raises(InvalidValue):
        schema_of(tmp_path, annotation)


def test_a_tool_is_a_documented_function_at_the_top_of_a_module(tmp_path: pathlib.Path) -> None:
    """Two tools of one name are refused."""
    (tmp_path / "kit.py").write_text("x = 1\nclass C: pass\ndef f(): pass\ndef g():\n    'Does.'\n")
    (tmp_path / "broken.py").write_text("def (")
    for name in ("kit:x", "kit:C", "kit:f", "kit:nothing", "none:f", "kit", "..kit:f", "broken:f"):
        with pytest.raises(InvalidValue):
            tool_of(name, [tmp_path], "tools")
    with pytest.raises(InvalidValue, match="one tool of each name"):
        tools_of(["kit:g", "kit:g"], [tmp_path], "tools")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"tools = 1", "tools"),
        (b"colour = 'red'", "colour"),
        (b"\xff", "TOML"),
        (b"[", "TOML"),
        (b"tools = ['kit:nothing']", "kit:nothing"),
        (b"tools = ['os:getcwd']", "os:getcwd"),
        (b"tools = ['kit:f', 'kit:f']", "each once"),
        (b"skills = ['../kit']", "skills"),
        (b"skills = ['nothing']", "nothing"),
        (b"skills = ['bad']", "front matter"),
        (b"#" * 70_000, "at most"),
    ],
    ids=range(11),
)
async def test_a_bundle_with_a_wrong_manifest_is_not_kept(
    tmp_path: pathlib.Path, manifest: bytes, message: str
) -> None:
    """The manifest must name tools and skills that exist and are valid."""
    files = {"bundle.toml": manifest, "kit.py": b"def f():\n    'Does.'\n", "skills/bad/SKILL.md": b"nothing"}
    async with PackagingService(tmp_path) as packaging:
        with pytest.raises(InvalidValue, match=message) as refusal:
            await packaging.upload(tar(files))
        assert str(tmp_path) not in str(refusal.value)
        assert await packaging.list_bundles() == []
        assert [each.name for each in (tmp_path / "bundles").iterdir()] == []


def _large(folder: pathlib.Path, name: str, *, size: int = 120_000) -> None:
    """Write a module with a hundred functions and a long constant."""
    functions = "".join(f"def f{i}(a: int) -> int:\n    'Does.'\n    return a\n" for i in range(100))
    (folder / name).write_text(functions + "x = [" + "1+1," * (size // 4) + "]\n")


def test_many_tools_of_one_module_cost_one_read(tmp_path: pathlib.Path) -> None:
    """A request that names a hundred functions must not cost a hundred times as much."""
    for name in ("one.py", "many.py"):
        _large(tmp_path, name)
    start_time = time.process_time()
    tools_of(["one:f1"], [tmp_path], "tools")
    once = time.process_time() - start_time

    tools_of([f"many:f{i}" for i in range(100)], [tmp_path], "tools")
    tools_of([f"many:f{i}" for i in range(100)], [tmp_path], "tools")

    assert time.process_time() - start_time - once < 20 * once


def test_a_changed_source_is_read_again(tmp_path: pathlib.Path) -> None:
    """A folder that is not a bundle may change."""
    assert schema_of(tmp_path, "a: int")["required"] == ["a"]
    assert schema_of(tmp_path, "another: int")["required"] == ["another"]


def test_large_modules_are_refused_by_their_size(tmp_path: pathlib.Path) -> None:
    """Each module has a limit, and so have the modules of one request."""
    _large(tmp_path, "large.py", size=300_000)
    for number in range(9):
        _large(tmp_path, f"m{number}.py")

    with pytest.raises(InvalidValue, match=r"large\.py.*at most 262144"):
        tools_of(["large:f1"], [tmp_path], "tools")
    with pytest.raises(InvalidValue, match="at most 1048576"):
        tools_of([f"m{number}:f{number}" for number in range(9)], [tmp_path], "tools")
