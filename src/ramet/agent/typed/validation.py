"""Validate values with pydantic in bounded memory, even if nearly everything in a value is wrong.

pydantic collects all errors of a value. Each has the names on the path to its place, and the values that its type
accepts. The fields that empty objects lack, or many wrong items below one long name, take gigabytes for a short text.
If that could happen, the value is first checked against the same type with lists, dicts and classes that stop at their
first error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.agent.schemas.work_budget import count_steps
from ramet.agent.typed.union_cost import Tries
from ramet.wire.values.first_errors import stopping_validator

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_ERRORS = 1_000  #: maximum separate errors; each takes about 1 KB
_ERRORS_SIZE = 32 << 20  #: maximum characters of all errors of a value together
_ERROR = 500  #: characters of an error, without long names and accepted values


class ValidationProblem(NamedTuple):
    """A wrong part of a value."""

    path: tuple[int | str, ...]
    message: str


class DoesNotFitType(Exception):
    """The error for a value that does not fit a type: the first problems, and the minimum number of further ones."""

    def __init__(self, problems: list[ValidationProblem], more: int) -> None:
        self.problems, self.more = problems, more
        super().__init__(problems[0].message)


class Validation:
    """The checks of values against one type, given as its pydantic adapter."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self.adapter = adapter
        self.tries = Tries(adapter)
        self._stopping: Any = None  # created on first use

    def validate_data(self, data: Any, text: str) -> Any:
        """Return JSON data, also given as text, as a value of the type.

        Raises DoesNotFitType, TooManySteps, RecursionError.
        """
        # From text, not from Python: only then are dates, sets and strict types read as in JSON.
        from pydantic import ValidationError

        try:
            with count_steps(len(text)) as steps:
                tries = self.tries.count(data, steps)
                if self.tries.longest_errors(data, tries, _ERROR) > _ERRORS_SIZE:
                    self._stop_early("validate_json", text)
                return self.adapter.validate_json(text)
        except ValidationError as error:
            raise self._refusal(error, "validate_json", text) from None

    def validate_value(self, value: Any) -> Any:
        """Return a caller's value as one of the type: it is no data from outside, and may contain itself.

        Raises the errors of `validate_data`.
        """
        from pydantic import ValidationError

        try:
            with count_steps() as steps:
                self.tries.count(value, steps)
                return self.adapter.validate_python(value)
        except ValidationError as error:
            raise self._refusal(error, "validate_python", value) from None

    def _refusal(self, error: ValidationError, method: str, value: Any) -> DoesNotFitType:
        count = error.error_count()
        if count <= MAX_ERRORS:
            return _does_not_fit(error)
        try:
            self._stop_early(method, value)
        except DoesNotFitType as first:
            return DoesNotFitType(first.problems[:1], count - 1)
        return DoesNotFitType([ValidationProblem((), f"{count} parts are missing or wrong")], 0)

    def _stop_early(self, method: str, value: Any) -> None:
        """Raise DoesNotFitType for the first error of a value, if there is one."""
        from pydantic import ValidationError

        if self._stopping is None:
            self._stopping = stopping_validator(self.adapter.core_schema)
        try:
            getattr(self._stopping, method)(value)
        except ValidationError as error:
            if error.error_count() <= MAX_ERRORS:
                raise _does_not_fit(error) from None
            message = f"{error.error_count()} parts are missing or wrong"
            raise DoesNotFitType([ValidationProblem((), message)], 0) from None


def _does_not_fit(error: ValidationError) -> DoesNotFitType:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    return DoesNotFitType([ValidationProblem(each["loc"], each["msg"]) for each in errors], 0)
