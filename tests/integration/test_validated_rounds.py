"""Federated validation over the real protocol: trainers make candidates, validators judge them, the model follows.

Devices are light ones, real in all but their faces, as in `test_every_method`; the reference is the simulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.operator.client import Coordinator
from mien.contribution import Arrays
from mien.errors import ModelMismatchError
from mien.methods import METHODS
from mien.methods.base import DeviceInput, DeviceOutput, Validation, ValidationFaces, ValidationInput, shared_words
from mien.methods.pfm_fv import options_of, validation_faces
from mien.protocol.canonical import model_to_json, task_from_json
from mien.protocol.tensors import unpack_tensors
from mien.protocol.v1 import operator_pb2, rounds_pb2
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, Run, device_seed, run_task
from simulation.testing import SHORT_S, FakeDevice, FakeFleet, patiently, running_out, tiny_task
from tests.helpers import raised, run
from tests.integration.test_rounds import outcome
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
PFM = METHODS["pfm_fv"]
ROUNDS, TRAINERS, VALIDATORS = 3, 4, 3
PLAIN = PrivacySpec(("local_models",), 3, secure_aggregation="off")
MASKED = PrivacySpec(("local_models",), 3, max_weight=8)
OPTIONS = {"loss": "arcface", "scale": 8.0, "candidates": 4, "mixing": 0.5}
LABELS = np.repeat(np.arange(2), 3)


def stage() -> Validation:
    assert PFM.validation is not None
    return PFM.validation


def task_of(name: str, privacy: PrivacySpec, **changes: Any) -> TaskSpec:
    values: dict[str, Any] = {
        "method": "pfm_fv",
        "rounds": ROUNDS,
        "cohort": CohortSpec(size=TRAINERS, min_reports=TRAINERS),
        "validators": CohortSpec(size=VALIDATORS, min_reports=VALIDATORS),
        "local": LocalSpec(lr=0.05, epochs=2, batch_size=3),
        "privacy": privacy,
        "options": {**OPTIONS, "validation": "moving_norm"},
        "seed": 7,
    }
    return tiny_task(name, name, **{**values, **changes})


def crops_of(trainer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.concatenate([made_up_crops(3, seed=10 * trainer + k) for k in range(2)])


def faces_of(validator: int) -> ValidationFaces:
    labels = np.repeat(np.arange(6), 3).astype(np.int64)
    crops = np.concatenate([made_up_crops(3, seed=500 + 20 * validator + k, spread=90) for k in range(6)])
    return validation_faces(crops, labels, num_folds=2)


@dataclass
class Trainer:
    """A fake device that trains, and what it keeps to itself."""

    device: FakeDevice
    crops: np.ndarray[Any, np.dtype[np.uint8]]
    fleet: FakeFleet
    private: Arrays = field(default_factory=dict)

    async def take_part(self, *, changed: Arrays | None = None) -> rounds_pb2.StageEvent:
        """Return the last event of a round; `changed` is what a lying server tells this trainer alone."""
        assignment = await self.device.assignment()
        task = task_from_json(assignment.task_json)
        reply = {**unpack_tensors(assignment.reply, what="reply"), **(changed or {})}
        inp = DeviceInput(
            task=task,
            part=TINY.part(),
            dim=TINY.spec.input.dim,
            theta=np.asarray(self.fleet.theta(assignment.model_id), np.float32),
            crops=self.crops,
            labels=LABELS,
            private=self.private,
            reply=reply,
            seed=device_seed(task, self.device.id, assignment.round.round),
            device=self.device.id,
        )
        output = PFM.device_round(inp, TINY.runtime())
        self.private = output.private
        return await finish(
            self.device, assignment, task, output, shared_words(reply, PFM.requirements(task).shared_reply)
        )


@dataclass
class Judge:
    """A fake device that validates, and the statistics that it keeps to itself."""

    device: FakeDevice
    faces: ValidationFaces
    fleet: FakeFleet
    private: Arrays = field(default_factory=dict)

    async def take_part(self, *, changed: Arrays | None = None) -> rounds_pb2.StageEvent:
        """Return the last event of a round; `changed` is what a lying server tells this validator alone."""
        assignment = await self.device.assignment(duty=rounds_pb2.VALIDATE)
        assert assignment.duty == rounds_pb2.VALIDATE
        task = task_from_json(assignment.task_json)
        reply = {**unpack_tensors(assignment.reply, what="reply"), **(changed or {})}
        theta = np.asarray(self.fleet.theta(assignment.model_id), np.float32)
        candidates = tuple(TINY.part().scatter(theta, values) for values in reply["candidates"])
        inp = ValidationInput(task, candidates, self.faces, self.private)
        output = stage().validate(inp, TINY.runtime())
        self.private = output.private
        theirs = stage().validators_task(task)
        return await finish(self.device, assignment, theirs, output, shared_words(reply, ("candidates",)))


async def finish(
    device: FakeDevice, assignment: rounds_pb2.Assignment, task: TaskSpec, output: DeviceOutput, shared: bytes
) -> rounds_pb2.StageEvent:
    """Return a round's last event after a device sent what it made, plain or masked as the task says."""
    layout, data = output.contribution.layout, output.contribution.to_bytes()
    assert assignment.contribution_sha256 == layout.sha256
    await patiently(lambda: device.report_trained(assignment.round))
    if task.privacy.is_masked:
        model, shard = await device.describe(assignment.model_id)
        part = device.masked_part(assignment, task, data, layout=layout, model=model, public_shard=shard, shared=shared)
        return await device.take_part_masked(part)
    assert (await device.until(assignment.round, rounds_pb2.UPLOAD)).stage == rounds_pb2.UPLOAD
    assert (await device.upload(assignment.round, data)).accepted
    return await device.until(assignment.round)


