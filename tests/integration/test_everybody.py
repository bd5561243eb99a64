"""Methods against everybody by whole phones under secure aggregation: both servers real, a phone for each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.faces.crops import fit_crops
from device_sdk.models.models import Model
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from mien.contribution import Total
from mien.layout import model_id
from mien.methods import METHODS
from mien.methods.base import Crops, Runtime
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.device_sdk.synthetic import images_of
from tests.graphs import tiny_executorch_runtime, tiny_onnx_runtime
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet
from tests.integration.test_private_phones import DEADLINES
from tests.tiny import Tiny, tiny_cnn

pytestmark = pytest.mark.slow

TINY = tiny_cnn()
MODEL = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
RUNTIMES = (lambda: tiny_cnn().runtime(), tiny_onnx_runtime, tiny_executorch_runtime)
TASK = TaskSpec(
    "everybody",
    method="fedface",
    rounds=3,
    population="everybody",
    cohort=CohortSpec(size=3, min_reports=3),
    deadlines=DEADLINES,
    local=LocalSpec(lr=0.05, epochs=2, batch_size=4),
    privacy=PrivacySpec(min_cohort=3, reveals=("class_moment",)),
    options={"private_form": "everybody", "everybody": {"scale": 8.0}},
)


GUESTS = {0: IDENTITIES[3], 1: IDENTITIES[4]}
FEDGC = replace(
    TASK,
    name="fedgc-everybody",
    population="fedgc-everybody",
    method="fedgc",
    local=LocalSpec(lr=0.05, steps=2, flip=False),
    options={
        "identities": 2,
        "start": "mean_feature",
        "head": {"kind": "cosface", "scale": 8.0},
        "correction": {"strength": 4.0},
    },
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("everybody")) as running:
        running.release(MODEL)
        yield running


class Phone:
    """A phone with one engine and its owner, and a guest; it remembers what it sent of each round, before any mask.

    With a `source`, a folder of labelled crops, these train instead of its people.
    """

    def __init__(
        self,
        fleet: RealFleet,
        number: int,
        population: str = TASK.population,
        runtime: Callable[[], Runtime] | None = None,
        guest: str | None = None,
        rounds: int = TASK.rounds,
        source: Path | None = None,
    ) -> None:
        self.contributions: list[bytes] = []
        self.held: list[Crops] = []
        self._guest, self._rounds, self._source = guest, rounds, source
        self._fleet, self._number, self._population = fleet, number, population
        self._make_runtime = RUNTIMES[number] if runtime is None else runtime

    def run(self) -> list[RoundOutcome]:
        with self._fleet.phone(
            f"{self._population}{self._number}",
            self._population,
            IDENTITIES[self._number],
            tell=self._tell,
            runtime_loader=self._runtime,
            **{"participation.allow_reveal": ("class_moment",), "participation.allow_plain_sums": False},
        ) as self._device:
            if self._guest is not None:
                # To a recogniser that knows nothing all people look alike.
                self._device.enroll("Guest", images_of(self._guest)[:4], consent=True, anyway=True)
            people = ("Owner", "Guest")[: len(self._device.people())]
            self.held = [fit_crops(self._device.gallery.training_crops(name), TINY.spec.input) for name in people]
            return list(self._device.participate(rounds=self._rounds, source=self._source, source_aligned=True))

    def _runtime(self, _model: Model) -> Runtime:
        return self._make_runtime()

    def _tell(self, event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "uploading":
            pending = self._device.gallery.pending()
            assert pending is not None
            self.contributions.append(pending.contribution)


def run_rounds(fleet: RealFleet, task: TaskSpec, phones: Sequence[Phone]) -> list[str]:
    """Return the models of a task's rounds, in each of which all phones count."""
    task_id = fleet.submit(task)
    with ThreadPoolExecutor(len(phones)) as pool:
        outcomes = list(pool.map(Phone.run, phones))
    models = [report.model_id for report in fleet.outcome(task_id)]
    assert [[type(each) for each in outcome] for outcome in outcomes] == [[Counted] * task.rounds] * len(phones)
    assert len({MODEL.model_id, *models}) == 1 + task.rounds
    return models


@pytest.mark.parametrize("method", ["fedface", "fedaws"])
def test_rounds_of_three_engines_are_the_servers_steps_on_the_plain_sums(fleet: RealFleet, method: str) -> None:
    """The first round opens the moments; the others train against them, each phone on its engine."""
    task = replace(TASK, name=method, method=method, population=method)
    phones = [Phone(fleet, number, method) for number in range(3)]
    models = run_rounds(fleet, task, phones)
    check_steps(fleet, task, TINY, models, [phone.contributions for phone in phones])


def test_fedgcs_correction_against_everybody_is_the_simulators(fleet: RealFleet) -> None:
    """Three phones of two, two and one person, each on its engine, with nobody's class embedding on the server."""
    phones = [Phone(fleet, number, FEDGC.population, guest=GUESTS.get(number)) for number in range(3)]
    models = run_rounds(fleet, FEDGC, phones)
    check_steps(fleet, FEDGC, TINY, models, [phone.contributions for phone in phones])
    cohort = Cohort(
        {str(number): np.concatenate(phone.held) for number, phone in enumerate(phones)},
        labels={
            str(number): np.repeat(np.arange(len(phone.held)), [len(crops) for crops in phone.held])
            for number, phone in enumerate(phones)
        },
    )

    def simulated(**options: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        task = replace(FEDGC, options={**FEDGC.options, **options})
        return run_task(task, TINY.part(), TINY.spec.input.dim, TINY.theta, cohort, TINY.runtime()).state.theta

    expected, uncorrected = simulated(), simulated(correction={"strength": 0.0})
    apart = np.linalg.norm(fleet.theta(models[-1]) - expected)
    assert apart < 0.02 * np.linalg.norm(expected - TINY.theta)
    assert apart < 0.2 * np.linalg.norm(expected - uncorrected)


def check_steps(
    fleet: RealFleet, task: TaskSpec, tiny: Tiny, models: Sequence[str], sent: Sequence[Sequence[bytes]]
) -> None:
    """Fail unless each round's model is the server's step on the plain sum of what its phones sent, by phone."""
    part, method = tiny.part(), METHODS[task.method]
    layout = method.contribution_layout(task, part, tiny.spec.input.dim)
    state = method.server_start(task, part, tiny.theta)
    numbers = plan_numbers(
        len(sent),
        l2_clip=task.privacy.l2_clip,
        coordinate_clip=task.privacy.coordinate_clip,
        max_weight=task.privacy.max_weight,
    )
    weights = [layout.parse(contributions[0]).vector[1] for contributions in sent]
    step = float(sum(weights)) * 2.0**-numbers.frac_bits  # a phone's element is rounded by a step times its weight
    for number, model in enumerate(models):
        total = Total.empty(layout)
        for contributions in sent:
            if number < len(contributions):  # a phone that is gone sent less
                total = total.plus(layout.parse(contributions[number]))
        state = method.server_step(task, part, state, total, {})
        np.testing.assert_allclose(fleet.theta(model), state.theta, atol=(number + 1) * step + 1e-6)
    assert np.abs(fleet.theta(models[-1]) - tiny.theta).max() > 100 * step
