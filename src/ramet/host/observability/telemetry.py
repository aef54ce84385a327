"""OpenTelemetry: spans if the process has set up its SDK; otherwise nothing, not even an import.

It also provides counts, on request.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from ramet.core.errors import SpawnRefused
from ramet.host.journal.recorder import Recorder
from ramet.host.journal.subscription import Listener, listen
from ramet.host.observability.counters import Counts

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from ramet.host.observability.spans import RunSpans

_log = logging.getLogger("ramet.telemetry")


class Telemetry:
    """The spans of a runtime's trees, as described in `ramet.host.observability.spans`.

    They go to `provider`, else to the provider that the process has set up when a tree begins.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._own_provider = provider
        self._runs: dict[str, RunSpans] = {}
        self.counts: Counts | None = None  #: if set, it counts every tree that begins from then on

    def attach(self, recorder: Recorder) -> Listener | None:
        """Trace a tree from its first event until it closes; return None, at no cost, if there is no provider.

        The tree's root is below the present span of the caller, else below the span that TRACEPARENT names, if any.
        """
        if self.counts is not None:
            self.counts.attach(recorder)
        provider = self._provider()
        if provider is None:
            return None
        from ramet.host.observability.spans import TreeSpans

        spans = TreeSpans(provider.get_tracer("ramet"), _outer_context(), self._runs)
        return listen(recorder, spans.on_event, spans.close)

    def count_refusal(self, refusal: SpawnRefused) -> None:
        """Count a refused spawn: no event reports it."""
        if self.counts is not None:
            self.counts.count_refusal(refusal.limit)

    def traceparent(self, run: str) -> str:
        """Return the W3C header that puts another process's spans below a run's span; empty if there is none."""
        spans = self._runs.get(run)
        if spans is None:
            return ""
        context = spans.span.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def _provider(self) -> TracerProvider | None:
        if self._own_provider is not None:
            return self._own_provider
        if "opentelemetry.trace" not in sys.modules and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
            return None  # A program that sets it up imports it first.
        try:
            from opentelemetry import trace

            provider = trace.get_tracer_provider()
        except Exception as error:  # The variable names a provider that is not installed, or cannot be loaded.
            _log.error("no spans are recorded: the provider cannot be loaded: %s", error)
            return None
        is_noop = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
        return None if is_noop else provider


def _outer_context() -> Context:
    """Return the context in which a tree begins: the present span here, else the span of the parent process."""
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    current = context.get_current()
    if trace.get_current_span(current).get_span_context().is_valid:
        return current
    headers = {name: os.environ[name.upper()] for name in ("traceparent", "tracestate") if name.upper() in os.environ}
    return TraceContextTextMapPropagator().extract(headers, current)
