"""Failures to enrol and to acquire, and the rates of the whole system (ISO/IEC 19795-1)."""

from __future__ import annotations

from dataclasses import dataclass

from mien.errors import ConfigError, UndefinedMetricError


@dataclass(frozen=True)
class CaptureCounts:
    """Number of samples presented, and of those without a template (no face, refused by the quality gate)."""

    num_samples: int
    num_failed: int

    def __post_init__(self) -> None:
        if not 0 <= self.num_failed <= self.num_samples:
            raise ConfigError(f"{self.num_failed} of {self.num_samples} samples cannot have failed")

    @property
    def rate(self) -> float:
        """FTE or FTA: share of samples that failed. Raises UndefinedMetricError if there were none."""
        if self.num_samples == 0:
            raise UndefinedMetricError("no sample was presented, so no failure rate exists")
        return self.num_failed / self.num_samples

    def __add__(self, other: CaptureCounts) -> CaptureCounts:
        return CaptureCounts(self.num_samples + other.num_samples, self.num_failed + other.num_failed)


@dataclass(frozen=True)
class SystemRates:
    """False accept and false reject rate of one-attempt transactions, failures included."""

    far: float
    frr: float


def system_rates(*, fmr: float, fnmr: float, fta: float) -> SystemRates:
    """Return FAR = (1 - FTA) FMR and FRR = FTA + (1 - FTA) FNMR: a failed acquisition is a rejection."""
    _check(fmr=fmr, fnmr=fnmr, fta=fta)
    return SystemRates(far=(1 - fta) * fmr, frr=fta + (1 - fta) * fnmr)


def generalised_rates(*, fmr: float, fnmr: float, fta: float, fte: float) -> SystemRates:
    """Return GFAR and GFRR, which also count people who could not enrol.

    GFAR = (1 - FTE)(1 - FTA) FMR; GFRR = FTE + (1 - FTE) FTA + (1 - FTE)(1 - FTA) FNMR.
    """
    _check(fmr=fmr, fnmr=fnmr, fta=fta, fte=fte)
    enrolled = system_rates(fmr=fmr, fnmr=fnmr, fta=fta)
    return SystemRates(far=(1 - fte) * enrolled.far, frr=fte + (1 - fte) * enrolled.frr)


def _check(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise ConfigError(f"{name} is {rate}; a rate lies between 0 and 1")
