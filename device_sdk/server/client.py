"""The coordinator as a device sees it: every call may be repeated, transfers go on where they stopped.

Errors are Mien's own (`mien.errors`). What can succeed later is tried again with growing pauses; what cannot is raised
at once. Nothing is decided here: `participate` decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self, TypeVar

import grpc

from device_sdk.server.certificates import check_clock, check_period
from device_sdk.server.identity import Identity
from device_sdk.server.join import check_server
from device_sdk.server.offers import Manifest, Progress
from device_sdk.server.retry import Retries, RetryPolicy
from device_sdk.server.rpc import CLOCK_TOLERANCE_S, UNARY_S, Hello, call, open_channel, say_hello, told_by
from device_sdk.server.stage_ends import StageEnds
from mien.errors import (
    CertificateError,
    ConfigError,
    CorruptDataError,
    FingerprintError,
    MienError,
    OffsetError,
    RateLimitedError,
    UnavailableError,
    UnreachableError,
    VersionError,
)
from mien.methods import METHODS
from mien.protocol import CHUNK_BYTES
from mien.protocol.addresses import host_of, may_lead_to
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import AttemptNumber, ModelId, RoundNumber, TaskId
from mien.protocol.messages import ROLES, STAGES, TOLD_STAGES, round_message
from mien.protocol.revocations import MAX_BYTES as MAX_LIST_BYTES
from mien.protocol.rounds import BlobId, Role, RoundRef, Stage, Wait
from mien.protocol.v1 import common_pb2, models_pb2, models_pb2_grpc, rounds_pb2, rounds_pb2_grpc
from mien.protocol.words import plain_words
from mien.shell.clock import Clock
from mien.shell.files import file_sha256, storage_errors, sync_folder
from mien.shell.version import software
from mien.specs import TaskSpec

SERVER: Final = "the coordinator"
GLANCE_S: Final = 5.0
"""Longest time that a look at the round may keep a phone from training."""
LEFT_ALONE_S: Final = 600.0
"""Time for which an address that a server named, and that failed, is not gone to again."""
UNSAID_PAUSE_S: Final = 60.0
"""Pause of a phone whose server has nothing to do for it and gives a pause that is no number."""
T = TypeVar("T")
_ONCE: Final = RetryPolicy(give_up_s=0.0)


RELEASED: Final = ModelId("")
"""No model's id: the one that is released, whichever that is."""


@dataclass(frozen=True)
class Assignment:
    """Assignment of a device. `unverified_reply` is what the method's server tells it, `reply_stream` the long rest."""

    round: RoundRef
    task: TaskSpec
    model_id: ModelId
    contribution_sha256: str
    stage: Stage | None
    unverified_reply: bytes = field(repr=False)
    reply_stream: BlobId | None = None
    role: Role = Role.TRAIN


