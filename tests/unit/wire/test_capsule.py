"""Tests of packed functions: what they contain, what they leave out, and how values that cannot be sent are named."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import pathlib
import pickle
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ramet.core.errors import NotShippable, ProtocolError
from ramet.wire.code import capsule
from ramet.wire.code.capsule import current_tag, pack, unpack
from tests.support.captured import captured_names

SCRIPT = """
import base64, sys
import shop.orders
import shop.settings
from shop.orders import total

RATE = 2
TOKEN = "xoxb-0123456789"

class Line:
    def __init__(self, price):
        self.price = price
    def doubled(self):
        return self.price * RATE

def by_value(*prices):
    return sum(Line(price).doubled() for price in prices)

def by_both(*prices):
    from shop.taxes import tax
    return total(prices) + tax()

def tells():
    return TOKEN

from ramet.wire.code.capsule import pack
from ramet.wire.code.closure_vars import parts
packed = pack(eval(sys.argv[1]), (1, 2))
"""
SCRIPT += inspect.getsource(captured_names)
SCRIPT += "print(packed.tag, base64.b64encode(packed.data).decode(), *captured_names(eval(sys.argv[1])))\n"
ORDERS = """
from . import money
from shop.parts.deep import FEE

def total(prices):
    return money.add(*prices) + FEE

def breaks(*_):
    raise KeyError('shop')

def maker():
    def made(*prices):
        from .taxes import tax
        return total(prices) + tax()
    return made
"""
MONEY = """
import decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import shop.settings

def add(*prices):
    return sum(prices)
"""
FILES = {
    "main.py": SCRIPT,
    "shop/__init__.py": "",
    "shop/orders.py": ORDERS,
    "shop/money.py": MONEY,
    "shop/parts/deep.py": "FEE = 100\n",  # a folder of packages without an __init__
    "shop/taxes.py": "def tax():\n    return 1000\n",
    "shop/settings.py": "PASSWORD = 'correct horse battery'\n",
    "shop/unused.py": "UNUSED = True\n",
    ".env": "KEY=canary-in-dot-env\n",
}
OPEN = """
import base64, sys
from ramet.wire.code.capsule import unpack
opened = unpack(base64.b64decode(sys.stdin.read()), sys.argv[1])
"""


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """Create a user's project that is not installed."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def pack_in_project(project: pathlib.Path, expression: str, before: str = "") -> tuple[str, bytes, list[str]]:
    """Run the project's script, and return the tag, the bytes, and the captured names."""
    script = project / "main.py"
    if before:
        script.write_text(SCRIPT.replace("from ramet.wire", f"{before}\nfrom ramet.wire"))
    process_result = subprocess.run(
        [sys.executable, script, expression], cwd="/", capture_output=True, text=True, check=True
    )
    tag, data, *names = process_result.stdout.split()
    return tag, base64.b64decode(data), names


def unpack_elsewhere(tag: str, data: bytes, then: str) -> subprocess.CompletedProcess[str]:
    """Unpack in a Python with ramet and without the project, then run a statement on `opened`."""
    return subprocess.run(
        [sys.executable, "-I", "-c", OPEN + then, tag],
        input=base64.b64encode(data).decode(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


SHOW = """
import inspect, traceback
print(inspect.getsource(opened.function))
try:
    opened.function()
except KeyError:
    traceback.print_exc()
"""
CALL = "print(opened.function(*opened.args, **opened.kwargs))"


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("by_value", "6"),
        ("lambda *prices: by_value(*prices) + 1", "7"),
        ("__import__('functools').partial(by_value, 10)", "26"),
        ("Line(5).doubled.__func__ and (lambda one, two: Line(5).doubled())", "10"),
        ("total and (lambda *prices: total(prices))", "103"),
        ("shop.orders.total.__class__ and (lambda *prices: shop.orders.money.add(*prices))", "3"),
    ],
)
def test_functions_of_a_script_run_without_the_script(project: pathlib.Path, expression: str, result: str) -> None:
    """The modules of the project travel with the function."""
    tag, data, _ = pack_in_project(project, expression)

    assert unpack_elsewhere(tag, data, CALL).stdout.strip() == result


def test_a_function_of_the_users_own_module_travels_with_its_source(project: pathlib.Path) -> None:
    """The imports of the module travel too: its package, a relative import, and a folder without an `__init__`."""
    tag, data, names = pack_in_project(project, "total")

    assert (
        unpack_elsewhere(tag, data, "print(opened.function([1, 2]), opened.function.__module__)").stdout
        == "103 shop.orders\n"
    )
    assert names == []
    assert b"def add" in data


def test_an_import_inside_a_function_is_packed_if_it_is_loaded(project: pathlib.Path) -> None:
    """A module that was not loaded is not packed, and its import fails by name."""
    without = unpack_elsewhere(*pack_in_project(project, "by_both")[:2], CALL)
    along = unpack_elsewhere(*pack_in_project(project, "by_both", before="import shop.taxes")[:2], CALL)

    assert "ModuleNotFoundError: No module named 'shop.taxes'" in without.stderr
    assert along.stdout == "1103\n"


