"""Gates with real processes: what passes reaches a share of the phones, what fails never does, and the way back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.operator.client import Coordinator
from mien.errors import ConfigError, ModelMismatchError
from mien.methods import METHODS
from mien.protocol.canonical import model_to_json
from mien.protocol.v1 import operator_pb2
from mien.rounds.releases import place
from mien.specs import CohortSpec, GateSpec, TaskSpec, Threshold
from simulation.testing import DeviceCredentials, FakeDevice, FakeFleet, tiny_task
from tests.helpers import raised, run
from tests.integration.real_fleet import small_model
from tests.integration.test_operating import program
from tests.simulation.program.test_worker import people_in

pytestmark = pytest.mark.slow

GATES: dict[str, Any] = {"sets": ("rendered",), "fmr": 0.1, "delta": 0.1, "max_cosine_rise": 0.3}
TWO: dict[str, Any] = {"cohort": CohortSpec(size=2, min_reports=2)}
MODEL = small_model()
PART = MODEL.layout.part(MODEL.spec.trainable)


def phone_of(fleet: FakeFleet, credentials: DeviceCredentials) -> FakeDevice:
    """Return a fake device that trains the small model."""
    return FakeDevice(fleet.address, credentials, backbone=MODEL.spec.backbone)


def better(task: TaskSpec) -> np.ndarray[Any, Any]:
    """Return an update that changes next to nothing."""
    return 1e-3 * np.random.default_rng([*task.name.encode()]).standard_normal(PART.size)


def worse(_task: TaskSpec) -> np.ndarray[Any, Any]:
    """Return an update after which the last layer is nearly 0, but for a few weights: all faces look alike."""
    after = np.zeros(PART.size)
    after[:64] = 1.0
    return after - PART.gather(MODEL.theta)


def sent(update: Callable[[TaskSpec], np.ndarray[Any, Any]]) -> Callable[[TaskSpec, Any], bytes]:
    """Return what a device sends whose model changed so, weight 1."""

    def make(task: TaskSpec, _assignment: Any) -> bytes:
        layout = METHODS[task.method].contribution_layout(task, PART, MODEL.spec.input.dim)
        vector = np.zeros(layout.size, "<f4")
        vector[layout.slices["count"]] = vector[layout.slices["weight"]] = 1.0
        lane = max(layout.slices, key=lambda name: layout.slices[name].stop - layout.slices[name].start)
        vector[layout.slices[lane]] = update(task)
        return vector.tobytes()

    return make


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A coordinator with an evaluation set and a model in force for all."""
    folder = tmp_path_factory.mktemp("gates")
    people = people_in(folder / "public", 10, 3)
    fleet = FakeFleet(folder, evaluation_sets=(f"rendered={people}", f"late={folder / 'late'}"), keep_round_models=1)
    try:
        fleet.start()
        theta = folder / "theta.f32"
        theta.write_bytes(MODEL.theta.astype("<f4").tobytes())

        async def prepare() -> None:
            async with fleet.operator() as operator:
                await operator.import_model(model_to_json(MODEL.spec, MODEL.layout), theta, None)
                await operator.release(MODEL.model_id)

        asyncio.run(prepare())
        yield fleet
        assert fleet.stop() == 0
    finally:
        fleet.close()


async def rounds(fleet: FakeFleet, population: str, *updates: Callable[[TaskSpec], np.ndarray[Any, Any]]) -> None:
    """Have two phones bring these updates, a round each."""
    one, two = (phone_of(fleet, fleet.admit(population)) for _ in range(2))
    async with one, two:
        for update in updates:
            await asyncio.gather(*(phone.take_part(sent(update)) for phone in (one, two)))


async def until(operator: Coordinator, task_id: str, *states: str) -> operator_pb2.TaskStatus:
    """Return a task's status once it is in one of these states."""
    async with asyncio.timeout(120):
        async for event in operator.watch(task_id):
            if event.task.state in states and not event.HasField("round"):
                return event.task
    raise AssertionError("the task ended otherwise")


