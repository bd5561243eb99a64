"""Pace steering: idle devices come back as often as they are wanted, never all at once.

A small population comes back every `shortest_s`, so that enough of them are there together when a round gathers them; a
large one is spread over so long a time that no more than `check_ins_per_s` come, on average, whatever made them come
at the same instant. Source: Bonawitz et al., "Towards Federated Learning at Scale" (2019), section 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mien.specs import TaskSpec

LONGEST_S: Final = 86400.0
"""Phones are idle at night: one that is told to come back later than in a day would miss its next one."""

ACTIVE_S: Final = 7 * 86400.0
"""Devices that have not been seen for so long are not reckoned with."""

COUNT_EVERY_S: Final = 60.0
"""Largest age of a count of devices."""

_MARGIN: Final = 2.0
"""Ratio of devices that come to those wanted: not every one is idle, charging and eligible when it does."""

_GATHERING_S: Final = 1.0


@dataclass(frozen=True)
class Pace:
    """The shortest pause, and how many check-ins a second are enough while no task wants more."""

    shortest_s: float = 5.0
    check_ins_per_s: float = 50.0


def pause_s(pace: Pace, *, devices: int, wanted_per_s: float, draw: float) -> float:
    """Return the pause of one of `devices`; `draw` in [0, 1) spreads them.

    `wanted_per_s` is how many devices the open tasks have to gather in a second: more than `check_ins_per_s` may come
    then. Long pauses are exponentially distributed: devices that were told theirs at one instant come at an even rate
    from then on, where evenly drawn pauses would bring them back in waves.
    """
    spread_s = devices / max(pace.check_ins_per_s, _MARGIN * wanted_per_s)
    return min(max(pace.shortest_s * (1 + draw / 2), -spread_s * math.log1p(-draw)), LONGEST_S)


def wanted_per_s(tasks: Iterable[TaskSpec]) -> float:
    """Return the number of devices that tasks which look for some have to gather in a second."""
    return sum(task.cohort.num_selected / task.deadlines.selecting_s for task in tasks)


def gathering_pause_s(pace: Pace) -> float:
    """Return the pause of a device from a round that gathers devices and may choose it: it stays a candidate."""
    return min(_GATHERING_S, pace.shortest_s)
