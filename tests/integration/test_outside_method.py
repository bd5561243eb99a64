"""A round by a method of another package, on a real coordinator: an operator installed it, nothing of Mien changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.methods import registry
from mien.methods.base import Method
from simulation.testing import LAYOUT, SPEC, THETA, FakeFleet, contribution, layout_of, tiny_task
from tests.examples.by_path import example
from tests.helpers import run
from tests.mien.methods.test_registry import installed

TASK = tiny_task("adam", "people", method="fedadam")


@pytest.fixture
def fedadam() -> Method:
    """Return the method, entered in this process, in which fake devices make their contributions."""
    method: Method = example("my_method").FEDADAM
    registry.enter(method)
    return method


@pytest.mark.usefixtures("fedadam")
def test_the_server_half_of_an_installed_method_takes_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    site = installed(tmp_path / "site", "fedadam = my_method:FEDADAM")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "fleet").mkdir()
    with FakeFleet(tmp_path / "fleet") as fleet:
        _, after = run(example("one_round").one_round(fleet, TASK))
        step = fleet.theta(after).astype(np.float64) - THETA
    total = sum(np.frombuffer(contribution(TASK, seed), "<f4").astype(np.float64) for seed in range(4))
    names = [lane.name for lane in layout_of(TASK).summed for _ in range(lane.size)]
    lanes = {name: total[[each == name for each in names]] for name in ("weight", "delta")}
    mean = lanes["delta"] / lanes["weight"]
    expected = TASK.server.lr * 0.1 * mean / (np.sqrt(0.99 * 1e-3**2 + 0.01 * mean**2) + 1e-3)
    assert np.abs(LAYOUT.part(SPEC.trainable).gather(step) - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_coordinator_without_it_refuses_the_task(tmp_path: Path, fedadam: Method) -> None:
    async def story(fleet: FakeFleet) -> None:
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)
            with pytest.raises(ConfigError, match="method is 'fedadam'; known methods: fedavg"):
                await operator.submit(TASK, token=fedadam.name)

    with FakeFleet(tmp_path) as fleet:
        asyncio.run(story(fleet))
