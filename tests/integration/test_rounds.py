"""Rounds over real processes and real mutual TLS: totals, lateness, deaths at every stage, lies and repetition."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.keys import pki
from coordinator.operator.client import Coordinator
from mien.errors import (
    CertificateError,
    ConfigError,
    CorruptDataError,
    LateError,
    LayoutMismatchError,
    MienError,
    NonFiniteError,
    NotFoundError,
    OffsetError,
    PermissionDeniedError,
    RateLimitedError,
    ReplayError,
    UnavailableError,
    VersionError,
)
from mien.protocol.canonical import model_from_json, task_from_json
from mien.protocol.rounds import Stage
from mien.protocol.v1 import operator_pb2, operator_pb2_grpc, rounds_pb2
from mien.specs import CohortSpec, DeadlineSpec, MustInclude, PrivacySpec, TaskSpec
from simulation.testing import (
    LAYOUT,
    SPEC,
    STEP_LIMIT_S,
    THETA,
    FakeDevice,
    FakeFleet,
    Sent,
    answer,
    contribution,
    layout_of,
    masked_task,
    ref_of,
    tiny_task,
)
from simulation.testing.device import streamed
from tests.helpers import raised, run
from tests.integration.ahead import AheadFleet


def make(index: int) -> Any:
    """Return what device number `index` contributes: made up, the same whenever it is asked for the same round."""
    return lambda task, assignment: contribution(task, index, *ref_of(assignment))


def expected_theta(theta: np.ndarray[Any, Any], task: TaskSpec, uploads: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """Return theta + sum(w delta) / sum(w), computed from scratch in float64."""
    layout = layout_of(task)
    vectors = [np.frombuffer(data, "<f4").astype(np.float64) for data in uploads]
    weight = sum(vector[layout.slices["weight"]][0] for vector in vectors)
    delta = sum(vector[layout.slices["delta"]] for vector in vectors) / weight
    part = LAYOUT.part(task.trainable or SPEC.trainable)
    result = theta.astype(np.float64)
    return np.asarray(
        part.scatter(result.astype(np.float32), (part.gather(theta).astype(np.float64) + delta).astype(np.float32))
    )


async def outcome(operator: Coordinator, task_id: str) -> list[operator_pb2.RoundReport]:
    """Return the last report of each attempt once the task is over."""
    reports: dict[tuple[int, int], operator_pb2.RoundReport] = {}
    async for event in operator.watch(task_id):
        if event.HasField("round"):
            reports[(event.round.round.round, event.round.round.attempt)] = event.round
        if event.task.state == "paused":
            break
    return [reports[key] for key in sorted(reports)]


def test_the_total_is_the_plain_weighted_mean(shared_fleet: FakeFleet) -> None:
    async def story() -> tuple[TaskSpec, list[list[Sent]], list[operator_pb2.RoundReport]]:
        task = tiny_task("mean", "mean", rounds=3)
        async with shared_fleet.operator() as operator, shared_fleet.devices("mean", 4) as devices:
            status = await operator.submit(task, "mean")
            sent = [
                await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
                for _ in range(task.rounds)
            ]
            return task, sent, await outcome(operator, status.task_id)

    task, sent, reports = run(story())
    theta = THETA
    for uploads, report in zip(sent, reports, strict=True):
        assert (report.stage, report.num_reports, report.round.attempt) == (rounds_pb2.CLOSED, 4, 1)
        theta = expected_theta(theta, task, [upload.data for upload in uploads])
        found = shared_fleet.theta(report.model_id)
        assert np.abs(found - theta).max() < 1e-6
        theta = found
    frozen = LAYOUT.offsets["tail.weight"]
    assert (theta[:frozen] == THETA[:frozen]).all()  # only the trainable part has moved
    assert np.abs(theta - THETA).max() > 1e-3


def test_metrics_are_weighted_means(shared_fleet: FakeFleet) -> None:
    async def story() -> tuple[TaskSpec, list[Sent], list[operator_pb2.RoundReport]]:
        task = tiny_task("metrics", "metrics")
        async with shared_fleet.operator() as operator, shared_fleet.devices("metrics", 4) as devices:
            status = await operator.submit(task, "metrics")
            sent = await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            return task, list(sent), await outcome(operator, status.task_id)

    task, sent, (report,) = run(story())
    layout = layout_of(task)
    vectors = [np.frombuffer(upload.data, "<f4") for upload in sent]
    weights = sum(float(v[layout.slices["weight"]][0]) for v in vectors)
    losses = sum(float(v[layout.slices["loss_before"]][0]) for v in vectors)
    assert report.metrics["loss_before"] == pytest.approx(losses / weights, rel=1e-6)
    assert report.upload_bytes == 4 * layout.size_bytes


def test_over_selection_leaves_the_slow_ones_late(shared_fleet: FakeFleet) -> None:
    """Six are asked, four may report: the two slow ones are told so, on the stream and when they report."""

    async def story() -> None:
        task = tiny_task("over", "over", cohort=CohortSpec(size=4, min_reports=2, over_selection=1.5))
        async with shared_fleet.operator() as operator, shared_fleet.devices("over", 6) as devices:
            status = await operator.submit(task, "over")
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            ref = assignments[0].round
            slow = devices[4]
            following = asyncio.create_task(_last_error(slow, ref))
            for i, device in enumerate(devices[:4]):
                stage = await device.report_trained(ref)
                assert stage == (rounds_pb2.UPLOAD if i == 3 else rounds_pb2.TRAINING)
            assert isinstance(await following, LateError)
            assert isinstance(await raised(devices[5].report_trained(ref)), LateError)
            assert isinstance(await raised(devices[5].upload(ref, contribution(task, 5))), LateError)
            for i, device in enumerate(devices[:4]):
                assert (await device.upload(ref, make(i)(task, assignments[i]))).accepted
            assert [r.num_reports for r in await outcome(operator, status.task_id)] == [4]

    run(story())


async def _last_error(device: FakeDevice, ref: rounds_pb2.RoundRef) -> BaseException | None:
    try:
        async for _ in device.events(ref):
            pass
    except LateError as error:
        return error
    return None


def test_the_device_that_is_not_needed_waits(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("wait", 5) as devices:
            status = await operator.submit(tiny_task("wait", "wait"), "wait")
            asking = {asyncio.create_task(device.assignment()): device for device in devices}
            left = set(asking)
            while len(left) > 1:
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            ((task, device),) = ((task, asking[task]) for task in left)
            task.cancel()
            reply = await device.check_in()
            assert reply.wait.retry_after_s > 0
            assert reply.wait.reason
            await operator.cancel(status.task_id)

    run(story())


@pytest.mark.parametrize(
    ("death", "missed"),
    [
        pytest.param("selected", Stage.TRAINING, id="selected"),
        pytest.param("trained", Stage.UPLOAD, id="trained"),
        pytest.param("uploading", Stage.UPLOAD, id="uploading"),
        pytest.param("leaving", None, id="leaving"),
    ],
)
def test_a_device_that_dies_does_not_stop_the_round(shared_fleet: AheadFleet, death: str, missed: Stage | None) -> None:
    """One of four devices vanishes at each stage; the round closes with the other three, within its deadlines."""

    async def story() -> tuple[TaskSpec, list[Sent], list[operator_pb2.RoundReport]]:
        population = f"death-{death}"
        task = tiny_task(death, population)
        async with shared_fleet.operator() as operator, shared_fleet.devices(population, 3) as devices:
            status = await operator.submit(task, population)
            victim = FakeDevice(shared_fleet.address, shared_fleet.admit(population))
            others = [asyncio.create_task(device.take_part(make(i))) for i, device in enumerate(devices)]
            async with victim:
                assignment = await victim.assignment()
                if death == "leaving":
                    await victim.leave(assignment.round)
                    await victim.leave(assignment.round)
                if death in ("trained", "uploading"):
                    await victim.report_trained(assignment.round)
                if death == "uploading":
                    await victim.until(assignment.round, rounds_pb2.UPLOAD)
                    data = contribution(task, 9)
                    status_of = await victim.upload(assignment.round, data, stop=len(data) // 2)
                    assert (status_of.accepted, status_of.received_bytes) == (False, len(data) // 2)
            if missed is not None:
                await shared_fleet.run_out(status.task_id, missed, done=3)
            return task, list(await asyncio.gather(*others)), await outcome(operator, status.task_id)

    task, sent, reports = run(story())
    assert [(r.stage, r.num_reports) for r in reports] == [(rounds_pb2.CLOSED, 3)]
    expected = expected_theta(THETA, task, [upload.data for upload in sent])
    assert np.abs(shared_fleet.theta(reports[0].model_id) - expected).max() < 1e-6


@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
def test_a_round_waits_for_its_labelled_source_and_then_runs_with_it(shared_fleet: FakeFleet, is_masked: bool) -> None:
    """Four targets are there, which are enough: nobody is chosen, and all are told why, until the source comes."""
    name, size = f"source-{is_masked}", 4 if is_masked else 3  # without the source as many as the task's floor

    async def story() -> None:
        make_task = masked_task if is_masked else tiny_task
        cohort = CohortSpec(size=size, min_reports=size, must_include=MustInclude())
        task = make_task(name, name, method="fedfr_uda", cohort=cohort)
        async with shared_fleet.operator() as operator, shared_fleet.devices(name, 5) as devices:
            status, (source, *targets) = await operator.submit(task, name), devices
            sent = [asyncio.create_task(sent_once(device)) for device in targets]
            waiting = await until_gathered(operator, status.task_id, there=4)
            assert (waiting.gathering_wanted, waiting.gathering_lacks_labelled) == (size, 1)
            told = await targets[0].check_in()
            assert told.wait.reason.startswith(f"a round of {name} is gathering devices: 4 of {size}")
            assert "waiting for a labelled source" in told.wait.reason
            assert await stages_of(operator, status.task_id) in ([], ["SELECTING"])

            source.labelled = True
            counted = await source.take_part(make(9))
            (report,) = await outcome(operator, status.task_id)
            assert (report.stage, report.num_selected, report.num_reports) == (rounds_pb2.CLOSED, size, size)
            chosen, others = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
            while len(chosen) < size - 1:  # they hear of the end in their own time
                more, others = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
                chosen |= more
            for each in others:
                each.cancel()
            assert [each.result().round for each in chosen] == [counted.round] * (size - 1), (
                "the round is that of the source"
            )
            seen = {device.device_id: device async for device in operator.seen_devices()}
            assert [seen[device.id].labelled for device in devices] == [True, False, False, False, False]

    run(story())


def test_a_task_that_was_accepted_is_accepted_again_under_its_token_whatever_is_asked_of_tasks_since(
    shared_fleet: FakeFleet,
) -> None:
    """A rule that came after it, of how many a source leaves to hide among here, is one of new tasks."""
    cohort = CohortSpec(size=4, min_reports=4, must_include=MustInclude())
    task = masked_task("again", "again", method="fedfr_uda", cohort=cohort)
    against = replace(task, cohort=replace(cohort, min_reports=3))

    async def story() -> None:
        async with shared_fleet.operator() as operator:
            first = await operator.submit(task, "again")
            assert (await operator.submit(against, "again")).task_id == first.task_id
            assert isinstance(await raised(operator.submit(replace(against, name="new"), "new")), ConfigError)
            await operator.cancel(first.task_id)
            assert (await operator.submit(against, "again")).state == "cancelled"

    run(story())


def test_devices_that_called_are_counted_by_population(shared_fleet: FakeFleet) -> None:
    async def story() -> tuple[dict[str, int], dict[str, int]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("counted", 3) as devices:
            before = await operator.count_seen_devices()
            request = rounds_pb2.SetParticipationRequest(stays_out=True, software="light")
            calls = [device.rounds.SetParticipation(request, timeout=STEP_LIMIT_S) for device in devices]
            await asyncio.gather(*map(answer, calls))
            return before, await operator.count_seen_devices()

    before, after = run(story())
    assert "counted" not in before
    assert after == {**before, "counted": 3}


async def sent_once(device: FakeDevice) -> Sent:
    """Take part in the first round that chooses a device."""
    return await device.take_part(make(int(device.id[:6], 16)))


async def until_gathered(operator: Coordinator, task_id: str, *, there: int) -> operator_pb2.TaskStatus:
    """Return a task's status once so many devices wait to be chosen."""
    async with asyncio.timeout(STEP_LIMIT_S):
        async for event in operator.watch(task_id):
            if event.task.gathering_there == there:
                return event.task
    raise AssertionError("the task was over before anybody waited")