def test_a_nested_function_imports_relative_to_its_package(project: pathlib.Path) -> None:
    """`pack` takes only the needed part of its own module."""
    tag, data, _ = pack_in_project(project, "shop.orders.maker()", before="import shop.taxes")

    assert unpack_elsewhere(tag, data, CALL).stdout == "1103\n"


@pytest.mark.parametrize("expression", ["total", "by_value", "by_both"])
def test_files_without_an_import_are_not_packed(project: pathlib.Path, expression: str) -> None:
    """Neighbouring files, loaded modules without an import, and imports under TYPE_CHECKING stay behind."""
    _, data, _ = pack_in_project(project, expression)

    for stranger in (b"canary", b"UNUSED", b"correct horse", b"RATE" if expression == "total" else b"canary"):
        assert stranger not in data


def test_a_traceback_shows_the_packed_sources(project: pathlib.Path) -> None:
    """`traceback` and `inspect` show sources whose files do not exist there."""
    tag, data, _ = pack_in_project(project, "shop.orders.breaks")
    shutil.rmtree(project)
    ends = unpack_elsewhere(tag, data, SHOW)

    assert "def breaks" in ends.stdout
    assert "    raise KeyError('shop')\nKeyError: 'shop'\n" in ends.stderr


def test_an_unpacked_function_can_be_packed_again(project: pathlib.Path) -> None:
    """A sent agent can spawn with the same modules."""
    tag, data, _ = pack_in_project(project, "total")
    shutil.rmtree(project)
    second_result = unpack_elsewhere(
        tag,
        data,
        "from ramet.wire.code.capsule import pack\n"
        "packed = pack(opened.function, ([1, 2],))\n"
        "sys.stdout.write(base64.b64encode(packed.data).decode())",
    )

    assert unpack_elsewhere(tag, base64.b64decode(second_result.stdout), CALL).stdout == "103\n"


def test_a_module_without_its_source_file_is_named(project: pathlib.Path) -> None:
    """The file existed when the module was imported."""
    (project / "main.py").write_text(
        SCRIPT.replace("from ramet.wire", "import os; os.remove(shop.money.__file__)\nfrom ramet.wire", 1)
    )
    process_result = subprocess.run(
        [sys.executable, project / "main.py", "total"], capture_output=True, text=True, check=False
    )

    assert "NotShippable: module 'shop.money' cannot be sent: its source cannot be read" in process_result.stderr


def test_values_packed_with_a_function_are_listed(project: pathlib.Path) -> None:
    """The list has globals of the function and of the functions that it calls, and nothing that is imported by name."""
    assert set(pack_in_project(project, "by_value")[2]) == {"Line", "RATE"}
    assert pack_in_project(project, "tells")[2] == ["TOKEN"]


def test_free_variables_and_globals_of_helpers_are_listed() -> None:
    """`captured` follows helpers to any depth."""
    limit, unused_value = 3, 4

    def helper(x: int) -> int:
        return min(x, limit)

    def agent() -> tuple[int, Any]:
        return helper(5), pickle.dumps

    assert unused_value
    assert set(captured_names(agent)) == {"helper", "limit"}
    assert captured_names(pickle.dumps) == []
    assert set(captured_names(functools.partial(agent))) == {"helper", "limit"}


def test_functions_of_installed_packages_and_builtins_travel_by_name() -> None:
    """A packed name takes less than 200 bytes."""
    for function in (len, pickle.dumps, pytest.raises, pack, msgspec.json.encode):
        packed_function = pack(function, (["a"],))

        assert len(packed_function.data) < 200
        assert unpack(packed_function.data, packed_function.tag).function == function


def test_arguments_arrive_equal() -> None:
    """Positional and keyword arguments arrive equal, and methods arrive with their objects."""
    packed_call = pack({"a": 1}.get, ("b", [1, (2,)]), {})
    unpacked = unpack(packed_call.data, packed_call.tag)

    assert unpacked.function(*unpacked.args) == [1, (2,)]
    packed_call = pack(print, (1,), {"end": "\n"})
    unpacked = unpack(packed_call.data, packed_call.tag)
    assert (unpacked.args, unpacked.kwargs) == ((1,), {"end": "\n"})


# ---- refusals


def thread() -> threading.Thread:
    return threading.Thread(target=print)


