"""Asynchronous mode over real processes and mutual TLS: cohorts that overtake each other, bounds, kill -9, refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mien.errors import ConfigError, LateError
from mien.layout import Vector
from mien.protocol.canonical import task_from_json
from mien.protocol.rounds import Stage
from mien.protocol.v1 import operator_pb2, rounds_pb2
from mien.rounds.machine import COUNTED
from mien.specs import AsynchronousSpec, CohortSpec, PrivacySpec, TaskSpec
from simulation.testing import (
    THETA,
    FakeDevice,
    FakeFleet,
    FakePart,
    Sent,
    contribution,
    masked_task,
    ref_of,
    tiny_task,
)
from tests.helpers import raised, run
from tests.integration.test_durability import again, by_device
from tests.integration.test_rounds import expected_theta, outcome

SIZE = 3
HALF = AsynchronousSpec(max_concurrency=2, max_staleness=8, staleness_exponent=1.0)
"""One model behind weighs one half."""


def some_task(population: str, *, is_masked: bool, rounds: int = 2, spec: AsynchronousSpec = HALF) -> TaskSpec:
    """Return a task of cohorts of three, all of whom have to report."""
    cohort = CohortSpec(size=SIZE, min_reports=SIZE)
    if is_masked:
        return masked_task("async", population, size=SIZE, rounds=rounds, cohort=cohort, asynchronous=spec)
    privacy = PrivacySpec(min_cohort=SIZE, secure_aggregation="off")
    return tiny_task("async", population, rounds=rounds, cohort=cohort, privacy=privacy, asynchronous=spec)


@dataclass
class Chosen:
    """Devices that were chosen for one cohort, and what each has to contribute."""

    devices: Sequence[FakeDevice]
    assignments: Sequence[rounds_pb2.Assignment]
    parts: Sequence[FakePart]

    @classmethod
    async def of(cls, devices: Sequence[FakeDevice]) -> Chosen:
        """Have devices check in at once; the cohort is all of them."""
        found = await asyncio.gather(*(device.assignment() for device in devices))
        assert len({ref_of(assignment) for assignment in found}) == 1
        parts = []
        for device, assignment in zip(devices, found, strict=True):
            task = task_from_json(assignment.task_json)
            data = contribution(task, int(device.id[:8], 16), *ref_of(assignment))
            parts.append(device.masked_part(assignment, task, data))
        return cls(devices, found, parts)

    @property
    def ref(self) -> rounds_pb2.RoundRef:
        """Which cohort it is."""
        return self.assignments[0].round

    async def report(self) -> None:
        """Say that all have trained."""
        await asyncio.gather(*(device.report_trained(self.ref) for device in self.devices))

    async def take_part(self) -> list[rounds_pb2.StageEvent]:
        """Go through all stages and return the last event that each was told."""
        await self.report()
        return await self.finish()

    async def finish(self) -> list[rounds_pb2.StageEvent]:
        """Go through the stages after training and return the last event that each was told."""
        if self.parts[0].task.privacy.is_masked:
            pairs = zip(self.devices, self.parts, strict=True)
            return list(await asyncio.gather(*(device.take_part_masked(part) for device, part in pairs)))
        return list(await asyncio.gather(*(self._plain(d, p) for d, p in zip(self.devices, self.parts, strict=True))))

    async def _plain(self, device: FakeDevice, part: FakePart) -> rounds_pb2.StageEvent:
        await device.until(self.ref, rounds_pb2.UPLOAD)
        assert (await device.upload(self.ref, part.data)).accepted
        return await device.until(self.ref, rounds_pb2.CLOSED)

    def step(self, theta: Vector, *, weight: float) -> Vector:
        """Return the model after this cohort's mean update, so much of it."""
        whole = expected_theta(theta, self.parts[0].task, [part.data for part in self.parts])
        return np.asarray(theta + weight * (whole - theta), np.float32)


def by_round(reports: Sequence[operator_pb2.RoundReport]) -> dict[int, operator_pb2.RoundReport]:
    """Return the reports by their cohorts' numbers; each cohort has one attempt."""
    assert all(report.round.attempt == 1 for report in reports)
    return {report.round.round: report for report in reports}


def assert_model(fleet: FakeFleet, model_id: str, expected: Vector) -> Vector:
    """Check a model up to what masking rounds, and return it as it is."""
    found: Vector = fleet.theta(model_id)
    assert np.abs(found - expected).max() < 1e-5
    return found


