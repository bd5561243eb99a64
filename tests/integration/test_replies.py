"""Replies of some megabytes from a running coordinator: the same for all, from any byte on, through a restart."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
import safetensors.numpy

from mien.contribution import ContributionLayout
from mien.errors import LateError, NotFoundError, OffsetError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import METHODS
from mien.protocol.canonical import model_to_json
from mien.protocol.v1 import rounds_pb2
from mien.specs import CohortSpec, FaceInputSpec, ModelSpec, TaskSpec
from simulation.testing import STEP_LIMIT_S, FakeDevice, FakeFleet, answer, tiny_task
from tests.helpers import run

LAYOUT = ParameterLayout((ParameterEntry("tail.weight", (1000, 700)),))
SPEC = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=8), "made up for tests", "public domain", ("tail.*",))
PART = LAYOUT.part(SPEC.trainable)
SIZE_BYTES = 4 * LAYOUT.size
CHANGES = [np.random.default_rng(k).standard_normal(LAYOUT.size).astype(np.float32) for k in range(2)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator whose released model has 700,000 parameters, all of them trained."""
    folder = tmp_path_factory.mktemp("replies")
    fleet = FakeFleet(folder)
    theta = folder / "theta.f32"
    theta.write_bytes(np.zeros(LAYOUT.size, "<f4").tobytes())

    async def release() -> None:
        async with fleet.operator() as operator:
            model = await operator.import_model(model_to_json(SPEC, LAYOUT), theta, None)
            await operator.release(model.model_id)

    try:
        fleet.start()
        asyncio.run(release())
        yield fleet
    finally:
        fleet.close()


def contribution(layout: ContributionLayout, change: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    """Return an update of nothing, whose control variate changed."""
    vector = np.zeros(layout.size, "<f4")
    vector[layout.slices["count"]] = vector[layout.slices["weight"]] = 1
    vector[layout.slices["delta_control"]] = change
    return vector.tobytes()


async def fetch(device: FakeDevice, ref: rounds_pb2.RoundRef, sha256: str, offset: int = 0) -> bytes:
    """Return the long part of a reply from an offset on."""
    request = rounds_pb2.DownloadReplyRequest(round=ref, sha256=sha256, offset=offset)
    data = bytearray()

    async def collect() -> None:
        async for piece in device.rounds.DownloadReply(request, timeout=STEP_LIMIT_S):
            assert piece.offset == offset + len(data)
            data.extend(piece.data)

    await answer(collect())
    return bytes(data)


async def open_round(devices: list[FakeDevice]) -> list[rounds_pb2.Assignment]:
    return list(await asyncio.gather(*(device.assignment() for device in devices)))


async def train(task: TaskSpec, devices: list[FakeDevice]) -> None:
    layout = METHODS[task.method].contribution_layout(task, PART, SPEC.input.dim)
    made = iter(CHANGES)
    await asyncio.gather(*(device.take_part(lambda _task, _a: contribution(layout, next(made))) for device in devices))


def test_a_long_reply_is_streamed_to_those_whom_it_is_for(home: FakeFleet) -> None:
    task = tiny_task("scaffold", "replies", method="scaffold", rounds=2, cohort=CohortSpec(size=2, min_reports=2))

    async def story() -> None:
        async with home.operator() as operator, home.devices("replies", 2) as devices, home.devices("x", 1) as others:
            await operator.submit(task, task.name)
            await train(task, devices)
            first, second = assignments = await open_round(devices)
            ref, stream = first.round, first.reply_stream
            assert ref.round == 2
            assert [a.reply for a in assignments] == [b"", b""]
            # One blob for all, about as long as the trained part.
            assert stream == second.reply_stream
            assert SIZE_BYTES < stream.size_bytes < SIZE_BYTES + 1000
            data = await fetch(devices[0], ref, stream.sha256)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (stream.size_bytes, stream.sha256)
            control = safetensors.numpy.load(data)["control"]
            np.testing.assert_allclose(control, (CHANGES[0] + CHANGES[1]) / 2, atol=1e-6)
            # From any byte on, also after the coordinator was killed and is back.
            assert await fetch(devices[1], ref, stream.sha256, 1_000_001) == data[1_000_001:]
            await home.restart(*devices, *others)
            assert await fetch(devices[1], ref, stream.sha256, 2_000_002) == data[2_000_002:]
            # What was not said to this device, in this round, is not to be had.
            with pytest.raises(NotFoundError):
                await fetch(others[0], ref, stream.sha256)
            with pytest.raises(LateError, match="another round"):
                await fetch(devices[0], ref, "0" * 64)
            with pytest.raises(OffsetError, match="begin at 0"):
                await fetch(devices[0], ref, stream.sha256, stream.size_bytes + 1)
            await train(task, devices)
            with pytest.raises(LateError, match="nothing is lost"):
                await fetch(devices[0], ref, stream.sha256)

    run(story())


def test_a_short_reply_comes_with_the_assignment(home: FakeFleet) -> None:
    task = tiny_task("short", "short", method="fedavg", cohort=CohortSpec(size=2, min_reports=2))

    async def story() -> None:
        async with home.operator() as operator, home.devices("short", 2) as devices:
            await operator.submit(task, task.name)
            assignments = await open_round(devices)
            assert not any(a.reply or a.HasField("reply_stream") for a in assignments)
            with pytest.raises(LateError, match="another round"):
                await fetch(devices[0], assignments[0].round, "0" * 64)

    run(story())
