"""Traces of rounds and calls for an OpenTelemetry collector (OTLP over HTTP). Loaded only where the settings name one.

An attempt of a round is one trace: a span for the attempt, one below it for each of its stages, and one each for taking
the sum, for the server's step, and for the gates. Its trace's number follows from task, round and attempt, so that what
goes on after a restart, or on another replica, belongs to the same trace. A call is a trace of its own.

Spans say which task, round, stage and method, how many devices, and the names of errors: no device ids, no addresses,
no texts of errors, nothing that devices sent. They are gathered in a bounded queue and sent by a thread: a collector
that is slow or away costs spans, never a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from coordinator.rounds.traces import RoundTraces
from mien.errors import MienError, MissingDependencyError
from mien.protocol.rounds import RoundRef, Stage
from mien.rounds.records import RoundRecord

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
    from opentelemetry.trace import (
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )
except ImportError as error:
    raise MissingDependencyError(
        "otlp_endpoint needs OpenTelemetry: pip install '.[coordinator]' in Mien's folder"
    ) from error

_LAST_SPANS_MS: Final = 2000
_SEND_S: Final = 5.0
_KEPT: Final = 1000
"""Rounds of which it is known which attempt closed them: gates judge a model soon after it was made."""


class _Ids(IdGenerator):
    """Random numbers, but for a span whose own are given."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.given: ContextVar[tuple[int, int] | None] = ContextVar("given", default=None)

    def generate_trace_id(self) -> int:
        given = self.given.get()
        return self._random.generate_trace_id() if given is None else given[0]

    def generate_span_id(self) -> int:
        given = self.given.get()
        return self._random.generate_span_id() if given is None else given[1]


@dataclass
class _Open:
    """An attempt that goes on: its stage, since when, and the stage's span."""

    stage: str
    span: Span


class OtlpTraces(RoundTraces):
    """Sends traces to a collector; one per process, to be closed. Methods run on one event loop."""

    def __init__(self, endpoint: str, share: float, software: str) -> None:
        """`endpoint` is the collector's URL for traces (.../v1/traces); `share` of all traces is kept."""
        name, _, version = software.partition(" ")
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_S)
        self._ids = _Ids()
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(share),
            resource=Resource({"service.name": name, "service.version": version}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=_SEND_S * 1000))
        self._tracer = self._provider.get_tracer("mien.coordinator")
        self._open: dict[RoundRef, _Open] = {}
        self._closed: dict[tuple[str, int], RoundRef] = {}

    def close(self) -> None:
        """Send what is left, within a moment."""
        for going_on in self._open.values():
            going_on.span.set_attribute("mien.interrupted", True)
            going_on.span.end()
        self._provider.force_flush(_LAST_SPANS_MS)
        self._provider.shutdown()

    # Rounds

    def stage(self, task: str, record: RoundRecord, stage: str) -> None:
        """End the span of the stage before, begin that of this one; where the attempt is over, tell of all of it."""
        attempt = record.ref
        before = self._open.get(attempt)
        if before is not None and before.stage == stage:
            return
        attributes = _attributes(task, record)
        if before is not None:
            before.span.set_attributes(attributes)
            before.span.end()
            del self._open[attempt]
        if Stage(stage).is_over:
            if before is not None:
                self._tell_attempt(attempt, record, stage, attributes)
            return
        span = self._tracer.start_span(stage, self._below(attempt), attributes=attributes)
        self._open[attempt] = _Open(stage, span)

    def _tell_attempt(self, attempt: RoundRef, record: RoundRecord, stage: str, attributes: dict[str, Any]) -> None:
        token = self._ids.given.set(_numbers(attempt))
        try:
            span = self._tracer.start_span(
                "round", Context(), attributes={**attributes, "mien.end": stage}, start_time=record.started_ms * 10**6
            )
        finally:
            self._ids.given.reset(token)
        if stage == Stage.ABORTED:
            span.set_status(Status(StatusCode.ERROR, "aborted"))
        else:
            self._closed[(attempt.task_id, attempt.round)] = attempt
            while len(self._closed) > _KEPT:
                del self._closed[next(iter(self._closed))]
        span.end()

    @contextlib.contextmanager
    def work(self, name: str, attempt: RoundRef) -> Iterator[None]:
        """Time a block of work as a span of its attempt's trace."""
        if not attempt.attempt:
            attempt = self._closed.get((attempt.task_id, attempt.round), attempt)
        attributes = {"mien.task_id": attempt.task_id, "mien.round": attempt.round, "mien.attempt": attempt.attempt}
        with self._timed(name, self._below(attempt), SpanKind.INTERNAL, attributes):
            yield

    def _below(self, attempt: RoundRef) -> Context:
        trace_id, span_id = _numbers(attempt)
        root = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        return set_span_in_context(NonRecordingSpan(root), Context())

    # Calls

    @contextlib.contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Time the handling of a call (`/package.Service/Method`)."""
        service, _, name = method.strip("/").rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        with self._timed(method.strip("/"), Context(), SpanKind.SERVER, attributes):
            yield

    @contextlib.contextmanager
    def _timed(self, name: str, context: Context, kind: SpanKind, attributes: dict[str, Any]) -> Iterator[None]:
        span, end = self._tracer.start_span(name, context, kind, attributes), "internal"
        try:
            yield
            end = ""
        except MienError as error:
            end = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            end = "cancelled"
            raise
        finally:
            if end:
                span.set_attribute("error.type", end)
                span.set_status(Status(StatusCode.ERROR))
            span.end()


def _numbers(attempt: RoundRef) -> tuple[int, int]:
    """Return the trace's number of an attempt and its own span's, neither 0."""
    digest = hashlib.sha256(f"mien/trace/1\n{attempt.task_id}\n{attempt.round}\n{attempt.attempt}".encode()).digest()
    return int.from_bytes(digest[:16]) | 1, int.from_bytes(digest[16:24]) | 1


def _attributes(task: str, record: RoundRecord) -> dict[str, Any]:
    return {
        "mien.task": task,
        "mien.task_id": record.task_id,
        "mien.round": record.round,
        "mien.attempt": record.attempt,
        "mien.duty": str(record.role),
        "mien.devices_selected": record.num_selected,
        "mien.devices_trained": record.num_trained,
        "mien.devices_counted": record.num_reports,
    }