@pytest.mark.parametrize("is_masked", [True, False], ids=["masked", "plain"])
def test_a_slow_cohort_comes_late_and_is_weighed(shared_fleet: FakeFleet, is_masked: bool) -> None:
    """The first cohort trains while the second makes a model; its own sum then moves that model by half of it."""
    task = some_task(f"late-{is_masked}", is_masked=is_masked)

    async def story() -> tuple[Chosen, Chosen, dict[int, operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(task.population, 2 * SIZE) as devices:
            status = await operator.submit(task, task.population)
            slow = await Chosen.of(devices[:SIZE])
            quick = await Chosen.of(devices[SIZE:])
            assert [slow.ref.round, quick.ref.round] == [1, 2]
            assert slow.assignments[0].model_id == quick.assignments[0].model_id
            for chosen in (quick, slow):
                assert {event.stage for event in await chosen.take_part()} == {rounds_pb2.CLOSED}
            return slow, quick, by_round(await outcome(operator, status.task_id))

    slow, quick, reports = run(story())
    assert {report.stage for report in reports.values()} == {rounds_pb2.CLOSED}
    assert [reports[n].base_version for n in (1, 2)] == [0, 0]
    assert (reports[2].metrics["staleness"], reports[2].metrics["staleness_weight"]) == (0, 1)
    assert (reports[1].metrics["staleness"], reports[1].metrics["staleness_weight"]) == (1, 0.5)
    first = assert_model(shared_fleet, reports[2].model_id, quick.step(THETA, weight=1.0))
    assert_model(shared_fleet, reports[1].model_id, slow.step(first, weight=0.5))
    with shared_fleet.store() as store:
        models = {number: store.model(report.model_id) for number, report in reports.items()}
        task_record = store.task(slow.ref.task_id)
    assert models[1].parent_model_id == models[2].model_id, "made of the model that was newest then"
    assert [models[n].round for n in (2, 1)] == [1, 2]
    assert (task_record.state, task_record.rounds_closed, task_record.model_id) == ("done", 2, models[1].model_id)


def test_over_the_bound_a_cohort_is_discarded_and_told_so(shared_fleet: FakeFleet) -> None:
    """With max_staleness 0 the slow cohort has nothing to hope for once the other one has made a model."""
    spec = AsynchronousSpec(max_concurrency=2, max_staleness=0)
    task = some_task("bound", is_masked=True, spec=spec)

    async def story() -> tuple[Chosen, rounds_pb2.StageEvent, Exception, Any]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("bound", 2 * SIZE) as devices:
            status = await operator.submit(task, "bound")
            slow, quick = await Chosen.of(devices[:SIZE]), await Chosen.of(devices[SIZE:])
            assert {event.stage for event in await quick.take_part()} == {rounds_pb2.CLOSED}
            told = await devices[0].until(slow.ref, rounds_pb2.ABORTED)
            assert await devices[0].report_trained(slow.ref) == rounds_pb2.ABORTED
            refused = await raised(devices[0].upload(slow.ref, b"0" * 8, masked=b"1"))
            again = await Chosen.of(devices[:SIZE])  # nobody is barred by it
            assert again.ref.round == 3
            await again.take_part()
            return again, told, refused, by_round(await outcome(operator, status.task_id))

    again, told, refused, reports = run(story())
    assert told.stage == rounds_pb2.ABORTED
    assert "1 models were made since this cohort's" in told.reason
    assert "max_staleness allows (0)" in told.reason
    assert isinstance(refused, LateError)
    assert [reports[n].stage for n in (1, 2, 3)] == [rounds_pb2.ABORTED, rounds_pb2.CLOSED, rounds_pb2.CLOSED]
    assert (reports[3].base_version, reports[3].metrics["staleness"]) == (1, 0)
    with shared_fleet.store() as store:
        record = store.task(again.ref.task_id)
        store.audit(lambda log, db: log.verify(db))
    assert (record.state, record.rounds_closed, record.aborted_in_a_row) == ("done", 2, 0)


@pytest.mark.parametrize(
    "is_masked", [pytest.param(True, id="masked"), pytest.param(False, id="plain", marks=pytest.mark.slow)]
)
def test_kill_9_with_two_cohorts_in_flight(fleet: FakeFleet, is_masked: bool) -> None:
    """One cohort trains, the other is in its protocol: after a restart both go on, and both count."""
    task = some_task("kill", is_masked=is_masked)

    async def story() -> tuple[Chosen, Chosen, dict[int, operator_pb2.RoundReport]]:
        fleet.start()
        async with fleet.devices("kill", 2 * SIZE) as devices:
            async with fleet.operator() as operator:
                await fleet.release_tiny_model(operator)
                status = await operator.submit(task, "kill")
            slow, quick = await Chosen.of(devices[:SIZE]), await Chosen.of(devices[SIZE:])
            await quick.report()
            await fleet.restart(*devices)
            for device in devices:  # each is told where it is: in its own cohort
                reply = await device.check_in()
                mine = slow if device in slow.devices else quick
                assert reply.assignment.round == mine.ref
            ends = [*await quick.finish(), *await slow.take_part()]
            assert {event.stage for event in ends} == {rounds_pb2.CLOSED}
            async with fleet.operator() as operator:
                return slow, quick, by_round(await outcome(operator, status.task_id))

    slow, quick, reports = run(story())
    assert [reports[n].stage for n in (1, 2)] == [rounds_pb2.CLOSED, rounds_pb2.CLOSED]
    first = assert_model(fleet, reports[2].model_id, quick.step(THETA, weight=1.0))
    assert_model(fleet, reports[1].model_id, slow.step(first, weight=0.5))
    with fleet.store() as store:
        store.audit(lambda log, db: log.verify(db))


def test_a_kill_while_both_sums_are_being_taken_loses_neither(fleet: FakeFleet) -> None:
    """Both cohorts have uploaded everything when the power goes: each makes a model, the second on the first one's."""
    task = some_task("both", is_masked=False)

    async def story() -> tuple[list[Chosen], dict[int, operator_pb2.RoundReport]]:
        fleet.start()
        async with fleet.devices("both", 2 * SIZE) as devices:
            async with fleet.operator() as operator:
                await fleet.release_tiny_model(operator)
                status = await operator.submit(task, "both")
            both = [await Chosen.of(devices[:SIZE]), await Chosen.of(devices[SIZE:])]
            for chosen in both:
                await chosen.report()
                for device, part in zip(chosen.devices[1:], chosen.parts[1:], strict=True):
                    assert (await device.upload(chosen.ref, part.data)).accepted
            last = [chosen.devices[0].upload(chosen.ref, chosen.parts[0].data) for chosen in both]
            accepted = await asyncio.gather(*last)
            assert all(status.accepted for status in accepted)
            await fleet.restart()
            async with fleet.operator() as operator:
                return both, by_round(await outcome(operator, status.task_id))

    both, reports = run(story())
    assert {report.stage for report in reports.values()} == {rounds_pb2.CLOSED}
    order = sorted((1, 2), key=lambda n: reports[n].metrics["staleness"])
    assert [reports[n].metrics["staleness_weight"] for n in order] == [1.0, 0.5]
    theta = THETA
    for number, weight in zip(order, (1.0, 0.5), strict=True):
        theta = assert_model(fleet, reports[number].model_id, both[number - 1].step(theta, weight=weight))


def check_chain(fleet: FakeFleet, task_id: str, acknowledged: Sequence[Sent]) -> list[int]:
    """Check that each model is the one before and its cohort's mean, weighed; return how stale each cohort was.

    Whatever was acknowledged to a cohort that made a model is in it.
    """
    with fleet.store() as store:
        record = store.task(task_id)
        cohorts = [each for each in store.rounds(task_id) if each.stage is Stage.CLOSED]
        versions = {each.id: store.model(each.model_id or "").round or 0 for each in cohorts}
        members = {each.id: store.participants(each.id) for each in cohorts}
        store.audit(lambda log, db: log.verify(db))
    task, theta, found = task_from_json(record.task_json), THETA, list[int]()
    cohorts.sort(key=lambda each: versions[each.id])
    assert [versions[each.id] for each in cohorts] == list(range(1, record.rounds_closed + 1))
    for version, each in enumerate(cohorts):
        counted = sorted(device for device, step in members[each.id].items() if step in COUNTED)
        named = {sent.device_id for sent in acknowledged if sent.round == (each.round, each.attempt)}
        assert named <= set(counted), "an acknowledged contribution was lost"
        tau = version - each.base_version
        assert each.metrics["staleness"] == tau
        data = [again(task, device, each.round, each.attempt) for device in counted]
        whole = expected_theta(theta, task, data)
        theta = assert_model(fleet, each.model_id or "", np.asarray(theta + (whole - theta) / (1 + tau), np.float32))
        found.append(tau)
    assert not cohorts or record.model_id == cohorts[-1].model_id
    return found


@pytest.mark.slow
def test_kills_at_random_instants_leave_a_chain_of_weighed_sums(fleet: FakeFleet) -> None:
    """Three cohorts at once, kill -9 again and again: no wrong total, nothing too stale applied, no lane stuck."""
    luck, acknowledged, stop = random.Random(11), list[Sent](), asyncio.Event()
    spec = AsynchronousSpec(max_concurrency=3, max_staleness=2, staleness_exponent=1.0)
    task = some_task("chain", is_masked=True, rounds=100_000, spec=spec)

    async def story() -> str:
        fleet.start()
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)
            status = await operator.submit(task, "chain")
        async with fleet.devices("chain", 3 * SIZE) as devices:
            lives = [
                asyncio.create_task(device.take_part_stubbornly(by_device(device), acknowledged, stop))
                for device in devices
            ]
            for _ in range(3):
                await asyncio.sleep(luck.uniform(0.1, 0.8))
                await fleet.restart()
            before = len(acknowledged)
            while len(acknowledged) < before + 6 * SIZE:  # cohorts close again after the last kill
                await asyncio.sleep(0.05)
            stop.set()
            fleet.kill()
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)
        return status.task_id

    stale = check_chain(fleet, run(story()), acknowledged)
    assert len(stale) >= 2
    assert max(stale) <= 2


