"""How many weighted sums of one set of updates may be shown: the argument by elimination, and the planner's refusal."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.methods import find_method
from mien.methods.weightings import check_weightings, simplex_draw, smallest_exposed_sum
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from tests.tiny import tiny_linear

PART = tiny_linear().part()


def weightings(num: int, devices: int, seed: int) -> NDArray[np.float64]:
    """Return weights (T, n) as the server of a round draws them."""
    word = seed.to_bytes(8, "big")
    return np.array([[simplex_draw(word, 0, t, f"device-{i}") for i in range(devices)] for t in range(num)])


def can_isolate(weight_Tn: NDArray[np.float64], kept: tuple[int, ...]) -> bool:
    """Return whether some combination of the T sums is zero for every device but `kept`, and not zero for those."""
    others = [i for i in range(weight_Tn.shape[1]) if i not in kept]
    return bool(np.linalg.matrix_rank(weight_Tn[:, others]) < np.linalg.matrix_rank(weight_Tn))


def task_of(min_reports: int, floor: int, candidates: int, **privacy: object) -> TaskSpec:
    return TaskSpec(
        name="weights",
        method="pfm_fv",
        cohort=CohortSpec(size=max(min_reports, 20), min_reports=min_reports),
        privacy=replace(PrivacySpec(min_cohort=floor), **privacy),  # type: ignore[arg-type]
        options={"candidates": candidates},
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 6), st.integers(2, 5), st.integers(0, 2**32))
def test_elimination_leaves_exactly_the_sum_that_the_rule_states(floor: int, spare: int, seed: int) -> None:
    """n = n_min + spare devices; the most weightings, one more, two more: sums over n_min + 1, n_min, n_min - 1."""
    devices = floor + spare
    for num, left in ((spare, floor + 1), (spare + 1, floor), (spare + 2, floor - 1)):
        weight_Tn = weightings(num, devices, seed)
        assert smallest_exposed_sum(devices, num) == left
        groups = list(itertools.combinations(range(devices), left))[:6]
        assert all(can_isolate(weight_Tn, group) for group in groups)
        smaller = list(itertools.combinations(range(devices), left - 1))[:6]
        assert not any(can_isolate(weight_Tn, group) for group in smaller)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(2, 8))
def test_the_planner_permits_just_so_many(floor: int, spare: int) -> None:
    """At the limit, one device that tells its own update leaves n_min, or others weigh as much as an average one."""
    devices = floor + spare
    most = min(spare, devices // 2)
    permitted = task_of(devices, floor, most)
    check_weightings(permitted, most)
    find_method("pfm_fv").contribution_layout(permitted, PART, 3)
    for more in (1, 2):
        refused = task_of(devices, floor, most + more)
        enough = max(floor + most + more, 2 * (most + more))
        with pytest.raises(ConfigError, match=f"permits {most}. Raise cohort.min_reports to {enough} or more"):
            find_method("pfm_fv").contribution_layout(refused, PART, 3)
        check_weightings(task_of(enough, floor, most + more), most + more)


@pytest.mark.parametrize(("devices", "num"), [(19, 3), (40, 20), (40, 21), (100, 84)])
def test_so_many_sums_tell_that_share_of_an_average_update(devices: int, num: int) -> None:
    """By the best combination for each device: others' updates add up as lengths of independent ones, own ones are 1.

    The planner permits what leaves others as long as the average device's own, and refuses what does not, though
    elimination would leave seventeen devices or more each time.
    """
    weight_Tn = weightings(num, devices, seed=3)
    others = []
    for device in range(devices):
        best_T = np.linalg.solve(weight_Tn @ weight_Tn.T, weight_Tn[:, device])
        told_n = best_T @ weight_Tn
        others.append(np.sum(np.square(np.delete(told_n / told_n[device], device))))
    share = np.mean([1 / (1 + each) for each in others])
    assert share == pytest.approx(num / devices)
    assert smallest_exposed_sum(devices, num) >= 17
    permits = (1 - share) / share > 1 - 1e-9
    assert permits == (2 * num <= devices)
    if permits:
        check_weightings(task_of(devices, 16, num), num)
    else:
        with pytest.raises(ConfigError, match=f"tell {share:.0%} of an average device's update"):
            check_weightings(task_of(devices, 16, num), num)


def test_a_sum_that_the_planner_refuses_gives_a_device_away() -> None:
    """Four devices under four weightings, n_min 3: solving the sums gives one device's update to the last digit."""
    weight_Tn = weightings(4, 4, seed=9)
    update_nP = np.random.default_rng(1).normal(size=(4, 6))
    seen_TP = weight_Tn @ update_nP
    combination = np.linalg.solve(weight_Tn.T, np.array([0.0, 0, 1, 0]))
    np.testing.assert_allclose(combination @ seen_TP, update_nP[2], atol=1e-9)
    with pytest.raises(ConfigError, match="leave a sum over 1 of 4 devices"):
        check_weightings(task_of(4, 3, 4), 4)


def test_few_silos_must_agree_to_show_their_models() -> None:
    three = task_of(3, 3, 3)
    with pytest.raises(ConfigError, match=r'reveals = \["local_models"\]'):
        check_weightings(three, 3)
    check_weightings(task_of(3, 3, 3, reveals=("local_models",)), 3)


def test_groups_are_sums_of_their_own() -> None:
    """Two groups of at least 4: no weighting but one could be permitted there, and that is not a search."""
    with pytest.raises(ConfigError, match="permits 0"):
        check_weightings(task_of(40, 4, 2, groups=2), 2)


def test_draws_are_positive_and_repeatable() -> None:
    draws = [simplex_draw(b"s", r, t, "d") for r in range(50) for t in range(3)]
    assert min(draws) > 0
    assert len(set(draws)) == len(draws)
    assert simplex_draw(b"s", 1, 2, "d") == draws[5]
