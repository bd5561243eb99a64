"""A phone's connection that is measured, and that fails where it is told to: slow, cut, or gone for good."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from device_sdk.server.client import Assignment, CoordinatorClient, StageEvent
from device_sdk.server.identity import Identity
from device_sdk.server.offers import Progress
from device_sdk.server.rpc import Hello
from mien.errors import ConfigError
from mien.protocol.rounds import RoundRef, Stage, Wait
from mien.shell.clock import Clock
from simulation.phones.notes import Notes

T = TypeVar("T")
LOST_AT: Final = (Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)
"""Stages at which a phone can vanish: always before its answer of that stage."""


class VanishedError(Exception):
    """The phone is gone, without a word to anybody: its program was killed, or its battery is empty."""


@dataclass(frozen=True)
class Faults:
    """Faults by chance.

    In a round a phone vanishes with probability `drop_out`, at a stage drawn evenly, and is back after `away_s` as a
    program that was started anew. It loses its connection with probability `reconnect` and opens another one. Before
    each answer it takes a time drawn from an exponential distribution of mean `slow_s`.
    """

    drop_out: float = 0.0
    reconnect: float = 0.0
    slow_s: float = 0.0
    away_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("drop_out", "reconnect"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it is a share between 0 and 1")
        if self.slow_s < 0 or self.away_s < 0:
            raise ConfigError("--slow and --away are seconds; neither may be negative")


class _Turn:
    """A phone's turn to work out an answer: it ends when the answer is ready, before it is sent."""

    def __init__(self, working: threading.Semaphore) -> None:
        self._working, self._is_ours = working, False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn; it ends with the block at the latest."""
        self._working.acquire()
        self._is_ours = True
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Let the next phone work, if that has not happened yet."""
        if self._is_ours:
            self._is_ours = False
            self._working.release()


class MeteredClient(CoordinatorClient):
    """One connection of an emulated phone; `notes` hears what it did. Raises VanishedError where the faults say so."""

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        chance: random.Random,
        notes: Notes,
        faults: Faults,
        working: threading.Semaphore,
    ) -> None:
        """`working` is taken while this phone works out an answer."""
        super().__init__(identity, clock, chance)
        self._notes, self._faults, self._chance = notes, faults, chance
        self._turn = _Turn(working)
        self._vanishes_at: Stage | None = None
        self._reconnects_at: Stage | None = None

    def hello(self) -> Hello:
        """Return the server's greeting."""
        return self._timed("hello", super().hello)

    def check_in(self, backbones: tuple[str, ...], **asked: Any) -> Assignment | Wait:
        """Return what to do now; with an assignment it is drawn what will go wrong. It is not timed: it is held."""
        answer = super().check_in(backbones, **asked)
        if isinstance(answer, Assignment):
            self._notes.add("assigned")
            self._vanishes_at = self._drawn(self._faults.drop_out)
            self._reconnects_at = self._drawn(self._faults.reconnect)
        return answer

    def report_trained(self, ref: RoundRef) -> Stage | None:
        """Tell that this phone has trained."""
        self._answers(Stage.TRAINING)
        return self._timed("report_trained", lambda: super(MeteredClient, self).report_trained(ref))

    def send_step(self, ref: RoundRef, stage: Stage, message: bytes) -> Stage | None:
        """Send a message of secure aggregation."""
        self._answers(stage)
        sent = self._timed("send_step", lambda: super(MeteredClient, self).send_step(ref, stage, message))
        self._notes.add("step_bytes", len(message))
        return sent

    def upload_accepted(self, ref: RoundRef) -> bool:
        """Tell whether this phone's contribution counts."""
        return self._timed("upload_status", lambda: super(MeteredClient, self).upload_accepted(ref))

    def upload(self, ref: RoundRef, data: bytes, *, masked: bytes = b"", progress: Progress | None = None) -> None:
        """Send a contribution until it counts."""
        self._answers(Stage.UPLOAD)
        began = time.monotonic()
        super().upload(ref, data, masked=masked, progress=progress)
        self._notes.uploaded(ref, self.identity.device_id, len(data) + len(masked), time.monotonic() - began)

    def follow(self, ref: RoundRef) -> Generator[StageEvent, None, None]:
        """Yield where the round is; a phone that loses its connection follows again on another one."""
        while True:
            with closing(super().follow(ref)) as events:
                for event in events:
                    self._notes.saw(ref, event)
                    if event.stage is self._reconnects_at:
                        self._reconnects_at = None
                        break
                    with self._turn.taken():
                        yield event
                else:
                    return
            self._notes.add("reconnects")
            self.reconnect()

    def _answers(self, stage: Stage) -> None:
        """Come to an answer of a stage, which is ready now: late, or never."""
        self._turn.end()
        if self._faults.slow_s > 0:
            self._clock.sleep(self._chance.expovariate(1 / self._faults.slow_s))
        if stage is self._vanishes_at:
            self._vanishes_at = None
            self._notes.lost(stage)
            raise VanishedError

    def _drawn(self, probability: float) -> Stage | None:
        return self._chance.choice(LOST_AT) if self._chance.random() < probability else None

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        answer = call()
        self._notes.answered(name, 1e3 * (time.perf_counter() - began))
        return answer