def test_a_phone_is_in_one_cohort_at_a_time_and_no_cohort_is_gathered_for_nothing(shared_fleet: FakeFleet) -> None:
    task = some_task("one", is_masked=False, rounds=3)

    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("one", 3 * SIZE) as devices:
            status = await operator.submit(task, "one")
            first = await Chosen.of(devices[:SIZE])
            await first.report()
            assert (await devices[0].upload(first.ref, first.parts[0].data)).accepted
            assert not (await devices[0].check_in()).HasField("assignment"), "its upload is in an open cohort"
            second = await Chosen.of(devices[SIZE : 2 * SIZE])
            assert not (await devices[-1].check_in()).HasField("assignment"), "two are in flight already"
            await asyncio.gather(
                *(d.upload(first.ref, p.data) for d, p in zip(first.devices, first.parts, strict=True))
            )
            await devices[0].until(first.ref, rounds_pb2.CLOSED)
            third = await Chosen.of(devices[2 * SIZE :])
            assert third.assignments[0].model_id != second.assignments[0].model_id, "it begins on the newest model"
            await second.take_part()
            assert not (await devices[0].check_in()).HasField("assignment"), "the last model is on its way"
            await operator.cancel(status.task_id)
            told = await devices[-1].until(third.ref, rounds_pb2.ABORTED)
            assert told.reason.startswith("task cancelled")

    run(story())