async def stages_of(operator: Coordinator, task_id: str) -> list[str]:
    """Return the stages of a task's attempts so far."""
    stages: dict[int, str] = {}
    async for event in operator.watch(task_id):
        if not event.HasField("round"):
            break
        stages[event.round.round.attempt] = rounds_pb2.Stage.Name(event.round.stage)
    return list(stages.values())


def test_a_missed_quorum_aborts_and_the_next_attempt_succeeds(shared_fleet: AheadFleet) -> None:
    async def story() -> list[operator_pb2.RoundReport]:
        task = tiny_task("quorum", "quorum", cohort=CohortSpec(size=3, min_reports=3))
        async with shared_fleet.operator() as operator, shared_fleet.devices("quorum", 3) as devices:
            status = await operator.submit(task, "quorum")
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            await devices[0].report_trained(assignments[0].round)
            await shared_fleet.run_out(status.task_id, Stage.TRAINING, done=1)
            event = await devices[0].until(assignments[0].round)
            assert event.stage == rounds_pb2.ABORTED
            assert event.reason == f"1 devices trained within {STEP_LIMIT_S:g} s; 3 are needed"
            assert isinstance(await raised(devices[1].upload(assignments[1].round, b"")), LateError)
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            return await outcome(operator, status.task_id)

    reports = run(story())
    assert [(r.round.round, r.round.attempt, r.stage) for r in reports] == [
        (1, 1, rounds_pb2.ABORTED),
        (1, 2, rounds_pb2.CLOSED),
    ]


