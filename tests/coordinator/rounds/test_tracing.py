"""Traces as a collector gets them over HTTP: one for each attempt of a round, and nothing of any device in them."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from coordinator.home.config import CoordinatorConfig
from coordinator.rounds.tracing import OtlpTraces
from mien.errors import ConfigError, DiskFullError
from mien.protocol.rounds import RoundRef, Stage
from mien.rounds.records import RoundRecord
from simulation.testing import FakeFleet, contribution, masked_task, running_out
from tests.helpers import run

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Collector:
    """What an OpenTelemetry collector was sent."""

    url: str
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        """All spans, as protobuf has them."""
        found = []
        for body in self.bodies:
            request = ExportTraceServiceRequest.FromString(body)
            found += [s for each in request.resource_spans for scope in each.scope_spans for s in scope.spans]
        return found

    def traces(self) -> dict[bytes, list[Any]]:
        """Spans by their trace."""
        by_trace = dict[bytes, list[Any]]()
        for span in self.spans:
            by_trace.setdefault(span.trace_id, []).append(span)
        return by_trace


@pytest.fixture
def collector() -> Iterator[Collector]:
    with receiving() as found:
        yield found


@contextmanager
def receiving() -> Iterator[Collector]:
    """Receive traces on a port of loopback, as OTLP over HTTP has it."""
    received = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-protobuf"
            received.bodies.append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def attempt_of(number: int, stage: Stage, **changes: Any) -> RoundRecord:
    return RoundRecord(1, "t1", 1, number, stage, None, "a" * 64, started_ms=1_000_000, **changes)


def played(traces: OtlpTraces, number: int, *stages: Stage) -> None:
    """Tell of an attempt's stages, each twice, as a restart does."""
    for stage in stages:
        for _ in range(2):
            traces.stage("demo", attempt_of(number, stage, num_selected=5), stage)


def test_an_attempt_is_one_trace_also_over_a_restart(collector: Collector) -> None:
    first = OtlpTraces(collector.url, 1.0, "mien-coordinator 0.1")
    played(first, 1, Stage.SELECTING, Stage.TRAINING)
    first.close()
    second = OtlpTraces(collector.url, 1.0, "mien-coordinator 0.1")
    played(second, 1, Stage.TRAINING, Stage.CLOSING)
    with second.work("sum", RoundRef("t1", 1, 1)):
        pass
    played(second, 1, Stage.CLOSED)
    with second.work("gates", RoundRef("t1", 1, 0)):
        pass
    second.close()
    (spans,) = collector.traces().values()
    (root,) = [span for span in spans if not span.parent_span_id]
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    names = [span.name for span in spans if span is not root]
    assert sorted(names) == ["closing", "gates", "selecting", "sum", "training", "training"]
    assert root.name == "round"
    assert root.start_time_unix_nano == 10**12
    told = attributes(root)
    assert (told["mien.task"], told["mien.round"], told["mien.attempt"], told["mien.end"]) == ("demo", 1, 1, "closed")
    assert told["mien.devices_selected"] == 5


def test_attempts_are_traces_apart_and_errors_are_named(collector: Collector) -> None:
    traces = OtlpTraces(collector.url, 1.0, "mien-coordinator 0.1")
    played(traces, 1, Stage.SELECTING, Stage.ABORTED)
    played(traces, 2, Stage.SELECTING, Stage.ABORTED)

    def fail() -> None:
        with traces.call("/mien.v1.Rounds/Upload"):
            raise DiskFullError("no space left; device 3f0c3f0c3f0c3f0c3f0c3f0c3f0c3f0c")

    with pytest.raises(DiskFullError):
        fail()
    traces.close()
    found = collector.traces()
    assert sorted(len(spans) for spans in found.values()) == [1, 2, 2]
    (call,) = [span for span in collector.spans if span.name == "mien.v1.Rounds/Upload"]
    told = attributes(call)
    assert (told["rpc.service"], told["rpc.method"], told["error.type"]) == ("mien.v1.Rounds", "Upload", "disk_full")
    assert not any(b"3f0c3f0c" in body for body in collector.bodies)
    assert {span.status.code for span in collector.spans if span.name == "round"} == {2}


def test_a_share_of_traces_is_kept_whole(collector: Collector) -> None:
    for share, expected in ((0.0, 0), (0.5, 50)):
        traces = OtlpTraces(collector.url, share, "mien-coordinator 0.1")
        for number in range(100):
            played(traces, number, Stage.SELECTING, Stage.TRAINING, Stage.ABORTED)
        traces.close()
        found = collector.traces().values()
        assert {len(spans) for spans in found} <= {3}
        assert abs(len(found) - expected) <= expected / 2  # which ones follows from the task, not from chance


def test_a_collector_that_is_away_fails_nothing() -> None:
    traces = OtlpTraces("http://127.0.0.1:1/v1/traces", 1.0, "mien-coordinator 0.1")
    played(traces, 1, Stage.SELECTING, Stage.ABORTED)
    traces.close()


def test_a_round_of_real_programs(collector: Collector, tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, otlp_endpoint=collector.url)
    devices_ids: list[str] = []

    async def story() -> None:
        async with fleet.operator() as operator, fleet.devices("traced", 5) as devices:
            devices_ids.extend(device.id for device in devices)
            await fleet.release_tiny_model(operator)
            status = await operator.submit(masked_task("traced", "traced", deadlines=running_out()), "traced")
            await asyncio.gather(*(d.take_part(lambda task, _: contribution(task, 1)) for d in devices))
            async for event in operator.watch(status.task_id):
                if event.task.state == "done":
                    return

    try:
        fleet.start()
        run(story())
        assert fleet.stop() == 0
    finally:
        fleet.close()
    spans = collector.spans
    (root,) = [span for span in spans if span.name == "round"]
    below = {span.name: span for span in spans if span.parent_span_id == root.span_id}
    stages = ("selecting", "training", "keys", "shares", "upload", "consistency", "unmask", "closing")
    assert set(below) == {*stages, "sum", "server step"}
    assert {span.trace_id for span in below.values()} == {root.trace_id}
    ends = [below[name].end_time_unix_nano for name in stages]
    assert ends == sorted(ends)
    assert attributes(root)["mien.devices_counted"] == 5
    calls = {span.name for span in spans if span.name.startswith("mien.v1.")}
    assert {"mien.v1.Rounds/CheckIn", "mien.v1.Rounds/Upload", "mien.v1.Operator/SubmitTask"} <= calls
    everything = b"".join(collector.bodies)
    assert len(devices_ids) == 5
    assert not any(device.encode() in everything or bytes.fromhex(device) in everything for device in devices_ids)


def test_nothing_of_it_is_loaded_where_nobody_listens() -> None:
    code = "import sys, coordinator.serve; print(any(m.startswith('opentelemetry') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_wrong_settings_are_named() -> None:
    good = CoordinatorConfig("a:1")
    for wrong in ({"otlp_endpoint": "collector:4318"}, {"otlp_share": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            dataclasses.replace(good, **wrong)
