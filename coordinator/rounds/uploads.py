"""Taking contributions in: resumable at any byte, one connection at a time, acknowledged only when they count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from coordinator.rounds.closing import Stores
from coordinator.rounds.masked import MAX_STEP_BYTES
from coordinator.rounds.pulse import Threads, Together, held
from coordinator.rounds.spool import ArrivalCheck, MaskedArrivalCheck, SpoolFile
from coordinator.rounds.upload_turns import Turn, Turns
from coordinator.store.thread import Grouped
from mien.errors import (
    CorruptDataError,
    LateError,
    LayoutMismatchError,
    NonFiniteError,
    RateLimitedError,
    ReplayError,
    UnreachableError,
    ViolationError,
)
from mien.protocol.ids import DeviceId
from mien.protocol.rounds import BlobId, RoundRef, Stage
from mien.protocol.uploads import UploadPiece
from mien.rounds.machine import COUNTED, Left, RoundState, Step, Uploaded
from mien.rounds.plan import TaskPlan
from mien.rounds.records import RoundRecord, StepRecord, UploadRecord

_BATCH_BYTES: Final = 1024 * 1024
"""Bytes that are gathered before a thread encrypts and writes them, while few contributions arrive."""

_GATHERED_BYTES: Final = 16 * _BATCH_BYTES
"""Bytes that all of them gather together: memory must not grow with the number of devices."""

_PIECE_OVERHEAD_BYTES: Final = 512
"""Memory that a piece takes beside its bytes: a device may send them one by one."""

_DISK_THREADS: Final = 4
"""Number of contributions that are written and brought to the disk at once: the disk serves them together."""

_TURNS: Final = 16
"""Number of contributions read at full speed at once: enough for one to arrive while another is written."""

_SLOW_S: Final = 0.1
"""After how long without a piece a device's turn goes to one that waits."""

_TOGETHER_S: Final = 0.02
"""Time that a complete contribution waits for others that are about to be, to be committed with them."""

_BEFORE_THE_SUM: Final = (Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD)


@dataclass(frozen=True)
class UploadProgress:
    """Number of bytes on stable storage, and whether the contribution counts."""

    received_bytes: int
    is_accepted: bool


class UploadTarget(Protocol):
    """One attempt that takes uploads; a `coordinator.rounds.attempt.Attempt` is one."""

    plan: TaskPlan

    @property
    def state(self) -> RoundState:
        """The attempt's state."""

    @property
    def upload_bytes(self) -> int:
        """Length of a contribution on the wire."""

    @property
    def is_current(self) -> bool:
        """True while messages about the attempt are taken."""

    def step_of(self, device_id: DeviceId) -> Step | None:
        """Return the step that a device has reached."""

    async def post(self, event: Uploaded | Left, *, step: StepRecord | None = None) -> None:
        """Return once what happened to an upload is committed; raises what the round refuses."""


class UploadDesk(Protocol):
    """Finds the attempts that uploads belong to; a `coordinator.rounds.engine.Engine` is one."""

    async def locate(self, device_id: DeviceId, name: RoundRef) -> tuple[UploadTarget | None, RoundRecord]:
        """Return the attempt that takes a device's upload, None where it is an old one, and its record."""


