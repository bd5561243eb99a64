"""Records of an emulated fleet: one an attempt, and counts for each phone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mien.protocol.rounds import Stage


class Fate(StrEnum):
    """End of a phone's part in an attempt.

    SPARE: it was not needed, for enough others had trained. IN_USE: it was taken into use. OFFLINE: it lost its
    network. STOPPED: its system stopped the app. ABORTED: the attempt ended without a model, through no fault of the
    phone.
    """

    COUNTED = "counted"
    SPARE = "spare"
    SLOW = "slow"
    IN_USE = "in use"
    OFFLINE = "offline"
    STOPPED = "stopped"
    FAILED = "failed"
    NEVER_CAME = "never came"
    ABORTED = "aborted"


@dataclass
class Attempt:
    """One attempt of a round: when it was where, who took part, and what that cost.

    Times are in seconds of the virtual clock. `worked_s` is phones' time at work, `wasted_s` that of phones that were
    not counted. `devices` are those in the sum.
    """

    round: int
    attempt: int
    lane: int
    opened_s: float
    selected_s: float | None = None
    ended_s: float | None = None
    is_closed: bool = False
    reason: str = ""
    stages: list[tuple[Stage, float]] = field(default_factory=list)
    num_selected: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)
    base_version: int = 0
    version: int | None = None
    worked_s: float = 0.0
    wasted_s: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    devices: tuple[str, ...] = field(default=(), repr=False)

    @property
    def staleness(self) -> int:
        """Number of models made since the one that the cohort trained on."""
        return 0 if self.version is None else self.version - 1 - self.base_version


@dataclass
class PhoneCounts:
    """For each phone: when it was last seen, how often it was chosen, and counted."""

    seen_s: NDArray[np.float64]
    chosen: NDArray[np.int32]
    counted: NDArray[np.int32]

    @classmethod
    def of(cls, num_phones: int) -> PhoneCounts:
        """Return counts of phones that have just registered."""
        return cls(np.zeros(num_phones), np.zeros(num_phones, np.int32), np.zeros(num_phones, np.int32))


@dataclass(frozen=True)
class History:
    """An emulated fleet's whole history.

    `ended_s` is when it ended, before its time where the task was over. `there` are phones that are there, at each full
    hour; `check_ins` how many came in each hour. `pauses` tell when a task was paused, and why.
    """

    task: str
    ended_s: float
    state: str
    rounds_closed: int
    attempts: tuple[Attempt, ...] = field(repr=False)
    phones: PhoneCounts = field(repr=False)
    there: NDArray[np.int64] = field(repr=False)
    check_ins: NDArray[np.int64] = field(repr=False)
    pauses: tuple[tuple[float, str], ...] = ()
