"""Populations: a million registered phones cost what the drawn ones cost, counted and not timed."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.methods.base import Crops
from mien.specs import AsynchronousSpec, CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import PERMUTED_UP_TO, Cohort, run_task, select
from simulation.engines.population import PhoneNames, Population, Table, num_images, without
from tests.tiny import made_up_crops, tiny_linear

MILLION = 1_000_000
TINY = tiny_linear()
TASK = TaskSpec(
    "crowd",
    method="fedavg",
    rounds=2,
    cohort=CohortSpec(size=5, min_reports=2),
    local=LocalSpec(lr=0.1),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    seed=3,
)


class Read:
    """Makes a phone's crops and remembers whose."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, number: int) -> Crops:
        self.asked.append(number)
        return made_up_crops(2, seed=number % 50)


def population(number: int = MILLION) -> tuple[Population, Read]:
    read = Read()
    return Population(number, read, lambda i: 1 + i % 7), read


def test_names_are_numbers_in_order_and_none_is_kept() -> None:
    names = PhoneNames(MILLION)
    assert (len(names), names[0], names[-1], names[345_678]) == (
        MILLION,
        "phone-000000",
        "phone-999999",
        "phone-345678",
    )
    assert names[2:4] == ("phone-000002", "phone-000003")
    assert names.index("phone-345678") == 345_678
    assert list(PhoneNames(11)) == sorted(PhoneNames(11))
    for stranger in ("phone-1000000", "phone-12345", "phone-00001x", "000001", "phone-²²²²²²", "", 3):
        assert stranger not in names
    with pytest.raises(IndexError):
        names[MILLION]
    with pytest.raises(ValueError, match="no phone"):
        names.index("phone-7")
    with pytest.raises(ConfigError):
        PhoneNames(0)


def test_rounds_with_a_million_phones_read_only_the_drawn_ones() -> None:
    crowd, read = population()
    tracemalloc.start()
    run = run_task(TASK, TINY.part("*"), 3, TINY.theta, Cohort(crowd), TINY.runtime())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    drawn = {name for record in run.records for name in record.devices}
    assert len(run.records[0].devices) == 5
    assert {crowd.names[i] for i in read.asked} == drawn
    assert set(run.cohort.private) == drawn  # what the others keep does not exist
    assert peak < 8 * MILLION  # not even a word a phone


def test_a_cohort_of_many_is_drawn_without_touching_the_others() -> None:
    class Counted(PhoneNames):
        touched = 0

        def __getitem__(self, index: int) -> str:  # type: ignore[override]
            Counted.touched += 1
            return super().__getitem__(index)  # type: ignore[no-any-return]

    task = replace(TASK, cohort=CohortSpec(size=100, min_reports=2))
    names = Counted(MILLION)
    drawn = [select(task, names, number) for number in range(1, 40)]
    assert Counted.touched == 39 * 100
    assert all(len(set(each)) == 100 and list(each) == sorted(each) for each in drawn)
    assert drawn[0] == select(task, PhoneNames(MILLION), 1)
    assert len(set().union(*drawn)) > 3800  # 3,900 draws; far fewer would be alike by chance
    share = np.mean([names.index(name) for each in drawn for name in each]) / MILLION
    assert 0.4 < share < 0.6  # 0.5, standard error 0.005


def test_a_small_cohort_is_drawn_as_it_always_was() -> None:
    """Recorded runs repeat: numpy's permutation of all names, cut to the cohort's size."""
    assert PERMUTED_UP_TO == 10_000
    for number_of_phones in (1, 7, 800, PERMUTED_UP_TO):
        names = PhoneNames(number_of_phones)
        rng = np.random.default_rng([TASK.seed, 4])
        expected = sorted(rng.permutation(number_of_phones)[: TASK.cohort.size])
        assert select(TASK, names, 4) == tuple(names[int(i)] for i in expected)
        assert select(TASK, tuple(names), 4) == select(TASK, names, 4)


def test_a_dictionary_and_a_population_of_the_same_phones_are_one_run() -> None:
    crowd, _ = population(12)
    spelled = Cohort({name: crowd[name] for name in crowd})
    one, other = (run_task(TASK, TINY.part("*"), 3, TINY.theta, c, TINY.runtime()) for c in (Cohort(crowd), spelled))
    assert one.records == other.records
    np.testing.assert_array_equal(one.state.theta, other.state.theta)


def test_leaving_out_who_is_busy_is_the_rest_in_order() -> None:
    names = PhoneNames(10)
    busy = {names[i] for i in (0, 3, 4, 9)}
    for everybody in (names, tuple(names)):
        rest = without(everybody, busy)
        assert list(rest) == [name for name in names if name not in busy]
        assert rest[1:3] == ("phone-2", "phone-5")
        assert (rest[-1], len(rest)) == ("phone-8", 6)
        with pytest.raises(IndexError):
            rest[6]
    assert len(without(PhoneNames(MILLION), {"phone-000000"})) == MILLION - 1


def test_an_asynchronous_run_of_a_million_reads_only_the_drawn_ones() -> None:
    crowd, read = population()
    task = replace(TASK, asynchronous=AsynchronousSpec(max_concurrency=2))
    run = run_task(task, TINY.part("*"), 3, TINY.theta, Cohort(crowd), TINY.runtime())
    assert len(run.records) == 2
    assert len(set(read.asked)) <= 3 * 5


def test_a_table_gives_each_phone_its_rows() -> None:
    crops = np.concatenate([made_up_crops(2, seed=1), made_up_crops(3, seed=2)])
    crowd = Table(np.array([0, 2, 5])).population(crops, prefix="p")
    assert list(crowd) == ["p-0", "p-1"]
    np.testing.assert_array_equal(crowd["p-1"], crops[2:])
    assert [num_images(crowd, name) for name in crowd] == [2, 3]
    assert num_images({"a": crops}, "a") == 5
    assert Cohort(crowd).names is crowd.names
    assert Cohort({"b": crops, "a": crops}).names == ("a", "b")
    with pytest.raises(KeyError):
        crowd["p-2"]
    for starts in ([0], [1, 2], [0, 2, 2], [0, 3, 2]):
        with pytest.raises(ConfigError, match="grows"):
            Table(np.array(starts))
    with pytest.raises(ConfigError, match="5 crops"):
        Table(np.array([0, 5])).population(crops[:2])
