"""The search for who spoils sums: found within log2 n spoiled sums, and nobody for being cleared less often."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from mien.protocol.ids import DeviceId
from mien.rounds.spoilers import Search


def named(*numbers: int) -> frozenset[DeviceId]:
    return frozenset(DeviceId(f"{number:03}") for number in numbers)


def spoiled_sums(
    search: Search, population: Sequence[DeviceId], size: int, bad: DeviceId, seed: int
) -> tuple[int, Search]:
    """Draw cohorts until the device is found; return how many of their sums it spoiled."""
    draws, spoiled = random.Random(seed), 0
    for _ in range(10_000):
        allowed = [each for each in population if each not in search.left_out(len(population), size)]
        cohort = frozenset(draws.sample(allowed, size))
        is_spoiled = bad in cohort
        spoiled += is_spoiled
        search = search.after([cohort] if is_spoiled else [], frozenset() if is_spoiled else cohort)
        if search.found:
            return spoiled, search
    raise AssertionError("nobody was found")


@pytest.mark.parametrize(("size", "spare"), [(3, 2), (16, 8), (16, 200), (64, 32), (100, 1000)])
def test_a_spoiler_is_found_within_log_2_n_more_spoiled_sums_and_nobody_else(size: int, spare: int) -> None:
    population = sorted(named(*range(size + spare)))
    for seed in range(20):
        bad = population[seed * 7 % len(population)]
        spoiled, search = spoiled_sums(Search(), population, size, bad, seed)
        assert spoiled <= 1 + math.ceil(math.log2(size))
        assert search == Search(frozenset(), frozenset({bad}))
        assert search.left_out(len(population), size) == {bad}


def test_without_devices_to_spare_nobody_is_left_out_and_with_few_as_many_as_can_be() -> None:
    search = Search().after([named(*range(16))], frozenset())
    assert search.left_out(16, 16) == frozenset()
    assert search.left_out(0, 16) == frozenset()
    assert len(search.left_out(19, 16)) == 3
    assert len(search.left_out(1000, 16)) == 8


def test_who_is_left_when_others_are_cleared_is_found_only_by_a_spoiled_sum() -> None:
    search = Search().after([named(1, 2)], frozenset()).after([], named(1))
    assert search == Search(named(2))
    assert search.left_out(99, 2) == frozenset()
    assert search.after([], named(2)) == Search()
    assert search.after([named(2, 7, 8)], frozenset()) == Search(found=named(2))


def test_of_groups_that_failed_the_one_with_fewest_suspects_is_followed() -> None:
    search = Search().after([named(1, 2, 3), named(4, 5)], named(6, 7, 8))
    assert search == Search(named(4, 5))
    assert search.after([named(1, 2, 3)], frozenset()) == Search(named(1, 2, 3))  # there is another one, too


def test_found_devices_are_no_suspects_again() -> None:
    search = Search(found=named(1)).after([named(1, 2, 3)], frozenset())
    assert search == Search(named(2, 3), named(1))
    assert Search(found=named(1)).after([named(1)], frozenset()) == Search(found=named(1))