def test_what_passes_is_released_to_its_share_of_the_phones(gated: FakeFleet) -> None:
    async def story() -> None:
        async with gated.operator() as operator:
            gates = GateSpec(**GATES, share=0.5)
            task = await operator.submit(tiny_task("good", "good", gates=gates, **TWO), "good")
            await rounds(gated, "good", better)
            done = await until(operator, task.task_id, "done", "paused", "failed")
            assert (done.state, done.reason) == ("done", "")
            statuses = {status.model_id: status for _, status in await operator.standings()}
            assert (statuses[done.model_id].state, statuses[done.model_id].share) == ("released", 0.5)

            for is_new in (False, True) * 3:
                credentials = gated.admit("good")
                while (place(credentials.device_id, done.model_id) < 0.5) != is_new:
                    credentials = gated.admit("good")
                async with phone_of(gated, credentials) as phone:
                    assert (await phone.manifest()).model_id == (done.model_id if is_new else MODEL.model_id)
            assert (await operator.roll_back("good")).model_id == MODEL.model_id
            async with phone_of(gated, gated.admit("good")) as phone:
                assert (await phone.manifest()).model_id == MODEL.model_id

            kept = await operator.evaluations(done.model_id)
            assert [record["protocol"] for record in kept] == ["folder-all-pairs", "gates"]
            assert kept[0]["command"] == "mien-coordinator serve: gates of task good, round 1"
            assert kept[1]["passed"]
            spec = json.loads((await operator.manifest(done.model_id)).spec_json)["spec"]
            measurable = [point for point in kept[0]["points"] if point["target_fmr"] * kept[0]["non_mated"] >= 30]
            assert [t["value"] for t in spec["thresholds"]] == [point["threshold"] for point in measurable]

    run(story())


def test_what_fails_is_kept_and_the_task_goes_back(gated: FakeFleet) -> None:
    """A bad second round is taken back; the third goes on from the first one's model."""

    async def story() -> None:
        async with gated.operator() as operator:
            gates = GateSpec(**GATES, every=1, release="manual", on_failure="rollback")
            task = await operator.submit(tiny_task("back", "back", rounds=3, gates=gates, **TWO), "back")
            await rounds(gated, "back", better, worse, better)
            done = await until(operator, task.task_id, "done", "paused", "failed")
            reports = {}
            async for event in operator.watch(task.task_id):
                if event.HasField("round"):
                    reports[event.round.round.round] = event.round.model_id
            statuses = {status.model_id: status for _, status in await operator.standings()}
            assert [statuses[reports[n]].state for n in (1, 2, 3)] == ["candidate", "rejected", "candidate"]
            assert "on rendered, " in statuses[reports[2]].reason
            assert done.state == "done"
            first, third = (gated.theta(reports[n]) for n in (1, 3))
            np.testing.assert_allclose(
                PART.gather(third), PART.gather(first) + better(tiny_task("back", "back")), atol=1e-6
            )

            home, anyway = ("--home", str(gated.home.folder)), ("--without-thresholds",)
            refused = program("coordinator.commands.cli", "model", "release", reports[2], *anyway, *home, check=False)
            assert (refused.returncode, "failed its gates" in refused.stderr) == (2, True)
            program("coordinator.commands.cli", "model", "release", reports[1][:16], "--share", "10%", *anyway, *home)
            shown = json.loads(program("coordinator.commands.cli", "model", "show", reports[1], "--json", *home).stdout)
            assert (shown["state"], shown["share"], len(shown["evaluations"])) == ("released", 0.1, 2)
            assert json.loads(program("coordinator.commands.cli", "model", "rollback", "--json", *home).stdout)[
                "model_id"
            ] == (MODEL.model_id)

    run(story())


def test_a_failed_candidate_pauses_its_task_across_a_restart(gated: FakeFleet) -> None:
    async def before() -> str:
        async with gated.operator() as operator:
            gates = GateSpec(**GATES, every=1)
            task = await operator.submit(tiny_task("stop", "stop", rounds=2, gates=gates, **TWO), "stop")
            await rounds(gated, "stop", worse)
            return task.task_id

    async def after(task_id: str) -> None:
        async with gated.operator() as operator:
            paused = await until(operator, task_id, "paused")
            assert "of round 1 failed its gates: on rendered, " in paused.reason
            assert "task resume goes on from it all the same" in paused.reason
            assert (await operator.resume(task_id)).state == "running"
            await operator.cancel(task_id)

    task_id = run(before())
    gated.kill()  # while the gates are at work
    gated.start()
    run(after(task_id))


