"""Overlap of an asynchronous task's cohorts in a simulation without a clock, by `mien.rounds.buffered`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from mien.errors import ConfigError
from mien.rounds.buffered import Flight, is_overdue, may_open
from mien.specs import TaskSpec
from simulation.engines.population import without

T = TypeVar("T")
Choose = Callable[[TaskSpec, Sequence[str], int], tuple[str, ...]]


def oldest(flights: Sequence[Flight]) -> int:
    """Return the number of the cohort that was formed first: each is then `max_concurrency` - 1 models behind."""
    return min(flight.number for flight in flights)


@dataclass(frozen=True)
class Overlap:
    """The order of sums: `lands` gives the next one's number. `choose` draws cohorts, unless as in other rounds."""

    lands: Callable[[Sequence[Flight]], int] = oldest
    choose: Choose | None = None


OLDEST_FIRST: Final = Overlap()


@dataclass(frozen=True)
class InFlight(Generic[T]):
    """A cohort under way: its devices, and what they made of its base."""

    flight: Flight
    devices: tuple[str, ...]
    trained: T = field(repr=False)

    @property
    def base(self) -> int:
        """Number of models that the task had made when this cohort was formed."""
        assert self.flight.base is not None
        return self.flight.base


def overlapping(
    task: TaskSpec,
    everybody: Sequence[str],
    choose: Choose,
    overlap: Overlap,
    train: Callable[[int, tuple[str, ...]], T],
) -> Iterator[InFlight[T]]:
    """Yield cohorts in the order in which their sums are applied, one for each model.

    Whoever iterates makes the model before it goes on: `train` is called with a cohort's number and devices when it is
    formed, and works on the model that is newest then. A device is in one cohort at a time. `everybody` is in order of
    name. What is too stale is discarded. Raises ConfigError for fewer devices than one cohort needs.
    """
    spec = task.asynchronous
    assert spec is not None
    under_way: list[InFlight[T]] = []
    number = 0
    for version in range(task.rounds):
        under_way = [each for each in under_way if not is_overdue(spec, version, each.base)]
        while may_open(task, version, [each.flight for each in under_way]):
            busy = {device for each in under_way for device in each.devices}
            idle = without(everybody, busy)
            if len(idle) < task.cohort.min_reports:
                break
            number += 1
            devices = (overlap.choose or choose)(task, idle, number)
            under_way.append(InFlight(Flight(number, version), devices, train(number, devices)))
        if not under_way:
            raise ConfigError(f"a cohort needs cohort.min_reports ({task.cohort.min_reports}) clients; add clients")
        wanted = overlap.lands([each.flight for each in under_way])
        landing = next(each for each in under_way if each.flight.number == wanted)
        under_way.remove(landing)
        yield landing
