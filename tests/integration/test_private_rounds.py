"""Differential privacy over real processes: noise of the promised size, a budget that stops a task, and kill -9."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.store.report import report
from mien.errors import BudgetExceededError, MienError
from mien.protocol.v1 import operator_pb2, rounds_pb2
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from simulation.testing import (
    LAYOUT,
    SPEC,
    STEP_LIMIT_S,
    THETA,
    FakeFleet,
    Sent,
    answer,
    contribution,
    masked_task,
    ref_of,
)
from tests.helpers import raised, run
from tests.integration.test_rounds import expected_theta, outcome

CLIP = 2.0


def private_task(name: str, *, size: int = 5, rounds: int = 1, **dp: Any) -> TaskSpec:
    terms: dict[str, Any] = {
        "mechanism": "central_gaussian", "noise_multiplier": 1.0, "epsilon": 50.0, "delta": 1e-5,
        "max_participations": 10,
    }  # fmt: skip
    privacy = PrivacySpec(min_cohort=3, max_weight=1, l2_clip=CLIP, dp=DpSpec(**{**terms, **dp}))
    cohort = CohortSpec(size=size, min_reports=size)
    return masked_task(name, name, trainable=("tail.*",), rounds=rounds, privacy=privacy, cohort=cohort)


def make(index: int) -> Any:
    return lambda task, assignment: contribution(task, index, *ref_of(assignment), weight=1.0)


async def take_all(
    fleet: FakeFleet, task: TaskSpec, rounds: int
) -> tuple[list[list[Sent]], list[operator_pb2.RoundReport]]:
    async with fleet.operator() as operator, fleet.devices(task.population, task.cohort.size) as devices:
        status = await operator.submit(task, task.name)
        sent = [
            list(await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices))))
            for _ in range(rounds)
        ]
        return sent, await outcome(operator, status.task_id)


@pytest.mark.parametrize("mechanism", ["central_gaussian", "skellam"])
def test_the_model_moves_by_the_mean_and_noise_of_the_promised_size(shared_fleet: FakeFleet, mechanism: str) -> None:
    task = private_task(f"noise-{mechanism[:7]}", mechanism=mechanism)
    (uploads,), (result,) = run(take_all(shared_fleet, task, 1))
    assert (result.stage, result.num_reports) == (rounds_pb2.CLOSED, 5)
    assert not {"loss_before", "loss_after", "share_clipped"} & set(result.metrics), "nothing but noised sums is told"
    part = LAYOUT.part(SPEC.trainable)
    noise = part.gather(shared_fleet.theta(result.model_id)) - part.gather(
        expected_theta(THETA, task, [upload.data for upload in uploads])
    )
    # 252 elements: the sample's deviation is within 30 % of the true one except with probability 1e-10.
    sigma = CLIP * task.privacy.dp.noise_multiplier / task.cohort.size
    most = sigma * (np.sqrt(5 / 5) if mechanism == "central_gaussian" else 1.3)  # a fifth of the devices may add none
    assert 0.7 * sigma < float(noise.std()) < 1.3 * most


def test_a_budget_stops_the_task_before_it_is_exceeded_also_across_a_crash(fleet: FakeFleet) -> None:
    """z = 2 over one sum costs about epsilon 2.3, two about 3.5: a budget of 3 permits one round."""
    fleet.start()

    async def give() -> None:
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)

    run(give())
    task = private_task("budget", rounds=3, noise_multiplier=2.0, epsilon=3.0)

    async def first() -> str:
        async with fleet.operator() as operator, fleet.devices("budget", 5) as devices:
            status = await operator.submit(task, "budget")
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            return str(status.task_id)

    task_id = run(first())
    fleet.kill()
    fleet.start()

    async def second() -> str:
        async with fleet.operator() as operator, fleet.devices("budget", 5) as devices:
            for device in devices:
                reply = await device.check_in()
                assert not reply.HasField("assignment")
            (status,) = [status for status in await operator.tasks() if status.task_id == task_id]
            return f"{status.state}: {status.reason}"

    assert "its budget is 3" in run(second())
    with fleet.store() as store:
        (population,) = store.privacy(report)
    assert population.verifies
    assert population.num_sums == 1
    (budget,) = population.budgets
    assert budget.spent_rdp is not None
    assert 1.0 < budget.spent_rdp < 3.0


def test_devices_that_reached_their_cap_are_not_asked_again(shared_fleet: FakeFleet) -> None:
    task = private_task("caps", size=3, rounds=2, max_participations=1)

    async def story() -> list[str]:
        async with shared_fleet.operator() as operator, shared_fleet.devices("caps", 6) as devices:
            status = await operator.submit(task, "caps")
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices[:3])))
            told = [(await device.check_in()).wait.reason for device in devices[:3]]
            (now,) = [each for each in await operator.tasks() if each.task_id == status.task_id]
            assert (now.num_left_out, now.num_used_up, now.gathering_there) == (3, 0, 0), "why nobody is there"
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices[3:])))
            reports = await outcome(operator, status.task_id)
            assert [r.stage for r in reports] == [rounds_pb2.CLOSED, rounds_pb2.CLOSED]
            return told

    for told in run(story()):
        assert "in as many sums of a task here as the task may put it into" in told


def test_an_adaptive_clip_follows_the_norms(shared_fleet: FakeFleet) -> None:
    """Each round's clip follows from the noised share of unclipped updates of the round before.

    That share is a whole number of tenths with five phones: two of them can neither equal nor balance the quantile,
    whatever noise is drawn.
    """
    task = private_task("adaptive", size=5, rounds=3, target_quantile=0.43, clip_lr=1.0)
    _, reports = run(take_all(shared_fleet, task, 3))
    assert [r.stage for r in reports] == [rounds_pb2.CLOSED] * 3
    with shared_fleet.store() as store:
        (mine,) = [t for p in store.privacy(report) for t in p.tasks if t.name == "adaptive"]
    clips = [each["l2_clip"] for each in mine.sums]
    assert clips[0] == CLIP
    assert len(set(clips)) == 3, "each round has a clip of its own"


def test_a_promise_that_the_population_cannot_have_is_refused_when_it_is_submitted(shared_fleet: FakeFleet) -> None:
    plain = masked_task("mixed", "mixed", size=3, min_reports=3)

    async def story() -> MienError:
        async with shared_fleet.operator() as operator, shared_fleet.devices("mixed", 3) as devices:
            status = await operator.submit(plain, "mixed")
            await asyncio.gather(*(device.take_part(make(i)) for i, device in enumerate(devices)))
            await outcome(operator, status.task_id)
            late = replace(private_task("late"), population="mixed")
            return await raised(operator.submit(late, "late"))

    error = run(story())
    assert isinstance(error, BudgetExceededError)
    assert "starts with it" in error.message


def test_a_device_is_not_chosen_for_a_sum_below_its_owners_floor(shared_fleet: FakeFleet) -> None:
    task = masked_task("floor", "floor", size=3, min_reports=3)

    async def story() -> str:
        async with shared_fleet.operator() as operator, shared_fleet.devices("floor", 1) as (device,):
            status = await operator.submit(task, "floor")
            request = rounds_pb2.CheckInRequest(population="floor", backbones=["tiny"], min_cohort=16)
            reply = await answer(device.rounds.CheckIn(request, timeout=STEP_LIMIT_S))
            await operator.cancel(status.task_id)
            return str(reply.wait.reason)

    assert "over 3 devices" in (reason := run(story()))
    assert "16 or more" in reason
