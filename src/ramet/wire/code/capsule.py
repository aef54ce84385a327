"""Pack a function and its arguments for a sandbox; unpack them only inside it, after all checks.

Functions of installed packages are sent by name. Functions of `__main__`, of notebooks, lambdas and closures are sent
by value, with the globals that they use. Functions of the user's own modules are sent by name, together with the
sources of these modules (`ramet.wire.code.bundle`).
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import NotShippable, ProtocolError
from ramet.wire.code import former_names
from ramet.wire.code.bundle import Source, imported_modules, imports_of, install_importer, sources
from ramet.wire.code.closure_vars import find_unpicklable, is_importable, name_of, parts

#: Maximum bytes of a capsule: function, arguments and sources together.
MAX_CAPSULE: Final = 16 * 1024 * 1024
#: Shorter secrets are not searched for: they occur by chance.
MIN_SECRET: Final = 8

_PROTOCOL: Final = 5
#: Modules of ramet that are cheap to import; `from ramet import X` is seen as `ramet.X`.
_LIGHT: Final = (
    "ramet.AbortController",
    "ramet.AgentResult",
    "ramet.Artifact",
    "ramet.Isolation",
    "ramet.Limits",
    "ramet.Policy",
    "ramet.SpawnLimits",
    "ramet.Status",
    "ramet.Usage",
    "ramet.concurrency",
    "ramet.core",
    "ramet.guest.client",
    "ramet.guest.external",
    "ramet.guest.terminal",
    "ramet.services.agent_types.function.invoke",
    "ramet.sub_agent_client",
    "ramet.tools.context",
    "ramet.tools.decisions",
    "ramet.tools.model_request",
    "ramet.tools.run_info",
    "ramet.tools.spawn_request",
    "ramet.tools.workers.process_worker",
    "ramet.wire",
)
_CREATE_INSIDE: Final = "create it inside the function, or pass what is needed to create it"
#: Types bound to this process: module, name, display name, remedy. A module that is not loaded has no objects.
_BOUND_TYPES: Final = (
    ("socket", "socket", "a socket", "open it inside the function; the policy says which endpoints it may reach"),
    ("_thread", "LockType", "a lock", _CREATE_INSIDE),
    ("_thread", "RLock", "a lock", _CREATE_INSIDE),
    ("threading", "Thread", "a thread", _CREATE_INSIDE),
    ("subprocess", "Popen", "a process", _CREATE_INSIDE),
    ("types", "GeneratorType", "a generator", "pass list(...) of it, or the function that makes it"),
    ("types", "CoroutineType", "a coroutine", "pass the async function itself, and its arguments as args"),
    ("types", "AsyncGeneratorType", "an async generator", "pass the function that makes it"),
    ("_asyncio", "Future", "a task or future", _CREATE_INSIDE),
    ("asyncio.events", "AbstractEventLoop", "an event loop", _CREATE_INSIDE),
    ("_io", "TextIOWrapper", "an open file", "pass its content, or write what it needs into the function's arguments"),
    ("_io", "BufferedReader", "an open file", "pass its content"),
    ("_io", "BufferedWriter", "an open file", "open one inside the function, in its working directory"),
    ("_io", "BufferedRandom", "an open file", "pass its content"),
    ("_io", "FileIO", "an open file", "pass its content"),
)


class PackedCall(NamedTuple):
    """A function with its arguments, as bytes. Only a Python and pickle with the same `tag` can unpack it."""

    name: str  #: the function's own name, for display
    tag: str
    data: bytes
    is_heavy: bool = False  #: unpacking imports langchain-core, or ramet's own loop


class UnpackedCall(NamedTuple):
    """The contents of an unpacked capsule."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Content(Struct, frozen=True, array_like=True):
    call: bytes
    modules: tuple[Source, ...] = ()


class _PickledValue(NamedTuple):
    data: bytes
    modules: set[str]  #: modules that unpickling imports


class _BoundObject(Exception):
    """An object that is bound to this process."""

    def __init__(self, kind: str, remedy: str) -> None:
        super().__init__(kind)
        self.kind, self.remedy = kind, remedy


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Content)


def pack(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    secrets: tuple[str, ...] = (),
    modules: frozenset[str] = frozenset(),
) -> PackedCall:
    """Pack a call, with the sources of what the call needs and of the user's own among `modules`.

    Raises NotShippable if a part cannot be packed or contains one of `secrets`; the error names the variable or module.
    """
    if not callable(function):
        raise NotShippable("agent", f"a {type(function).__name__} cannot be called", "pass a function")
    args, kwargs = tuple(args), dict(kwargs or {})
    call = (function, args, kwargs)
    try:
        pickled_call = _pickle(call)
    except MemoryError:
        raise
    except Exception as problem:
        raise _refusal(problem, *call) from None
    bundled_sources = sources(pickled_call.modules | modules)
    data = _encoder.encode(_Content(pickled_call.data, bundled_sources))
    if len(data) > MAX_CAPSULE:
        raise _too_large(len(data), bundled_sources, *call)
    _check_secrets(data, secrets, bundled_sources, *call)
    heavy = any(map(_is_heavy, pickled_call.modules | imported_modules(bundled_sources)))
    return PackedCall(name_of(function), current_tag(), data, heavy)