@dataclass(frozen=True)
class StageEvent:
    """Stage of a round. `remaining_s` is what is left of the stage; `model_id` and `num_reports` are for CLOSED.

    `stage` is None for one that a newer server has.

    `unverified_message` is what secure aggregation tells this device at the stage, empty where it has no part in it.
    """

    stage: Stage | None
    remaining_s: float
    reason: str
    model_id: ModelId
    num_reports: int
    unverified_message: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class LogProof:
    """What the coordinator shows of the log of rounds (`mien.log`), all of it unverified: `rounds.round_log` checks it.

    `checkpoint` is a signed note by `log_key`; `inclusion` leads from the entry at `position` to its root,
    `consistency` from the log that this device saw before. `entry` is there for a release alone.
    """

    checkpoint: str
    log_key: bytes = field(repr=False)
    position: int
    inclusion: tuple[bytes, ...] = field(repr=False)
    consistency: tuple[bytes, ...] = field(repr=False)
    entry: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class ClientSettings:
    """Deadlines and patience. `check_in_s` is long, because the server answers when a round begins.

    `connect` is for the first call, when a person may be waiting; `retry` for all others, when work could be lost.
    """

    check_in_s: float = 150.0
    stream_s: float = 300.0
    transfer_s: float = 600.0
    connect: RetryPolicy = field(default_factory=lambda: RetryPolicy(give_up_s=10.0))
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class CoordinatorClient:
    """One device's connection to its coordinator, over mutual TLS; close it, or use it in a `with` block."""

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        rng: random.Random,
        settings: ClientSettings | None = None,
        *,
        last_address: str = "",
        on_moved: Callable[[str], object] = lambda _address: None,
    ) -> None:
        """`last_address` is where its tasks were run when it was last told, and `on_moved` is told that from now on.

        Both are empty for where this device joined.
        """
        self.identity, self._on_moved = identity, on_moved
        self._clock, self._rng = clock, rng
        self._settings = settings or ClientSettings()
        self._refused, self._refused_until_s = "", 0.0
        joined_at = identity.coordinator_address
        address = last_address if may_lead_to(joined_at, last_address) else joined_at
        self._use(self._open(address), address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    @property
    def address(self) -> str:
        """Where it is connected to: where this device joined, or the replica that runs its tasks."""
        return self._address

    def reconnect(self) -> None:
        """Leave the connection and open another one, to where this device joined: calls under way fail as with a lost
        network.
        """
        self.close()
        self._connect()

    def _connect(self) -> None:
        address = self.identity.coordinator_address
        self._use(self._open(address), address)

    def _open(self, address: str) -> grpc.Channel:
        """Return a channel to an address, of whichever replica: the certificate has to be for where this device joined.

        Nobody is trusted for an address that he gave (decision record 0119).
        """
        joined_at, authority = self.identity.coordinator_address, self.identity.coordinator_ca
        named = "" if address == joined_at else host_of(joined_at)
        return open_channel(address, authority, self.identity, named=named)

    def _use(self, channel: grpc.Channel, address: str) -> None:
        self._channel, self._address = channel, address
        self._rounds = rounds_pb2_grpc.RoundsStub(self._channel)
        self._models = models_pb2_grpc.ModelsStub(self._channel)

    # --- simple calls ---

    def hello(self) -> Hello:
        """Return the server's greeting, after agreeing on a protocol version and comparing clocks.

        Raises CertificateError, FingerprintError or UnreachableError, in words, where TLS would only fail.
        """
        hello = self._greeted()
        check_clock(hello.skew_s, CLOCK_TOLERANCE_S, server="coordinator")
        return hello

    def _greeted(self) -> Hello:
        if not self._is_where_it_joined:
            try:
                return self._say_hello(_ONCE, GLANCE_S)
            except MienError:
                self._return()
        try:
            return self._say_hello(_ONCE)
        except UnreachableError as error:
            cause = self._explain(error)
            if not isinstance(cause, UnreachableError):
                raise cause from error
            try:
                return self._say_hello(self._settings.connect)
            except UnreachableError as last:
                raise self._explain(last) from last

    def check_in(
        self,
        backbones: tuple[str, ...],
        *,
        min_cohort: int = 0,
        role: Role = Role.TRAIN,
        methods: Iterable[str] = METHODS,
        engines: Iterable[str] = (),
        parts: Mapping[str, Iterable[str]] = MappingProxyType({}),
        labelled: bool = False,
        used_up_models: Iterable[str] = (),
        used_up_day: bool = False,
    ) -> Assignment | Wait:
        """Return an assignment or a pause. The server may take its time: it answers once a round has its devices.

        `min_cohort` is the owner's floor, `methods` are those that this device takes part in: said beforehand, so that
        no round waits for a device that would refuse it. `engines` run models here: where they are named, `backbones`
        are all that this device can train; without both nothing is said. `parts` are those that its graphs train, with
        the objectives; empty where nothing limits them. `role` is what this device offers to do, `labelled` whether it
        knows whose faces it trains on. `used_up_models` and `used_up_day` say which sums without phones' own noise the
        owner's limits leave no room for: over these models to train, or any today.
        """
        request = rounds_pb2.CheckInRequest(
            population=self.identity.population,
            software=software("mien-device"),
            backbones=backbones,
            min_cohort=min_cohort,
            duty=ROLES[role],
            methods=sorted(methods),
            engines=sorted(engines),
            parts=[rounds_pb2.TrainablePart(sha256=part, objectives=names) for part, names in parts.items()],
            labelled=labelled,
            used_up_models=used_up_models,
            used_up_day=used_up_day,
        )
        reply = self._call(lambda: self._rounds.CheckIn(request, timeout=self._settings.check_in_s))
        self._go_to(reply.owner_address)
        if reply.WhichOneof("answer") == "assignment":
            return _assignment(reply.assignment)
        return _wait(reply.wait)

    def report_trained(self, ref: RoundRef) -> Stage | None:
        """Report that this device has trained and could upload; returns the stage of the round."""
        request = rounds_pb2.ReportTrainedRequest(round=round_message(ref))
        return TOLD_STAGES.get(self._call(lambda: self._rounds.ReportTrained(request, timeout=UNARY_S)).stage)

    def send_step(self, ref: RoundRef, stage: Stage, message: bytes) -> Stage | None:
        """Send this device's message of a stage of secure aggregation; returns where the round is.

        What a lost connection makes it send again is the same bytes, which the server welcomes. Raises LateError when
        the stage has passed, ReplayError when the server holds other bytes of ours.
        """
        request = rounds_pb2.SendStepRequest(round=round_message(ref), stage=STAGES[stage], message=message)
        return TOLD_STAGES.get(self._call(lambda: self._rounds.SendStep(request, timeout=UNARY_S)).stage)

    def upload_accepted(self, ref: RoundRef) -> bool:
        """Return whether this device's contribution is complete, checked and counts; False before uploads are open."""
        try:
            return self._upload_status(ref, final=(RateLimitedError,)).accepted
        except RateLimitedError:
            return False

    def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
        """Return the proof that the log of rounds holds a round; `first_size` is the size of the log seen last.

        The coordinator may take its time, for the registrar's cosignature.
        """
        request = rounds_pb2.ProveRoundRequest(round=round_message(ref), first_size=first_size)
        return _proof(self._call(lambda: self._rounds.ProveRound(request, timeout=UNARY_S)))

    def prove_release(self, model_id: ModelId, first_size: int) -> LogProof:
        """Return the proof that the log holds a model's release to this device's population, as `prove_round` does."""
        request = rounds_pb2.ProveReleaseRequest(model_id=model_id, first_size=first_size)
        return _proof(self._call(lambda: self._rounds.ProveRelease(request, timeout=UNARY_S)))

    def revocations(self) -> bytes:
        """Return the registrar's list of revoked certificates (DER), unverified (`mien.protocol.revocations`)."""

        def fetch() -> bytes:
            unverified_list = bytearray()
            for piece in self._rounds.DownloadRevocations(
                rounds_pb2.DownloadRevocationsRequest(), timeout=self._settings.transfer_s
            ):
                unverified_list += piece.data
                if len(unverified_list) > MAX_LIST_BYTES:
                    raise CorruptDataError(f"{SERVER} sends a list of revoked phones without end; tell the operator")
            return bytes(unverified_list)

        return self._call(fetch)

    def leave(self, ref: RoundRef, error: MienError) -> None:
        """Report that this device gives a round up; only the stable code of the reason is sent."""
        request = rounds_pb2.LeaveRoundRequest(round=round_message(ref), error_code=error.code)
        self._call(lambda: self._rounds.LeaveRound(request, timeout=UNARY_S))

    def set_participation(self, *, stays_out: bool) -> None:
        """Ask to be left out of all later rounds, or no longer; the server keeps it until it is told otherwise."""
        request = rounds_pb2.SetParticipationRequest(stays_out=stays_out, software=software("mien-device"))
        self._call(lambda: self._rounds.SetParticipation(request, timeout=UNARY_S))

    def manifest(self, model_id: ModelId = RELEASED) -> Manifest:
        """Return a model's manifest; without an id the released model's."""
        request = models_pb2.GetManifestRequest(model_id=model_id)
        reply = self._call(lambda: self._models.GetManifest(request, timeout=UNARY_S))
        theta, shard, changes = map(_blob, (reply.theta, reply.public_shard, reply.changes))
        if theta is None:
            raise CorruptDataError("the coordinator described a model without parameters; tell the operator")
        signed = reply.bundle_manifest, reply.bundle_signature
        return Manifest(
            ModelId(plain_words(reply.model_id)), reply.spec_json, theta, shard, reply.released, changes, *signed
        )

    def glance(self, ref: RoundRef) -> StageEvent:
        """Return a round's stage now, from one short call: raises UnreachableError at once if there is no answer."""
        request = rounds_pb2.FollowRoundRequest(round=round_message(ref))
        stream = self._rounds.FollowRound(request, timeout=GLANCE_S)
        try:
            message = next(iter(stream), None)
        except grpc.RpcError as error:
            known = told_by(error, SERVER)
            self._go_back(known)
            raise known from error
        finally:
            stream.cancel()
        if message is None:
            raise UnreachableError(f"{SERVER} told nothing of the round; retry")
        return _stage_event(message)

    # --- streams ---

    def follow(self, ref: RoundRef) -> Generator[StageEvent, None, None]:
        """Yield where a round is, whenever that changes, until it is CLOSED or ABORTED.

        A broken stream is opened again; the first event after that may repeat the last one. Raises UnreachableError
        when the server stays away for longer than the settings' patience, LateError where it does not end a stage long
        after its deadline, however often it tells of it.
        """
        retries, ends = self._retries(), StageEnds(self._clock)
        request = rounds_pb2.FollowRoundRequest(round=round_message(ref))
        while True:
            heard = False
            stream = self._rounds.FollowRound(request, timeout=self._settings.stream_s)
            try:
                for message in stream:
                    heard = True
                    retries.progress()
                    event = _stage_event(message)
                    if event.stage in (Stage.CLOSED, Stage.ABORTED):
                        yield event
                        return
                    ends.hear(event.stage, event.remaining_s)
                    yield event
                error: MienError = UnreachableError(f"{SERVER} stopped telling about the round; retry")
            except grpc.RpcError as rpc_error:
                error = told_by(rpc_error, SERVER)
                if heard and _own_deadline(rpc_error):
                    continue
            finally:
                stream.cancel()
            if not isinstance(error, UnavailableError):
                raise error
            retries.wait(error)

    def upload(self, ref: RoundRef, data: bytes, *, masked: bytes = b"", progress: Progress | None = None) -> None:
        """Send a contribution and return once the server has it on stable storage and counts it.

        `masked` is message 5 of secure aggregation where the contribution is a masked vector. After an interruption it
        goes on from the byte that the server has; what fits one piece is first sent without asking for that. Raises
        LateError when the round went on without it, ReplayError when the server holds other bytes of ours.
        """
        retries = self._retries()
        sent, asks = -1, len(data) > CHUNK_BYTES
        while True:
            try:
                status = self._upload_status(ref) if asks else rounds_pb2.UploadStatus()
                asks = True
                if not status.accepted:
                    if status.received_bytes > sent:
                        sent = status.received_bytes
                        retries.progress()
                    chunks = _chunks(ref, data, masked, status.received_bytes, progress)
                    status = self._rounds.Upload(chunks, timeout=self._settings.transfer_s)
                if status.accepted:
                    return
                error: MienError = UnreachableError(f"{SERVER} took only a part of the upload; retry")
            except grpc.RpcError as rpc_error:
                error = told_by(rpc_error, SERVER)
            if isinstance(error, OffsetError):
                error = UnreachableError(error.message)
            if not isinstance(error, UnavailableError):
                raise error
            retries.wait(error)

    def download(self, blob: BlobId, target: Path, *, what: str, progress: Progress | None = None) -> None:
        """Fetch a blob into a file, which appears whole and checked or not at all.

        What an interrupted call received lies in `<target>.part` and is not fetched again. Raises CorruptDataError
        when the bytes are not what their hash says, after trying once more from the start.
        """
        unverified_part = target.with_name(target.name + ".part")
        for last_try in (False, True):
            self._fetch(blob, unverified_part, what, progress)
            if file_sha256(unverified_part) == blob.sha256:
                break
            unverified_part.unlink()
            if last_try:
                raise CorruptDataError(f"{what} came damaged twice; try later, or tell the operator")
        with storage_errors(what):
            unverified_part.replace(target)
            sync_folder(target.parent)

    def download_reply(
        self, ref: RoundRef, blob: BlobId, *, most_bytes: int, what: str, progress: Progress | None = None
    ) -> bytes:
        """Return the long part of an assignment's reply, checked; what a broken call received is not fetched again.

        It is held in memory alone: it may show what this device revealed. Raises CorruptDataError for one that is
        longer than `most_bytes`, before anything is fetched, and when the bytes are not what their hash says, after
        trying once more; LateError when the round went on.
        """
        if blob.size_bytes > most_bytes:
            raise CorruptDataError(
                f"{SERVER} announced {blob.size_bytes / 1e6:.1f} MB as {what}, and {most_bytes / 1e6:.1f} MB is the "
                "most that the task can need; tell the operator"
            )

        def open_at(offset: int) -> Iterator[common_pb2.DataChunk]:
            request = rounds_pb2.DownloadReplyRequest(round=round_message(ref), sha256=blob.sha256, offset=offset)
            stream: Iterator[common_pb2.DataChunk] = self._rounds.DownloadReply(
                request, timeout=self._settings.transfer_s
            )
            return stream

        for last_try in (False, True):
            unverified_reply = bytearray()
            self._receive(blob, 0, open_at, unverified_reply.extend, what=what, progress=progress)
            if hashlib.sha256(unverified_reply).hexdigest() == blob.sha256:
                break
            if last_try:
                raise CorruptDataError(f"{what} came damaged twice; try later, or tell the operator")
        return bytes(unverified_reply)

    def _fetch(self, blob: BlobId, part: Path, what: str, progress: Progress | None) -> None:
        """Append what is missing to the partial file, in as many calls as it takes."""

        def open_at(offset: int) -> Iterator[common_pb2.DataChunk]:
            request = models_pb2.DownloadRequest(sha256=blob.sha256, offset=offset)
            stream: Iterator[common_pb2.DataChunk] = self._models.Download(request, timeout=self._settings.transfer_s)
            return stream

        with storage_errors(what), part.open("ab") as file:
            if file.tell() > blob.size_bytes:
                file.truncate(0)
            self._receive(blob, file.seek(0, 2), open_at, file.write, what=what, progress=progress)
            file.flush()
            os.fsync(file.fileno())

    def _receive(
        self,
        blob: BlobId,
        have: int,
        open_at: Callable[[int], Iterator[common_pb2.DataChunk]],
        write: Callable[[bytes], object],
        *,
        what: str,
        progress: Progress | None,
    ) -> None:
        """Hand over the pieces of a blob from byte `have` on, in as many calls as it takes."""
        retries = self._retries()
        while have < blob.size_bytes:
            try:
                for chunk in open_at(have):
                    if chunk.offset != have or not chunk.data or have + len(chunk.data) > blob.size_bytes:
                        raise CorruptDataError(f"{SERVER} sent other pieces of {what} than were asked for; retry")
                    write(chunk.data)
                    have += len(chunk.data)
                    retries.progress()
                    if progress:
                        progress(have, blob.size_bytes)
                error: MienError = UnreachableError(f"{SERVER} sent only a part of {what}; retry")
            except grpc.RpcError as rpc_error:
                error = told_by(rpc_error, SERVER)
            if have < blob.size_bytes:
                if not isinstance(error, UnavailableError):
                    raise error
                retries.wait(error)

    # --- inside ---

    def _say_hello(self, policy: RetryPolicy, timeout_s: float = UNARY_S) -> Hello:
        hello = self._rounds.Hello
        return say_hello(hello, SERVER, policy, clock=self._clock, rng=self._rng, timeout_s=timeout_s)

    def _upload_status(
        self, ref: RoundRef, *, final: tuple[type[UnavailableError], ...] = ()
    ) -> rounds_pb2.UploadStatus:
        request = rounds_pb2.UploadStatusRequest(round=round_message(ref))
        return self._call(lambda: self._rounds.GetUploadStatus(request, timeout=UNARY_S), final=final)

    def _call(self, attempt: Callable[[], T], *, final: tuple[type[UnavailableError], ...] = ()) -> T:
        patience, clock, rng = self._settings.retry, self._clock, self._rng
        return call(attempt, SERVER, patience, clock=clock, rng=rng, final=final, on_failure=self._go_back)

    def _retries(self) -> Retries:
        return Retries(self._settings.retry, self._clock, self._rng, self._go_back)

    def _go_to(self, unverified_address: str) -> None:
        """Go on at the replica that runs this device's tasks, if it may be followed there and answers.

        Where anything about it fails all stays as it is, and that address is left alone for a while.
        """
        address, now_s = unverified_address, self._clock.monotonic_s()
        if address == self._address or not may_lead_to(self.identity.coordinator_address, address):
            return
        if address == self._refused and now_s < self._refused_until_s:
            return
        channel = self._open(address)
        try:
            method = rounds_pb2_grpc.RoundsStub(channel).Hello
            say_hello(method, SERVER, _ONCE, clock=self._clock, rng=self._rng, timeout_s=GLANCE_S)
        except MienError:
            channel.close()
            self._leave_alone(address)
            return
        self.close()
        self._use(channel, address)
        self._remember("" if self._is_where_it_joined else address)

    def _go_back(self, error: MienError) -> None:
        """Go back to where this device joined after a failure at another address, unless that one just says when."""
        is_away = isinstance(error, UnavailableError) and not isinstance(error, RateLimitedError)
        if is_away and not self._is_where_it_joined:
            self._return()

    def _return(self) -> None:
        self._leave_alone(self._address)
        self.reconnect()
        self._remember("")

    def _remember(self, address: str) -> None:
        """Tell of an address; a gallery that is in use, or full, costs the next connection a detour, and no round."""
        with contextlib.suppress(MienError):
            self._on_moved(address)

    @property
    def _is_where_it_joined(self) -> bool:
        return self._address == self.identity.coordinator_address

    def _leave_alone(self, address: str) -> None:
        self._refused, self._refused_until_s = address, self._clock.monotonic_s() + LEFT_ALONE_S

    def _explain(self, error: UnreachableError) -> MienError:
        """Return the cause of a connection that fails: a certificate, a clock, another server, or just no server."""
        identity = self.identity
        try:
            check_period(identity.certificate, self._clock.now_utc(), whose="this device's own")
            check_server(identity.coordinator_address, identity.coordinator_ca, self._clock, who=SERVER)
        except (CertificateError, FingerprintError, UnreachableError) as cause:
            return cause
        return error


def _proof(reply: rounds_pb2.ProveRoundReply) -> LogProof:
    proofs = tuple(reply.inclusion), tuple(reply.consistency)
    return LogProof(reply.checkpoint, reply.log_key, reply.position, *proofs, reply.entry)


def _wait(message: rounds_pb2.Wait) -> Wait:
    pause_s = message.retry_after_s
    if not math.isfinite(pause_s):
        pause_s = UNSAID_PAUSE_S
    return Wait(max(pause_s, 0.0), plain_words(message.reason), message.cannot_train)


def _assignment(message: rounds_pb2.Assignment) -> Assignment:
    name = message.round
    ref = RoundRef(TaskId(plain_words(name.task_id)), RoundNumber(name.round), AttemptNumber(name.attempt))
    try:
        task = task_from_json(message.task_json)
    except ConfigError as error:
        reason = plain_words(error.message)
        raise VersionError(f"the coordinator's task cannot be read ({reason}); upgrade mien") from error
    return Assignment(
        ref,
        task,
        ModelId(plain_words(message.model_id)),
        message.contribution_sha256,
        TOLD_STAGES.get(message.stage),
        message.reply,
        _blob(message.reply_stream),
        _role(message.duty),
    )


def _role(value: int) -> Role:
    role = next((role for role, number in ROLES.items() if number == value), None)
    if role is None:
        raise VersionError("the coordinator asks for something that this program does not know; upgrade mien")
    return role


def _blob(ref: common_pb2.BlobRef) -> BlobId | None:
    return BlobId(ref.sha256, ref.size_bytes) if ref.sha256 else None


def _stage_event(message: rounds_pb2.StageEvent) -> StageEvent:
    return StageEvent(
        TOLD_STAGES.get(message.stage),
        max(message.remaining_ms, 0) / 1000,
        plain_words(message.reason),
        ModelId(plain_words(message.model_id)),
        message.num_reports,
        message.message,
    )


def _chunks(
    ref: RoundRef, data: bytes, masked: bytes, offset: int, progress: Progress | None
) -> Iterator[rounds_pb2.UploadChunk]:
    """Yield an upload from `offset` on, the header first; gRPC takes the next piece when the last one is on its way."""
    blob = common_pb2.BlobRef(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    header = rounds_pb2.UploadHeader(round=round_message(ref), contribution=blob, masked=masked)
    yield rounds_pb2.UploadChunk(header=header, offset=offset)
    view = memoryview(data)
    for start in range(offset, len(data), CHUNK_BYTES):
        piece = bytes(view[start : start + CHUNK_BYTES])
        yield rounds_pb2.UploadChunk(offset=start, data=piece)
        if progress:
            progress(start + len(piece), len(data))


def _own_deadline(error: grpc.RpcError) -> bool:
    """Return whether a stream ended because we limit its length, not because of the server."""
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and isinstance(told_by(error, SERVER), UnreachableError)
