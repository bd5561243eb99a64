"""Demographic differentials: accuracy per group, and error rates per group at one threshold for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.kfold import FoldAccuracy
from mien.evaluation.scores import Comparisons
from mien.evaluation.verification import OperatingPoint, rates_at


@dataclass(frozen=True)
class GroupAccuracy:
    """K-fold accuracy of each group (RFW style) and how far the groups lie apart.

    Group thresholds differ, so this view hides differences of FMR at the one threshold that a product uses: report
    `rates_by_group` with it.
    """

    groups: Mapping[str, FoldAccuracy]

    def __post_init__(self) -> None:
        if len(self.groups) < 2:
            raise ConfigError("a differential needs at least two groups")

    @property
    def mean(self) -> float:
        """Mean accuracy over groups."""
        return math.fsum(g.mean for g in self.groups.values()) / len(self.groups)

    @property
    def std_over_groups(self) -> float:
        """Population standard deviation of the groups' accuracies."""
        return math.sqrt(math.fsum((g.mean - self.mean) ** 2 for g in self.groups.values()) / len(self.groups))

    @property
    def skewed_error_ratio(self) -> float:
        """Largest error / smallest error over groups; UndefinedMetricError if some group has no error at all."""
        errors = [1.0 - g.mean for g in self.groups.values()]
        if min(errors) <= 0:
            raise UndefinedMetricError("a group has no errors, so the ratio of errors is undefined; use more pairs")
        return max(errors) / min(errors)


def rates_by_group(groups: Mapping[str, Comparisons], threshold: float) -> dict[str, OperatingPoint]:
    """Return FMR and FNMR of each group at one global threshold, with counts; non-mated pairs are within the group."""
    if len(groups) < 2:
        raise ConfigError("a differential needs at least two groups")
    return {name: rates_at(comparisons, threshold) for name, comparisons in groups.items()}
