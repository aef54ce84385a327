"""OpenTelemetry: spans for whoever has set up its SDK, and nothing at all, not even an import, for everybody else.

And counts, for who asks for them.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from ramet.core.errors import SpawnRefused
from ramet.host.journal.recorder import Recorder
from ramet.host.journal.subscription import Listening, listen
from ramet.host.observability.counters import Counts

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from ramet.host.observability.spans import RunSpans

_log = logging.getLogger("ramet.telemetry")


class Telemetry:
    """The spans of a runtime's trees: `ramet.host.observability.spans` says which.

    They go to `provider`, else to the one that the process has set up by the time a tree begins.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._given = provider
        self._runs: dict[str, RunSpans] = {}
        self.counts: Counts | None = None  #: set, it takes part in every tree that begins from then on

    def attach(self, recorder: Recorder) -> Listening | None:
        """Show a tree from its first event until it closes; None where nobody would see it, which costs nothing.

        Its root is below the span that the caller is in, else below the one that TRACEPARENT names, if any.
        """
        if self.counts is not None:
            self.counts.attach(recorder)
        provider = self._provider()
        if provider is None:
            return None
        from ramet.host.observability.spans import TreeSpans

        spans = TreeSpans(provider.get_tracer("ramet"), _outside(), self._runs)
        return listen(recorder, spans.take, spans.close)

    def spawn_refused(self, refusal: SpawnRefused) -> None:
        """Count a birth that was refused: no event tells of it."""
        if self.counts is not None:
            self.counts.spawn_refused(refusal.limit)

    def traceparent(self, run: str) -> str:
        """The W3C header that puts what another process does below a run's span; empty where there is none."""
        spans = self._runs.get(run)
        if spans is None:
            return ""
        context = spans.span.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def _provider(self) -> TracerProvider | None:
        if self._given is not None:
            return self._given
        if "opentelemetry.trace" not in sys.modules and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
            return None  # Whoever sets it up imports it first.
        try:
            from opentelemetry import trace

            provider = trace.get_tracer_provider()
        except Exception as error:  # The variable names what is not installed, or cannot be loaded.
            _log.error("no spans will be seen: the provider cannot be loaded: %s", error)
            return None
        nobody = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
        return None if nobody else provider


def _outside() -> Context:
    """Where a tree begins: in the span that is current here, else in that of the process which started this one."""
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    current = context.get_current()
    if trace.get_current_span(current).get_span_context().is_valid:
        return current
    carried = {name: os.environ[name.upper()] for name in ("traceparent", "tracestate") if name.upper() in os.environ}
    return TraceContextTextMapPropagator().extract(carried, current)
