"""Summed statistics by whole phones under secure aggregation: both servers real, one phone for each Python engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.device import Device
from device_sdk.export.build import export_graphs
from device_sdk.models.models import Model
from device_sdk.rounds.attempts import check_promise
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from device_sdk.runtimes.executorch_runtime import ExecutorchRuntime
from device_sdk.runtimes.manifest import GraphFolder, folder_for
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.storage.home import Home
from mien.contribution import Total
from mien.errors import BudgetExceededError
from mien.layout import model_id
from mien.methods.base import DeviceInput, Runtime
from mien.methods.gate import weight_of
from mien.methods.statistics import COUNTS, MEAN, SECOND, STATISTICS, WITHIN
from mien.protocol.ids import RoundNumber
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from tests.device_sdk.synthetic import images_of
from tests.graphs import LIMITS
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet
from tests.integration.test_private_phones import DEADLINES
from tests.tiny import made_up_crops, tiny_adapted, tiny_gated

pytestmark = pytest.mark.slow

TINY = tiny_adapted()
PART, DIM = TINY.part(), 8
MODEL = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
PRIVACY = PrivacySpec(min_cohort=3, max_weight=1, reveals=("class_moment",))
LONGEST = 2.0
ENGINES = ("torch", "onnxruntime", "executorch")


def task(name: str, form: str) -> TaskSpec:
    return TaskSpec(
        name,
        method="statistics",
        rounds=1,
        population=name,
        cohort=CohortSpec(size=3, min_reports=3),
        deadlines=DEADLINES,
        privacy=PRIVACY,
        options={"form": form, "shrinkage": 0.5, "min_people": 4, "max_people": 2, "longest": LONGEST},
    )


@contextmanager
def statistics_fleet(folder: Path) -> Iterator[RealFleet]:
    """Run both servers with a model that has an adapter, and export its graphs into `graphs` beside them."""
    # Phones that only embed need no graph that trains.
    export_graphs(
        TINY.spec,
        TINY.layout,
        folder_for(folder / "graphs", TINY.layout),
        forms=(),
        parts=(),
        backbone=tiny_adapted().backbone,
        engines=("onnxruntime", "executorch"),
        limits=LIMITS,
    )
    with real_fleet(folder) as running:
        running.release(MODEL)
        yield running


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with statistics_fleet(tmp_path_factory.mktemp("statistics")) as running:
        yield running


class Phone:
    """A phone with one engine, and two people where it is the first: it takes part once, in a thread of its own."""

    def __init__(self, fleet: RealFleet, population: str, number: int, **options: Any) -> None:
        self.said: list[str] = []
        self.contribution = b""
        self.brings_runtime = True
        self._fleet, self._population, self._number, self._options = fleet, population, number, options
        self._device: Device | None = None

    def run(self) -> list[RoundOutcome]:
        name, identity = f"{self._population}{self._number}", IDENTITIES[self._number % len(IDENTITIES)]
        with self._fleet.phone(
            name,
            self._population,
            identity,
            tell=self._tell,
            runtime_loader=self._runtime if self.brings_runtime else None,
            **self._options,
        ) as self._device:
            if self._number == 0:
                self._device.enroll("Guest", images_of(IDENTITIES[4])[:3], consent=True)
            return list(self._device.participate(rounds=1))

    def _runtime(self, model: Model) -> Runtime:
        engine, own = ENGINES[self._number] if self._number < len(ENGINES) else "torch", tiny_adapted()
        if engine == "torch":
            return own.runtime()
        root = self._fleet.folder / "graphs"
        if engine == "onnxruntime":
            return OnnxRuntime(own.spec, own.layout, GraphFolder.open(root, own.spec, own.layout))
        return ExecutorchRuntime(own.spec, own.layout, GraphFolder.open(root, own.spec, own.layout, "executorch"))

    def _tell(self, event: Event | Transfer) -> None:
        if not isinstance(event, Event):
            return
        self.said.append(event.text)
        if event.kind == "uploading":
            assert self._device is not None
            pending = self._device.gallery.pending()
            assert pending is not None
            self.contribution = pending.contribution


def taken_part(phones: list[Phone]) -> list[list[RoundOutcome]]:
    with ThreadPoolExecutor(len(phones)) as pool:
        return list(pool.map(Phone.run, phones))


AGREED = {"participation.allow_reveal": ("class_moment",), "participation.allow_plain_sums": False}


def plain_sum(spec: TaskSpec, phones: list[Phone]) -> Total:
    layout = STATISTICS.contribution_layout(spec, PART, DIM)
    total = Total.empty(layout)
    for phone in phones:
        total = total.plus(layout.parse(phone.contribution))
    return total


@pytest.mark.parametrize("form", ["centre", "plda"])
def test_the_adapter_is_that_of_the_plain_sum(fleet: RealFleet, form: str) -> None:
    """Four people on three phones, one for each engine; what the coordinator opens is their sum to the quantiser."""
    spec = task(form, form)
    task_id = fleet.submit(spec)
    phones = [Phone(fleet, form, number, **AGREED) for number in range(3)]
    outcomes = taken_part(phones)
    (report,) = fleet.outcome(task_id)
    assert all(outcome == [Counted(outcome[0].round, report.model_id, 3)] for outcome in outcomes)
    total = plain_sum(spec, phones)
    people, pairs, _ = total[COUNTS] * 2
    assert (people, pairs) == (4.0, 4.0)
    found = fleet.theta(report.model_id)
    np.testing.assert_array_equal(found[: -PART.size], TINY.theta[: -PART.size])

    # Each phone's element is rounded by at most a step, so the sum's by three.
    step = 2.0 ** -plan_numbers(3, l2_clip=PRIVACY.l2_clip, max_weight=1).frac_bits
    expected = STATISTICS.server_step(spec, PART, STATISTICS.server_start(spec, PART, TINY.theta), total, {}).theta
    if form == "centre":
        mean = -found[-DIM:].astype(np.float64) / LONGEST * people / 2
        np.testing.assert_allclose(mean, total[MEAN], atol=3 * step + 1e-7)
    else:
        assert np.abs(found - TINY.theta).max() > 0.1
        np.testing.assert_allclose(found, expected, atol=1e-3)
    assert np.abs(total[SECOND]).max() > 1e3 * step
    assert np.abs(total[WITHIN]).max() > 1e3 * step
    said = " ".join(phones[0].said)
    assert "the mean of what the model makes of 8 images of 2 people" in said
    assert "nothing is trained on them" in said
    assert "Summing statistics on 8 images." in said


def test_a_phone_whose_graphs_only_embed_takes_part_by_itself(fleet: RealFleet) -> None:
    """As phones do: it says what its graphs can, is asked, and runs them with ONNX Runtime."""
    spec = task("embeds", "centre")
    task_id = fleet.submit(spec)
    phones = [Phone(fleet, "embeds", number, **AGREED) for number in range(3)]
    phones[1] = Phone(fleet, "embeds", 1, **AGREED, runtime="onnxruntime")
    phones[1].brings_runtime = False
    shutil.copytree(fleet.folder / "graphs", Home(fleet.folder / "embeds1").graphs)
    taken_part(phones)
    (report,) = fleet.outcome(task_id)
    assert report.num_reports == 3


def test_cohorts_of_two_days_and_a_killed_coordinator_make_one_total(fleet: RealFleet) -> None:
    """The first cohort is too few people and makes nothing; who is in it is not asked again, and says so itself."""
    spec = task("days", "wccn")
    spec = replace(spec, rounds=2, options={**spec.options, "min_people": 6})
    task_id = fleet.submit(spec)
    first, second = (
        [Phone(fleet, "days", number, **AGREED) for number in numbers] for numbers in ((0, 1, 2), (3, 4, 5))
    )
    taken_part(first)
    fleet.coordinator.kill()
    fleet.coordinator.start()
    with fleet.open("days1", runtime_loader=first[1]._runtime, **AGREED) as again:
        assert list(again.participate(rounds=1, idle_s=1.0)) == []
        (terms,) = again.attempts.participations()
        with pytest.raises(BudgetExceededError, match="this phone is counted already, in round 1"):
            check_promise(spec, [terms.round], RoundNumber(2))
    taken_part(second)
    reports = fleet.outcome(task_id)
    assert [(each.metrics["people_in_total"], each.metrics["phones_in_total"]) for each in reports] == [(4, 3), (7, 6)]
    assert reports[0].model_id == MODEL.model_id
    expected = STATISTICS.server_step(
        spec, PART, STATISTICS.server_start(spec, PART, TINY.theta), plain_sum(spec, first + second), {}
    )
    np.testing.assert_allclose(fleet.theta(reports[1].model_id), expected.theta, atol=1e-3)


def test_engines_add_up_the_same(fleet: RealFleet) -> None:
    """Each engine's addends are torch's to float32's last digits."""
    spec = task("same", "plda")
    inp = DeviceInput(spec, PART, DIM, TINY.theta, made_up_crops(5, seed=1), np.array([0, 0, 1, 1, 1]))
    vectors = []
    for number in range(3):
        phone = Phone(fleet, "same", number)
        vectors.append(STATISTICS.device_round(inp, phone._runtime(MODEL)).contribution.vector)
    for vector in vectors[1:]:
        np.testing.assert_allclose(vector, vectors[0], atol=1e-6)