def test_what_cannot_be_measured_waits_until_it_can(gated: FakeFleet) -> None:
    async def story() -> None:
        async with gated.operator() as operator:
            gates = GateSpec(**{**GATES, "sets": ("late",)}, release="manual")
            task = await operator.submit(tiny_task("late", "late", gates=gates, **TWO), "late")
            await rounds(gated, "late", better)
            paused = await until(operator, task.task_id, "paused", "done", "failed")
            assert "could not be checked: there is no folder" in paused.reason
            folder = gated.home.folder.parent
            (folder / "late").symlink_to(folder / "public")
            assert (await operator.resume(task.task_id)).state == "checking"
            done = await until(operator, task.task_id, "done", "failed")
            assert (done.state, done.reason) == ("done", "")
            statuses = {status.model_id: status for _, status in await operator.standings()}
            assert (statuses[done.model_id].state, statuses[done.model_id].reason) == ("candidate", "passed its gates")

    run(story())


def test_an_unknown_set_is_refused_at_once(gated: FakeFleet) -> None:
    async def story() -> None:
        async with gated.operator() as operator:
            with pytest.raises(ConfigError, match="the coordinator's evaluation sets: rendered, late"):
                await operator.submit(tiny_task("no", "no", gates=GateSpec(sets=("lfw",))), "no")

    run(story())


def test_groups_of_people_are_measured_apart_and_go_into_the_models_record(gated: FakeFleet) -> None:
    """Nine people in one group can be measured at FMR 0.1, one person has no strangers; the worst group decides."""
    folder = gated.home.folder.parent
    names = sorted(path.name for path in (folder / "public").iterdir())
    groups = folder / "ages.csv"
    rows = [f"{name},{8 if n else 'elder'},{'' if n < 4 else 'fm'[n % 2]}" for n, name in enumerate(names)]
    groups.write_text("\ufeff" + "\n".join(["person,age,sex", *rows]), encoding="utf-8")

    def operator(*arguments: str | Path) -> dict[str, Any]:
        home = ("--home", str(gated.home.folder))
        told: dict[str, Any] = json.loads(
            program("coordinator.commands.cli", *map(str, arguments), "--json", *home).stdout
        )
        return told

    measure = ("model", "evaluate", MODEL.model_id, "--data", folder / "public", "--groups", groups)
    plain = operator(*measure, "--keep-thresholds")
    children, elder, *_ = plain["groups"]["rates"]
    assert (children["attribute"], children["group"], children["people"]) == ("age", "0-12", 9)
    assert (children["fmr"]["of"], children["fnmr"]["of"], children["fte"]["of"]) == (324, 27, 27)
    assert (elder["group"], elder["fmr"], elder["verdict"]) == ("elder", None, "too_small")
    assert plain["groups"]["not_stated"] == {"age": 0, "sex": 4}
    assert [(each["first"], each["second"]) for each in plain["groups"]["between"]] == [("0-12", "elder"), ("f", "m")]
    assert (plain["groups"]["target_fmr"], plain["groups"]["by_worst_group"]) == (0.1, False)

    shown = operator("model", "show", MODEL.model_id)
    assert [(each["attribute"], each["group"]) for each in shown["groups"]] == [
        ("age", "0-12"), ("age", "elder"), ("sex", "f"), ("sex", "m")
    ]  # fmt: skip
    assert shown["evaluations"][-1]["groups"] == plain["groups"]
    assert len(shown["thresholds"]) == plain["thresholds_kept"] == 1

    worst = operator(*measure, "--worst-group", "--keep-thresholds")
    after = operator("model", "show", MODEL.model_id)
    (threshold,) = after["thresholds"]
    point = next(each for each in worst["points"] if each["target_fmr"] == 0.1)
    if worst["groups"]["worst_group"] is None:  # all people together are stricter
        assert threshold["value"] == plain["groups"]["threshold"]
    else:
        assert worst["groups"]["worst_group"] == {"attribute": "age", "group": "0-12"} == point["group"]
        assert threshold["value"] == point["threshold"] > plain["groups"]["threshold"]
        assert threshold["dataset"] == "public, age 0-12"
    assert all(each["verdict"] != "exceeds" for each in worst["groups"]["rates"])
    assert all(each["threshold"] == threshold["value"] for each in after["groups"])

    async def theirs() -> None:
        async with gated.operator() as coordinator:
            foreign = Threshold(0.5, 1e-3, "faces", 9, 30_000, "f" * 64, "2026-01-01")
            error = await raised(coordinator.set_thresholds(MODEL.model_id, [foreign], []))
            assert isinstance(error, ModelMismatchError)

    run(theirs())
    assert operator("model", "show", MODEL.model_id)["thresholds"] == after["thresholds"]
