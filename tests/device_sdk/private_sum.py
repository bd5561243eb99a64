"""A coordinator that runs a real private sum: the server's half of `mien.secagg`, and a cohort around one phone.

The phone under test speaks to it over gRPC and TLS; its peers are the library's devices in this process. At each stage
the coordinator waits for the phone, lets the peers act, and goes on. A test takes peers away, has the coordinator lie
to the phone, or breaks the connection.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.keys import pki
from mien.errors import CohortError, ViolationError
from mien.protocol.v1 import rounds_pb2
from mien.secagg import (
    Addends,
    Assignment,
    DevicePolicy,
    DeviceRound,
    EcdsaSigner,
    Identity,
    MemoryLog,
    Opening,
    Profile,
    RoundConfig,
    ServerRound,
)
from mien.secagg.leaves import leaf_verifier
from mien.secagg.noise import noise_allowance
from mien.secagg.planner import RoundIds, plan_round
from mien.specs import TaskSpec
from tests.device_sdk.bench import REF, assignment, layout_of
from tests.device_sdk.scripted import BrokenConnectionError, Fleet, Script
from tests.integration.real_fleet import small_model

KEYS, SHARES, UPLOAD = rounds_pb2.KEYS, rounds_pb2.SHARES, rounds_pb2.UPLOAD
CONSISTENCY, UNMASK = rounds_pb2.CONSISTENCY, rounds_pb2.UNMASK
OVER: Final = (rounds_pb2.CLOSED, rounds_pb2.ABORTED)
SECONDS: Final = 60.0
"""How long the coordinator waits for the phone before a test fails."""


@dataclass
class Peer:
    """Another phone of the cohort; its update is zero, so that the sum is the phone's own."""

    identity: Identity
    device: DeviceRound | None = None

    @classmethod
    def of(cls, key: ec.EllipticCurvePrivateKey, leaf: x509.Certificate) -> Peer:
        device_id = bytes.fromhex(pki.device_id(key.public_key()))
        return cls(Identity(device_id, leaf.public_bytes(Encoding.DER), EcdsaSigner.of(key)))


Tell = Callable[["PrivateSum", bytes], bytes]