def test_five_aborted_attempts_pause_the_task_and_resume_goes_on(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        task = tiny_task("five", "five", deadlines=DeadlineSpec(selecting_s=0.3, training_s=0.3, upload_s=0.3))
        async with shared_fleet.operator() as operator, shared_fleet.devices("five", 1) as (device,):
            status = await operator.submit(task, "five")
            checking_in = asyncio.create_task(device.assignment())
            reports = await outcome(operator, status.task_id)
            assert [r.round.attempt for r in reports] == [1, 2, 3, 4, 5]
            (found,) = [t for t in await operator.tasks() if t.task_id == status.task_id]
            assert found.state == "paused"
            assert "5 attempts in a row were aborted" in found.reason
            # None, where it was between two check-ins for all of the last attempt.
            assert re.search(r"[01] devices checked in within 0\.3 s; 2 are needed", found.reason)
            assert (await operator.resume(status.task_id)).state == "running"
            checking_in.cancel()
            assert (await operator.cancel(status.task_id)).state == "cancelled"
            assert (await operator.resume(status.task_id)).state == "cancelled"

    run(story())


def test_pausing_lets_a_round_finish_and_cancelling_aborts_it(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("pause", 4) as devices:
            status = await operator.submit(tiny_task("pause", "pause", rounds=3), "pause")
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            assert (await operator.pause(status.task_id)).state == "paused"
            assert (await operator.pause(status.task_id)).state == "paused"
            task = task_from_json(assignments[0].task_json)
            await asyncio.gather(*(device.report_trained(assignments[0].round) for device in devices))
            for i, device in enumerate(devices):
                await device.upload(assignments[0].round, contribution(task, i))
            assert (await devices[0].until(assignments[0].round)).stage == rounds_pb2.CLOSED
            reply = await devices[0].check_in()
            assert reply.HasField("wait")
            await operator.resume(status.task_id)
            again = await asyncio.gather(*(device.assignment() for device in devices))
            assert (again[0].round.round, again[0].round.attempt) == (2, 1)
            assert again[0].model_id != assignments[0].model_id
            await operator.cancel(status.task_id)
            event = await devices[0].until(again[0].round)
            assert (event.stage, event.reason) == (rounds_pb2.ABORTED, "task cancelled by coordinator")

    run(story())


def test_every_call_may_be_repeated(shared_fleet: FakeFleet) -> None:
    async def story() -> list[operator_pb2.RoundReport]:
        task = tiny_task("repeat", "repeat")
        async with shared_fleet.operator() as operator, shared_fleet.devices("repeat", 4) as devices:
            first, again = await operator.submit(task, "repeat"), await operator.submit(task, "repeat")
            assert first.task_id == again.task_id
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            repeated = await asyncio.gather(*(device.assignment() for device in devices))
            assert [a.SerializeToString() for a in assignments] == [a.SerializeToString() for a in repeated]
            ref = assignments[0].round
            early = await raised(devices[0].upload(ref, contribution(task, 0)))
            assert isinstance(early, RateLimitedError)  # before its stage: the same call may come again
            assert early.retry_after_s == 1.0
            for device in devices:
                await device.report_trained(ref)
                await device.report_trained(ref)
            for i, device in enumerate(devices):
                data = contribution(task, i)
                both = await asyncio.gather(device.upload(ref, data), device.upload(ref, data), return_exceptions=True)
                # Of two streams that race gRPC's client may lose one itself (grpc/grpc#36066): no word of the server's.
                refused = [error for error in both if isinstance(error, MienError)]
                assert [each for each in refused if not isinstance(each, UnavailableError | OffsetError)] == []
                received = (await device.upload_status(ref)).received_bytes
                assert (await device.upload(ref, data, offset=received)).accepted
                assert (await device.upload(ref, data)).accepted
                assert (await device.upload_status(ref)).accepted
            assert (await devices[0].until(ref)).stage == rounds_pb2.CLOSED
            assert await devices[0].report_trained(ref) == rounds_pb2.CLOSED
            assert (await devices[0].upload(ref, contribution(task, 0))).accepted
            assert (await devices[0].upload_status(ref)).accepted
            assert isinstance(await raised(devices[0].upload(ref, contribution(task, 7))), ReplayError)
            return await outcome(operator, first.task_id)

    (report,) = run(story())
    assert (report.num_reports, report.upload_bytes) == (4, 4 * layout_of(tiny_task("repeat", "repeat")).size_bytes)


async def in_upload(devices: Sequence[FakeDevice]) -> tuple[rounds_pb2.RoundRef, TaskSpec]:
    """Bring devices to the upload stage."""
    assignments = await asyncio.gather(*(device.assignment() for device in devices))
    ref = assignments[0].round
    for device in devices:
        await device.report_trained(ref)
    return ref, task_from_json(assignments[0].task_json)


def test_an_upload_resumes_where_it_stopped(shared_fleet: FakeFleet) -> None:
    async def story() -> list[operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("resume", 2) as devices:
            cohort = CohortSpec(size=2, min_reports=2)
            status = await operator.submit(tiny_task("resume", "resume", cohort=cohort), "resume")
            ref, task = await in_upload(devices)
            data = contribution(task, 0)
            assert (await devices[0].upload_status(ref)).received_bytes == 0
            assert (await devices[0].upload(ref, data, stop=700)).received_bytes == 700
            assert (await devices[0].upload_status(ref)).received_bytes == 700
            assert isinstance(await raised(devices[0].upload(ref, data, offset=699)), OffsetError)
            assert isinstance(await raised(devices[0].upload(ref, data, offset=0)), OffsetError)
            status_of = await devices[0].upload(ref, data, offset=700, stop=701, chunk=1)
            assert status_of.received_bytes == 701
            assert (await devices[0].upload(ref, data, offset=701)).accepted
            assert (await devices[1].upload(ref, contribution(task, 1), chunk=1)).accepted  # byte by byte
            assert (
                np.abs(
                    await _theta_when_closed(shared_fleet, devices[0], ref)
                    - expected_theta(THETA, task, [data, contribution(task, 1)])
                ).max()
                < 1e-6
            )
            return await outcome(operator, status.task_id)

    assert [r.num_reports for r in run(story())] == [2]


async def _theta_when_closed(fleet: FakeFleet, device: FakeDevice, ref: rounds_pb2.RoundRef) -> Any:
    event = await device.until(ref)
    assert event.stage == rounds_pb2.CLOSED
    return fleet.theta(event.model_id)


def test_a_cut_connection_keeps_what_has_arrived(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        async with shared_fleet.operator() as operator, shared_fleet.devices("cut", 2) as devices:
            cohort = CohortSpec(size=2, min_reports=2)
            status = await operator.submit(tiny_task("cut", "cut", cohort=cohort), "cut")
            ref, task = await in_upload(devices)
            data = contribution(task, 0)
            received, wait_s = 0, 0.7
            while received == 0:  # on a busy machine the first piece may take its time
                part = devices[0].upload(ref, data, chunk=200, pause_s=0.2, stop=len(data) - 200)
                sending = asyncio.create_task(part)
                await asyncio.sleep(wait_s)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                received, wait_s = (await devices[0].upload_status(ref)).received_bytes, 3 * wait_s
            assert 200 <= received < len(data)
            assert (await devices[0].upload(ref, data, offset=received)).accepted
            await operator.cancel(status.task_id)

    run(story())


def test_what_cannot_be_counted_is_refused_and_the_round_goes_on(shared_fleet: FakeFleet) -> None:
    async def story() -> tuple[TaskSpec, list[operator_pb2.RoundReport]]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("lies", 4) as devices:
            status = await operator.submit(tiny_task("lies", "lies"), "lies")
            ref, task = await in_upload(devices)
            good = contribution(task, 0)
            bad = np.frombuffer(contribution(task, 3), "<f4").copy()
            bad[-1] = np.nan
            assert isinstance(await raised(devices[3].upload(ref, bad.tobytes())), NonFiniteError)
            assert isinstance(await raised(devices[3].upload(ref, contribution(task, 3))), LateError)
            heavy = contribution(task, 2, weight=65.0)
            assert isinstance(await raised(devices[2].upload(ref, heavy)), NonFiniteError)

            first = devices[0]
            assert isinstance(await raised(first.upload(ref, good[:-4])), LayoutMismatchError)
            assert isinstance(await raised(first.upload(ref, good + good)), LayoutMismatchError)
            assert isinstance(await raised(first.upload(ref, good, size=10**15)), LayoutMismatchError)
            damaged = good[:100] + bytes([good[100] ^ 1]) + good[101:]
            assert isinstance(await raised(_damaged(first, ref, good, damaged)), CorruptDataError)
            assert (await first.upload_status(ref)).received_bytes == 0  # damaged in transit: from the start again
            assert (await first.upload(ref, good, stop=500)).received_bytes == 500
            assert isinstance(await raised(first.upload(ref, contribution(task, 5), offset=500)), ReplayError)
            assert (await first.upload(ref, good, offset=500)).accepted
            assert isinstance(await raised(first.upload(ref, contribution(task, 5))), ReplayError)
            assert (await devices[1].upload(ref, contribution(task, 1))).accepted
            return task, await outcome(operator, status.task_id)

    task, (report,) = run(story())
    assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, 2)
    expected = expected_theta(THETA, task, [contribution(task, 0), contribution(task, 1)])
    assert np.abs(shared_fleet.theta(report.model_id) - expected).max() < 1e-6


async def _damaged(device: FakeDevice, ref: rounds_pb2.RoundRef, announced: bytes, sent: bytes) -> Any:
    import hashlib

    from mien.protocol.v1 import common_pb2

    blob = common_pb2.BlobRef(sha256=hashlib.sha256(announced).hexdigest(), size_bytes=len(announced))
    header = rounds_pb2.UploadHeader(round=ref, contribution=blob)
    return await streamed(lambda: device.rounds.Upload(iter([rounds_pb2.UploadChunk(header=header, data=sent)])))


def test_a_step_that_is_too_large_aborts_the_round(shared_fleet: FakeFleet) -> None:
    async def story() -> list[operator_pb2.RoundReport]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("large", 2) as devices:
            task = tiny_task("large", "large", cohort=CohortSpec(size=2, min_reports=2))
            status = await operator.submit(task, "large")
            ref, task = await in_upload(devices)
            huge = np.frombuffer(contribution(task, 0, weight=1.0), "<f4").copy()
            huge[layout_of(task).slices["delta"]] = 1e30
            for device in devices:
                assert (await device.upload(ref, huge.tobytes())).accepted
            event = await devices[0].until(ref)
            assert "more than max_step_ratio allows" in event.reason
            await operator.cancel(status.task_id)
            return await outcome(operator, status.task_id)

    assert [r.stage for r in run(story())] == [rounds_pb2.ABORTED]


def test_strangers_and_other_roles_are_refused(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        fleet = shared_fleet
        stranger = fleet.admit("default", pki.create_authority("registrar", fleet.now))
        async with FakeDevice(fleet.address, stranger) as device:
            assert isinstance(await raised(device.hello()), UnavailableError)  # the handshake fails
        with_other_root = fleet.admit("default")
        async with FakeDevice(fleet.address, with_other_root, root=fleet.registrar.certificate_pem) as device:
            assert isinstance(await raised(device.hello()), UnavailableError)
        async with fleet.devices("default", 1) as (device,):
            assert (await device.hello()).protocol_version == 1
            assert isinstance(await raised(device.hello((7, 8))), VersionError)
            assert isinstance(await raised(device.check_in(population="other")), PermissionDeniedError)
            operator = operator_pb2_grpc.OperatorStub(device.channel)
            for call in (
                lambda: operator.ListTasks(operator_pb2.ListTasksRequest()),
                lambda: operator.Hello(__import__("mien.protocol.v1.common_pb2", fromlist=["x"]).HelloRequest()),
                lambda: operator.ImportModel(iter([operator_pb2.ImportModelChunk()])),
            ):
                assert isinstance(await raised(streamed(call)), PermissionDeniedError)
            watching = operator.WatchTask(operator_pb2.WatchTaskRequest(task_id="x"))
            assert isinstance(await raised(answer(_first(watching))), PermissionDeniedError)

    run(story())


async def _first(stream: Any) -> Any:
    async for item in stream:
        return item
    return None


def test_a_crowd_connects_at_once(shared_fleet: FakeFleet) -> None:
    """A hundred handshakes at the same moment all succeed, and twenty of the crowd are drawn."""

    async def story() -> None:
        task = tiny_task("crowd", "crowd", cohort=CohortSpec(size=20, min_reports=10))
        async with shared_fleet.operator() as operator, shared_fleet.devices("crowd", 100) as devices:
            await asyncio.gather(*(device.hello() for device in devices))
            status = await operator.submit(task, "crowd")
            asking = devices
            while len(asking) > 80:  # on a busy machine the first calls may be held no more when the last ones come
                replies = await asyncio.gather(*(device.check_in() for device in asking))
                asking = [d for d, reply in zip(asking, replies, strict=True) if not reply.HasField("assignment")]
            assert len(asking) == 80
            await operator.cancel(status.task_id)

    run(story())


def test_a_device_sees_its_own_population_only(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        fleet = shared_fleet
        async with (
            fleet.operator() as operator,
            fleet.devices("mine", 4) as mine,
            fleet.devices("theirs", 1) as (other,),
        ):
            status = await operator.submit(tiny_task("mine", "mine"), "mine")
            assignments = await asyncio.gather(*(device.assignment() for device in mine))
            ref = assignments[0].round
            assert (await other.check_in()).HasField("wait")
            for call in (
                other.report_trained(ref),
                other.upload_status(ref),
                other.upload(ref, b"1234"),
                other.leave(ref),
                other.until(ref),
            ):
                assert isinstance(await raised(call), NotFoundError)
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(mine)))
            event = await mine[0].until(ref)
            made = await mine[0].manifest(event.model_id)
            assert isinstance(await raised(other.manifest(event.model_id)), NotFoundError)
            assert isinstance(await raised(other.download(made.theta.sha256)), NotFoundError)
            assert await mine[0].download(made.theta.sha256) == fleet.theta(event.model_id).tobytes()
            assert (await other.manifest()).released
            await operator.cancel(status.task_id)

    run(story())


def test_a_model_is_downloaded_from_any_byte(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        async with shared_fleet.devices("default", 1) as (device,):
            manifest = await device.manifest()
            spec, layout = model_from_json(manifest.spec_json)
            assert (spec, layout) == (SPEC, LAYOUT)
            data = await device.download(manifest.theta.sha256)
            assert data == THETA.astype("<f4").tobytes()
            for offset in (1, 1000, len(data)):
                assert await device.download(manifest.theta.sha256, offset) == data[offset:]
            assert isinstance(await raised(device.download(manifest.theta.sha256, len(data) + 1)), OffsetError)
            assert isinstance(await raised(device.download("0" * 64)), NotFoundError)
            assert isinstance(await raised(device.download("../../store.key")), CorruptDataError)

    run(story())


def test_tasks_that_cannot_work_are_refused_at_once(shared_fleet: FakeFleet) -> None:
    async def story() -> None:
        async with shared_fleet.operator() as operator:
            for task, field in (
                (tiny_task("m", "default", method="nonsense"), "method"),
                (tiny_task("o", "default", options={"margn": 0.5}), "options.margn"),
                (tiny_task("t", "default", trainable=("nothing.*",)), "nothing.*"),
            ):
                refusal = await raised(operator.submit(task, task.name))
                assert isinstance(refusal, ConfigError)
                assert field in refusal.message
            unknown = tiny_task("u", "default", model_id="0" * 64)
            assert isinstance(await raised(operator.submit(unknown, "u")), NotFoundError)
            assert isinstance(await raised(operator.submit(unknown, "")), ConfigError)

    run(story())


def test_an_expired_certificate_is_refused(shared_fleet: FakeFleet) -> None:
    from datetime import timedelta

    fleet = shared_fleet
    issued = fleet.now
    try:
        fleet.now = issued - pki.DEVICE_LIFETIME - timedelta(minutes=1)
        old = fleet.admit("default")
    finally:
        fleet.now = issued

    async def story() -> None:
        async with FakeDevice(fleet.address, old) as device:
            # TLS refuses it in the handshake, where only a broken connection can be seen from outside.
            assert isinstance(await raised(device.hello()), UnavailableError | CertificateError)

    run(story())


def test_privacy_floor_is_part_of_the_task() -> None:
    with pytest.raises(ConfigError, match="min_cohort"):
        tiny_task("floor", "default", cohort=CohortSpec(size=2, min_reports=2), privacy=PrivacySpec(min_cohort=3))
