"""The phones that have called, in numbers: by population, by when they were last seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from coordinator.dashboard.views.common import listed
from coordinator.dashboard.views.hours import DAY_MS, HOUR_MS, NUM_HOURS, by_hour, first_hour, hour_names, hour_of
from coordinator.dashboard.words import ago
from coordinator.store.tables import DEVICES
from mien.format import count, several
from mien.shell.pages import Cell, Empty, Figure, Table, columns


@dataclass(frozen=True)
class Population:
    """Phones of one population: how many ever called, lately, and asked to be left out of rounds."""

    name: str
    known: int
    day: int
    week: int
    staying_out: int
    last_seen_ms: int


@dataclass(frozen=True)
class Fleet:
    """All populations, and how many phones were last seen in each of the last 24 hours, oldest first."""

    populations: tuple[Population, ...]
    by_hour: tuple[int, ...]
    software: tuple[tuple[str, int], ...]
    now_ms: int

    @property
    def known(self) -> int:
        """Return how many phones ever called."""
        return sum(each.known for each in self.populations)

    @property
    def day(self) -> int:
        """Return how many called within a day."""
        return sum(each.day for each in self.populations)

    @property
    def staying_out(self) -> int:
        """Return how many asked to be left out of rounds."""
        return sum(each.staying_out for each in self.populations)


def read(db: sa.Connection, now_ms: int) -> Fleet:
    """Return the fleet: two passes over the devices, so keep the answer for a while."""
    seen = DEVICES.c.last_seen_ms

    def within(age_ms: int) -> sa.ColumnElement[int]:
        return sa.func.sum(sa.case((seen > now_ms - age_ms, 1), else_=0))

    rows = db.execute(
        sa.select(
            *(DEVICES.c.population, sa.func.count(), within(DAY_MS), within(7 * DAY_MS)),
            *(sa.func.count(DEVICES.c.stays_out_since_ms), sa.func.max(seen)),
        )
        .group_by(DEVICES.c.population)
        .order_by(DEVICES.c.population)
    )
    populations = tuple(Population(*row) for row in rows)
    first, hour = first_hour(now_ms), hour_of(seen)
    counted = sa.select(hour, sa.func.count()).where(seen >= first * HOUR_MS).group_by(hour)
    hours = Counter({int(at): number for at, number in db.execute(counted)})
    kinds = sa.select(DEVICES.c.software, sa.func.count()).group_by(DEVICES.c.software)
    software = sorted(db.execute(kinds).all(), key=lambda row: (-row[1], row[0]))[:10]
    by_hour = tuple(hours[first + index] for index in range(NUM_HOURS))
    return Fleet(populations, by_hour, tuple((str(name), int(number)) for name, number in software), now_ms)


def population_table(fleet: Fleet) -> Table | Empty:
    """Return the populations, or how the first phone is invited."""
    rows = (
        (
            each.name,
            Cell(count(each.known), note=f"{count(each.staying_out)} left out" if each.staying_out else ""),
            count(each.day),
            count(each.week),
            ago(each.last_seen_ms, fleet.now_ms),
        )
        for each in fleet.populations
    )
    heads = columns("Population", "#Known", "#In a day", "#In a week", "Last seen")
    nothing = "No phone has called yet. An invite is a QR code that a person scans once."
    command, note = 'mien-coordinator device invite --note "Alice\'s phone"', _software(fleet.software)
    return listed("phones", "Phones", "Phones by population", heads, rows, nothing, command, note=note)


def hours_figure(fleet: Fleet) -> Figure:
    """Return how many phones were last seen in each of the last 24 hours."""
    return by_hour(
        "hours", "When phones were last seen", {"": fleet.by_hour}, "phones", fleet.now_ms,
        caption="Each phone counts once, in the hour of its newest call (UTC).",
        told=_peak(hour_names(fleet.now_ms), fleet.by_hour),
        heads={"": "Phones"},
    )  # fmt: skip


def _peak(names: Sequence[str], by_hour: Sequence[int]) -> str:
    total, most = sum(by_hour), max(by_hour)
    if not total:
        return "No phone called within the last 24 hours."
    return (
        f"{several(total, 'phone')} within 24 hours, most of them ({count(most)}) at "
        f"{names[by_hour.index(most)]}:00 UTC."
    )


def _software(kinds: Sequence[tuple[str, int]]) -> str:
    return "Software: " + ", ".join(f"{name or 'unnamed'} ({count(number)})" for name, number in kinds)