async def coroutine() -> None:
    """Return nothing; the coroutine is never awaited."""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (threading.Lock, "a lock"),
        (threading.RLock, "a lock"),
        (thread, "a thread"),
        (lambda: (x for x in "ab"), "a generator"),
        (asyncio.new_event_loop, "an event loop"),
        (socket.socket, "a socket"),
        (pathlib.Path(__file__).open, "an open file"),
        (lambda: pathlib.Path(__file__).open("rb"), "an open file"),
    ],
)
def test_an_object_of_this_process_is_not_packed(make: Callable[[], Any], reason: str) -> None:
    """The refusal names the place: an argument, a part of one, a closure, a default, or a partial."""
    object_held = make()

    def uses() -> Any:
        return object_held

    def calls() -> Any:
        return uses()

    try:
        for function, args, kwargs, location in (
            (len, (1, object_held), {}, "args[1]"),
            (len, (), {"x": [{"y": object_held}]}, "kwargs['x']"),
            (uses, (), {}, "variable 'object_held' of "),
            (calls, (), {}, "variable 'object_held' of "),
            (lambda it=object_held: it, (), {}, "a default of "),
            (functools.partial(len, object_held), (), {}, "argument 0 of the partial"),
        ):
            with pytest.raises(NotShippable, match=reason) as refusal:
                pack(function, args, kwargs)

            assert refusal.value.what.startswith(location)
            assert refusal.value.remedy
    finally:
        if hasattr(object_held, "close"):
            object_held.close()


def test_a_failing_reduce_is_reported_with_its_error() -> None:
    """NotShippable repeats the message of the error."""

    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("I stay")

    with pytest.raises(NotShippable, match=r"args\[0\] cannot be sent: RuntimeError: I stay"):
        pack(len, (Stubborn(),))


def test_an_unpackable_object_of_a_method_is_named() -> None:
    """The refusal names the object and not the method."""

    class Counter:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def count(self) -> int:
            return 1

    with pytest.raises(NotShippable, match="the object that 'count' is a method of cannot be sent: it holds a lock"):
        pack(Counter().count)


def test_a_value_that_is_not_callable_is_refused() -> None:
    """The error says that a value of its type cannot be called."""
    with pytest.raises(NotShippable, match="a int cannot be called"):
        pack(5)  # type: ignore[arg-type]


def test_a_refusal_for_size_names_the_biggest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error also gives the allowed size in bytes."""
    monkeypatch.setattr(capsule, "MAX_CAPSULE", 5_000)
    table = b"x" * 4_000

    def agent(_: bytes) -> int:
        return len(table)

    with pytest.raises(NotShippable, match=r"5000 are allowed; the biggest part of it is variable 'table' of .*agent'"):
        pack(agent, (b"y" * 3_000,))


SECRET = "xoxb-0123456789"


@pytest.mark.parametrize(
    ("call", "location"),
    [
        ((lambda: SECRET, ()), "variable 'SECRET' of "),
        ((len, ({"key": SECRET},)), "args[0]"),
        ((lambda: "xoxb-0123456789", ()), "function '<lambda>'"),
    ],
)
def test_a_secret_is_not_packed(call: tuple[Any, Any], location: str) -> None:
    """The refusal names the place of the secret, and never shows its value."""
    function, args = call
    with pytest.raises(NotShippable) as refusal:
        pack(function, args, secrets=("short", SECRET))

    assert refusal.value.what.startswith(location)
    assert SECRET not in str(refusal.value)
    pack(function, args, secrets=("short", "another-secret"))


def test_a_secret_in_a_source_is_found(project: pathlib.Path) -> None:
    """The refusal names the module."""
    (project / "shop/money.py").write_text(FILES["shop/money.py"] + "KEY = 'xoxb-9876543210'\n")
    script = SCRIPT.replace("(1, 2))", "(1, 2), secrets=('xoxb-9876543210',))")
    (project / "main.py").write_text(script)
    process_result = subprocess.run(
        [sys.executable, project / "main.py", "total"], capture_output=True, text=True, check=False
    )

    assert "NotShippable: module 'shop.money' cannot be sent: it holds the value of a secret" in process_result.stderr


def test_a_capsule_with_another_tag_is_not_unpacked() -> None:
    """`unpack` checks the tag before it reads the bytes."""
    packed_function = pack(len)
    for tag in ("", "3.1/cloudpickle-0", current_tag() + "x"):
        with pytest.raises(NotShippable, match="it was packed by"):
            unpack(b"not even a capsule", tag)
    with pytest.raises(ProtocolError):
        unpack(packed_function.data[:-1], current_tag())
    assert current_tag().startswith(f"{sys.version_info.major}.{sys.version_info.minor}/cloudpickle-")


def test_equal_calls_have_equal_capsules() -> None:
    """Capsules are stored by their content."""
    assert pack(test_equal_calls_have_equal_capsules, ({"a": 1},)) == pack(
        test_equal_calls_have_equal_capsules, ({"a": 1},)
    )


def test_a_function_with_heavy_imports_is_marked_heavy() -> None:
    """A sandbox without langchain-core needs half a second to unpack such a function, and with it milliseconds."""
    assert not pack(len).is_heavy
    assert pack(_from_a_heavy_module()).is_heavy


def _from_a_heavy_module() -> Callable[..., object]:
    from benchmarks.measures.isolated_tree import measure

    return measure
