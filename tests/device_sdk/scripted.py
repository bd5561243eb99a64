"""A coordinator over real mutual TLS whose answers a test scripts, for faults that a real one has not on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from device_sdk.server.identity import Identity, create_csr
from mien.errors import MienError
from mien.protocol.status import to_status
from mien.protocol.v1 import common_pb2, models_pb2, models_pb2_grpc, rounds_pb2, rounds_pb2_grpc


@dataclass
class Script:
    """What the server does at each call: a function of the request, or nothing for a plain answer. `calls` counts.

    `blobs` are handed out by hash; what is none of them, `download` answers.
    """

    hello: Callable[[], common_pb2.HelloReply] = lambda: common_pb2.HelloReply(
        protocol_version=1, software="scripted", unix_ms=int(time.time() * 1000)
    )
    check_in: Callable[[], rounds_pb2.CheckInReply] = lambda: rounds_pb2.CheckInReply(
        wait=rounds_pb2.Wait(retry_after_s=1.5, reason="nothing")
    )
    download: Callable[[int], Iterable[common_pb2.DataChunk]] = lambda _offset: ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    reply: Callable[[int], Iterable[common_pb2.DataChunk]] = lambda _offset: ()
    follow: Callable[[], Iterable[rounds_pb2.StageEvent]] = lambda: ()
    upload_status: Callable[[], rounds_pb2.UploadStatus] = lambda: rounds_pb2.UploadStatus()
    upload: Callable[[list[rounds_pb2.UploadChunk]], rounds_pb2.UploadStatus] = lambda _chunks: rounds_pb2.UploadStatus(
        accepted=True
    )
    report_trained: Callable[[], rounds_pb2.ReportTrainedReply] = lambda: rounds_pb2.ReportTrainedReply(
        stage=rounds_pb2.TRAINING
    )
    send_step: Callable[[rounds_pb2.SendStepRequest], rounds_pb2.SendStepReply] = lambda request: (
        rounds_pb2.SendStepReply(stage=request.stage)
    )
    leave: Callable[[], None] = lambda: None
    manifest: Callable[[], models_pb2.ModelManifest] = models_pb2.ModelManifest
    calls: list[str] = field(default_factory=list)
    left_with: list[str] = field(default_factory=list)
    check_ins: list[rounds_pb2.CheckInRequest] = field(default_factory=list)

    def fails_first(self, times: int, error: MienError | None, answer: Any) -> Callable[..., Any]:
        """Return a call that fails so many times (a broken connection where `error` is None), then answers."""
        left = [times]

        def attempt(*_: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                raise error or BrokenConnectionError
            return answer

        return attempt


class BrokenConnectionError(Exception):
    """The call ends as if the connection had been lost."""


class _Service(rounds_pb2_grpc.RoundsServicer, models_pb2_grpc.ModelsServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    def Hello(self, request: Any, context: Any) -> Any:
        return self._answer("hello", context, self.script.hello)

    def CheckIn(self, request: Any, context: Any) -> Any:
        self.script.check_ins.append(request)
        return self._answer("check_in", context, self.script.check_in)

    def GetUploadStatus(self, request: Any, context: Any) -> Any:
        return self._answer("upload_status", context, self.script.upload_status)

    def ReportTrained(self, request: Any, context: Any) -> Any:
        return self._answer("report_trained", context, self.script.report_trained)

    def LeaveRound(self, request: Any, context: Any) -> Any:
        self.script.left_with.append(request.error_code)
        self.script.leave()
        return rounds_pb2.LeaveRoundReply()

    def SetParticipation(self, request: Any, context: Any) -> Any:
        return rounds_pb2.SetParticipationReply()

    def SendStep(self, request: Any, context: Any) -> Any:
        return self._answer("send_step", context, lambda: self.script.send_step(request))

    def Upload(self, request_iterator: Any, context: Any) -> Any:
        return self._answer("upload", context, lambda: self.script.upload(list(request_iterator)))

    def FollowRound(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._stream("follow", context, self.script.follow)

    def Download(self, request: Any, context: Any) -> Iterator[Any]:
        data = self.script.blobs.get(request.sha256)
        rest = [] if data is None else [common_pb2.DataChunk(offset=request.offset, data=data[request.offset :])]
        whole = self.script.download if data is None else lambda _offset: rest
        yield from self._stream("download", context, lambda: whole(request.offset))

    def DownloadReply(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._stream("reply", context, lambda: self.script.reply(request.offset))

    def GetManifest(self, request: Any, context: Any) -> Any:
        return self._answer("manifest", context, self.script.manifest)

    def _answer(self, name: str, context: Any, answer: Callable[[], Any]) -> Any:
        self.script.calls.append(name)
        try:
            return answer()
        except BrokenConnectionError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        except MienError as error:
            _abort(context, error)

    def _stream(self, name: str, context: Any, answer: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        self.script.calls.append(name)
        try:
            yield from answer()
        except BrokenConnectionError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        except MienError as error:
            _abort(context, error)


def _abort(context: Any, error: MienError) -> None:
    code, details, metadata = to_status(error)
    context.set_trailing_metadata(metadata)
    context.abort(code, details)


@dataclass(frozen=True)
class Fleet:
    """Two authorities and a device that both know."""

    registrar: pki.Authority
    coordinator: pki.Authority
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls) -> Fleet:
        now = datetime.now(UTC)
        return cls(
            pki.create_authority("registrar", now),
            pki.create_authority("coordinator", now),
            ec.generate_private_key(ec.SECP256R1()),
        )

    def member(
        self, population: str = "default", *, is_attested: bool = False
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """Return the key and certificate of one more device."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.load_der_x509_csr(create_csr(key)).public_bytes(serialization.Encoding.PEM)
        public_key, now = pki.csr_public_key(request), datetime.now(UTC)
        return key, pki.issue_device_leaf(self.registrar, public_key, population, now, is_attested=is_attested)

    def identity(self, address: str, *, issued: timedelta = timedelta(0), **changes: Any) -> Identity:
        """Return the device's identity with a certificate issued so long from now, for seven days."""
        request = x509.load_der_x509_csr(create_csr(self.key)).public_bytes(serialization.Encoding.PEM)
        leaf = pki.issue_device_leaf(self.registrar, pki.csr_public_key(request), "default", datetime.now(UTC) + issued)
        values: dict[str, Any] = {
            "device_id": pki.device_id(self.key.public_key()),
            "population": "default",
            "registrar_address": "127.0.0.1:9",
            "coordinator_address": address,
            "certificate": leaf,
            "registrar_ca": self.registrar.certificate,
            "coordinator_ca": self.coordinator.certificate,
            "key": self.key,
        }
        return Identity(**{**values, **changes})


@contextmanager
def scripted_coordinator(
    fleet: Fleet,
    script: Script,
    *,
    server_issued: timedelta = timedelta(0),
    port: int = 0,
    named: str = "127.0.0.1",
) -> Iterator[str]:
    """Run the server while the block runs, with a certificate for the host `named`; gives its address."""
    leaf = pki.issue_server_leaf(fleet.coordinator, [named], datetime.now(UTC) + server_issued)
    roots = fleet.registrar.certificate_pem + fleet.coordinator.certificate_pem
    credentials = grpc.ssl_server_credentials(
        [(leaf.key_pem, leaf.chain_pem)], root_certificates=roots, require_client_auth=True
    )
    handlers = ThreadPoolExecutor(8)
    server = grpc.server(handlers, options=[("grpc.so_reuseport", 0)])
    service = _Service(script)
    rounds_pb2_grpc.add_RoundsServicer_to_server(service, server)
    models_pb2_grpc.add_ModelsServicer_to_server(service, server)
    bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None)
        handlers.shutdown()  # what they would say of a call that was cut must not come in another test