@lru_cache(maxsize=4096)
def _is_heavy(module: str) -> bool:
    """Return whether importing takes half a second, unless the process was forked from one that has the module."""
    if module.startswith("langchain"):
        return True
    return module.startswith("ramet.") and not module.startswith(_LIGHT)


@lru_cache(maxsize=1)
def current_tag() -> str:
    """Return the tag of capsules that this process packs and can unpack."""
    version = import_module("cloudpickle").__version__
    return f"{sys.version_info.major}.{sys.version_info.minor}/cloudpickle-{version}"


def unpack(data: bytes, tag: str) -> UnpackedCall:
    """Unpack a capsule, which runs its code. Call only inside a sandbox.

    Raises NotShippable if the tag differs. Errors of the capsule's code are passed on, such as ModuleNotFoundError for
    a package that is not installed here.
    """
    if tag != current_tag():
        raise NotShippable(
            "capsule", f"it was packed by {tag} and this is {current_tag()}", "use one Python and one cloudpickle"
        )
    try:
        content = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise ProtocolError(f"a capsule that cannot be read: {problem}") from None
    install_importer(content.modules)
    return UnpackedCall(*former_names.loads(content.call))


@lru_cache(maxsize=1)
def _pickler() -> Any:
    """Return a cloudpickle pickler that records modules. Created on first use: importing cloudpickle takes 10 ms."""
    cloudpickle = import_module("cloudpickle")

    class Pickler(cloudpickle.Pickler):  # type: ignore[name-defined,misc]
        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file, protocol=_PROTOCOL)
            self.modules: set[str] = set()

        def reducer_override(self, value: Any) -> Any:
            kind: Any = type(value)
            if isinstance(value, types.ModuleType):
                self.modules.add(value.__name__)
            elif bound := _bound_kind(kind):
                if value is not sys.stdout and value is not sys.stderr:  # In the sandbox, these are its own.
                    raise _BoundObject(*bound)
            elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
                if isinstance(value, types.BuiltinFunctionType) or is_importable(value):
                    self.modules.add(value.__module__ or "")
                elif isinstance(value, types.FunctionType):
                    self.modules |= imports_of(value.__code__, value.__globals__.get("__package__") or "")
            return super().reducer_override(value)

    return Pickler


@lru_cache(maxsize=4096)
def _bound_kind(kind: type) -> tuple[str, str] | None:
    for module, name, label, remedy in _BOUND_TYPES:
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type) and issubclass(kind, base):
            return label, remedy
    return None


def _pickle(value: Any) -> _PickledValue:
    file = io.BytesIO()
    pickler = _pickler()(file)
    pickler.dump(value)
    return _PickledValue(file.getvalue(), pickler.modules)


def _refusal(
    problem: Exception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> NotShippable:
    """Return an error that explains why a call cannot be pickled, and which part causes it."""
    part = find_unpicklable(function, args, kwargs, lambda value: _problem_of(value) is not None)
    if part is not None:
        problem = _problem_of(part.value) or problem
    label = part.label if part is not None else f"function {name_of(function)!r}"
    if isinstance(problem, _BoundObject):
        kind: Any = type(part.value) if part is not None else type(None)
        is_bound_itself = _bound_kind(kind) is not None
        return NotShippable(
            label, f"it {'is' if is_bound_itself else 'holds'} {problem.kind} of this process", problem.remedy
        )
    reason = f"{type(problem).__name__}: {_message_of(problem)}"
    return NotShippable(label, reason, "pass plain data, or create it inside the function")


def _problem_of(value: Any) -> Exception | None:
    try:
        _pickle(value)
    except Exception as problem:
        return problem
    return None


def _too_large(
    size: int,
    modules: tuple[Source, ...],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> NotShippable:
    sizes = {part.label: len(_pickle(part.value).data) for part in parts(function, args, kwargs)}
    sizes |= {f"module {each.name!r}": len(each.text or "") for each in modules}
    biggest = max(sizes, key=lambda label: sizes[label], default="")
    largest = f"; the biggest part of it is {biggest} with {sizes[biggest]} bytes" if biggest else ""
    return NotShippable(
        f"function {name_of(function)!r}",
        f"with all that it captures it has {size} bytes, and {MAX_CAPSULE} are allowed{largest}",
        "pass less, or let it read what it needs from a folder in readonly_mounts",
    )


def _check_secrets(
    data: bytes,
    secrets: tuple[str, ...],
    modules: tuple[Source, ...],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    for secret in secrets:
        if len(secret) < MIN_SECRET or (needle := secret.encode("utf-8", "surrogatepass")) not in data:
            continue
        part = find_unpicklable(function, args, kwargs, partial(_contains, needle))
        module = next((each.name for each in modules if secret in (each.text or "")), None)
        label = part.label if part else f"module {module!r}" if module else f"function {name_of(function)!r}"
        raise NotShippable(label, "it holds the value of a secret", "let the function read it from /run/secrets")


def _contains(needle: bytes, value: Any) -> bool:
    try:
        return needle in _pickle(value).data
    except Exception:
        return False


def _message_of(problem: Exception) -> str:
    try:
        return str(problem)[:300]
    except Exception:
        return "its error message cannot be read"
