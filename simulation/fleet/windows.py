"""Times when phones are there: spans in which one is idle, charging and on an unmetered network, day by day, or the
parts of these in which its system lets the app work.

Spans are drawn for all phones of a day at once, in arrays, and only shortly before they are due: what a week of a
million phones takes is the memory of two days.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from simulation.fleet.profile import Availability, Battery

HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0
EARLY_S: Final = DAY_S
"""A day's spans begin at most so long before the day, by the run's clock: local time is up to 14 hours ahead of it."""

_FIRST_DAY: Final = -2


class End(IntEnum):
    """How a span ends: the phone is only in use, off its network, or its system stops the app."""

    IN_USE = 0
    OFFLINE = 1
    STOPPED = 2


@dataclass(frozen=True)
class Spans:
    """Spans of time in the order of their starts, and how each ends (`End`)."""

    phones: NDArray[np.int32]
    starts_s: NDArray[np.float64]
    ends_s: NDArray[np.float64]
    ends_by: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.phones)

    @classmethod
    def empty(cls) -> Self:
        """Return no spans."""
        return cls(np.zeros(0, np.int32), np.zeros(0), np.zeros(0), np.zeros(0, np.int8))

    def part(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Spans:
        """Return some of the spans."""
        return Spans(self.phones[index], self.starts_s[index], self.ends_s[index], self.ends_by[index])

    def merged(self, other: Spans) -> Spans:
        """Return these and other spans, in order; equal starts stay in the order of the two."""
        both = Spans(
            np.concatenate([self.phones, other.phones]),
            np.concatenate([self.starts_s, other.starts_s]),
            np.concatenate([self.ends_s, other.ends_s]),
            np.concatenate([self.ends_by, other.ends_by]),
        )
        return both.part(np.argsort(both.starts_s, kind="stable"))


class Presence(Protocol):
    """Spans of time in which phones are there."""

    def day(self, day: int) -> Spans:
        """Return the spans of one day, in any order: each span belongs to one day, and starts near it."""
        ...


class Diurnal:
    """Nights on the charger and short charges by day, by each phone's own local time."""

    def __init__(self, availability: Availability, battery: Battery, num_phones: int, seed: int) -> None:
        self._spec, self._battery, self._num, self._seed = availability, battery, num_phones, seed
        zones = np.random.default_rng([seed, 1]).integers(len(availability.zones_h), size=num_phones, dtype=np.int8)
        self._is_restricted = np.random.default_rng([seed, 8]).random(num_phones) < availability.restricted_share
        self._zones_s = np.array(availability.zones_h)[zones].astype(np.float32) * np.float32(HOUR_S)

    def day(self, day: int) -> Spans:
        """Return the spans of a day: the night that begins in it, and its charges by day."""
        rng, spec = np.random.default_rng([self._seed, 2, day + 1_000_000]), self._spec
        nights = np.flatnonzero(rng.random(self._num) < spec.night_share).astype(np.int32)
        night_starts = spec.night_start_h + spec.night_start_sd_h * rng.standard_normal(len(nights))
        night_hours = np.maximum(spec.night_hours + spec.night_hours_sd * rng.standard_normal(len(nights)), 0.25)
        charges = np.repeat(np.arange(self._num, dtype=np.int32), rng.poisson(spec.day_charges, self._num))
        charge_starts = rng.uniform(spec.day_from_h, spec.day_to_h, len(charges))
        charge_hours = rng.exponential(spec.day_hours, len(charges))
        phones = np.concatenate([nights, charges])
        starts = np.concatenate([night_starts, charge_starts]) * HOUR_S + day * DAY_S - self._zones_s[phones]
        ends = starts + np.concatenate([night_hours, charge_hours]) * HOUR_S
        level = rng.normal(self._battery.start_level, self._battery.start_level_sd, len(phones))
        missing = np.maximum(self._battery.least_level - np.clip(level, 0, 1), 0)
        starts = starts + missing * self._battery.full_hours * HOUR_S
        spans = Spans(phones, starts, ends, (rng.random(len(phones)) < spec.offline_share).astype(np.int8))
        spans = spans.part(ends > starts)
        return self._jobs(spans, rng) if spec.job_minutes else spans

    def _jobs(self, spans: Spans, rng: np.random.Generator) -> Spans:
        """Return the parts of spans in which the system lets the app work, each phone's from a minute of its own on.

        A phone whose app is restricted has the first part of the day alone.
        """
        every_s, lasts_s = 60 * self._spec.job_every_minutes, 60 * self._spec.job_minutes
        first_s = spans.starts_s + every_s * rng.random(len(spans))
        times = np.maximum(np.ceil((spans.ends_s - first_s) / every_s), 0).astype(np.int64)
        each = np.repeat(np.arange(len(spans)), times)
        nth = np.arange(len(each)) - (np.cumsum(times) - times)[each]
        starts_s = first_s[each] + nth * every_s
        stops_s, leaves_s = starts_s + lasts_s, spans.ends_s[each]
        ends_by = np.where(stops_s < leaves_s, np.int8(End.STOPPED), spans.ends_by[each])
        jobs = Spans(spans.phones[each], starts_s, np.minimum(stops_s, leaves_s), ends_by)
        jobs = jobs.part(np.argsort(starts_s, kind="stable"))
        is_first = np.zeros(len(jobs), np.bool_)
        is_first[np.unique(jobs.phones, return_index=True)[1]] = True
        return jobs.part(is_first | ~self._is_restricted[jobs.phones])


class Coming:
    """Spans as they come due on the virtual clock, up to `until_s`; those that are on at its beginning count from 0."""

    def __init__(self, presence: Presence, until_s: float) -> None:
        self._presence, self._until_s = presence, until_s
        self._spans, self._at = Spans.empty(), 0
        self._next_day, self._taken_s = _FIRST_DAY, 0.0

    def next_s(self) -> float:
        """Return when the next phone is there; infinity for never again."""
        while self._is_behind():
            self._draw()
        return float(self._spans.starts_s[self._at]) if self._at < len(self._spans) else np.inf

    def take(self) -> tuple[int, float, End]:
        """Return the phone of the next span, its end, and how it ends."""
        at, spans = self._at, self._spans
        self._at, self._taken_s = at + 1, float(spans.starts_s[at])
        return int(spans.phones[at]), float(spans.ends_s[at]), End(int(spans.ends_by[at]))

    def _is_behind(self) -> bool:
        """Return whether a day that is not drawn yet may hold the next span."""
        earliest_s = self._next_day * DAY_S - EARLY_S
        if earliest_s > self._until_s:
            return False
        return self._at >= len(self._spans) or self._spans.starts_s[self._at] >= earliest_s

    def _draw(self) -> None:
        drawn = self._presence.day(self._next_day)
        starts = np.maximum(drawn.starts_s, self._taken_s)  # also where a far zone's spans begin earlier than `EARLY_S`
        drawn = Spans(drawn.phones, starts, drawn.ends_s, drawn.ends_by).part(drawn.ends_s > starts)
        drawn = drawn.part(np.argsort(drawn.starts_s, kind="stable"))
        self._spans, self._at = self._spans.part(slice(self._at, None)).merged(drawn), 0
        self._next_day += 1