async def give_model(fleet: FakeFleet, folder: Path) -> None:
    theta = folder / "theta.f32"
    theta.write_bytes(TINY.theta.astype("<f4").tobytes())
    async with fleet.operator() as operator:
        model = await operator.import_model(model_to_json(TINY.spec, TINY.layout), theta, None)
        await operator.release(model.model_id)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator whose released model is the tiny recogniser, and which gives up early."""
    folder = tmp_path_factory.mktemp("validated")
    fleet = FakeFleet(folder, max_aborted=2, check_in_hold_s=0.3)
    try:
        fleet.start()
        run(give_model(fleet, folder))
        yield fleet
        assert fleet.stop() == 0
    finally:
        fleet.close()


@asynccontextmanager
async def everybody(fleet: FakeFleet, population: str) -> Any:
    """Open everybody's connections. Names are the same in every run, and with them the weights that are drawn."""
    async with fleet.devices(population, TRAINERS + VALIDATORS, known=True) as devices:
        await asyncio.gather(*(device.hello() for device in devices))
        yield (
            [Trainer(device, crops_of(i), fleet) for i, device in enumerate(devices[:TRAINERS])],
            [Judge(device, faces_of(i), fleet) for i, device in enumerate(devices[TRAINERS:])],
        )


async def all_of(devices: Sequence[Trainer | Judge]) -> list[rounds_pb2.StageEvent]:
    return list(await asyncio.gather(*(device.take_part() for device in devices)))


def simulated(task: TaskSpec, trainers: Sequence[Trainer], judges: Sequence[Judge]) -> tuple[Run, list[Any]]:
    """Return the simulator's run with the same devices, and its state after each round."""
    states: list[Any] = []
    cohort = Cohort(
        {each.device.id: each.crops for each in trainers},
        labels={each.device.id: LABELS for each in trainers},
        validators={each.device.id: each.faces for each in judges},
    )
    done = run_task(
        task, TINY.part(), TINY.spec.input.dim, TINY.theta, cohort, TINY.runtime(),
        sums="ring" if task.privacy.is_masked else "exact",
        after_round=lambda state, _record: states.append(state),
    )  # fmt: skip
    return done, states


def judged(reports: Sequence[operator_pb2.RoundReport]) -> list[operator_pb2.RoundReport]:
    return [report for report in reports if report.duty == rounds_pb2.VALIDATE]


