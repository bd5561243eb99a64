"""Real programs to throw messages at: a coordinator in the middle of two rounds, and a registrar, each a process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.descriptor import MethodDescriptor

from coordinator.keys import pki
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from mien.protocol.canonical import model_to_json, task_to_json, to_canonical_json
from mien.protocol.invite import Invite
from mien.protocol.v1 import common_pb2, operator_pb2, registrar_pb2, registrar_pb2_grpc, rounds_pb2
from mien.records import to_mapping
from mien.specs import CohortSpec, DeadlineSpec, Threshold
from simulation.testing import (
    LAYOUT,
    SPEC,
    THETA,
    DeviceCredentials,
    FakeDevice,
    FakeFleet,
    contribution,
    free_port,
    masked_task,
    tiny_task,
)
from tests.attacks.fuzz.messages import Pool
from tests.coordinator.registrar.running import Phone, csr_der
from tests.helpers import ROOT, run

CALL_S: Final = 5.0
STREAM_S: Final = 0.2
"""Longest that an answer is waited for, and the stream of a round that goes on."""

LONG = DeadlineSpec(600.0, 600.0, *(600.0,) * 5)


@dataclass(frozen=True)
class Target:
    """A running program: where it listens for one service, who may call it, and what is valid there."""

    channels: Sequence[grpc.Channel]
    pool: Pool = field(repr=False)
    pid: int
    log: Path

    def throw(
        self,
        method: MethodDescriptor,
        messages: Sequence[bytes],
        caller: int,
        metadata: Sequence[tuple[str, bytes]] = (),
    ) -> grpc.StatusCode:
        """Return how a call ended, whatever its bytes; at most a few answers of a stream are read."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        channel = self.channels[caller % len(self.channels)]
        as_is: dict[str, Any] = {"request_serializer": bytes, "response_deserializer": bytes}
        try:
            if method.client_streaming:
                channel.stream_unary(path, **as_is)(iter(messages), timeout=CALL_S, metadata=metadata)
            elif method.server_streaming:
                call = channel.unary_stream(path, **as_is)(messages[0], timeout=STREAM_S, metadata=metadata)
                for _, _answer in zip(range(3), call, strict=False):
                    pass
                call.cancel()
            else:
                channel.unary_unary(path, **as_is)(messages[0], timeout=CALL_S, metadata=metadata)
        except grpc.RpcError as error:
            check_status(error)
            return error.code()
        return grpc.StatusCode.OK

    @property
    def memory_bytes(self) -> int:
        """The most memory that the program has had."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024


def check_status(error: Any) -> None:
    """Fail where a status shows a defect, or the inside of the program."""
    code, details = error.code(), error.details() or ""
    if "RST_STREAM" in details:  # gRPC's transport ended a stream that the server had answered: no handler's doing
        return
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), f"{code}: {details}"
    assert len(details) < 2000, details[:200]
    for words in ("Traceback", 'File "', "site-packages", ".py", "0x7f", "\x00"):
        assert words not in details, details


@contextmanager
def coordinator(folder: Path) -> Iterator[Target]:
    """A coordinator with a plain round at UPLOAD and a masked one at KEYS, and everybody who may call it."""
    fleet = FakeFleet(folder, check_in_hold_s=0.05)
    try:
        fleet.start()
        people = [fleet.admit("fuzz") for _ in range(4)] + [fleet.admit("masked") for _ in range(5)]
        pool = run(_prepare(fleet, people))
        channels = [_channel(fleet.address, c.coordinator_ca, c.key, c.chain) for c in people]
        mine = fleet.home.operator_credentials()
        channels.append(_channel(fleet.address, mine.ca_pem, mine.key_pem, mine.chain_pem))
        yield Target(channels, pool, fleet.process.pid, fleet.log)
        assert fleet.process.poll() is None, "the coordinator did not survive"
        for channel in channels:
            channel.close()
        assert fleet.stop() == 0
    finally:
        fleet.close()


def _channel(address: str, root: bytes, key: bytes | None = None, chain: bytes | None = None) -> grpc.Channel:
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain))


async def _prepare(fleet: FakeFleet, people: Sequence[DeviceCredentials]) -> Pool:
    """Bring two tasks into the middle of a round; return what their messages are made of."""
    plain = tiny_task("fuzz", "fuzz", deadlines=LONG, cohort=CohortSpec(size=4, min_reports=2))
    masked = masked_task("masked", "masked", deadlines=LONG)
    async with fleet.operator() as operator:
        model_id = await fleet.release_tiny_model(operator)
        statuses = [await operator.submit(task, task.name) for task in (plain, masked)]
    refs = []
    for group in (people[:4], people[4:]):
        devices = [FakeDevice(fleet.address, credentials) for credentials in group]
        assigned = await asyncio.gather(*(device.assignment() for device in devices))
        for device, assignment in zip(devices, assigned, strict=True):
            await device.report_trained(assignment.round)
        await devices[0].until(assigned[0].round, rounds_pb2.UPLOAD, rounds_pb2.KEYS)
        refs.append(assigned[0].round)
        for device in devices:
            await device.__aexit__(None, None, None)
    data, theta = contribution(plain, 1), THETA.astype("<f4").tobytes()
    blobs = [common_pb2.BlobRef(sha256=hashlib.sha256(b).hexdigest(), size_bytes=len(b)) for b in (data, theta)]
    threshold = Threshold(0.3, 0.001, "faces", 10, 30_000, model_id, "2026-01-01")
    record = {"protocol": "folder-all-pairs", "model_id": model_id, "dataset": "faces"}
    return {
        "RoundRef": refs,
        "BlobRef": blobs,
        "UploadHeader": [rounds_pb2.UploadHeader(round=refs[0], contribution=blobs[0])],
        "ImportModelHeader": [operator_pb2.ImportModelHeader(spec_json=model_to_json(SPEC, LAYOUT), theta=blobs[1])],
        "task_id": [status.task_id for status in statuses],
        "model_id": [model_id, ""],
        "sha256": [blob.sha256 for blob in blobs],
        "data": [data, theta, data[:700]],
        "offset": [0, 700, len(data)],
        "population": ["fuzz", "masked"],
        "protocol_versions": [1, 0],
        "task_json": [task_to_json(task) for task in (plain, masked)],
        "spec_json": [model_to_json(SPEC, LAYOUT)],
        "threshold_json": [to_canonical_json(to_mapping(threshold))],
        "record_json": [json.dumps(record).encode()],
        "share": [0.1, 1.0],
    }


@contextmanager
def registrar(folder: Path) -> Iterator[Target]:
    """A registrar with an open and a used invite, and a device that renews."""
    ports = free_port(), free_port()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    config = RegistrarConfig(
        addresses[0],
        "127.0.0.1:7443",
        addresses[1],
        listen=addresses[0],
        max_join_failures=1000,
        join_failure_window_s=1,
        drain_s=5,
    )
    now = datetime.now(UTC)
    home = RegistrarHome.create(folder / "R", config, now)
    home.trust(pki.create_authority("coordinator", now).certificate_pem, replace=False)
    ready, log = folder / "ready.json", folder / "registrar.log"
    command = [
        sys.executable,
        "-m",
        "coordinator.commands.registrar_cli",
        "serve",
        "--home",
        str(home.folder),
        "--json",
    ]
    with log.open("ab") as out:
        process = subprocess.Popen([*command, f"--ready-file={ready}"], cwd=ROOT, stdout=out, stderr=out)
    try:
        _wait_for(ready, process)
        target = _registrar_target(home, addresses, process.pid, log)
        yield target
        assert process.poll() is None, "the registrar did not survive"
        for channel in target.channels:
            channel.close()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _wait_for(ready: Path, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + 60
    while not ready.is_file():
        assert process.poll() is None, "the registrar did not start"
        assert time.monotonic() < give_up
        time.sleep(0.02)


def _registrar_target(home: RegistrarHome, addresses: Sequence[str], pid: int, log: Path) -> Target:
    root, mine = pki.to_pem(home.ca()), home.operator_credentials()
    channels = [_channel(addresses[0], root), _channel(addresses[1], root, mine.key_pem, mine.chain_pem)]
    join = registrar_pb2_grpc.RegistrarStub(channels[0])
    admin = registrar_pb2_grpc.RegistrarAdminStub(channels[1])
    invites = [
        Invite.from_url(admin.CreateInvite(registrar_pb2.CreateInviteRequest(population="default")).url)
        for _ in range(3)
    ]
    key = ec.generate_private_key(ec.SECP256R1())
    joined = join.Join(registrar_pb2.JoinRequest(token=invites[0].token, csr_der=csr_der(key)))
    phone = Phone(key, pki.load_certificate(joined.certificate_der))
    renewal = phone.renewal(int(datetime.now(UTC).timestamp() * 1000))
    pool: Pool = {
        "RenewRequest": [renewal],
        "JoinRequest": [registrar_pb2.JoinRequest(token=invites[0].token, csr_der=csr_der(key))],
        "token": [invite.token for invite in invites],
        "csr_der": [csr_der(key), csr_der(ec.generate_private_key(ec.SECP256R1()))],
        "certificate_der": [joined.certificate_der, joined.registrar_ca_der, joined.coordinator_ca_der],
        "signature": [renewal.signature],
        "unix_ms": [renewal.unix_ms],
        "device_id": ["0" * 32],
        "after_device_id": ["", joined.device_id],
        "population": ["default"],
        "protocol_versions": [1, 0],
        "limit": [0, 10],
    }
    return Target(channels, pool, pid, log)
