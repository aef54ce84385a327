"""The schemas of types as data: exactly this subset of JSON schema, with `$ref: "#/types/Name"` for a class."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import uuid
from typing import Any

from ramet.core.errors import InvalidValue
from ramet.core.recipe import checked_task_name

#: Types that are text in JSON.
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
MAX_PARTS = 10_000  #: of all types that are read together, each class counted with the classes that it contains
MAX_CLASS_PARTS = 1_000  #: of one class, without those of other classes
Types = dict[str, dict[str, Any]]


def is_type_name(name: str) -> bool:
    try:
        checked_task_name(name)
    except InvalidValue:
        return False
    return True
