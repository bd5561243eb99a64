"""Who is asked and how long a round waits, over real processes: soft deadlines, what programs can do, pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from coordinator.operator.client import Coordinator
from mien.errors import CorruptDataError, LateError
from mien.protocol.v1 import operator_pb2, rounds_pb2
from mien.specs import CohortSpec, DeadlineSpec, MustInclude
from simulation.testing import (
    LAYOUT,
    SPEC,
    STEP_LIMIT_S,
    FakeDevice,
    FakeFleet,
    answer,
    free_port,
    masked_task,
    tiny_task,
)
from tests.helpers import raised, run
from tests.integration.test_monitoring import until_held
from tests.integration.test_rounds import make, outcome, until_gathered

LONG_S = 200.0
"""Far longer than any of these tests: whatever ends a stage sooner is not its hard deadline."""


def test_training_waits_for_a_silent_phone_no_longer_than_its_soft_deadline(shared_fleet: FakeFleet) -> None:
    deadlines = DeadlineSpec(selecting_s=LONG_S, training_s=LONG_S, upload_s=LONG_S, training_soft_s=1.0)
    task = tiny_task("soft", "soft", cohort=CohortSpec(size=3, min_reports=2), deadlines=deadlines)

    async def story() -> tuple[Exception, list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("soft", 3) as devices:
            status = await operator.submit(task, "soft")
            silent = asyncio.create_task(devices[0].assignment())
            busy = [asyncio.create_task(device.take_part(make(i))) for i, device in enumerate(devices[1:])]
            assignment = await silent
            await asyncio.gather(*busy)
            late = await raised(devices[0].report_trained(assignment.round))
            return late, await outcome(operator, status.task_id)

    late, (report,) = run(story(), limit_s=LONG_S - 10)
    assert isinstance(late, LateError)
    assert (report.stage, report.num_selected, report.num_reports) == (rounds_pb2.CLOSED, 3, 2)


def test_from_its_soft_deadline_on_the_quorum_is_selected(shared_fleet: FakeFleet) -> None:
    deadlines = DeadlineSpec(selecting_s=LONG_S, training_s=LONG_S, upload_s=LONG_S, selecting_soft_s=0.5)
    task = tiny_task("few", "few", cohort=CohortSpec(size=4, min_reports=2), deadlines=deadlines)

    async def story() -> list[operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("few", 2) as devices:
            status = await operator.submit(task, "few")
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            return await outcome(operator, status.task_id)

    (report,) = run(story(), limit_s=LONG_S - 10)
    assert (report.stage, report.num_selected, report.num_reports) == (rounds_pb2.CLOSED, 2, 2)


def test_a_task_that_cannot_gather_holds_nobody(shared_fleet: FakeFleet) -> None:
    """Phones that wait for an older task go to the one that can begin with them, and hear what the older one lacks."""
    deadlines = DeadlineSpec(selecting_s=LONG_S, training_s=LONG_S, upload_s=LONG_S)
    many = tiny_task("many", "held", cohort=CohortSpec(size=20, min_reports=20), deadlines=deadlines)
    few = tiny_task("few", "held", cohort=CohortSpec(size=3, min_reports=3), deadlines=deadlines)

    async def story() -> tuple[rounds_pb2.CheckInReply, list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("held", 3) as devices:
            waits = await operator.submit(many, "held-many")
            alone = await offers(devices[0])
            begins = await operator.submit(few, "held-few")
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            closed = await outcome(operator, begins.task_id)
            await operator.cancel(waits.task_id)
            return alone, closed

    alone, (report,) = run(story(), limit_s=LONG_S - 10)
    assert alone.wait.reason == "a round of many is gathering devices: 1 of 20"
    assert (report.stage, report.num_selected, report.num_reports) == (rounds_pb2.CLOSED, 3, 3)


def test_phones_that_wait_for_a_task_that_cannot_begin_are_counted_for_the_other_that_they_wait_for(
    shared_fleet: FakeFleet,
) -> None:
    """Nobody here is a source. The younger task lacks one phone of four, not four, and who watches it is told so."""
    name, waits_for_a_source = "counts", CohortSpec(size=5, min_reports=5, must_include=MustInclude())
    older = tiny_task("sources", name, method="fedfr_uda", cohort=waits_for_a_source)
    younger = tiny_task("plain", name, cohort=CohortSpec(size=4, min_reports=4))

    async def story() -> list[tuple[int, int, int]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(name, 4) as devices:
            statuses = [await operator.submit(each, f"{name}-{each.name}") for each in (older, younger)]
            held = [asyncio.create_task(device.assignment()) for device in devices[:3]]
            await until_gathered(operator, statuses[1].task_id, there=3)
            found = {each.name: each for each in await operator.tasks()}
            held.append(asyncio.create_task(devices[3].assignment()))
            given = await asyncio.gather(*held)
            assert {assignment.round.task_id for assignment in given} == {statuses[1].task_id}
            for each in statuses:
                await operator.cancel(each.task_id)
            tasks = [found[each.name] for each in (older, younger)]
            return [(t.gathering_there, t.gathering_wanted, t.gathering_lacks_labelled) for t in tasks]

    assert run(story()) == [(3, 5, 1), (3, 4, 0)]


def test_of_two_tasks_that_can_gather_the_older_one_goes_first(shared_fleet: FakeFleet) -> None:
    first, second = (tiny_task(name, "queue", cohort=CohortSpec(size=2, min_reports=2)) for name in ("one", "two"))

    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("queue", 2) as devices:
            older = await operator.submit(first, "queue-1")
            younger = await operator.submit(second, "queue-2")
            given = await asyncio.gather(*(device.assignment() for device in devices))
            assert {assignment.round.task_id for assignment in given} == {older.task_id}
            for status in (older, younger):
                await operator.cancel(status.task_id)

    run(story(), limit_s=LONG_S - 10)


async def offers(
    device: FakeDevice,
    *,
    backbones: Sequence[str] = (),
    methods: Sequence[str] = (),
    engines: Sequence[str] = (),
    parts: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> rounds_pb2.CheckInReply:
    """Return the answer to a check-in that says what the device's program has."""
    says = {"backbones": backbones, "methods": methods, "engines": engines}
    request = rounds_pb2.CheckInRequest(population=device.population, software="light")
    for name, names in says.items():
        getattr(request, name).extend(names)
    request.parts.extend(rounds_pb2.TrainablePart(sha256=part, objectives=names) for part, names in parts.items())
    reply: rounds_pb2.CheckInReply = await answer(device.rounds.CheckIn(request, timeout=STEP_LIMIT_S))
    return reply


