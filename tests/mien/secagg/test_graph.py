"""Graphs are regular, symmetric and follow from R; k and t keep the bounds that they are chosen for."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from mien.errors import CohortError, ConfigError
from mien.secagg.graph import (
    SIGMA,
    Graph,
    Neighbourhood,
    Profile,
    check_neighbourhood,
    complete_threshold,
    default_neighbourhood,
    log2_exposure,
    permutation,
    resolve,
)
from mien.secagg.masks import WordStream
from tests.mien.secagg import reference
from tests.mien.secagg.planning import ETA, log2_cut, log2_failure, plan_neighbourhood

MALICIOUS, CURIOUS = Profile.MALICIOUS_SERVER, Profile.HONEST_BUT_CURIOUS
SEED = bytes(range(32))


@pytest.mark.parametrize("n", [2, 3, 7, 64, 300])
def test_the_permutation_is_fisher_yates_over_the_words(n: int) -> None:
    order = permutation(SEED, n)
    assert sorted(order) == list(range(n))
    assert order == reference.shuffle([int(word) for word in WordStream(SEED).take(4 * n)], n)


@pytest.mark.parametrize(("n", "k"), [(3, 2), (7, 6), (9, 4), (300, 96)])
def test_graphs_are_regular_and_symmetric(n: int, k: int) -> None:
    graph = Graph(n, k, SEED)
    for index in range(n):
        neighbours = graph.neighbours(index)
        assert len(neighbours) == len(set(neighbours)) == k
        assert list(neighbours) == sorted(neighbours)
        assert index not in neighbours
        assert all(index in graph.neighbours(other) for other in neighbours)


def test_share_indices_count_the_owners_neighbours() -> None:
    graph = Graph(9, 4, SEED)
    for owner in range(9):
        holders = graph.neighbours(owner)
        assert [graph.share_index(owner, holder) for holder in holders] == [1, 2, 3, 4]
        stranger = next(i for i in range(9) if i != owner and i not in holders)
        with pytest.raises(ConfigError):
            graph.share_index(owner, stranger)


def test_another_seed_gives_another_graph() -> None:
    assert Graph(300, 96, SEED).neighbours(0) != Graph(300, 96, SEED[::-1]).neighbours(0)


@pytest.mark.parametrize("profile", Profile)
def test_the_profiles_own_values_are_safe_at_every_size(profile: Profile) -> None:
    for n in [*range(3, 260), *range(260, 5001, 395), 1000, 1001, 5000]:
        hood = default_neighbourhood(profile, n)
        assert hood.k // 2 < hood.t <= hood.k <= 254
        assert log2_exposure(profile, n, hood, 0.1) <= -SIGMA, (n, hood)
        assert log2_cut(n, hood.k, 0.1, 0.1) <= -SIGMA, (n, hood)


@pytest.mark.parametrize("n", [50, 97, 98, 300, 1000, 3000, 5000])
@pytest.mark.parametrize("profile", Profile)
def test_the_profiles_own_values_survive_a_tenth_of_drop_outs(profile: Profile, n: int) -> None:
    assert log2_failure(n, default_neighbourhood(profile, n), 0.1) <= -ETA


# k, t of the specification's table for 40 bits of privacy and 20 of correctness, computed with SciPy's tails.
TABLE = [
    (CURIOUS, 0.05, 0.1, {50: (34, 18), 100: (36, 19), 500: (36, 19), 1000: (38, 20), 5000: (40, 21)}),
    (CURIOUS, 0.1, 0.1, {50: (40, 21), 100: (42, 22), 500: (44, 24), 1000: (46, 26), 5000: (52, 30)}),
    (CURIOUS, 0.2, 0.1, {50: (49, 25), 100: (54, 28), 500: (60, 39), 1000: (68, 43), 5000: (76, 48)}),
    (CURIOUS, 0.2, 0.2, {50: (49, 25), 100: (72, 37), 500: (86, 47), 1000: (98, 54), 5000: (116, 63)}),
    (CURIOUS, 0.33, 0.1, {50: (49, 25), 100: (78, 40), 500: (90, 63), 1000: (102, 72), 5000: (120, 84)}),
    (MALICIOUS, 0.1, 0.1, {50: (40, 23), 100: (42, 27), 500: (80, 56), 1000: (96, 67), 5000: (116, 81)}),
]


@pytest.mark.parametrize(
    ("profile", "corrupt", "dropout", "n", "expected"),
    [(*row[:3], n, hood) for row in TABLE for n, hood in row[3].items() if n <= 1000 or row[1] == 0.1],
)
def test_plans_are_those_of_the_specification(
    profile: Profile, corrupt: float, dropout: float, n: int, expected: tuple[int, int]
) -> None:
    hood = plan_neighbourhood(profile, n, corrupt=corrupt, dropout=dropout)
    assert (hood.k, hood.t) == expected


def test_a_tail_is_a_ratio_of_counts() -> None:
    """8 devices, 2 corrupt, 4 neighbours of 7: P[2 corrupt] = C(5,2) / C(7,4), times 8 devices."""
    exposure = log2_exposure(CURIOUS, 8, Neighbourhood(4, 2), 0.25)
    assert exposure == pytest.approx(math.log2(8 * Fraction(10, 35)))
    # Against a lying server 2 t - k = 2 of them are enough at t = 3, and none are needed at t = 2.
    assert log2_exposure(MALICIOUS, 8, Neighbourhood(4, 3), 0.25) == pytest.approx(exposure)
    assert log2_exposure(MALICIOUS, 8, Neighbourhood(4, 2), 0.25) == pytest.approx(3)


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="no graph"):
        plan_neighbourhood(MALICIOUS, 100, corrupt=0.45, dropout=0.45)


@pytest.mark.parametrize(("n", "t"), [(3, 2), (4, 3), (5, 4), (9, 6), (16, 11), (97, 65)])
def test_complete_graphs_need_two_thirds(n: int, t: int) -> None:
    assert complete_threshold(MALICIOUS, n) == t
    assert default_neighbourhood(MALICIOUS, n) == Neighbourhood(n - 1, t)


def test_more_than_half_is_enough_for_a_curious_server() -> None:
    assert [complete_threshold(CURIOUS, n) for n in (3, 4, 5, 6, 47)] == [2, 2, 3, 3, 24]


def test_resolving_what_a_configuration_asks_for() -> None:
    assert resolve(MALICIOUS, 9, 0, 0) == Neighbourhood(8, 6)
    assert resolve(MALICIOUS, 300, 0, 0) == Neighbourhood(96, 67)
    assert resolve(MALICIOUS, 300, 80, 60) == Neighbourhood(80, 60)
    # Where k reaches everybody the graph is complete, with the profile's threshold or the higher one asked for.
    assert resolve(MALICIOUS, 81, 80, 60) == Neighbourhood(80, 60)
    assert resolve(MALICIOUS, 50, 80, 41) == Neighbourhood(49, 41)
    assert resolve(MALICIOUS, 50, 80, 20) == Neighbourhood(49, 34)
    with pytest.raises(CohortError):
        resolve(MALICIOUS, 50, 80, 50)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_one_or_two_devices_are_no_cohort(n: int) -> None:
    for k in (0, 4):
        with pytest.raises(CohortError):
            resolve(MALICIOUS, n, k, 3 if k else 0)


def test_more_than_5000_are_too_many() -> None:
    with pytest.raises(ConfigError, match="5000"):
        default_neighbourhood(MALICIOUS, 5001)


@pytest.mark.parametrize(
    ("n", "hood"),
    [
        (9, (8, 5)),  # below two thirds
        (9, (8, 4)),  # half
        (9, (8, 9)),  # more than there are
        (300, (96, 48)),  # half: a server could collect both shares without any help
        (300, (80, 50)),  # 20 corrupt of 80 happen too often
        (300, (95, 70)),  # a circulant has an even degree
        (300, (256, 200)),  # GF(2^8) has too few points
        (2, (1, 1)),
    ],
)
def test_devices_refuse_unsafe_neighbourhoods(n: int, hood: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        check_neighbourhood(MALICIOUS, n, Neighbourhood(*hood))


def test_devices_may_expect_more_corruption_than_the_profile_does() -> None:
    hood = default_neighbourhood(MALICIOUS, 300)
    check_neighbourhood(MALICIOUS, 300, hood)
    with pytest.raises(ConfigError, match="33%"):
        check_neighbourhood(MALICIOUS, 300, hood, corrupt=0.33)
    check_neighbourhood(MALICIOUS, 300, plan_neighbourhood(MALICIOUS, 300, corrupt=0.15), corrupt=0.15)
