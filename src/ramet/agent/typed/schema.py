"""The forms of types as data: JSON schema, of which exactly this is used, with `$ref: "#/types/Name"` for a class."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import uuid
from typing import Any

from ramet.core.errors import InvalidValue
from ramet.core.recipe import checked_task_name

#: Text in JSON, another type in Python.
FORMATS: dict[str, Any] = {
    "date-time": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "path": pathlib.Path,
}
TASK = "ramet-task"  #: format of a task as a value: its handle
SCALARS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
REFERENCE = "#/types/"
MAX_DEPTH = 32
MAX_PARTS = 10_000  #: of all types that are read together, each class counted with the classes that it is made of
MAX_CLASS_PARTS = 1_000  #: of one class, without those of other classes
Types = dict[str, dict[str, Any]]


def is_type_name(name: str) -> bool:
    """Whether a class may be called so."""
    try:
        checked_task_name(name)
    except InvalidValue:
        return False
    return True
