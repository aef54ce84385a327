"""Additions to the OpenAPI document for schemathesis, which loads this file itself."""

from __future__ import annotations

import schemathesis

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