async def cannot_train(operator: Coordinator, task_id: str) -> int:
    """Return how many devices that called cannot train a task's model, as its operator is told."""
    (task,) = [task for task in await operator.tasks() if task.task_id == task_id]
    return task.num_cannot_train


def test_only_devices_whose_program_has_what_a_task_takes_are_chosen(shared_fleet: FakeFleet) -> None:
    task = tiny_task("able", "able", cohort=CohortSpec(size=2, min_reports=2))

    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("able", 4) as devices:
            status = await operator.submit(task, "able")
            old = await offers(devices[0], backbones=["tiny"], methods=["fedface"])
            other = await offers(devices[1], backbones=["sface"], methods=["fedavg"])
            for reply in (old, other):
                assert "method fedavg and backbone tiny" in reply.wait.reason
                assert "upgrade mien" in reply.wait.reason
            nothing = await offers(devices[1], engines=["onnxruntime"], methods=["fedavg"])
            assert "which this device cannot with onnxruntime" in nothing.wait.reason
            assert await cannot_train(operator, status.task_id) == 1  # devices[1], of two that were refused once
            old = await offers(devices[0], backbones=["sface"], engines=["torch"], methods=["fedavg"])
            assert "which this device cannot with torch" in old.wait.reason
            assert await cannot_train(operator, status.task_id) == 2
            both = await asyncio.gather(
                offers(devices[2], engines=["onnxruntime"], backbones=["tiny", "sface"], methods=["fedavg"]),
                offers(devices[3]),
            )
            assert all(reply.HasField("assignment") for reply in both)
            await operator.cancel(status.task_id)

    run(story())


