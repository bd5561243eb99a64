"""PAD figures by hand: error rates for each species, the worst one first, never without counts."""

from __future__ import annotations

import numpy as np
import pytest

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.evaluation.pad import ErrorCount, PadReport, evaluate_pad

NAMES = {"detector": "checker 1", "dataset": "made up", "date": "2026-01-01"}


def report(**attacks: list[float]) -> PadReport:
    return evaluate_pad([0.2, 0.6, 0.8, 0.9], attacks, 0.5, **NAMES)


def test_rates_are_counted_for_each_species_at_the_threshold() -> None:
    found = report(print=[0.1, 0.5, 0.7], replay=[0.0, 0.1, 0.2, 0.49])
    assert found.attacks == {"print": ErrorCount(2, 3), "replay": ErrorCount(0, 4)}, "exactly the threshold passes"
    assert found.bona_fide == ErrorCount(1, 4)
    assert (found.attacks["print"].rate, found.attacks["replay"].rate, found.bona_fide.rate) == (2 / 3, 0.0, 0.25)


def test_the_worst_species_is_the_one_of_which_least_is_proven() -> None:
    found = report(print=[0.9] + [0.0] * 99, mask=[0.0, 0.0])
    assert found.worst == ("mask", ErrorCount(0, 2))  # 0 of 2 proves nothing, 1 of 100 proves a little
    assert found.worst[1].upper == 1.0
    assert str(found) == (
        "checker 1: APCER 0.00% (0 of 2, below 100.00%) for its worst species 'mask' of 2, "
        "BPCER 25.00% (1 of 4, below 64.39%), on made up (2026-01-01)"
    )


def test_no_response_is_an_error_of_its_kind() -> None:
    found = evaluate_pad([0.9, -np.inf], {"print": [np.inf]}, 0.5, **NAMES)
    assert (found.bona_fide.num_errors, found.attacks["print"].num_errors) == (1, 1)


@pytest.mark.parametrize(
    ("bona_fide", "attacks", "error"),
    [
        ([], {"print": [0.1]}, UndefinedMetricError),
        ([0.9], {"print": []}, UndefinedMetricError),
        ([np.nan], {"print": [0.1]}, NonFiniteError),
        ([0.9], {}, ConfigError),
    ],
)
def test_what_was_not_measured_is_not_reported(
    bona_fide: list[float], attacks: dict[str, list[float]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        evaluate_pad(bona_fide, attacks, 0.5, **NAMES)


@pytest.mark.parametrize(("errors", "presentations"), [(2, 1), (-1, 4), (0, 0)])
def test_counts_that_cannot_be_are_refused(errors: int, presentations: int) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        ErrorCount(errors, presentations)


def test_a_report_says_what_it_is_of() -> None:
    with pytest.raises(ConfigError, match="needs the detector"):
        evaluate_pad([0.9], {"print": [0.1]}, 0.5, **{**NAMES, "dataset": ""})