@pytest.mark.parametrize(("privacy", "atol"), [(PLAIN, 1e-6), (MASKED, 1e-4)], ids=["plain", "masked"])
def test_the_model_is_the_reference_engines(home: FakeFleet, privacy: PrivacySpec, atol: float) -> None:
    task = task_of(f"judged-{privacy.secure_aggregation[:3]}", privacy)

    async def story() -> tuple[Any, list[operator_pb2.RoundReport]]:
        async with home.operator() as operator, everybody(home, task.population) as (trainers, judges):
            status = await operator.submit(task, task.name)
            for _ in range(ROUNDS):
                trained = await all_of(trainers)
                assert {(event.stage, event.num_reports, event.model_id) for event in trained} == {
                    (rounds_pb2.CLOSED, TRAINERS, "")
                }
                scored = await all_of(judges)
                assert {(event.stage, event.num_reports) for event in scored} == {(rounds_pb2.CLOSED, VALIDATORS)}
            return (trainers, judges), await outcome(operator, status.task_id)

    (trainers, judges), reports = run(story())
    done, states = simulated(task, trainers, judges)
    assert [(report.round.round, report.round.attempt, report.duty) for report in reports] == [
        (number, attempt, duty)
        for number in range(1, ROUNDS + 1)
        for attempt, duty in ((1, rounds_pb2.TRAIN), (2, rounds_pb2.VALIDATE))
    ]
    assert states[-1].arrays["history"][:, 0].max() > 0, "nothing was found; choose other made-up validators"
    assert np.abs(done.state.theta - TINY.theta).max() > 1e-3
    for report, state in zip(judged(reports), states, strict=True):
        np.testing.assert_allclose(home.theta(report.model_id), state.theta, atol=atol)
        assert report.metrics.keys() >= {"score_1", "score_4"}
    for judge in judges:
        expected = done.cohort.validator_private[judge.device.id]["percent_statistics"]
        np.testing.assert_allclose(judge.private["percent_statistics"], expected, rtol=1e-3)


def test_neither_is_asked_for_the_others_duty(home: FakeFleet) -> None:
    task = task_of("duties", PLAIN, rounds=1)

    async def story() -> None:
        async with home.operator() as operator, everybody(home, task.population) as (trainers, judges):
            status = await operator.submit(task, task.name)
            waiting = await judges[0].device.check_in(duty=rounds_pb2.VALIDATE)
            assert waiting.HasField("wait")
            await all_of(trainers)
            assert (await trainers[0].device.check_in()).HasField("wait")
            await all_of(judges)
            assert [report.stage for report in await outcome(operator, status.task_id)] == [rounds_pb2.CLOSED] * 2

    run(story())


@pytest.mark.slow
def test_validators_who_stay_away_pause_the_task_and_what_was_trained_waits_for_them(home: FakeFleet) -> None:
    task = task_of("away", PLAIN, rounds=1, deadlines=running_out("selecting"))

    async def story() -> tuple[Any, list[operator_pb2.RoundReport], str]:
        async with home.operator() as operator, everybody(home, task.population) as (trainers, judges):
            status = await operator.submit(task, task.name)
            await all_of(trainers)
            early = await outcome(operator, status.task_id)
            paused = await state_of(operator, status.task_id)
            assert [report.stage for report in judged(early)] == [rounds_pb2.ABORTED] * 2
            await operator.resume(status.task_id)
            await all_of(judges)
            return (trainers, judges), await outcome(operator, status.task_id), paused.reason

    (trainers, judges), reports, reason = run(story())
    assert "2 attempts of validators in a row" in reason
    assert f"0 devices checked in within {SHORT_S:g} s; 3 are needed" in reason
    _, (state,) = simulated(task, trainers, judges)
    np.testing.assert_allclose(home.theta(reports[-1].model_id), state.theta, atol=1e-6)