def test_only_devices_with_graphs_of_the_tasks_part_and_objective_are_chosen(shared_fleet: FakeFleet) -> None:
    """A backbone's name is not enough: graphs are of a layout, of a part of it, and of an objective."""
    task = tiny_task("graphs", "graphs", cohort=CohortSpec(size=2, min_reports=2))
    part = LAYOUT.part(SPEC.trainable).sha256

    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("graphs", 4) as devices:
            status = await operator.submit(task, "graphs")

            def with_graphs(device: FakeDevice, **parts: Sequence[str]) -> Awaitable[rounds_pb2.CheckInReply]:
                named = {part if name == "own" else name: objectives for name, objectives in parts.items()}
                return offers(device, backbones=["tiny"], engines=["onnxruntime"], parts=named)

            layout = await with_graphs(devices[0], another=["positive_hinge"])
            form = await with_graphs(devices[1], own=["cosface", "softmax"])
            for reply in (layout, form):
                assert "trains tiny with objective positive_hinge, which this device cannot" in reply.wait.reason
                assert reply.wait.cannot_train
            assert await cannot_train(operator, status.task_id) == 2
            both = await asyncio.gather(
                with_graphs(devices[0], another=["softmax"], own=["cosface", "positive_hinge"]),
                offers(devices[2], backbones=["tiny"], engines=["onnxruntime"]),  # a program that says no parts
            )
            assert all(reply.HasField("assignment") for reply in both)
            idle = await with_graphs(devices[3], own=["positive_hinge"])
            assert not idle.wait.cannot_train
            after = await with_graphs(devices[1], own=["cosface"])
            assert after.wait.cannot_train, "also while the round gathers nobody"
            await operator.cancel(status.task_id)

    run(story())


def test_who_watches_is_told_that_no_phone_can_train(shared_fleet: FakeFleet) -> None:
    """Nothing else happens to such a task: it gathers phones for good, and none of them will do."""
    task = tiny_task("unable", "unable", cohort=CohortSpec(size=2, min_reports=2))

    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("unable", 2) as devices:
            status = await operator.submit(task, "unable")
            events = operator.watch(status.task_id)

            async def told(number: int) -> None:
                async for event in events:
                    if event.task.num_cannot_train == number:
                        return

            await asyncio.wait_for(told(0), STEP_LIMIT_S)
            for number, device in enumerate(devices, 1):
                reply = await offers(device, engines=["onnxruntime"])
                assert reply.HasField("wait")
                await asyncio.wait_for(told(number), STEP_LIMIT_S)
            await operator.cancel(status.task_id)

    run(story())


def test_who_watches_is_told_whose_owner_wants_larger_sums(shared_fleet: FakeFleet) -> None:
    task = tiny_task("shy", "shy", cohort=CohortSpec(size=2, min_reports=2))

    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("shy", 1) as (device,):
            status = await operator.submit(task, "shy")
            request = rounds_pb2.CheckInRequest(population="shy", software="light", min_cohort=3)
            reply = await answer(device.rounds.CheckIn(request, timeout=STEP_LIMIT_S))
            assert "lower --min-cohort" in reply.wait.reason
            (now,) = [each for each in await operator.tasks() if each.task_id == status.task_id]
            assert (now.num_want_larger_sums, now.num_cannot_train) == (1, 0)
            async for event in operator.watch(status.task_id):
                if event.task.num_want_larger_sums == 1:
                    break
            await operator.cancel(status.task_id)

    run(story())


@pytest.mark.parametrize("says", ["a model", "a day"])
def test_a_cohort_is_filled_in_the_first_try_by_those_whose_pictures_may_still_be_summed(
    shared_fleet: FakeFleet, says: str
) -> None:
    """Those that say they have no more to give are there first, and take no place: who comes later has the round."""
    population = f"used-up-{says[2:]}"
    task = masked_task("filled", population, size=4, min_reports=4)

    async def story() -> list[operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(population, 7) as devices:
            status = await operator.submit(task, population)
            full, others = devices[:3], devices[3:]
            for device in full:
                device.used_up_models = (status.model_id,) if says == "a model" else ("f" * 64,)
                device.used_up_day = says == "a day"
            waiting = [asyncio.create_task(device.check_in()) for device in full]
            async for event in operator.watch(status.task_id):
                if event.task.num_used_up == 3:
                    break
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(others)))
            reports = await outcome(operator, status.task_id)
            replies = await asyncio.gather(*waiting)
            assert all(reply.HasField("wait") for reply in replies)
            return reports

    (report,) = run(story())
    assert (report.stage, report.round.attempt) == (rounds_pb2.CLOSED, 1)
    assert (report.num_selected, report.num_reports) == (4, 4)


