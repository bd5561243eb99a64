"""Secure aggregation over real processes and mutual TLS: the sum, drop-out at every stage, kill -9, and lies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.store.tables import PRIVACY_EVENTS
from mien.errors import LateError, MienError, ReplayError, ViolationError
from mien.protocol.canonical import task_from_json
from mien.protocol.messages import TOLD_STAGES
from mien.protocol.rounds import Stage
from mien.protocol.v1 import operator_pb2, rounds_pb2
from mien.rounds.machine import RoundRules
from mien.secagg.groups import deal
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from simulation.testing import (
    THETA,
    FakeDevice,
    FakeFleet,
    FakePart,
    Sent,
    contribution,
    masked_task,
    ref_of,
)
from simulation.testing.device import PROTOCOL_STAGES
from tests.helpers import raised, run
from tests.integration.ahead import AheadFleet
from tests.integration.test_rounds import expected_theta, make, outcome

NAMES = {stage: rounds_pb2.Stage.Name(stage).lower() for stage in PROTOCOL_STAGES}
STAGES = [pytest.param(stage, id=name) for stage, name in NAMES.items()]
KILLS = [
    pytest.param(stage, id=name, marks=() if stage == rounds_pb2.UPLOAD else pytest.mark.slow)
    for stage, name in NAMES.items()
]
"""Each starts two coordinators; the stage in which contributions travel stands for all of them in `make test`."""


async def part_of(device: FakeDevice, index: int) -> FakePart:
    """Return a device's part in an attempt that has begun, after it reported that it trained."""
    assignment = await device.assignment()
    task = task_from_json(assignment.task_json)
    part = device.masked_part(assignment, task, contribution(task, index, *ref_of(assignment)))
    await device.report_trained(assignment.round)
    return part


def assert_step(
    found: np.ndarray[Any, Any], before: np.ndarray[Any, Any], task: TaskSpec, data: Sequence[bytes]
) -> None:
    """The model moved by the plain weighted mean of these contributions, within one rounding step and float32."""
    steps = 2**31 / (task.cohort.size * task.privacy.max_weight) - 1
    bound = 2.0 ** -np.floor(np.log2(steps)) + 1e-6
    assert np.abs(found - expected_theta(before, task, data)).max() <= bound


