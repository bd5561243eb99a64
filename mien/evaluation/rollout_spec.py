"""Specification of a staged roll-out: the shares of phones, in order, and the gates on what they measure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from mien.errors import ConfigError
from mien.records import check_limits, within
from mien.specs import CohortSpec, DeadlineSpec, check_stages

DAY_S: Final = 86400.0


@dataclass(frozen=True)
class RollOutDeadlines(DeadlineSpec):
    """Deadlines as a task's, but patient: phones take part when they are charging, at night."""

    selecting_s: float = DAY_S


@dataclass(frozen=True)
class FleetGates:
    """Gates on a model that phones compared with the one before it.

    TAR, each model at its own threshold, must not have dropped by more than `tolerance` says: `delta`, what chance
    among phones explains, or the larger. FMR on strangers must not be proven to lie above `max_fmr_ratio` times `fmr`
    or what the model before has, the larger. `max_cosine_rise` and `min_rank_share` are the collapse monitors'.
    """

    fmr: float = 1e-3
    tolerance: Literal["delta", "interval", "larger"] = "larger"
    delta: Annotated[float, within(0, 1)] = 0.01
    max_fmr_ratio: Annotated[float, within(1, 1e6)] = 2.0
    max_cosine_rise: Annotated[float, within(0, 2)] = 0.1
    min_rank_share: Annotated[float, within(0, 1)] = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.fmr <= 0.5:
            raise ConfigError(f"gates.fmr is {self.fmr}; it must lie above 0 and not above 0.5")
        check_limits(self, "gates.")


@dataclass(frozen=True)
class RollOutSpec:
    """A staged roll-out: shares of the phones in rising order, and how phones judge the model at each of them.

    At every share below 1 a cohort of the phones that have the model compares it with the one before. What fails is
    rolled back; what holds goes on to the next share, by itself or, with `widen` "manual", when an operator says so.
    `population` is whose phones are asked.
    """

    stages: tuple[float, ...] = (0.01, 0.1, 1.0)
    population: str = "default"
    widen: Literal["automatic", "manual"] = "automatic"
    min_cohort: int = 16
    public_images: int = 256
    cohort: CohortSpec = field(default_factory=CohortSpec)
    deadlines: RollOutDeadlines = field(default_factory=RollOutDeadlines)
    gates: FleetGates = field(default_factory=FleetGates)

    def __post_init__(self) -> None:
        check_stages(self.stages, "stages")
        check_limits(self, "")
        if self.cohort.must_include is not None:
            raise ConfigError("cohort.must_include is for training, not for phones that compare models; leave it out")
        if self.cohort.min_reports < self.min_cohort:
            raise ConfigError(
                f"cohort.min_reports ({self.cohort.min_reports}) is below min_cohort ({self.min_cohort}); raise the "
                "first or lower the second"
            )
