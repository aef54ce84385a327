"""What schemathesis is told about this interface beside its OpenAPI document; the tool loads this file itself."""

from __future__ import annotations

import schemathesis

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