@pytest.mark.parametrize("profile", ["malicious_server", "honest_but_curious"])
def test_the_masked_total_is_the_plain_sum(shared_fleet: FakeFleet, profile: Any) -> None:
    privacy = PrivacySpec(min_cohort=3, max_weight=32, secure_aggregation=profile)
    task = masked_task("masked", f"masked-{profile[:3]}", rounds=2, privacy=privacy)

    async def story() -> tuple[list[list[Sent]], list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(task.population, 5) as devices:
            status = await operator.submit(task, task.population)
            sent = [
                await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
                for _ in range(task.rounds)
            ]
            return sent, await outcome(operator, status.task_id)

    sent, reports = run(story())
    theta = THETA
    for uploads, report in zip(sent, reports, strict=True):
        assert (report.stage, report.num_reports, report.round.attempt) == (rounds_pb2.CLOSED, 5, 1)
        assert report.metrics["share_clipped"] == 0.0
        found = shared_fleet.theta(report.model_id)
        assert_step(found, theta, task, [upload.data for upload in uploads])
        theta = found


@pytest.mark.parametrize("stage", STAGES)
def test_a_device_that_vanishes_at_any_stage(shared_fleet: AheadFleet, stage: int) -> None:
    """Nine devices, two vanish: the others' sum is opened; what they had uploaded before counts."""
    population = f"vanish-{NAMES[stage]}"
    task = masked_task("vanish", population, size=9, min_reports=6)

    async def story() -> tuple[list[FakePart], list[Any], list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(population, 9) as devices:
            status = await operator.submit(task, population)
            parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
            ends = await asyncio.gather(
                *(
                    device.take_part_masked(part, gone_at=stage if i < 2 else None)
                    for i, (device, part) in enumerate(zip(devices, parts, strict=True))
                ),
                shared_fleet.run_out(status.task_id, TOLD_STAGES[stage], done=7),
            )
            return list(parts), list(ends[:9]), await outcome(operator, status.task_id)

    parts, ends, (report,) = run(story())
    counted = parts if stage in (rounds_pb2.CONSISTENCY, rounds_pb2.UNMASK) else parts[2:]
    assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, len(counted))
    assert all(end.stage == rounds_pb2.CLOSED for end in ends[2:])
    assert_step(shared_fleet.theta(report.model_id), THETA, task, [part.data for part in counted])


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_the_attempt_is_aborted_within_its_deadline(shared_fleet: AheadFleet, stage: int) -> None:
    """Six devices, three vanish: no four are left to open anything."""
    population = f"below-{NAMES[stage]}"
    task = masked_task("below", population, size=6, min_reports=4)

    async def story() -> tuple[list[Any], Any]:
        async with shared_fleet.operator() as operator, shared_fleet.devices(population, 6) as devices:
            status = await operator.submit(task, population)
            parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
            ends = await asyncio.gather(
                *(
                    device.take_part_masked(part, gone_at=stage if i < 3 else None)
                    for i, (device, part) in enumerate(zip(devices, parts, strict=True))
                ),
                shared_fleet.run_out(status.task_id, TOLD_STAGES[stage], done=3),
            )
            reports = operator.watch(status.task_id)
            found = None
            async for event in reports:
                if event.HasField("round") and event.round.stage == rounds_pb2.ABORTED:
                    found = event.round
                    break
            await operator.cancel(status.task_id)
            return list(ends[:6]), found

    ends, report = run(story())
    assert {end.stage for end in ends[3:]} == {rounds_pb2.ABORTED}
    assert report.model_id == ""
    assert re.search(r"needed", report.reason)


@pytest.mark.parametrize("stage", KILLS)
def test_kill_9_of_the_coordinator_at_any_stage(fleet: FakeFleet, stage: int) -> None:
    """Half of a stage's steps are acknowledged when the power goes: the same round goes on and closes."""
    task = masked_task("kill", "kill", size=5, min_reports=4)

    async def story() -> tuple[list[FakePart], list[Any], list[operator_pb2.RoundReport]]:
        async with fleet.devices("kill", 5) as devices:
            async with fleet.operator() as operator:
                status = await operator.submit(task, "kill")
                parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
                halted = [
                    asyncio.create_task(device.take_part_masked(part, gone_at=stage))
                    for device, part in list(zip(devices, parts, strict=True))[:3]
                ]
                going = [
                    asyncio.create_task(device.take_part_masked(part))
                    for device, part in list(zip(devices, parts, strict=True))[3:]
                ]
                for event in await asyncio.gather(*halted):
                    assert event.stage == stage
            await fleet.restart()
            ends = await asyncio.gather(
                *going, *(d.take_part_masked(p) for d, p in list(zip(devices, parts, strict=True))[:3])
            )
            async with fleet.operator() as operator:
                return list(parts), list(ends), await outcome(operator, status.task_id)

    fleet.start()
    run(give(fleet))
    parts, ends, reports = run(story())
    assert [report.stage for report in reports] == [rounds_pb2.CLOSED], reports
    assert (reports[0].num_reports, reports[0].round.attempt) == (5, 1)
    assert all(end.stage == rounds_pb2.CLOSED for end in ends)
    assert_step(fleet.theta(reports[0].model_id), THETA, task, [part.data for part in parts])


async def give(fleet: FakeFleet) -> None:
    async with fleet.operator() as operator:
        await fleet.release_tiny_model(operator)


def test_groups_over_the_wire(shared_fleet: FakeFleet) -> None:
    privacy = PrivacySpec(min_cohort=3, max_weight=32, groups=3, group_mean="trimmed_mean")
    task = masked_task("groups", "groups", size=12, min_reports=9, privacy=privacy)

    async def story() -> list[operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("groups", 12) as devices:
            status = await operator.submit(task, "groups")
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            return await outcome(operator, status.task_id)

    (report,) = run(story())
    assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, 12)


def test_members_of_a_group_that_fell_too_small_are_not_counted_and_know_it(shared_fleet: AheadFleet) -> None:
    """Three groups of five: one loses three before their upload, so that the two that had uploaded do not count."""
    privacy = PrivacySpec(min_cohort=3, max_weight=32, groups=3)
    task = masked_task("shrunk", "shrunk", size=15, min_reports=9, privacy=privacy)

    async def story() -> tuple[list[MienError], list[Any], operator_pb2.RoundReport, list[FakePart]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("shrunk", 15) as devices:
            status = await operator.submit(task, "shrunk")
            parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
            by_id = {device.id: (device, part) for device, part in zip(devices, parts, strict=True)}
            rules = RoundRules.of(task, task_id=status.task_id, round_number=1, attempt=1)
            shrunk = sorted(deal(by_id, 3, rules.seed)[1])
            others = [by_id[name] for name in by_id if name not in shrunk]
            gone = [by_id[name][0].take_part_masked(by_id[name][1], gone_at=rounds_pb2.UPLOAD) for name in shrunk[:3]]
            stay = [raised(by_id[name][0].take_part_masked(by_id[name][1])) for name in shrunk[3:]]
            ends = await asyncio.gather(
                *(device.take_part_masked(part) for device, part in others),
                *gone,
                *stay,
                shared_fleet.run_out(status.task_id, Stage.UPLOAD, done=12),
            )
            (report,) = await outcome(operator, status.task_id)
            again = [await raised(by_id[shrunk[4]][0].take_part_masked(by_id[shrunk[4]][1]))]
            return [*ends[13:15], *again], list(ends[:10]), report, [part for _, part in others]

    late, ends, report, counted = run(story())
    assert all(isinstance(error, LateError) for error in late), late
    assert {end.stage for end in ends} == {rounds_pb2.CLOSED}
    assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, 10)
    assert_step(shared_fleet.theta(report.model_id), THETA, task, [part.data for part in counted])


def test_a_ledger_that_refuses_for_a_moment_brings_no_small_group_back(shared_fleet: AheadFleet) -> None:
    """One of three groups ends with the stage whose transition cannot be committed at first."""
    privacy = PrivacySpec(min_cohort=3, max_weight=32, groups=3)
    task = masked_task("torn", "torn", size=15, min_reports=9, privacy=privacy)

    async def story() -> tuple[list[Any], operator_pb2.RoundReport, list[FakePart]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("torn", 15) as devices:
            status = await operator.submit(task, "torn")
            parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
            by_id = {device.id: (device, part) for device, part in zip(devices, parts, strict=True)}
            shrunk = deal(by_id, 3, RoundRules.of(task, task_id=status.task_id, round_number=1, attempt=1).seed)[1]
            others = [by_id[name] for name in by_id if name not in shrunk]
            going = [asyncio.create_task(device.take_part_masked(part)) for device, part in others]
            silent = [d.take_part_masked(p, gone_at=rounds_pb2.CONSISTENCY) for d, p in (by_id[n] for n in shrunk)]
            with shared_fleet.store() as store:
                columns = {
                    "position": 0,
                    "task_id": status.task_id,
                    "round": 9,
                    "attempt": 1,
                    "event_json": b"{}",
                    "sha256": "",
                }
                torn = sa.insert(PRIVACY_EVENTS).values(population="torn", **columns)
                store.privacy(lambda db: db.execute(torn))
                await asyncio.gather(*silent, shared_fleet.run_out(status.task_id, Stage.CONSISTENCY, done=10))
                await shared_fleet.until_logged("transition refused by the disk", task="torn")  # its end was due
                mine = PRIVACY_EVENTS.c.population == "torn"
                store.privacy(lambda db: db.execute(sa.delete(PRIVACY_EVENTS).where(mine)))
            ends = await asyncio.gather(*going)
            (report,) = await outcome(operator, status.task_id)
            return list(ends), report, [part for _, part in others]

    ends, report, counted = run(story())
    assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, 10)
    assert {end.stage for end in ends} == {rounds_pb2.CLOSED}
    assert_step(shared_fleet.theta(report.model_id), THETA, task, [part.data for part in counted])


# Lies


def test_what_does_not_hold_is_refused_and_the_round_goes_on_without_the_liar(shared_fleet: AheadFleet) -> None:
    task = masked_task("liar", "liar", size=6, min_reports=4)

    async def story() -> tuple[list[MienError], list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("liar", 6) as devices:
            status = await operator.submit(task, "liar")
            parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
            liar, part = devices[0], parts[0]
            honest = [
                asyncio.create_task(device.take_part_masked(p))
                for device, p in zip(devices[1:], parts[1:], strict=True)
            ]
            event = await liar.until(part.ref, rounds_pb2.KEYS)
            message = part.answer(rounds_pb2.KEYS, event.message)
            broken = bytearray(message)
            broken[-1] ^= 1
            errors = [
                await raised(liar.send_step(part.ref, rounds_pb2.SHARES, message)),
                await raised(liar.send_step(part.ref, rounds_pb2.KEYS, bytes(broken))),
                await raised(liar.send_step(part.ref, rounds_pb2.KEYS, b"")),
                await raised(liar.send_step(part.ref, rounds_pb2.KEYS, bytes(300_000))),
            ]
            await liar.send_step(part.ref, rounds_pb2.KEYS, message)
            await liar.send_step(part.ref, rounds_pb2.KEYS, message)  # again: welcome
            errors.append(await raised(liar.send_step(part.ref, rounds_pb2.KEYS, bytes(broken))))
            await asyncio.gather(*honest, shared_fleet.run_out(status.task_id, Stage.SHARES, done=5))
            errors.append(await raised(liar.send_step(part.ref, rounds_pb2.SHARES, message)))
            return errors, await outcome(operator, status.task_id)

    errors, (report,) = run(story())
    assert isinstance(errors[4], ReplayError)
    assert isinstance(errors[5], LateError)
    assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, 5)


def test_a_plain_upload_to_a_masked_task_is_refused(shared_fleet: AheadFleet) -> None:
    task = masked_task("form", "form", size=4, min_reports=3)

    async def story() -> MienError:
        async with shared_fleet.operator() as operator, shared_fleet.devices("form", 4) as devices:
            status = await operator.submit(task, "form")
            parts = await asyncio.gather(*(part_of(device, i) for i, device in enumerate(devices)))
            others = [
                asyncio.create_task(device.take_part_masked(p, gone_at=rounds_pb2.CONSISTENCY))
                for device, p in zip(devices[1:], parts[1:], strict=True)
            ]
            await devices[0].take_part_masked(parts[0], gone_at=rounds_pb2.UPLOAD)
            error = await raised(devices[0].upload(parts[0].ref, parts[0].data))
            await asyncio.gather(*others, shared_fleet.run_out(status.task_id, Stage.UPLOAD, done=3))
            await operator.cancel(status.task_id)
            return error

    assert isinstance(run(story()), ViolationError)


def test_the_log_names_no_key_share_or_vector(shared_fleet: FakeFleet) -> None:
    text = shared_fleet.log.read_text()
    assert '"unmask"' in text
    assert not re.search(r"[0-9a-f]{65,}", text), "nothing longer than a hash is logged"
    assert "BEGIN" not in text


def test_small_cohorts_are_refused(shared_fleet: FakeFleet) -> None:
    with pytest.raises(MienError, match="3 or more"):
        masked_task("small", "small", cohort=CohortSpec(size=2, min_reports=2), privacy=PrivacySpec(min_cohort=2))
