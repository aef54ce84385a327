"""Coerce values to an annotation: lists become tuples and sets, fields become objects of the named types."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from itertools import chain, count, repeat
from typing import Any, NamedTuple

from ramet.wire.values.annotations import fields_of, is_pydantic, plain_hint, required_keys, types_in
from ramet.wire.values.first_errors import check_large
from ramet.wire.values.hash_bounds import ACCEPTED, can_be_hashed, needs_hashes
from ramet.wire.values.validators import (
    Check,
    Keys,
    TypeMismatch,
    as_list,
    fit_each,
    fit_items,
    fit_one,
    fit_unchanged,
    format_type,
    instance,
    literal,
    summarize_error,
)

_LISTS: typing.Final = frozenset(
    {
        list,
        collections.abc.Collection,
        collections.abc.Container,
        collections.abc.Iterable,
        collections.abc.MutableSequence,
        collections.abc.Reversible,
        collections.abc.Sequence,
    }
)
_SETS: typing.Final[Mapping[Any, type]] = {
    set: set,
    frozenset: frozenset,
    collections.abc.MutableSet: set,
    collections.abc.Set: set,
}
_DICTS: typing.Final = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})


class _Plan(NamedTuple):
    checks: Mapping[str, Check | None]
    make: Callable[[Any, dict[str, Any]], Any] | None  #: None: its constructor takes the fields by name


class Coercer:
    """A coercer of values to one annotation; it builds the types that occur in the annotation."""

    def __init__(self, hint: Any, *, text_keys: bool = False) -> None:
        self.types = types_in(hint)
        self._text_keys = text_keys  #: every dict is known to have only text keys
        self._plans: dict[type, _Plan] = {}
        self._keys = Keys()
        self._check = self._make_check(hint)

    def fit(self, value: Any) -> Any:
        """Return the value, coerced to the annotation. Raises TypeMismatch if it does not fit."""
        return fit_one(self._check, value)

    def build(self, cls: type, fields: dict[str, Any]) -> Any:
        """Return an object of a type of `types`. Raises TypeMismatch if the fields do not fit."""
        checks, make = self._plan_of(cls)
        lenient = make is _model
        try:
            for name, value in fields.items():
                check = checks.get(name)
                if check is not None and type(value) not in check.exact:
                    try:
                        fields[name] = check.fit(value)
                    except TypeMismatch as misfit:
                        if not lenient:  # a model's own validators decide
                            misfit.path.append(f".{name}")
                            raise
            if lenient and _needs_hashes(cls) and not can_be_hashed(fields, self._keys):
                raise TypeMismatch(fields, f"the fields of {cls.__qualname__}, with {ACCEPTED}")
            return cls(**fields) if make is None else make(cls, fields)
        except TypeMismatch:
            raise
        except Exception as problem:  # the receiver's own constructor rejected the fields
            reason = summarize_error(problem)
            raise TypeMismatch(
                fields, f"the fields of {cls.__qualname__} ({type(problem).__name__}: {reason})"
            ) from None

    def member(self, cls: type, name: Any, value: Any) -> Any:
        """Return a member of an enumeration of `types`. Raises TypeMismatch if there is no such member."""
        try:
            return cls[name] if isinstance(name, str) else cls(value)  # type: ignore[index]
        except Exception:
            raise TypeMismatch(value if name is None else name, f"a member of {cls.__qualname__}") from None

    def _plan_of(self, cls: type) -> _Plan:
        plan = self._plans.get(cls)
        if plan is None:
            checks = {name: self._make_check(hint) for name, hint in fields_of(cls).items()}
            plan = self._plans[cls] = _Plan(checks, _maker_of(cls))
        return plan

    def _make_check(self, hint: Any) -> Check | None:
        if type(hint).__name__ == "TypeAliasType":  # An alias may contain itself.
            return Check(frozenset(), lambda value: fit_one(self._make_check(hint.__value__), value))
        hint = plain_hint(hint)
        origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin is typing.Union or origin is types.UnionType:
            return self._union(hint, args)
        if origin is typing.Literal:
            return Check(frozenset(), lambda value: literal(args, value))
        if typing.is_typeddict(origin):
            return Check(frozenset(), lambda value: _typed_dict(origin, self._plan_of(origin).checks, value))
        if not isinstance(origin, type) or origin in (object, Any):
            return None  # Any, or a name that could not be resolved: no check is possible
        if origin in _LISTS:
            return self._list(origin, args)
        if origin is tuple:
            return self._tuple(args)
        if origin in _SETS:
            return self._set(_SETS[origin], args)
        if origin in _DICTS:
            return self._dict(args)
        if issubclass(origin, enum.Enum):
            return Check(frozenset({origin}), lambda value: _member(origin, value))
        return self._model(origin) if is_pydantic(origin) else instance(origin, self._keys)

    def _model(self, cls: type) -> Check:
        """Return a check that builds a model from any data that its validators accept, whatever type the sender had."""

        def fit(value: Any) -> Any:
            if isinstance(value, cls):
                return value
            if type(value) is dict and all(type(name) is str for name in value):
                return self.build(cls, {name: each for name, each in value.items() if name != "@type"})
            raise TypeMismatch(value, cls.__qualname__)

        return Check(frozenset({cls}), fit)

    def _union(self, hint: Any, args: tuple[Any, ...]) -> Check | None:
        checks = [check for each in args if (check := self._make_check(each)) is not None]
        if len(checks) < len(args):
            return None

        def fit(value: Any) -> Any:
            for check in checks:
                try:
                    return fit_one(check, value)
                except TypeMismatch:
                    continue
            raise TypeMismatch(value, format_type(hint))

        return Check(frozenset(chain.from_iterable(check.exact for check in checks)), fit)

    def _list(self, origin: type, args: tuple[Any, ...]) -> Check:
        item = self._make_check(args[0]) if args else None

        def fit(value: Any) -> Any:
            if type(value) is list:
                return fit_items(item, value)
            if origin is not list and isinstance(value, origin):
                return value
            raise TypeMismatch(value, "a list")

        def are_lists(values: Collection[Any]) -> bool:
            return set(map(type, values)) <= {list} and fit_unchanged(item, list(chain.from_iterable(values)))

        return Check(frozenset({list} if item is None else ()), fit, are_lists)

    def _tuple(self, args: tuple[Any, ...]) -> Check:
        if len(args) == 2 and args[1] is Ellipsis:
            item = self._make_check(args[0])
            return Check(frozenset(), lambda value: tuple(fit_items(item, as_list(value, "a list, for a tuple"))))
        has_unpack = any(typing.get_origin(each) is typing.Unpack for each in args)
        checks = [] if has_unpack else [self._make_check(each) for each in args]

        def fit(value: Any) -> Any:
            items = as_list(value, "a list, for a tuple")
            if not checks:
                return tuple(items)
            if len(items) != len(checks):
                raise TypeMismatch(value, f"{len(checks)} values, for a tuple")
            return tuple(fit_each(count(), checks, items))

        return Check(frozenset(), fit)

    def _set(self, kind: type, args: tuple[Any, ...]) -> Check:
        item = self._make_check(args[0]) if args else None

        def fit(value: Any) -> Any:
            items = fit_items(item, as_list(value, "a list, for a set"))
            if not self._keys.can_hold(items):
                raise TypeMismatch(value, "a list of values that a set can hold")
            return kind(items)

        return Check(frozenset(), fit)

    def _dict(self, args: tuple[Any, ...]) -> Check:
        key = self._make_check(args[0]) if args else None
        item = self._make_check(args[1]) if len(args) > 1 else None
        if self._text_keys and key is not None and str in key.exact:
            key = None

        def fit(value: Any) -> Any:
            if not isinstance(value, dict):
                raise TypeMismatch(value, "a dict")
            if key is not None and not set(map(type, value)) <= key.exact:
                keys = fit_each(count(), repeat(key), value, "[key {}]")
                if not self._keys.can_hold(keys):
                    raise TypeMismatch(keys, "keys that a dict can hold")
                value = dict(zip(keys, value.values(), strict=True))
            if not fit_unchanged(item, value.values()):
                values = fit_each(value, repeat(item), value.values())
                value = dict(zip(value, values, strict=True))
            return value

        def are_dicts(values: Collection[Any]) -> bool:
            if not set(map(type, values)) <= {dict}:
                return False
            if key is not None and not set(map(type, chain.from_iterable(values))) <= key.exact:
                return False
            return item is None or fit_unchanged(item, list(chain.from_iterable(map(dict.values, values))))

        return Check(frozenset({dict} if key is None and item is None else ()), fit, are_dicts)


def _member(cls: type[enum.Enum], value: Any) -> enum.Enum:
    """Return a member, also by its value alone: a member whose type was not named is decoded to its value."""
    if isinstance(value, cls):
        return value
    try:
        return cls(value)
    except ValueError:
        raise TypeMismatch(value, f"a member of {cls.__qualname__}") from None


def _typed_dict(cls: Any, checks: Mapping[str, Check | None], value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeMismatch(value, f"the dict of {cls.__qualname__}")
    if not required_keys(cls) <= value.keys() <= checks.keys():
        raise TypeMismatch(value, f"a dict with the keys of {cls.__qualname__}: {', '.join(checks)[:200]}")
    return dict(zip(value, fit_each(value, map(checks.get, value), value.values()), strict=True))


def _maker_of(cls: Any) -> Callable[[Any, dict[str, Any]], Any] | None:
    if is_pydantic(cls):
        return _model
    if dataclasses.is_dataclass(cls) and not all(each.init for each in dataclasses.fields(cls)):
        return _dataclass
    return None


def _dataclass(cls: Any, fields: dict[str, Any]) -> Any:
    late_fields = {each.name for each in dataclasses.fields(cls) if not each.init}
    new_object = cls(**{name: value for name, value in fields.items() if name not in late_fields})
    for name in late_fields & fields.keys():
        object.__setattr__(new_object, name, fields[name])
    return new_object


@lru_cache(maxsize=512)
def _needs_hashes(cls: Any) -> bool:
    """Return whether a model makes sets, or dicts with number keys, from data that is still a list or a text."""
    return needs_hashes(getattr(cls, "__pydantic_core_schema__", None))


def _model(cls: Any, fields: dict[str, Any]) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        if issubclass(cls, pydantic.RootModel):
            check_large(cls, fields.get("root"))
            return cls.model_validate(fields.get("root"))
        has_aliases = any(field.validation_alias is not None for field in cls.model_fields.values())
        options = {"by_name": True} if has_aliases else {}
        check_large(cls, fields, **options)
        return cls.model_validate(fields, **options)
    except pydantic.ValidationError as problem:
        first_error = problem.errors(include_url=False, include_context=False)[0]
        misfit = TypeMismatch(first_error.get("input"), f"a {cls.__qualname__} ({first_error['msg']})")
        misfit.path += [f".{part}" if isinstance(part, str) else f"[{part}]" for part in reversed(first_error["loc"])]
        raise misfit from None