def test_a_device_without_room_for_one_more_sum_is_told_so_and_asked_for_the_next_model(
    shared_fleet: FakeFleet,
) -> None:
    task = masked_task("next", "next-model", size=3, min_reports=3, rounds=2)

    async def story() -> list[operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("next-model", 4) as devices:
            status = await operator.submit(task, "next-model")
            full, *others = devices
            full.used_up_models = (status.model_id,)
            assert "in as many sums as its owner lets them" in (await full.check_in()).wait.reason
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(others)))
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate([full, *others[:2]])))
            return await outcome(operator, status.task_id)

    assert [(r.stage, r.round.round, r.round.attempt) for r in run(story())] == [
        (rounds_pb2.CLOSED, 1, 1),
        (rounds_pb2.CLOSED, 2, 1),
    ]


@pytest.mark.parametrize("then", ["a model", "a day", "larger sums", "another method", "another task"])
def test_a_newer_check_in_takes_back_what_an_earlier_one_offered(shared_fleet: FakeFleet, then: str) -> None:
    """It waited for this task, and says in its next call what this task is not: no place is kept for it meanwhile."""
    population = f"newer-{then.replace(' ', '-')}"
    task = masked_task(population, population, size=3, min_reports=3)
    other = tiny_task(f"{population}-2", population, method="fedavg", cohort=CohortSpec(size=9, min_reports=9))

    async def story() -> tuple[rounds_pb2.CheckInReply, list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(population, 4) as (turned, *others):
            status = await operator.submit(task, population)
            asks_others = await operator.submit(other, other.name) if then == "another task" else None
            assert (await turned.check_in()).wait.reason.endswith("gathering devices: 1 of 3")
            newer = rounds_pb2.CheckInRequest(population=population, backbones=["tiny"])
            if then == "a model":
                newer.used_up_models.append(status.model_id)
            elif then == "larger sums":
                newer.min_cohort = 4
            elif then == "another method":
                newer.methods.append("fedfr")
            else:
                newer.used_up_day = True
            reply = await answer(turned.rounds.CheckIn(newer, timeout=STEP_LIMIT_S))
            await until_gathered(operator, status.task_id, there=0)
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(others)))
            if asks_others is not None:
                await operator.cancel(asks_others.task_id)
            return reply, await outcome(operator, status.task_id)

    reply, (report,) = run(story())
    assert reply.HasField("wait")
    assert (report.stage, report.round.attempt, report.num_reports) == (rounds_pb2.CLOSED, 1, 3)


def test_a_device_cannot_name_things_without_end(shared_fleet: FakeFleet) -> None:
    async def story() -> Exception:
        async with shared_fleet.devices("wordy", 1) as (device,):
            return await raised(offers(device, methods=["m"] * 65))

    assert isinstance(run(story()), CorruptDataError)


def test_devices_without_work_are_told_pauses_that_differ(shared_fleet: FakeFleet) -> None:
    async def story() -> list[float]:
        async with shared_fleet.devices("idle", 4) as devices:
            replies = await asyncio.gather(*(device.check_in() for device in devices))
            return [reply.wait.retry_after_s for reply in replies]

    pauses = run(story())
    assert min(pauses) >= 0.2, "`retry_after_s` is the shortest"
    assert len(set(pauses)) > 1


def test_a_phone_that_asks_to_be_left_out_is_told_so_while_its_check_in_is_held(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, metrics_port=free_port(), check_in_hold_s=100.0)
    task = tiny_task("quit", "quit", cohort=CohortSpec(size=2, min_reports=2))

    async def story() -> None:
        async with fleet.operator() as operator, fleet.devices("quit", 3) as (quitter, *others):
            await fleet.release_tiny_model(operator)
            status = await operator.submit(task, "quit")
            held = asyncio.create_task(quitter.check_in())
            await until_held(fleet, 1)
            await answer(quitter.rounds.SetParticipation(rounds_pb2.SetParticipationRequest(stays_out=True)))
            assert "left out" in (await held).wait.reason
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(others)))
            (report,) = await outcome(operator, status.task_id)
            assert (report.stage, report.num_selected) == (rounds_pb2.CLOSED, 2)

    try:
        fleet.start()
        run(story())
    finally:
        fleet.close()
