"""Presentation attack detection as ISO/IEC 30107-3 reports it: an error rate for each species of attack, and counts.

A score says how much a presentation looks like a living face; at or above the threshold it passes. APCER of a species
is the share of its attacks that pass, BPCER the share of living faces that do not. The worst species is the figure that
counts: a mean over species hides the one that gets in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.evaluation.intervals import upper_bound


@dataclass(frozen=True)
class ErrorCount:
    """So many errors in so many presentations."""

    num_errors: int
    num_presentations: int

    def __post_init__(self) -> None:
        if not 0 <= self.num_errors <= self.num_presentations or self.num_presentations < 1:
            raise ConfigError(
                f"{self.num_errors} errors in {self.num_presentations} presentations cannot be; measure again"
            )

    @property
    def rate(self) -> float:
        """The share of errors."""
        return self.num_errors / self.num_presentations

    @property
    def upper(self) -> float:
        """The upper 95 % bound of the rate: 3 / n where none was seen."""
        return upper_bound(self.num_errors, self.num_presentations)

    def __str__(self) -> str:
        return f"{self.rate:.2%} ({self.num_errors} of {self.num_presentations}, below {self.upper:.2%})"


@dataclass(frozen=True)
class PadReport:
    """Measured error rates of a detector at one threshold: `attacks` by species (print, replay, mask ...).

    `detector` names it with its version, `dataset` and `date` what it was measured on and when.
    """

    detector: str
    threshold: float
    attacks: Mapping[str, ErrorCount]
    bona_fide: ErrorCount
    dataset: str
    date: str

    def __post_init__(self) -> None:
        if not self.attacks or not (self.detector and self.dataset and self.date):
            raise ConfigError("a PAD report needs the detector, the data, the date and at least one species of attack")

    @property
    def worst(self) -> tuple[str, ErrorCount]:
        """The species that passes most often, by the upper bound: few presentations prove little."""
        return max(self.attacks.items(), key=lambda each: each[1].upper)

    def __str__(self) -> str:
        species, count = self.worst
        return (
            f"{self.detector}: APCER {count} for its worst species {species!r} of {len(self.attacks)}, "
            f"BPCER {self.bona_fide}, on {self.dataset} ({self.date})"
        )


def evaluate_pad(
    bona_fide: ArrayLike,
    attacks: Mapping[str, ArrayLike],
    threshold: float,
    *,
    detector: str,
    dataset: str,
    date: str,
) -> PadReport:
    """Return the report of a detector's scores of living faces (N,) and of attacks, by species.

    A presentation that gave no response is an error of its kind and has to be counted: score it -inf if it was
    rejected. Raises NonFiniteError for NaN, UndefinedMetricError for a kind without presentations.
    """
    living = _scores(bona_fide, "living faces")
    counts = {name: _scores(scores, f"attacks of species {name!r}") for name, scores in attacks.items()}
    return PadReport(
        detector,
        threshold,
        {name: ErrorCount(int((scores >= threshold).sum()), len(scores)) for name, scores in counts.items()},
        ErrorCount(int((living < threshold).sum()), len(living)),
        dataset,
        date,
    )


def _scores(scores: ArrayLike, what: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    array = np.asarray(scores, np.float64).reshape(-1)
    if not len(array):
        raise UndefinedMetricError(f"there are no {what}; present some")
    if np.isnan(array).any():
        raise NonFiniteError(f"a score of {what} is NaN; measure again")
    return array
