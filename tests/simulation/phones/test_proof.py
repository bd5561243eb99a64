"""What many phones that speak the real protocol add up to, is what the simulator adds up, to the last bit.

The registrar and the coordinator are processes of their own; so are three processes of phones, one of them this one.
Phones vanish at random stages and lose their connections. Keys, masks and shares are drawn afresh; what shows in a sum,
the seeds of local training and of rounding, is drawn as the simulator draws it (see `recorded`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from device_sdk.runtimes import load_runtime
from mien.contribution import Total
from mien.layout import Vector
from mien.methods import find_method
from mien.records import to_mapping
from mien.secagg.planner import RoundIds, plan_round
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import Cohort, RoundWork, SequentialEngine
from simulation.phones.client import Faults
from simulation.phones.fleet import FleetOptions
from simulation.phones.notes import RoundNotes, attempts, summary
from tests.helpers import ROOT
from tests.integration.real_fleet import RealFleet, real_fleet, small_model
from tests.simulation.phones.recorded import Done, Plan, Sent, crops_of, joined, ran, read

pytestmark = pytest.mark.slow

HERE, ELSEWHERE = 34, (3, 3)
PHONES = HERE + sum(ELSEWHERE)
ROUNDS = 2
TASK = TaskSpec(
    "proof",
    method="fedavg",
    rounds=ROUNDS,
    population="proof",
    cohort=CohortSpec(size=PHONES, min_reports=PHONES // 2),
    # Whoever vanishes is back after a second and says so; deadlines are for machines that stand still.
    deadlines=DeadlineSpec(*(120.0,) * 7, selecting_soft_s=30.0),
    local=LocalSpec(lr=2.0, steps=2, batch_size=2),
    privacy=PrivacySpec(min_cohort=3),
    options={"loss": "positive", "margin": 1.0},
)
OPTIONS = FleetOptions(rounds=ROUNDS, idle_s=90.0, seed=3, faults=Faults(drop_out=0.15, reconnect=0.15, away_s=1.0))
LIMIT_S = 240.0


@dataclass(frozen=True)
class Proof:
    """What the coordinator made, round by round, and what phones sent for it."""

    rounds: list[RoundNotes]
    models: list[Vector] = field(repr=False)
    done: tuple[Done, ...] = field(repr=False)

    def sent(self, number: int) -> dict[str, Sent]:
        """Return what the phones sent whose contribution is in the sum of a round, by device id."""
        closed = self.rounds[number - 1]
        every = {key: sent for done in self.done for key, sent in done.sent.items()}
        return {device: every[device, closed.ref.round, closed.ref.attempt] for device in closed.uploaded}


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    """Return two rounds of phones in three processes."""
    folder = tmp_path_factory.mktemp("proof")
    with real_fleet(folder) as fleet:
        fleet.release(small_model())
        mine = Plan(tuple(fleet.invite("proof") for _ in range(HERE)), 0, OPTIONS)
        with processes(fleet, folder) as folders, joined(folder, mine) as phones:
            until(lambda: all((each / "ready").exists() for each in folders))
            fleet.submit(TASK)
            done = (ran(phones), *(finished(each) for each in folders))
        closed = [each for each in attempts([each.notes for each in done]) if each.end == "CLOSED"]
        return Proof(closed, [fleet.theta(each.model_id) for each in closed], done)


@contextmanager
def processes(fleet: RealFleet, folder: Path) -> Iterator[list[Path]]:
    """Start the other processes; yields their folders."""
    folders, running, first = [], [], HERE
    for number, count in enumerate(ELSEWHERE):
        place = folder / f"process-{number}"
        place.mkdir()
        plan = Plan(tuple(fleet.invite("proof") for _ in range(count)), first, OPTIONS)
        (place / "plan.json").write_text(json.dumps(to_mapping(plan)))
        command = [sys.executable, "-m", "tests.simulation.phones.recorded", str(place)]
        running.append(subprocess.Popen(command, cwd=ROOT))
        folders.append(place)
        first += count
    try:
        yield folders
    finally:
        for process in running:
            process.kill()
            process.wait()


def finished(folder: Path) -> Done:
    until((folder / "notes.json").exists)
    return read(folder)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "a process of phones does not answer"
        time.sleep(0.05)


def test_every_round_closes_though_phones_vanish(proof: Proof) -> None:
    assert [each.ref.round for each in proof.rounds] == list(range(1, ROUNDS + 1))
    assert not any(done.errors for done in proof.done)
    figures = summary([done.notes for done in proof.done])
    assert sum(figures["lost_at"].values()) > 0
    assert figures["counts"]["reconnects"] > 0
    for each in proof.rounds:
        assert PHONES // 2 <= len(set(each.uploaded)) == len(each.uploaded) == each.num_reports <= PHONES


def test_all_processes_are_in_the_sum(proof: Proof) -> None:
    for number in range(1, ROUNDS + 1):
        crops = {sent.crops for sent in proof.sent(number).values()}
        assert len(crops) == len(proof.sent(number))
        assert min(crops) < HERE <= max(crops)


def test_the_sum_is_the_simulators_bit_for_bit(proof: Proof) -> None:
    model = small_model()
    engine, method = SequentialEngine(load_runtime(model.spec, model.layout)), find_method(TASK.method)
    part = model.layout.part(model.spec.trainable)
    state = method.server_start(TASK, part, model.theta)
    for number, real in enumerate(proof.models, 1):
        sent = proof.sent(number)
        cohort = Cohort(
            {device: crops_of(each.crops) for device, each in sent.items()},
            {device: each.private for device, each in sent.items()},
        )
        work = RoundWork(TASK, part, model.spec.input.dim, state, cohort, tuple(sorted(sent)), number, "ring")
        state = method.server_step(TASK, part, state, engine.train(work).total, {})
        np.testing.assert_array_equal(real.view(np.uint32), state.theta.astype("<f4").view(np.uint32))


def test_the_step_is_the_weighted_mean_of_what_phones_trained(proof: Proof) -> None:
    model = small_model()
    part = model.layout.part(model.spec.trainable)
    layout = find_method(TASK.method).contribution_layout(TASK, part, model.spec.input.dim)
    nobody = RoundIds(bytes(16), 1, 1, bytes(32), bytes(32))
    step = 2.0 ** -plan_round(TASK, layout, nobody).numbers.frac_bits
    before = model.theta
    for number, real in enumerate(proof.models, 1):
        total = Total.empty(layout)
        for sent in proof.sent(number).values():
            total = total.plus(layout.parse(sent.contribution))
        mean = total.mean("delta")
        moved = part.gather(real).astype(np.float64) - part.gather(before)
        assert np.abs(mean).max() > 100 * step
        # Each phone rounds each number by less than a step, and so does their mean; the model is float32.
        assert np.abs(moved - mean).max() <= step + 1e-6
        before = real


def test_a_state_goes_on_where_the_server_stands(proof: Proof) -> None:
    """Phones that took part in both rounds began the second from what the first left with them."""
    both = proof.sent(1).keys() & proof.sent(2).keys()
    assert both
    assert all(not proof.sent(1)[device].private for device in both)
    assert any(proof.sent(2)[device].private for device in both)
