"""FedFace against everybody by whole phones under secure aggregation: both servers real, a phone for each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from device_sdk.models.models import Model
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from mien.contribution import Total
from mien.layout import model_id
from mien.methods import METHODS
from mien.methods.base import Runtime
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.graphs import tiny_executorch_runtime, tiny_onnx_runtime
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet
from tests.integration.test_private_phones import DEADLINES
from tests.tiny import Tiny, tiny_cnn

pytestmark = pytest.mark.slow

FEDFACE, TINY = METHODS["fedface"], tiny_cnn()
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


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("everybody")) as running:
        running.release(MODEL)
        yield running


class Phone:
    """A phone with one engine and one person; it remembers what it sent of each round, before any mask."""

    def __init__(
        self,
        fleet: RealFleet,
        number: int,
        population: str = TASK.population,
        runtime: Callable[[], Runtime] | None = None,
    ) -> None:
        self.contributions: list[bytes] = []
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
            return list(self._device.participate(rounds=TASK.rounds))

    def _runtime(self, _model: Model) -> Runtime:
        return self._make_runtime()

    def _tell(self, event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "uploading":
            pending = self._device.gallery.pending()
            assert pending is not None
            self.contributions.append(pending.contribution)


def test_rounds_of_three_engines_are_the_servers_steps_on_the_plain_sums(fleet: RealFleet, tmp_path: Path) -> None:
    """The first round opens the moments; the others train against them, each phone on its engine."""
    task_id = fleet.submit(TASK)
    phones = [Phone(fleet, number) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(Phone.run, phones))
    reports = fleet.outcome(task_id)
    assert [[type(each) for each in outcome] for outcome in outcomes] == [[Counted] * 3] * 3
    assert len({MODEL.model_id, *(report.model_id for report in reports)}) == 1 + TASK.rounds

    check_steps(fleet, TASK, TINY, [report.model_id for report in reports], [phone.contributions for phone in phones])


def check_steps(
    fleet: RealFleet, task: TaskSpec, tiny: Tiny, models: Sequence[str], sent: Sequence[Sequence[bytes]]
) -> None:
    """Fail unless each round's model is the server's step on the plain sum of what its phones sent, by phone."""
    part = tiny.part()
    layout = FEDFACE.contribution_layout(task, part, tiny.spec.input.dim)
    state = FEDFACE.server_start(task, part, tiny.theta)
    numbers = plan_numbers(len(sent), l2_clip=task.privacy.l2_clip, max_weight=task.privacy.max_weight)
    weights = [layout.parse(contributions[0]).vector[1] for contributions in sent]
    step = float(sum(weights)) * 2.0**-numbers.frac_bits  # a phone's element is rounded by a step times its weight
    for number, model in enumerate(models):
        total = Total.empty(layout)
        for contributions in sent:
            total = total.plus(layout.parse(contributions[number]))
        state = FEDFACE.server_step(task, part, state, total, {})
        np.testing.assert_allclose(fleet.theta(model), state.theta, atol=(number + 1) * step + 1e-6)
    assert np.abs(fleet.theta(models[-1]) - tiny.theta).max() > 100 * step