class Uploads:
    """All contributions that are arriving."""

    def __init__(self, desk: UploadDesk, stores: Stores, *, idle_s: float) -> None:
        self._desk, self.stores, self._idle_s = desk, stores, idle_s
        self.threads = Threads(_DISK_THREADS, "uploads")
        self.turns = Turns(_TURNS, slow_s=_SLOW_S)
        self.commits = Together(_TOGETHER_S)
        self._announce = Grouped(stores.thread, stores.store.announce_uploads)
        self._active: dict[tuple[int, str], tuple[_Arrival, asyncio.Task[UploadProgress]]] = {}

    @property
    def batch_bytes(self) -> int:
        """Number of bytes that one contribution may gather now."""
        return min(_BATCH_BYTES, _GATHERED_BYTES // max(len(self._active) - self.turns.num_waiting, 1))

    @property
    def num_arriving(self) -> int:
        """Number of contributions that are arriving now."""
        return len(self._active)

    async def status(self, device_id: DeviceId, name: RoundRef) -> UploadProgress:
        """Return a device's progress; raises LateError when the round is over without its contribution."""
        try:
            return await self._progress(device_id, name)
        except (LateError, RateLimitedError):
            kept = await self._counted(device_id, name)
            if kept is None:
                raise
            return UploadProgress(kept.blob.size_bytes, is_accepted=True)

    async def _progress(self, device_id: DeviceId, name: RoundRef) -> UploadProgress:
        found, record = await self._desk.locate(device_id, name)
        target = self._check_open(found, record, device_id)
        await self._give_way((record.id, device_id))
        if target.step_of(device_id) in COUNTED:
            return UploadProgress(target.upload_bytes, is_accepted=True)
        stored = self.stores.spool.stored_bytes
        return UploadProgress(await self.threads.run(stored, record.id, device_id), is_accepted=False)

    async def _counted(self, device_id: DeviceId, name: RoundRef) -> UploadRecord | None:
        """Return a device's contribution where it counts, None where it does not.

        Asked after the round refused a call, not before: another connection of the device may have brought the
        contribution, and it the end of the round, while this one waited.
        """
        _, record = await self._desk.locate(device_id, name)
        kept = await self.stores.thread.run(self.stores.store.upload, record.id, device_id)
        return kept if kept is not None and kept.is_committed and record.stage is not Stage.ABORTED else None

    async def _give_way(self, key: tuple[int, str]) -> None:
        """End an older connection of a device, perhaps dead: what it brought is kept. One that is complete and only
        waits to be committed is waited for.
        """
        while (older := self._active.get(key)) is not None and not older[1].done():
            if not older[0].is_complete:
                older[1].cancel()
            await asyncio.wait({older[1]})

    async def receive(
        self, device_id: DeviceId, name: RoundRef, announced: BlobId, masked: bytes, pieces: AsyncIterator[UploadPiece]
    ) -> UploadProgress:
        """Return how far an upload got when its stream ended; accepted only once it is committed.

        `masked` is the device's message about its masked vector, empty under plain sums. Raises ViolationError where it
        is missing or does not hold, LayoutMismatchError for another length, ReplayError for other bytes than were
        announced before, OffsetError for a gap, CorruptDataError and NonFiniteError for bytes that cannot be counted.
        """
        try:
            return await self._receive(device_id, name, announced, masked, pieces)
        except (LateError, RateLimitedError):
            kept = await self._counted(device_id, name)
            if kept is None:
                raise
            return UploadProgress(kept.agreeing(announced).blob.size_bytes, is_accepted=True)

    async def _receive(
        self, device_id: DeviceId, name: RoundRef, announced: BlobId, masked: bytes, pieces: AsyncIterator[UploadPiece]
    ) -> UploadProgress:
        target, record = await self._desk.locate(device_id, name)
        await self._give_way((record.id, device_id))
        target = self._check_open(target, record, device_id)
        _check_form(target, announced, masked)
        kept = await self._announce(UploadRecord(record.id, device_id, announced, is_committed=False))
        if kept.agreeing(announced).is_committed:
            return UploadProgress(announced.size_bytes, is_accepted=True)
        step = StepRecord(device_id, Stage.UPLOAD, masked) if masked else None
        arrival = _Arrival(self, target, record, device_id, announced, pieces, step)
        return await self._alone((record.id, device_id), arrival)

    def _check_open(self, target: UploadTarget | None, record: RoundRecord, device_id: DeviceId) -> UploadTarget:
        """Return the attempt if a device may upload now."""
        if target is None or target.state.stage not in _BEFORE_THE_SUM:
            raise LateError("that round is over; nothing is lost, check in again")
        step = target.step_of(device_id)
        if step is Step.LATE:
            raise LateError("the round went on without this device; nothing is lost, check in again")
        if step is Step.LEFT:
            raise LateError("this device has left the round; check in again")
        if target.state.stage is not Stage.UPLOAD:
            raise RateLimitedError(
                "the upload stage is not open yet; follow the round until it is", retry_after_s=1.0, is_expected=True
            )
        return target

    async def _alone(self, key: tuple[int, str], arrival: _Arrival) -> UploadProgress:
        """Run one arrival; an older connection of the same device gives way to it."""
        await self._give_way(key)
        task = asyncio.create_task(arrival.run(self._idle_s))
        self._active[key] = (arrival, task)
        task.add_done_callback(lambda _ended: self._forget(key, task))
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.cancelled() and current is not None and not current.cancelling():
                raise RateLimitedError("another connection of this device goes on with the upload") from None
            raise

    def _forget(self, key: tuple[int, str], task: asyncio.Task[UploadProgress]) -> None:
        if key in self._active and self._active[key][1] is task:
            del self._active[key]


def _check_form(target: UploadTarget, announced: BlobId, masked: bytes) -> None:
    """Raise unless a contribution has the form and length that the task asks for."""
    if bool(masked) != target.plan.task.privacy.is_masked or len(masked) > MAX_STEP_BYTES:
        raise ViolationError(
            "the contribution is not in the form that the task asks for (masked or plain); fetch the task again"
        )
    if announced.size_bytes != target.upload_bytes:
        raise LayoutMismatchError(
            f"the contribution has {announced.size_bytes} bytes, this task needs {target.upload_bytes}; "
            "fetch the assigned task and model again"
        )


class _Batch:
    """Pieces that are being gathered while a thread writes those before them."""

    def __init__(self, writing: asyncio.Future[None] | None = None) -> None:
        self._writing = writing
        self.pieces: list[UploadPiece] = []
        self.memory_bytes = 0

    def add(self, piece: UploadPiece) -> None:
        """Take the next piece."""
        self.pieces.append(piece)
        self.memory_bytes += len(piece.data) + _PIECE_OVERHEAD_BYTES

    async def written(self) -> None:
        """Return once what came before is written; raises what the disk refused."""
        if self._writing is not None:
            await held(self._writing)


def _put_off(silence: asyncio.Timeout, idle_s: float) -> None:
    """Give the next piece its time; not at every piece, for that would cost more than what it is for."""
    now = asyncio.get_running_loop().time()
    if (silence.when() or now) < now + 0.9 * idle_s:
        silence.reschedule(now + idle_s)


def _close(opened: asyncio.Future[SpoolFile]) -> None:
    """Close a file that nobody waits for any more."""
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


class _Arrival:
    """One contribution on its way from a stream to the sum."""

    def __init__(
        self,
        uploads: Uploads,
        target: UploadTarget,
        record: RoundRecord,
        device_id: DeviceId,
        announced: BlobId,
        pieces: AsyncIterator[UploadPiece],
        step: StepRecord | None,
    ) -> None:
        self._uploads, self._target, self._record = uploads, target, record
        self._device_id, self._announced, self._pieces = device_id, announced, pieces
        self._step = step
        self._threads = uploads.threads
        layout, max_weight = target.plan.contribution, target.plan.task.privacy.max_weight
        self._check = ArrivalCheck(layout, max_weight) if step is None else MaskedArrivalCheck()
        self.is_complete = False

    async def run(self, idle_s: float) -> UploadProgress:
        opening = self._threads.start(self._open)
        try:
            file = await held(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise
        try:
            await self._receive(file, idle_s)
            if file.received_bytes < self._announced.size_bytes:
                return UploadProgress(file.received_bytes, is_accepted=False)
            self.is_complete = True
            await self._accept(file)
        except FileNotFoundError as error:
            raise LateError("that round ended during the upload; nothing is lost, check in again") from error
        finally:
            file.close()
        return UploadProgress(file.received_bytes, is_accepted=True)

    def _open(self) -> SpoolFile:
        """Return the spool file, with what it holds already judged; a masked vector is read once it is complete."""
        spool = self._uploads.stores.spool
        file = spool.open(self._record.id, self._device_id, is_read_soon=self._step is not None)
        try:
            for piece in file.pieces():
                self._check.update(piece)
        except BaseException:
            file.close()
            raise
        return file

    async def _receive(self, file: SpoolFile, idle_s: float) -> None:
        """Write pieces until the stream ends or breaks; raises UnreachableError when it falls silent.

        A thread encrypts and writes one batch while the next one arrives. Whatever arrived is on stable storage when
        this returns or raises.
        """
        async with self._uploads.turns.one() as turn:
            batch = _Batch()
            try:
                async with asyncio.timeout(idle_s) as silence:
                    async for piece in self._pieces:
                        self._check_wanted()
                        batch.add(piece)
                        if batch.memory_bytes >= self._uploads.batch_bytes:
                            batch = await self._next_batch(file, batch, turn, silence)
                        turn.heard()
                        _put_off(silence, idle_s)
            except TimeoutError as error:
                raise UnreachableError(f"nothing arrived for {idle_s:g} s; go on with the upload") from error
            finally:
                turn.busy()
                try:
                    await batch.written()
                finally:
                    await self._threads.run(self._write_last, file, batch.pieces)

    async def _next_batch(self, file: SpoolFile, batch: _Batch, turn: Turn, silence: asyncio.Timeout) -> _Batch:
        """Return an empty batch once a thread has begun to write this one; the device is not to blame for the time."""
        turn.busy()
        silence.reschedule(None)
        await batch.written()
        self._check_wanted()
        return _Batch(self._threads.start(self._write, file, batch.pieces))

    def _check_wanted(self) -> None:
        """Raise once the round does not take contributions any more, however slowly this one arrives."""
        if not self._target.is_current or self._target.state.stage is not Stage.UPLOAD:
            raise LateError("that round ended during the upload; nothing is lost, check in again")

    def _write(self, file: SpoolFile, batch: list[UploadPiece]) -> None:
        """Write pieces that follow each other as one; where one does not, those before it are kept."""
        offset = file.next_offset
        for index, piece in enumerate(batch):
            if piece.offset != offset:
                self._keep(file, batch[:index])
                raise file.out_of_place(piece.offset)
            offset += len(piece.data)
        if offset > self._announced.size_bytes:
            raise CorruptDataError("more bytes arrive than were announced; send the contribution again")
        self._keep(file, batch)

    def _keep(self, file: SpoolFile, batch: list[UploadPiece]) -> None:
        pieces = [piece.data for piece in batch]
        file.append(*pieces, offset=file.next_offset)
        for data in pieces:
            self._check.update(data)

    def _write_last(self, file: SpoolFile, batch: list[UploadPiece]) -> None:
        """Write what is left and have everything on stable storage."""
        try:
            self._write(file, batch)
        finally:
            file.sync()

    async def _accept(self, file: SpoolFile) -> None:
        """Judge the whole contribution and have it committed."""
        try:
            self._check.finish(self._announced)
        except CorruptDataError:
            file.remove()
            stores = self._uploads.stores  # the device may send it again from the start
            await stores.thread.run(stores.store.forget_upload, self._record.id, self._device_id)
            raise
        except NonFiniteError as error:
            file.remove()
            await self._target.post(Left(self._device_id, error.code))
            raise
        if self._uploads.num_arriving > 1:
            await self._uploads.commits.ready()
        try:
            await self._target.post(Uploaded(self._device_id), step=self._step)
        except (ViolationError, ReplayError) as error:
            file.remove()
            await self._target.post(Left(self._device_id, error.code))
            raise