class GatedPhone(Phone):
    """A phone of a model with a gate."""

    def _runtime(self, model: Model) -> Runtime:
        return tiny_gated().runtime()


def test_the_second_cohort_of_a_mixture_is_told_what_the_first_one_tells(tmp_path: Path) -> None:
    """Each person of it counts by odds that follow from the first cohort's sum, as the coordinator opened it.

    Cohorts are of twenty, for the odds may leave phones a tenth each, and their owners ask for sums over two.
    """
    tiny = tiny_gated()
    part, dim = tiny.part("adapter.*"), tiny.spec.input.dim
    spec = task("mixed", "wccn")
    options = {**spec.options, "min_people": 3, "mixture": True}
    spec = replace(
        spec,
        rounds=2,
        cohort=CohortSpec(size=20, min_reports=20),
        privacy=replace(PRIVACY, min_cohort=20),
        trainable=("adapter.*",),
        options=options,
    )
    layout = STATISTICS.contribution_layout(spec, part, dim)

    def sent(phones: list[Phone]) -> Total:
        total = Total.empty(layout)
        for phone in phones:
            total = total.plus(layout.parse(phone.contribution))
        return total

    with real_fleet(tmp_path) as fleet:
        fleet.release(Model(model_id(tiny.layout.sha256, tiny.theta), tiny.spec, tiny.layout, tiny.theta, None))
        task_id = fleet.submit(spec)
        first = [GatedPhone(fleet, "mixed", number, **AGREED) for number in range(20)]
        second = [GatedPhone(fleet, "mixed", number, **AGREED) for number in range(20, 40)]
        taken_part(list(first))
        taken_part(list(second))
        reports = fleet.outcome(task_id)
    after = STATISTICS.server_step(spec, part, STATISTICS.server_start(spec, part, tiny.theta), sent(list(first)), {})
    (odds,) = STATISTICS.reply(after, "").values()
    for phone in second:  # of one person, whose mean feature is what they add by what they count
        added = layout.parse(phone.contribution).vector
        counted = float(added[layout.slices[COUNTS]][0])
        mean = added[layout.slices[MEAN]].astype(np.float64) / counted
        assert counted * options["max_people"] == pytest.approx(weight_of(odds, mean), abs=1e-4)
    weighed = float(sent(list(second))[COUNTS][0]) * options["max_people"]
    assert 2 <= weighed < 20, "twenty people, who count by less than all"
    assert [each.metrics["phones_in_total"] for each in reports] == [20, 40]
    assert reports[1].metrics["people_in_total"] == pytest.approx(weighed, abs=1e-5)
    said = " ".join(first[0].said)
    assert "20 phones hide this one at least as well as 2 of which all count alike" in said
