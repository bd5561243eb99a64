"""The public fakes: rounds whose models can be computed by hand, and what they say of what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from coordinator.keys import pki
from mien.errors import ConfigError, LateError, NotFoundError, UnreachableError
from mien.layout import Vector
from mien.specs import TaskSpec
from simulation.testing import (
    LAYOUT,
    SPEC,
    THETA,
    FakeDevice,
    FakeFleet,
    Sent,
    contribution,
    layout_of,
    masked_task,
    running_out,
    tiny_task,
)
from tests.helpers import raised, run


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator with the tiny model released; every test has a population of its own."""
    with FakeFleet(tmp_path_factory.mktemp("fleet")) as fleet:

        async def story() -> None:
            async with fleet.operator() as operator:
                await fleet.release_tiny_model(operator)

        run(story())
        yield fleet


def after(task: TaskSpec, sent: list[Sent]) -> Vector:
    """Return the model after FedAvg's first round: theta + sum(w x) / sum(w) in its trained part."""
    layout, part = layout_of(task), LAYOUT.part(SPEC.trainable)
    total = np.sum([np.frombuffer(each.data, "<f4").astype(np.float64) for each in sent], axis=0)
    step = total[layout.slices["delta"]] / total[layout.slices["weight"]]
    return part.scatter(THETA, (part.gather(THETA) + step).astype(np.float32))


async def one_round(fleet: FakeFleet, task: TaskSpec) -> tuple[list[Sent], str]:
    """Return what all devices of a cohort sent, and the id of the model that came of it."""
    async with fleet.operator() as operator, fleet.devices(task.population, task.cohort.size) as devices:
        status = await operator.submit(task, task.name)
        sent = await asyncio.gather(
            *(each.take_part(lambda task, _, seed=n: contribution(task, seed)) for n, each in enumerate(devices))
        )
        async for event in operator.watch(status.task_id):
            if event.HasField("round") and event.round.model_id:
                return sent, event.round.model_id
    raise AssertionError("the task ended before its round did")


@pytest.mark.parametrize("method", ["mime", "scaffold"])
def test_devices_agree_on_what_a_method_tells_them_all(fleet: FakeFleet, method: str) -> None:
    _, model_id = run(one_round(fleet, masked_task(f"told-{method}", f"told-{method}", method=method)))
    assert fleet.theta(model_id).shape == THETA.shape


@pytest.mark.parametrize("make", [tiny_task, masked_task])
def test_a_round_ends_with_the_model_that_its_contributions_make(fleet: FakeFleet, make: type[TaskSpec]) -> None:
    task = make(f"one-{make.__name__}", f"one-{make.__name__}")
    sent, model_id = run(one_round(fleet, task))
    assert len({each.device_id for each in sent}) == task.cohort.size
    assert {each.round for each in sent} == {(1, 1)}
    np.testing.assert_allclose(fleet.theta(model_id), after(task, sent), atol=1e-3 if task.privacy.is_masked else 1e-6)


def test_contributions_are_as_their_seeds_and_their_weights_say() -> None:
    task = tiny_task("t", "p")
    layout = layout_of(task)
    one, again, other = (np.frombuffer(contribution(task, seed), "<f4") for seed in (1, 1, 2))
    assert one.shape == (layout.size,)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert 1 <= one[layout.slices["weight"]] <= 32
    assert np.frombuffer(contribution(task, 1, weight=7.0), "<f4")[layout.slices["weight"]] == 7


def test_a_round_that_misses_its_quorum_is_late(fleet: FakeFleet) -> None:
    """Of four devices three never say that they have trained."""
    task = tiny_task("alone", "alone", deadlines=running_out("training"), rounds=1)

    async def story() -> None:
        async with fleet.operator() as operator, fleet.devices("alone", 4) as devices:
            await operator.submit(task, "alone")
            took = asyncio.create_task(raised(devices[0].take_part(lambda task, _: contribution(task, 1))))
            await asyncio.gather(*(each.assignment() for each in devices[1:]))
            assert isinstance(await took, LateError)

    run(story())


def test_strangers_and_devices_without_a_task_are_told_so(fleet: FakeFleet) -> None:
    async def story() -> None:
        stranger = fleet.admit("nobody", pki.create_authority("registrar", fleet.now))
        async with FakeDevice(fleet.address, stranger) as device:
            assert isinstance(await raised(device.hello()), UnreachableError)
        async with FakeDevice(fleet.address, fleet.admit("nobody")) as device:
            assert (await device.check_in()).HasField("wait")

    run(story())
    with pytest.raises(NotFoundError):
        fleet.theta("0" * 64)


def test_a_restart_keeps_what_was_released_and_the_log_tells_of_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    fleet = FakeFleet(tmp_path_factory.mktemp("restarted"))

    async def story() -> None:
        async with fleet.operator() as operator, fleet.devices("p", 1) as devices:
            model_id = await fleet.release_tiny_model(operator)
            await fleet.restart(*devices)
            assert (await devices[0].manifest()).model_id == model_id

    with fleet:
        run(story())
        assert len(fleet.log_records("audit log")) == 2
        assert fleet.stop() == 0
        run(fleet.until_logged("audit log"))
        assert len(fleet.log_records("audit log")) == 3
    assert fleet.process.poll() == 0


def test_a_coordinator_that_cannot_start_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    fleet = FakeFleet(tmp_path_factory.mktemp("broken"))
    fleet.home.config_path.write_text("what = is this")
    with pytest.raises(AssertionError, match="did not start:\n"):
        fleet.start()
    with pytest.raises(ConfigError, match="drain_s"):
        FakeFleet(tmp_path_factory.mktemp("refused"), drain_s=-1.0)
