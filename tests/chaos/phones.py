"""Devices that follow the protocol to the letter and are unlucky: killed, repeated, delayed, out of order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from device_sdk.rounds.attempts import Attempts
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import (
    BudgetExceededError,
    LateError,
    MienError,
    NotFoundError,
    ReplayError,
    UnavailableError,
    ViolationError,
)
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import AttemptNumber, ModelId, RoundNumber, TaskId
from mien.protocol.v1 import rounds_pb2
from mien.secagg import AttemptId
from mien.secagg.planner import RoundIds
from mien.specs import TaskSpec
from simulation.testing import SPEC, DeviceCredentials, FakeDevice, FakePart
from tests.chaos.ledger import Attempt, Ledger, true_contribution

T = TypeVar("T")
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""How soon a device notices that its connection leads nowhere: like a phone, but sooner."""

_THE_ROUND_IS_OVER = (LateError, NotFoundError, ReplayError, ViolationError, BudgetExceededError)
"""What a device takes for the end of its part in a round; after everything else it tries again."""

ENDINGS = {rounds_pb2.CLOSED: "closed", rounds_pb2.ABORTED: "aborted"}


@dataclass(frozen=True)
class Habits:
    """What goes wrong with a device's calls, as chances of one: that a call is made twice, the second overlapping the
    first; that a call of long ago arrives once more; and the longest delay before a call, in seconds.
    """

    repeats: float = 0.0
    stragglers: float = 0.0
    delay_s: float = 0.0


