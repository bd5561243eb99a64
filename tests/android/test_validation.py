"""PFM under federated validation by phones of two languages, with both servers real; one trainer is gone at the end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from mien.contribution import ContributionLayout, Total
from mien.methods import METHODS
from mien.methods.pfm_fv import own_weighting, scaled
from mien.protocol.v1 import rounds_pb2
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, TaskSpec
from tests.android.jvm import JvmPhone
from tests.android.story import crops_file
from tests.android.test_interop import GRAPHS, MODEL, PATIENCE_S, TINY
from tests.android.test_methods import LOOSE, PLAIN, of
from tests.graphs import tiny_onnx_runtime
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet
from tests.integration.test_everybody import Phone
from tests.integration.test_real_validators import write_source
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PHONES, OTHERS, SILOS = 4, 2, 3
TASK: Final[TaskSpec] = replace(
    of("pfm_fv", privacy=LOOSE, candidates=2, mixing=0.5, scale=16.0, first_weighting="uniform"),
    cohort=CohortSpec(size=PHONES + OTHERS, min_reports=PHONES + OTHERS - 1),
    validators=CohortSpec(size=SILOS, min_reports=SILOS),
    local=PLAIN,
)


class Silo:
    """A device of Python's that judges on four people's faces; it remembers its scores, before any mask."""

    def __init__(self, fleet: RealFleet, number: int) -> None:
        self.contributions: list[bytes] = []
        self._fleet, self._number = fleet, number
        self._faces = fleet.folder / f"faces-{number}"
        crops = np.concatenate([made_up_crops(3, seed=500 + 20 * number + person) for person in range(4)])
        write_source(self._faces, crops, np.repeat(np.arange(4), 3).astype(np.int64))

    def run(self) -> list[RoundOutcome]:
        with self._fleet.open(
            f"silo-{self._number}",
            tell=self._tell,
            runtime_loader=lambda _model: tiny_onnx_runtime(TINY),
            **{"participation.min_cohort": 3, "participation.allow_plain_sums": False},
        ) as self._device:
            self._device.join(self._fleet.invite(TASK.population))
            self._device.update()  # of this network nothing is known but by the release
            judging = self._device.participate(
                rounds=TASK.rounds, idle_s=120.0, source=self._faces, source_aligned=True, validate=True
            )
            outcomes = list(judging)
        assert all(isinstance(outcome, Counted) for outcome in outcomes), outcomes
        return outcomes

    def _tell(self, event: Event | Transfer) -> None:
        if isinstance(event, Event) and event.kind == "uploading":
            pending = self._device.gallery.pending()
            assert pending is not None
            self.contributions.append(pending.contribution)


def total_of(layout: ContributionLayout, contributions: list[bytes]) -> Total:
    total = Total.empty(layout)
    for each in contributions:
        total = total.plus(layout.parse(each))
    return total


def test_validators_choose_among_sums_of_both_languages(tmp_path: Path) -> None:
    """Four phones of the JVM train beside two of Python's, one of them gone in the last round; devices judge."""
    with real_fleet(tmp_path) as fleet:
        fleet.release(MODEL)
        task_id = fleet.submit(TASK)
        jvm = [
            JvmPhone.start(
                home=tmp_path / f"jvm-{number}",
                invite=fleet.invite(TASK.population),
                crops=crops_file(tmp_path, f"crops-{number}", made_up_crops(4, seed=90 + number)),
                guest=crops_file(tmp_path, f"guest-{number}", made_up_crops(3, seed=80 + number)),
                graphs=GRAPHS,
                sent=tmp_path / f"sent-{number}",
                min_cohort=3,
                rounds=TASK.rounds,
                **({"halt_at": "reported", "halt_after": TASK.rounds} if number == 0 else {}),
            )
            for number in range(PHONES)
        ]
        runtime = lambda: tiny_onnx_runtime(TINY)  # noqa: E731
        others = [
            Phone(fleet, number, TASK.population, runtime, guest=IDENTITIES[3], rounds=TASK.rounds)
            for number in range(OTHERS)
        ]
        silos = [Silo(fleet, number) for number in range(SILOS)]
        with ThreadPoolExecutor(OTHERS + SILOS) as pool:
            running = [pool.submit(each.run) for each in (*others, *silos)]
            told = [phone.end(limit_s=PATIENCE_S) for phone in jvm]
            outcomes = [each.result(PATIENCE_S) for each in running]
        reports = fleet.outcome(task_id, limit_s=PATIENCE_S)
        models = [fleet.theta(report.model_id) for report in reports[1::2]]
        devices = fleet.seen_devices()
    assert [[type(each) for each in of_one] for of_one in outcomes] == [[Counted] * TASK.rounds] * (OTHERS + SILOS)
    ends = [[line["kind"] for line in lines if line["event"] == "outcome"] for lines in told]
    assert ends == [["COUNTED"] * (TASK.rounds - (number == 0)) for number in range(PHONES)], told
    assert [report.duty for report in reports] == [rounds_pb2.TRAIN, rounds_pb2.VALIDATE] * TASK.rounds

    part, method = TINY.part(), METHODS[TASK.method]
    at_first = np.zeros((0, 3), np.float32)
    foreseen = np.array([scaled(TASK, own_weighting(TASK, device, at_first, 1))[1] for device in devices])
    layout, validation = method.contribution_layout(TASK, part, TINY.spec.input.dim), method.validation
    assert validation is not None
    numbers = plan_numbers(PHONES + OTHERS, l2_clip=256.0, coordinate_clip=16.0, max_weight=TASK.privacy.max_weight)
    state, rounding = method.server_start(TASK, part, TINY.theta), 0.0
    for number, model in enumerate(models):
        name = "sent-{}" if number == 0 else f"sent-{{}}-{number + 1}"
        there = [phone for phone in range(PHONES) if (number, phone) != (TASK.rounds - 1, 0)]
        trained = [(tmp_path / name.format(phone)).read_bytes() for phone in there]
        trained += [other.contributions[number] for other in others]
        total = total_of(layout, trained)
        if number == 0:
            drawn = np.array([layout.parse(each).vector[layout.slices["weightings"]][1] for each in trained])
            assert len(drawn) == PHONES + OTHERS
            foretold = np.isclose(drawn[:, None], foreseen, rtol=1e-7, atol=0).any(axis=1)
            assert foretold.sum() < 2, (
                "a secret of each phone is in its draws; one of 10^5 tests has one near by chance"
            )
        scores = total_of(validation.contribution_layout(TASK), [silo.contributions[number] for silo in silos])
        state = validation.server_step(TASK, part, state, total, scores)
        # Updates under a weighting are rounded, and divided by all weights in it.
        rounding += len(trained) * 2.0**-numbers.frac_bits / min(total["weightings"])
        np.testing.assert_allclose(model, state.theta, atol=2 * rounding + 1e-6)
    assert np.abs(models[-1] - TINY.theta).max() > 100 * rounding
