"""Two cohorts at once over the real protocol, the first of them late, give the simulator's models.

Registrar and coordinator are processes of their own, the phones `device_sdk`. Chance plays no part: batches of all
images, none mirrored, cohorts as they were chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from device_sdk.faces.crops import fit_crops
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.layout import Vector
from mien.methods.base import ServerState
from mien.rounds.buffered import Flight
from mien.specs import AsynchronousSpec, CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, Overlap, RoundRecord, run_task
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model

pytestmark = pytest.mark.slow

POPULATION = "overlap"
SLOW, QUICK = ("one", "two"), ("three", "four")
TASK = TaskSpec(
    "overlap",
    method="fedavg",
    rounds=2,
    population=POPULATION,
    cohort=CohortSpec(size=2, min_reports=2),
    deadlines=DeadlineSpec(selecting_s=240.0, training_s=240.0, upload_s=240.0),
    local=LocalSpec(lr=0.05, steps=2, flip=False),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    asynchronous=AsynchronousSpec(max_concurrency=2, staleness_exponent=1.0),
    options={"margin": 1.0},
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Return a fleet of four phones, one person each."""
    with real_fleet(tmp_path_factory.mktemp("overlap")) as running:
        running.release(small_model())
        for name, identity in zip((*SLOW, *QUICK), IDENTITIES, strict=False):
            with running.phone(name, POPULATION, identity):
                pass
        yield running


def test_both_models_are_the_simulators(fleet: RealFleet) -> None:
    """The slow phones have the first model and wait with it until the quick ones have made the second."""
    task_id, model = fleet.submit(TASK), small_model()
    are_chosen, may_go_on = threading.Barrier(len(SLOW) + 1), threading.Event()

    def hold(event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.text.startswith("Chosen for"):
            are_chosen.wait(240)
            assert may_go_on.wait(240)

    def participate(name: str) -> list[RoundOutcome]:
        with fleet.open(name, tell=hold if name in SLOW else lambda _event: None) as device:
            return list(device.participate(rounds=1, idle_s=120.0))

    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(participate, name) for name in SLOW]
        are_chosen.wait(240)
        quick = [pool.submit(participate, name) for name in QUICK]
        outcomes = [outcome for each in quick for outcome in each.result(240)]
        may_go_on.set()
        outcomes += [outcome for each in slow for outcome in each.result(240)]
    assert [type(outcome) for outcome in outcomes] == [Counted] * 4
    second, first = fleet.outcome(task_id)  # by the cohorts' numbers: the slow one was chosen first
    assert [report.metrics["staleness"] for report in (first, second)] == [0, 1]

    simulated, records = list[Vector](), list[RoundRecord]()

    def note(state: ServerState, record: RoundRecord) -> None:
        simulated.append(state.theta)
        records.append(record)

    run_task(
        TASK,
        model.layout.part(model.spec.trainable),
        model.spec.input.dim,
        model.theta,
        _cohort(fleet),
        TorchRuntime(model.spec, model.layout),
        overlap=Overlap(_newest, lambda _task, _idle, number: (SLOW, QUICK)[number - 1]),
        after_round=note,
    )
    assert [record.staleness for record in records] == [0, 1]
    before = model.theta
    for report, expected in zip((first, second), simulated, strict=True):
        moved = np.linalg.norm(expected - before)
        assert moved > 1e-4
        assert np.linalg.norm(fleet.theta(report.model_id) - expected) < 1e-3 * moved
        before = expected


def _newest(flights: Sequence[Flight]) -> int:
    return max(flight.number for flight in flights)


def _cohort(fleet: RealFleet) -> Cohort:
    spec, crops = small_model().spec.input, {}
    for name in (*SLOW, *QUICK):
        with fleet.open(name) as device:
            crops[name] = fit_crops(device.gallery.training_crops("Owner"), spec)
    return Cohort(crops)