def test_what_waits_for_validators_goes_with_the_task(home: FakeFleet) -> None:
    task = task_of("given-up", PLAIN, rounds=1)

    def kept() -> int:
        return sum(path.is_file() for path in (home.home.folder / "states").rglob("*"))

    async def story() -> tuple[int, list[operator_pb2.RoundReport], int]:
        async with home.operator() as operator, everybody(home, task.population) as (trainers, _judges):
            status, before = await operator.submit(task, task.name), kept()
            await all_of(trainers)
            assert kept() == before + 1
            assert (await state_of(operator, status.task_id)).rounds_closed == 0
            await operator.cancel(status.task_id)
            reports = await outcome(operator, status.task_id)
            async with asyncio.timeout(60):
                while kept() > before:
                    await asyncio.sleep(0.02)
            return before, reports, kept()

    before, reports, after = run(story())
    assert [(report.stage, report.duty) for report in reports] == [
        (rounds_pb2.CLOSED, rounds_pb2.TRAIN),
        (rounds_pb2.ABORTED, rounds_pb2.VALIDATE),
    ]
    assert after == before


async def state_of(operator: Coordinator, task_id: str) -> operator_pb2.TaskStatus:
    return next(task for task in await operator.tasks() if task.task_id == task_id)


@pytest.mark.parametrize(
    "moment", [pytest.param("before anybody judged", marks=pytest.mark.slow), "after some have judged"]
)
def test_kill_9_between_the_two_stages(fleet: FakeFleet, tmp_path: Path, moment: str) -> None:
    """What trainers made outlives the process, and validators' vectors that were acknowledged count."""
    task = task_of("kill", MASKED, rounds=1)

    async def story() -> tuple[Any, list[operator_pb2.RoundReport]]:
        async with everybody(fleet, task.population) as (trainers, judges):
            async with fleet.operator() as operator:
                status = await operator.submit(task, task.name)
                await all_of(trainers)
            ready = list[asyncio.Task[Any]]()
            if moment == "after some have judged":
                ready = [asyncio.create_task(judge.take_part()) for judge in judges[:-1]]
                last = await judges[-1].device.assignment(duty=rounds_pb2.VALIDATE)
                assert last.round.attempt == 2
            await fleet.restart()
            for event in await asyncio.gather(*ready, *(judge.take_part() for judge in judges[len(ready) :])):
                assert event.stage == rounds_pb2.CLOSED
            async with fleet.operator() as operator:
                return (trainers, judges), await outcome(operator, status.task_id)

    fleet.start()
    run(give_model(fleet, tmp_path))
    (trainers, judges), reports = run(story())
    assert [(report.stage, report.round.attempt) for report in reports] == [
        (rounds_pb2.CLOSED, 1),
        (rounds_pb2.CLOSED, 2),
    ]
    _, (state,) = simulated(task, trainers, judges)
    np.testing.assert_allclose(fleet.theta(reports[-1].model_id), state.theta, atol=1e-4)


@pytest.mark.parametrize("whose", ["trainer", "validator"])
def test_one_who_is_told_something_else_gives_no_sum(home: FakeFleet, whose: str) -> None:
    """The server's words are bound into the keys: one who heard others finds terms that are not its own, and leaves."""
    task = task_of(f"told-a-{whose}", MASKED, rounds=2)
    kept = 1 - options_of(task).mixing

    async def story() -> Exception:
        async with home.operator() as operator, everybody(home, task.population) as (trainers, judges):
            status = await operator.submit(task, task.name)
            told: Arrays = {"history": np.array([[1, kept, 30.0]], np.float32)}
            if whose == "validator":
                await all_of(trainers)
                told = {"candidates": np.zeros((4, TINY.part().size), np.float32)}
            first, *rest = trainers if whose == "trainer" else judges
            others = [asyncio.create_task(other.take_part()) for other in rest]
            error = await raised(first.take_part(changed=told))
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await operator.cancel(status.task_id)
            return error

    assert isinstance(run(story()), ModelMismatchError)


def test_what_a_task_with_validators_cannot_keep_is_refused_at_once(home: FakeFleet) -> None:
    async def refused(task: TaskSpec) -> str:
        async with home.operator() as operator:
            return str(await raised(operator.submit(task, task.name)))

    task = task_of("refused", PLAIN)
    assert "add [validators]" in run(refused(replace(task, validators=None)))
    assert "leave [validators] out" in run(refused(replace(task, options={"validation": "off"})))
    assert "leave privacy.dp and privacy.groups alone" in run(
        refused(
            replace(
                task,
                cohort=CohortSpec(size=12, min_reports=12),
                privacy=PrivacySpec(("local_models",), 3, groups=2),
            )
        )
    )
