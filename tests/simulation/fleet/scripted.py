"""Phones that follow a script: when each is there, how long it trains and answers, when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mien.protocol.rounds import Stage
from mien.secagg.planner import StageBytes
from mien.specs import TaskSpec
from simulation.fleet.costs import RoundCost
from simulation.fleet.phones import Outlook
from simulation.fleet.windows import DAY_S, End, Presence, Spans

LATENCY_S = 0.125
STEP = StageBytes(1000, 500)


@dataclass(frozen=True)
class Span:
    """A phone is there from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    ends_by: End = End.IN_USE


@dataclass(frozen=True)
class Script:
    """One phone's life: its spans in order, how each of its rounds goes (the last for all later ones), its answers."""

    spans: tuple[Span, ...]
    outlooks: tuple[Outlook, ...]
    stage_s: float = 1.0

    def outlook(self, nth: int) -> Outlook:
        """Return how its nth round goes."""
        return self.outlooks[min(nth, len(self.outlooks) - 1)]


def stages_of(task: TaskSpec) -> dict[Stage, StageBytes]:
    """Return made-up bytes for each stage after training."""
    from mien.rounds.machine import PATHS

    return dict.fromkeys(PATHS[task.privacy.secure_aggregation][1:], STEP)


@dataclass
class ScriptedPhones:
    """A fleet of scripts. `names` are the phones' device ids."""

    task: TaskSpec
    scripts: Sequence[Script]
    names: Sequence[str] = ()
    tiers: tuple[str, ...] = ("only",)
    tier_of: NDArray[np.int8] = field(init=False)
    latency_s: float = LATENCY_S
    num_labelled: int = 0

    def __post_init__(self) -> None:
        self.names = self.names or [f"{number:08d}" for number in range(len(self.scripts))]
        self.tier_of = np.zeros(len(self.scripts), np.int8)

    @property
    def presence(self) -> Presence:
        return self

    @property
    def cost(self) -> RoundCost:
        return RoundCost(10_000, stages_of(self.task))

    def day(self, day: int) -> Spans:
        """Return the spans that begin on a day."""
        found = [(i, span) for i, script in enumerate(self.scripts) for span in script.spans]
        found = [(i, span) for i, span in found if day * DAY_S <= span.start_s < (day + 1) * DAY_S]
        return Spans(
            np.array([i for i, _ in found], np.int32),
            np.array([span.start_s for _, span in found], np.float64),
            np.array([span.end_s for _, span in found], np.float64),
            np.array([span.ends_by for _, span in found], np.int8),
        )

    def name(self, phone: int) -> str:
        return self.names[phone]

    def number(self, name: str) -> int:
        return self.names.index(name)

    def outlook(self, phone: int, nth: int) -> Outlook:
        return self.scripts[phone].outlook(nth)

    def stage_s(self, phone: int, stage: Stage) -> float:
        """Return the phone's own time, a little more for later stages, so that no two answers come at one time."""
        return self.scripts[phone].stage_s