@dataclass
class PrivateSum:
    """One attempt. `lost[stage]` peers are gone from that stage on; `lies[stage]` changes what the phone is told.

    `lose_reply` names stages whose first answer is accepted but whose acknowledgement never arrives, `lose_stream`
    stages after which the stream of events breaks once. `heard` is what the phone sent, by stage.
    """

    fleet: Fleet
    task: TaskSpec
    num_peers: int = 6
    num_attested: int = 0
    ref: rounds_pb2.RoundRef = field(default_factory=lambda: REF)
    lost: Mapping[int, int] = field(default_factory=dict)
    lies: Mapping[int, Tell] = field(default_factory=dict)
    lose_reply: Collection[int] = ()
    lose_stream: Collection[int] = ()
    heard: dict[int, list[bytes]] = field(default_factory=dict)
    payload: bytes = b""
    opening: Opening | None = None

    def __post_init__(self) -> None:
        model = small_model()
        ids = RoundIds.of(self.task, self.ref.task_id, self.ref.round, self.ref.attempt, model.spec, model.model_id)
        self.config: RoundConfig = plan_round(self.task, layout_of(self.task), ids)
        verify = leaf_verifier(self.fleet.registrar.certificate, "default", lambda: datetime.now(UTC))
        self.server = ServerRound(self.config, verify=verify)
        self.phone = bytes.fromhex(pki.device_id(self.fleet.key.public_key()))
        self.peers = [
            Peer.of(*self.fleet.member(is_attested=number < self.num_attested)) for number in range(self.num_peers)
        ]
        self.said: dict[tuple[int, bytes], bytes] = {}
        self.messages: dict[bytes, bytes] = {}
        self.stage: int = rounds_pb2.TRAINING
        self.reason = ""
        self._verify = verify
        self._turn = threading.Condition(threading.RLock())
        self._broken: set[tuple[str, int]] = set()

    def script(self, script: Script) -> None:
        """Let a scripted coordinator run this attempt."""
        script.check_in = lambda: assignment(self.task, round=self.ref)
        script.report_trained = self.begin
        script.follow = self.follow
        script.send_step = self.send_step
        script.upload = self.upload
        script.upload_status = lambda: rounds_pb2.UploadStatus(accepted=UPLOAD in self.heard)
        script.leave = self.go_on

    # What the phone calls

    def begin(self) -> rounds_pb2.ReportTrainedReply:
        with self._turn:
            if self.stage == rounds_pb2.TRAINING:
                self._open(KEYS, dict.fromkeys((self.phone, *self.peer_ids()), self.server.invite))
            return rounds_pb2.ReportTrainedReply(stage=rounds_pb2.Stage.Name(self.stage))

    def follow(self) -> Iterable[rounds_pb2.StageEvent]:
        seen = -1
        while seen not in OVER:
            with self._turn:
                seen = self._next_stage(seen)
                told = self.messages.get(self.phone, b"")
                message = self.lies[seen](self, told) if seen in self.lies else told
            yield rounds_pb2.StageEvent(
                stage=rounds_pb2.Stage.Name(seen), message=message, reason=self.reason, model_id="next", num_reports=7
            )
            self._break_once("stream", seen, self.lose_stream)

    def _next_stage(self, seen: int) -> int:
        assert self._turn.wait_for(lambda: self.stage != seen, SECONDS), "the round stands still"
        return self.stage

    def send_step(self, request: rounds_pb2.SendStepRequest) -> rounds_pb2.SendStepReply:
        with self._turn:
            self.heard.setdefault(request.stage, []).append(request.message)
            if self._accept(request.stage, self.phone, request.message):
                self._close(request.stage)
            self._break_once("reply", request.stage, self.lose_reply)
            return rounds_pb2.SendStepReply(stage=rounds_pb2.Stage.Name(self.stage))

    def upload(self, chunks: list[rounds_pb2.UploadChunk]) -> rounds_pb2.UploadStatus:
        with self._turn:
            header, data = chunks[0].header, b"".join(chunk.data for chunk in chunks)
            assert header.contribution.sha256 == hashlib.sha256(data).hexdigest()
            self.heard.setdefault(UPLOAD, []).append(data)
            self.payload = data[: self.server.payload_bytes]
            self.server.accept_masked(self.phone, header.masked, self.payload)
            self._close(UPLOAD)
            self._break_once("reply", UPLOAD, self.lose_reply)
            return rounds_pb2.UploadStatus(accepted=True)

    def end(self) -> None:
        """Give the attempt up where it stands, so that nobody follows it into the next test."""
        with self._turn:
            if self.stage not in OVER:
                self._open(rounds_pb2.ABORTED, {})

    def go_on(self) -> None:
        """Finish without the phone, as at each stage's deadline."""
        with self._turn:
            while self.stage not in OVER and self.stage != rounds_pb2.TRAINING:
                self._close(self.stage)

    # What the coordinator does

    def _accept(self, stage: int, sender: bytes, message: bytes) -> bool:
        """Take a step; tells whether it was the one that the open stage waits for."""
        self.said[stage, sender] = message
        accept = {
            KEYS: self.server.accept_advertise,
            SHARES: self.server.accept_shares,
            CONSISTENCY: self.server.accept_consistency,
            UNMASK: self.server.accept_unmask,
        }[stage]
        try:
            accept(sender, message)
        except ViolationError:
            if not self.lies:
                raise
        return stage == self.stage

    def _close(self, stage: int) -> None:
        """Let the peers act, end the stage, open the next."""
        try:
            for number, peer in enumerate(self.peers):
                gone = max((count for at, count in self.lost.items() if at <= stage), default=0)
                if number >= gone and peer.identity.id in self.messages:
                    self._act(stage, peer, self.messages[peer.identity.id])
            self._open(*self._next(stage))
        except CohortError as error:
            self.reason = error.message
            self._open(rounds_pb2.ABORTED, {})

    def _next(self, stage: int) -> tuple[int, Mapping[bytes, bytes]]:
        if stage == KEYS:
            return SHARES, self.server.close_keys()
        if stage == SHARES:
            return UPLOAD, self.server.close_shares()
        if stage == UPLOAD:
            survivors = self.server.close_upload()
            masked = [device for at, device in self.said if at == UPLOAD]
            told = dict.fromkeys((*masked, *([self.phone] if UPLOAD in self.heard else [])), survivors)
            return (CONSISTENCY if self.config.cohort.profile.has_consistency_round else UNMASK), told
        if stage == CONSISTENCY:
            return UNMASK, self.server.close_consistency()
        self.opening = self.server.open(noise_allowance(self.config, self.task.privacy.dp))
        return rounds_pb2.CLOSED, {}

    def _open(self, stage: int, messages: Mapping[bytes, bytes]) -> None:
        self.stage, self.messages = stage, dict(messages)
        self._turn.notify_all()

    def _act(self, stage: int, peer: Peer, told: bytes) -> None:
        if stage == KEYS:
            peer.device = self.peer_device(peer, told)
            self._accept(stage, peer.identity.id, peer.device.advertise())
        elif peer.device is None:
            return
        elif stage == SHARES:
            self._accept(stage, peer.identity.id, peer.device.share(told))
        elif stage == UPLOAD:
            metrics = (0.0,) * self.config.num_metrics
            masked = peer.device.mask(told, Addends(1, np.zeros(self.config.size, np.float32), metrics))
            self.said[stage, peer.identity.id] = masked.message
            self.server.accept_masked(peer.identity.id, masked.message, masked.payload)
        elif stage == CONSISTENCY or self.config.cohort.profile is Profile.HONEST_BUT_CURIOUS:
            self._accept(stage, peer.identity.id, peer.device.agree(told))
        else:
            self._accept(stage, peer.identity.id, peer.device.unmask(told))

    def peer_device(self, peer: Peer, invite: bytes) -> DeviceRound:
        config = self.config
        known = Assignment(
            config.task_id,
            config.task_sha256,
            config.model_sha256,
            config.layout_sha256,
            config.statement_sha256,
            config.size,
            config.num_metrics,
        )
        return DeviceRound(
            invite,
            identity=peer.identity,
            assignment=known,
            policy=DevicePolicy(min_cohort=2, profiles=frozenset(Profile)),
            verify=self._verify,
            log=MemoryLog(),
            random_bytes=secrets.token_bytes,
        )

    def peer_ids(self) -> list[bytes]:
        return [peer.identity.id for peer in self.peers]

    def _break_once(self, what: str, stage: int, stages: Collection[int]) -> None:
        if stage in stages and (what, stage) not in self._broken:
            self._broken.add((what, stage))
            raise BrokenConnectionError
