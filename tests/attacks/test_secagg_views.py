"""What a server sees as numbers, and what it gets for telling devices different stories about who shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ViolationError
from mien.secagg import Addends
from mien.secagg.canonical import pack_members
from mien.secagg.quantise import to_signed, unpack
from mien.secagg.vector import VectorLayout
from mien.secagg.wire import Delivered, Proof, Survivors
from tests.mien.secagg.cohort import Cohort, make_config, people

N = 9  # t = 6 of 8 neighbours
SIZE = 20_000


def likeness(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def test_a_masked_vector_resembles_nothing_that_its_device_said_and_the_sum_resembles_everybody() -> None:
    """Six devices with unrelated updates: cosine 1/sqrt(6) with the sum, and chance with each masked vector."""
    config = replace(make_config(6), size=SIZE)
    config = replace(config, numbers=replace(config.numbers, l2_clip=1000.0))
    cohort = Cohort.of(config, people(6))
    rng = np.random.default_rng(0)
    updates = {device: rng.choice([-0.5, 0.5], SIZE).astype(np.float32) for device in cohort.devices}
    cohort.addends = {device: Addends(1, update, (0.0, 0.0)) for device, update in updates.items()}
    opened = cohort.run().sum.update
    place = VectorLayout(SIZE, config.num_metrics).update
    for device, update in updates.items():
        seen = to_signed(unpack(cohort.payloads[device], 32)[place], 32).astype(np.float64)
        assert all(abs(likeness(seen, other.astype(np.float64))) < 6 / np.sqrt(SIZE) for other in updates.values())
        assert likeness(opened, update.astype(np.float64)) == pytest.approx(1 / np.sqrt(6), abs=0.05)


@pytest.mark.parametrize("lies", [True, False], ids=["two stories", "one story"])
def test_two_stories_about_who_shared_open_nothing(*, lies: bool) -> None:
    """Half of the devices are told that one never shared: its masks with them would be missing from their vectors.

    What devices sign covers who shared, so that no device finds t neighbours who were told what it was told. With one
    story for all, the same steps release the shares.
    """
    cohort = Cohort.of(make_config(N), people(N))
    delivered = cohort.share(cohort.advertise())
    order, left = sorted(cohort.devices), set(range(N - 1))
    signatures = {}
    for index in sorted(left):
        device, told = order[index], delivered[order[index]]
        if lies and index % 2:
            # Ciphertexts come in the order of their owners: that of the last device, which is hidden, is the last.
            told = Delivered(pack_members(left, N), Delivered.from_bytes(told, N).sealed[:-1]).to_bytes()
        cohort.devices[device].mask(told, cohort.addends[device])
        signatures[device] = cohort.devices[device].agree(Survivors(pack_members(left, N)).to_bytes())[2:]
    for device in signatures:
        others = tuple((d, signature) for d, signature in signatures.items() if d != device)[:6]
        if lies:
            with pytest.raises(ViolationError):
                cohort.devices[device].unmask(Proof(others).to_bytes())
        else:
            cohort.devices[device].unmask(Proof(others).to_bytes())
        assert cohort.devices[device].stage == ("Left" if lies else "Done")