class Moments:
    """Lets somebody wait for the next call of any device: the instant before it is made."""

    def __init__(self) -> None:
        self._next: asyncio.Future[str] | None = None

    def beat(self, call: str) -> None:
        """A device is about to call."""
        if self._next is not None and not self._next.done():
            self._next.set_result(call)

    async def next(self) -> str:
        """Return the name of the next call."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._next)


@dataclass
class Memory:
    """What a device still has after it was killed: its identity, and the log of attempts that it began."""

    credentials: DeviceCredentials
    log: Attempts
    past: list[Attempt] = field(default_factory=list)

    @classmethod
    def make(cls, credentials: DeviceCredentials, folder: Path) -> Memory:
        """Return the memory of a device that has just joined."""
        folder.mkdir(parents=True)
        log = Attempts.open(folder / "attempts.db", FileKeyStore(folder / "keys"), credentials.population)
        return cls(credentials, log)


class Phone(FakeDevice):
    """One life of a device, from its start to the moment it is killed."""

    def __init__(
        self,
        address: str,
        memory: Memory,
        ledger: Ledger,
        luck: random.Random,
        *,
        habits: Habits,
        moments: Moments,
        patience_s: float,
    ) -> None:
        """`patience_s` is after how long without an answer or an event a call is given up and made again."""
        super().__init__(address, memory.credentials, log=memory.log, call_s=patience_s, options=_KEEPALIVE)
        self._memory, self._ledger, self._luck = memory, ledger, luck
        self._habits, self._moments, self._patience_s = habits, moments, patience_s
        self._pending: Callable[[], Awaitable[None]] | None = None

    async def live(self) -> None:
        """Take part in round after round, whatever happens, until cancelled."""
        while True:
            try:
                if self._pending is None:
                    self._pending = await self._begin()
                if self._pending is not None:
                    await self._pending()
                self._pending = None
            except _THE_ROUND_IS_OVER:
                self._pending = None
                await asyncio.sleep(0.02)
            except (MienError, TimeoutError):
                await asyncio.sleep(0.05)

    async def hear_end(self, attempt: Attempt) -> None:
        """Ask how an attempt ended until that is known."""
        ref = rounds_pb2.RoundRef(task_id=attempt.task_id, round=attempt.round, attempt=attempt.attempt)
        while (attempt, self.id) not in self._ledger.endings:
            with contextlib.suppress(UnavailableError, LateError, TimeoutError):
                await self.until(ref)

    async def _begin(self) -> Callable[[], Awaitable[None]] | None:
        """Return what there is to do in the round that this device is given; None where it cannot go on with it."""
        assignment = await self.assignment()
        ref, task = assignment.round, task_from_json(assignment.task_json)
        attempt = _named(ref)
        data = true_contribution(task, self.id, attempt)
        if attempt not in self._memory.past:
            self._memory.past.append(attempt)
        if not task.privacy.is_masked:
            return lambda: self._plain_round(ref, data)
        if self._memory.log.has_begun(_attempt_id(task, assignment)):  # killed in the middle of it: its keys are gone
            await self.leave(ref, "late")
            return None
        part = self.masked_part(assignment, task, data)
        return lambda: self._masked_round(part)

    async def _plain_round(self, ref: rounds_pb2.RoundRef, data: bytes) -> None:
        await self.report_trained(ref)
        event = await self.until(ref, rounds_pb2.UPLOAD)
        if event.stage == rounds_pb2.UPLOAD:
            status = await self.upload_status(ref)
            if not status.accepted:
                await self.upload(ref, data, offset=status.received_bytes)
            await self.until(ref)
        await self._straggle()

    async def _masked_round(self, part: FakePart) -> None:
        await self.report_trained(part.ref)
        await self.take_part_masked(part)
        await self._straggle()

    async def _straggle(self) -> None:
        """Now and then make calls about rounds of long ago: they may be refused, and change nothing."""
        if self._luck.random() >= self._habits.stragglers:
            return
        attempt = self._luck.choice(self._memory.past)
        ref = rounds_pb2.RoundRef(task_id=attempt.task_id, round=attempt.round, attempt=attempt.attempt)
        stale: list[Callable[[], Awaitable[object]]] = [
            lambda: super(Phone, self).report_trained(ref),
            lambda: super(Phone, self).send_step(ref, rounds_pb2.KEYS, b"stale"),
            lambda: super(Phone, self).upload(ref, b"stale"),
            lambda: self.upload_status(ref),
        ]
        for call in self._luck.sample(stale, k=2):
            with contextlib.suppress(MienError):
                await call()

    # Every call, as the protocol knows it, with bad luck

    async def check_in(
        self, *, population: str | None = None, timeout_s: float = 0.0, duty: rounds_pb2.Duty = rounds_pb2.TRAIN
    ) -> rounds_pb2.CheckInReply:
        limit_s = timeout_s or self._patience_s
        return await self._say(
            "CheckIn", lambda: super(Phone, self).check_in(population=population, timeout_s=limit_s, duty=duty)
        )

    async def report_trained(self, ref: rounds_pb2.RoundRef) -> int:
        return await self._say("ReportTrained", lambda: super(Phone, self).report_trained(ref))

    async def send_step(self, ref: rounds_pb2.RoundRef, stage: int, message: bytes) -> int:
        name = f"SendStep {rounds_pb2.Stage.Name(stage).lower()}"
        return await self._say(name, lambda: super(Phone, self).send_step(ref, stage, message))

    async def upload_status(self, ref: rounds_pb2.RoundRef) -> rounds_pb2.UploadStatus:
        return await self._say("GetUploadStatus", lambda: self._note(ref, super(Phone, self).upload_status(ref)))

    async def upload(  # type: ignore[override]
        self, ref: rounds_pb2.RoundRef, data: bytes, *, offset: int = 0, masked: bytes = b""
    ) -> rounds_pb2.UploadStatus:
        chunk = self._luck.choice((200, 700, 64 * 1024))

        def call() -> Awaitable[rounds_pb2.UploadStatus]:
            return self._note(ref, super(Phone, self).upload(ref, data, offset=offset, masked=masked, chunk=chunk))

        return await self._say("Upload", call)

    async def events(self, ref: rounds_pb2.RoundRef) -> AsyncGenerator[rounds_pb2.StageEvent, None]:
        """Yield events; a stream that is silent for too long is given up: it may lead nowhere."""
        attempt = _named(ref)
        stream = super().events(ref)
        try:
            while True:
                async with asyncio.timeout(self._patience_s):
                    event = await anext(stream)
                if event.stage in ENDINGS:
                    self._ledger.ended(attempt, self.id, ENDINGS[event.stage])
                yield event
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise UnavailableError("no event for a while") from error
        except LateError:
            self._ledger.ended(attempt, self.id, "late")
            raise
        finally:
            await stream.aclose()

    async def _note(
        self, ref: rounds_pb2.RoundRef, call: Awaitable[rounds_pb2.UploadStatus]
    ) -> rounds_pb2.UploadStatus:
        status = await call
        if status.accepted:
            self._ledger.acknowledge(_named(ref), self.id)
        return status

    async def _say(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Return a call's answer; of one that is made twice, the first answer that is none of an error."""
        if self._habits.delay_s:
            await asyncio.sleep(self._luck.uniform(0.0, self._habits.delay_s))
        self._moments.beat(name)
        if self._luck.random() >= self._habits.repeats:
            return await call()
        pause_s = self._luck.uniform(0.0, 0.03)

        async def later() -> T:
            await asyncio.sleep(pause_s)
            return await call()

        first, second = asyncio.ensure_future(call()), asyncio.ensure_future(later())
        try:
            answers = await asyncio.gather(first, second, return_exceptions=True)
        finally:
            for each in (first, second):
                each.cancel()
        for answer in answers:
            if not isinstance(answer, BaseException):
                return answer
        assert isinstance(answers[0], BaseException)
        raise answers[0]


def _named(ref: rounds_pb2.RoundRef) -> Attempt:
    return Attempt(TaskId(ref.task_id), RoundNumber(ref.round), AttemptNumber(ref.attempt))


def _attempt_id(task: TaskSpec, assignment: rounds_pb2.Assignment) -> AttemptId:
    ref = assignment.round
    ids = RoundIds.of(task, *_named(ref), SPEC, ModelId(assignment.model_id))
    return AttemptId(ids.task_id, ids.round, ids.attempt)