def test_pausing_lets_cohorts_in_flight_finish_and_gathers_no_more(shared_fleet: FakeFleet) -> None:
    task = some_task("paused", is_masked=False, rounds=3)

    async def story() -> dict[int, operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("paused", 2 * SIZE) as devices:
            status = await operator.submit(task, "paused")
            first = await Chosen.of(devices[:SIZE])
            waiting = asyncio.create_task(devices[-1].check_in())  # gathers a second cohort
            while True:
                with shared_fleet.store() as store:
                    if len(store.rounds(status.task_id)) == 2:
                        break
                await asyncio.sleep(0.05)
            assert (await operator.pause(status.task_id)).state == "paused"
            await waiting
            assert {event.stage for event in await first.take_part()} == {rounds_pb2.CLOSED}
            await operator.cancel(status.task_id)
            return by_round(await outcome(operator, status.task_id))

    reports = run(story())
    assert [reports[n].stage for n in (1, 2)] == [rounds_pb2.CLOSED, rounds_pb2.ABORTED]
    assert reports[2].reason.startswith("task paused")


@pytest.mark.parametrize("method", ["scaffold", "mime", "fedfr_uda"])
def test_methods_without_it_are_refused_at_once(shared_fleet: FakeFleet, method: str) -> None:
    task = some_task("refused", is_masked=False)

    async def story() -> Exception:
        async with shared_fleet.operator() as operator:
            values = {**task.__dict__, "method": method}
            return await raised(operator.submit(TaskSpec(**values), method))

    error = run(story())
    assert isinstance(error, ConfigError)
    assert f"method {method} has no asynchronous mode: " in error.message
