"""Values checked by pydantic, in memory that is bounded also where nearly everything in a value is wrong.

pydantic collects all errors of a value. Each has the names on the way to its place, and the values that its type
accepts: the fields that empty objects lack, or many wrong items below one long name, make gigabytes of a short text.
Where they could, the value is held first against the same type with lists, dicts and classes that stop at their first
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.agent.schemas.work_budget import counted
from ramet.agent.typed.union_cost import Tries
from ramet.wire.values.first_errors import stopping_validator

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_ERRORS = 1_000  #: that are told apart; each takes about 1 KB
_ERRORS_SIZE = 32 << 20  #: characters that all errors of a value may have together
_ERROR = 500  #: characters of an error, besides long names and accepted values


class ValidationProblem(NamedTuple):
    """A part of a value that is wrong."""

    place: tuple[int | str, ...]
    message: str


class DoesNotFitType(Exception):
    """A value that is not of a type: the first problems, and how many more there are at least."""

    def __init__(self, problems: list[ValidationProblem], more: int) -> None:
        self.problems, self.more = problems, more
        super().__init__(problems[0].message)


class Validation:
    """The checks of values against one type, given as its pydantic adapter."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self.adapter = adapter
        self.tries = Tries(adapter)
        self._stopping: Any = None  # made when it is needed

    def of_data(self, data: Any, text: str) -> Any:
        """JSON data, also given as text, as a value of the type.

        Raises DoesNotFitType, TooManySteps, RecursionError.
        """
        # From text, not from Python: only so are dates, sets and strict types read as JSON means them.
        from pydantic import ValidationError

        try:
            with counted(len(text)) as steps:
                tries = self.tries.count(data, steps)
                if self.tries.longest_errors(data, tries, _ERROR) > _ERRORS_SIZE:
                    self._stop_early("validate_json", text)
                return self.adapter.validate_json(text)
        except ValidationError as error:
            raise self._refusal(error, "validate_json", text) from None

    def of_value(self, value: Any) -> Any:
        """A value of a caller's as one of the type: no data from outside, and perhaps a list that holds itself.

        Raises as `of_data`.
        """
        from pydantic import ValidationError

        try:
            with counted() as steps:
                self.tries.count(value, steps)
                return self.adapter.validate_python(value)
        except ValidationError as error:
            raise self._refusal(error, "validate_python", value) from None

    def _refusal(self, error: ValidationError, method: str, given: Any) -> DoesNotFitType:
        count = error.error_count()
        if count <= MAX_ERRORS:
            return _told(error)
        try:
            self._stop_early(method, given)
        except DoesNotFitType as first:
            return DoesNotFitType(first.problems[:1], count - 1)
        return DoesNotFitType([ValidationProblem((), f"{count} parts are missing or wrong")], 0)

    def _stop_early(self, method: str, given: Any) -> None:
        """Raise DoesNotFitType for the first error of a value, if it has one."""
        from pydantic import ValidationError

        if self._stopping is None:
            self._stopping = stopping_validator(self.adapter.core_schema)
        try:
            getattr(self._stopping, method)(given)
        except ValidationError as error:
            if error.error_count() <= MAX_ERRORS:
                raise _told(error) from None
            message = f"{error.error_count()} parts are missing or wrong"
            raise DoesNotFitType([ValidationProblem((), message)], 0) from None


def _told(error: ValidationError) -> DoesNotFitType:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return DoesNotFitType([ValidationProblem(each["loc"], each["msg"]) for each in found], 0)
