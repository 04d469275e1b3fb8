"""OpenTelemetry spans for the operations of applications. Off unless the process has set a tracer provider.

A node asks once, when it starts (`find_tracing`); so does a connection to a dialog daemon. Without a provider, and
where OpenTelemetry is not installed, the answer is None and nothing of it is imported or called. The spans and
what of them crosses the network are listed in docs/reference/logs-and-traces.md.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Final

from holdfast import __version__

CLIENT: Final = "CLIENT"
SERVER: Final = "SERVER"
PRODUCER: Final = "PRODUCER"
CONSUMER: Final = "CONSUMER"
INTERNAL: Final = "INTERNAL"


class Tracing:
    """Makes the spans of one node."""

    def __init__(self, api: Any, common: dict[str, str]) -> None:
        """`api` is the module `opentelemetry.trace`; every span has the attributes `common`."""
        self._api = api
        self._common = _named(common)
        self._tracer = api.get_tracer("holdfast", __version__)
        w3c = import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = w3c.TraceContextTextMapPropagator()

    def span(self, name: str, kind: str, **attributes: Any) -> AbstractContextManager[Any]:
        """A span that is current in a `with` block, and marked as failed if the block raises."""
        made: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            name, kind=self._kind(kind), attributes=self._common | _named(attributes)
        )
        return made

    def begin(self, name: str, kind: str, sender: str = "", **attributes: Any) -> Any:
        """A span that is not current; `end` ends it. `sender` is the context that came with a message."""
        context = self._propagator.extract({"traceparent": sender}) if sender else None
        return self._tracer.start_span(
            name, context, self._kind(kind), attributes=self._common | _named(attributes)
        )

    def use(self, span: Any) -> AbstractContextManager[Any]:
        """Make a span current in a `with` block, without ending it."""
        used: AbstractContextManager[Any] = self._api.use_span(
            span, record_exception=False, set_status_on_exception=False
        )
        return used

    def fail(self, span: Any, error: BaseException | str) -> None:
        """Mark a span as failed."""
        if isinstance(error, BaseException):
            span.record_exception(error)
            error = f"{type(error).__name__}: {error}"
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))

    def context_of(self, span: Any) -> str:
        """The context for the receiver of a message, in the form of the W3C header `traceparent`."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._api.set_span_in_context(span))
        return carrier.get("traceparent", "")

    def _kind(self, kind: str) -> Any:
        return self._api.SpanKind[kind]


class Traced:
    """A part of the API that makes spans."""

    tracing: Tracing | None = None
    """None: the application does not trace."""


def find_tracing(**common: str) -> Tracing | None:
    """The tracing of this process, if it has set a tracer provider."""
    api = sys.modules.get("opentelemetry.trace")  # a process that sets a provider has imported it
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return Tracing(api, common)


def current_ids() -> dict[str, str]:
    """The ids of the current span, for the log; empty if there is none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": api.format_trace_id(context.trace_id),
        "span_id": api.format_span_id(context.span_id),
    }


def set_attributes(span: Any, **attributes: Any) -> None:
    """Add what is known only at the end."""
    span.set_attributes(_named(attributes))


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {f"holdfast.{key}": value for key, value in attributes.items()}
