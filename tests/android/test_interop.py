"""Phones of two languages in one round: real servers, mutual TLS, a private sum, and one of each kind vanishes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from device_sdk.device import Device
from device_sdk.models.models import Model
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from mien.layout import model_id
from mien.methods import METHODS
from mien.methods.base import Runtime
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import JvmPhone
from tests.graphs import FOLDER, tiny_onnx_runtime
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
MODEL = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
GRAPHS = FOLDER / TINY.layout.sha256
PATIENCE_S = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class GoneError(Exception):
    """A phone's power was cut."""


class PythonPhone:
    """A phone of `device_sdk` in a thread; with `vanishes` it is gone once it has trained."""

    def __init__(self, fleet: RealFleet, name: str, task: TaskSpec, identity: str, *, vanishes: bool = False) -> None:
        self.contributions: list[bytes] = []
        self._device: Device | None = None
        self._vanishes = vanishes
        executor = ThreadPoolExecutor(1)
        self.outcomes: Future[list[RoundOutcome]] = executor.submit(self._run, fleet, name, task, identity)
        executor.shutdown(wait=False)

    def _run(self, fleet: RealFleet, name: str, task: TaskSpec, identity: str) -> list[RoundOutcome]:
        options = {"participation.min_cohort": 4, "participation.allow_plain_sums": False}
        phone = fleet.phone(name, task.population, identity, tell=self._tell, runtime_loader=_runtime, **options)
        with phone as self._device:
            return list(self._device.participate(rounds=1))

    def _tell(self, event: Event | Transfer) -> None:
        if not isinstance(event, Event):
            return
        if event.kind == "reported" and self._vanishes:
            raise GoneError
        if event.kind == "uploading":
            assert self._device is not None
            pending = self._device.gallery.pending()
            assert pending is not None
            self.contributions.append(pending.contribution)


def _runtime(_: Model) -> Runtime:
    return tiny_onnx_runtime(TINY)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("interop")) as running:
        running.release(MODEL)
        yield running


def jvm_phone(fleet: RealFleet, folder: Path, task: TaskSpec, number: int, **options: object) -> JvmPhone:
    """Start a phone of the JVM with five made-up crops, which writes what it would have sent without masks."""
    crops = folder / f"crops-{number}"
    crops.write_bytes(made_up_crops(5, seed=90 + number).tobytes())
    return JvmPhone.start(
        home=folder / f"jvm-{number}",
        invite=fleet.invite(task.population),
        crops=crops,
        graphs=GRAPHS,
        sent=folder / f"sent-{number}",
        **{"min_cohort": 4, **options},
    )


def test_the_total_over_phones_of_both_languages_is_the_plain_sum(fleet: RealFleet, tmp_path: Path) -> None:
    """Three of each kind train; one of each is gone before the keys. Four are left, which is what all agreed to."""
    task = TaskSpec(
        "interop",
        method="fedavg",
        rounds=1,
        population="interop",
        cohort=CohortSpec(size=6, min_reports=4),
        deadlines=DeadlineSpec(120.0, 120.0, keys_s=60.0),
        local=LocalSpec(lr=0.05, momentum=0.9, batch_size=2, epochs=2),
        # Embeddings of random weights are all alike: only the largest margin leaves something to train.
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=4),
    )
    task_id = fleet.submit(task)
    jvm = [jvm_phone(fleet, tmp_path, task, i, **({"halt_at": "reported"} if i == 2 else {})) for i in range(3)]
    python = [PythonPhone(fleet, f"python-{i}", task, IDENTITIES[i], vanishes=i == 2) for i in range(3)]
    told = [phone.end(limit_s=PATIENCE_S) for phone in jvm]
    (report,) = fleet.outcome(task_id, limit_s=PATIENCE_S)

    assert (report.round.attempt, report.num_reports) == (1, 4)
    with pytest.raises(GoneError):
        python[2].outcomes.result(PATIENCE_S)
    for phone in python[:2]:
        (outcome,) = phone.outcomes.result(PATIENCE_S)
        assert outcome == Counted(outcome.round, report.model_id, 4)
    assert told[2][-1] == {"event": "progress", "word": "reported"}
    for lines in told[:2]:
        assert (lines[-1]["kind"], lines[-1]["model_id"], lines[-1]["num_reports"]) == ("COUNTED", report.model_id, "4")

    uploads = [phone.contributions[0] for phone in python[:2]]
    uploads += [(tmp_path / f"sent-{i}").read_bytes() for i in range(2)]
    layout = METHODS["fedavg"].contribution_layout(task, TINY.part(), TINY.spec.input.dim)
    vectors = [layout.parse(data).vector.astype(np.float64) for data in uploads]
    weight = sum(float(vector[layout.slices["weight"]][0]) for vector in vectors)
    assert weight == 20.0, "five images each"
    delta = sum(vector[layout.slices["delta"]] for vector in vectors) / weight
    assert np.abs(delta).max() > 1e-4, "training moved something"
    part, theta = TINY.part(), fleet.theta(report.model_id)
    # Rounding moves an element of the mean by one step at most.
    numbers = plan_numbers(6, l2_clip=task.privacy.l2_clip, max_weight=task.privacy.max_weight)
    np.testing.assert_allclose(
        part.gather(theta), part.gather(TINY.theta) + delta, rtol=0, atol=numbers.max_error + 1e-6
    )


def test_a_phone_whose_power_was_cut_goes_on_with_what_it_trained(fleet: RealFleet, tmp_path: Path) -> None:
    """It had told that it trained, and had not spoken of keys: the same bytes go into the sum of the same attempt."""
    task = TaskSpec(
        "resumed",
        method="fedavg",
        rounds=1,
        population="resumed",
        cohort=CohortSpec(size=3, min_reports=3),
        deadlines=DeadlineSpec(120.0, 120.0, keys_s=120.0),
        local=LocalSpec(lr=0.05),
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=3),
    )
    task_id = fleet.submit(task)
    victim = jvm_phone(fleet, tmp_path, task, 0, min_cohort=3, halt_at="reported")
    others = [jvm_phone(fleet, tmp_path, task, i, min_cohort=3) for i in (1, 2)]
    assert victim.end(limit_s=PATIENCE_S)[-1] == {"event": "progress", "word": "reported"}
    trained = (tmp_path / "sent-0").read_bytes()
    again = jvm_phone(fleet, tmp_path, task, 0, min_cohort=3)
    told = [phone.end(limit_s=PATIENCE_S) for phone in (again, *others)]
    (report,) = fleet.outcome(task_id, limit_s=PATIENCE_S)
    assert (report.round.attempt, report.num_reports) == (1, 3)
    assert [lines[-1]["kind"] for lines in told] == ["COUNTED"] * 3
    words = [line["word"] for line in told[0] if line["event"] == "progress"]
    assert words[:2] == ["resumed", "reported"]
    assert (tmp_path / "sent-0").read_bytes() == trained
    assert not any((tmp_path / "jvm-0" / "rounds").iterdir()), "nothing of the round is left"
