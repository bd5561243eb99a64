"""Federated evaluation by phones of two languages in one round: the real coordinator keeps what all of them counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.contribution import Total
from mien.methods.federated_evaluation import FEDERATED_EVALUATION, figures_of, privacy_of
from mien.records import to_mapping
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, DeadlineSpec, TaskSpec
from tests.android.test_interop import MODEL, PATIENCE_S, TINY, GoneError, PythonPhone, jvm_phone
from tests.android.test_training import PUBLIC
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, with_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NOISE = np.random.default_rng(3).standard_normal(len(TINY.theta)).astype(np.float32)
REFERENCE = with_model(MODEL, TINY.theta + np.float32(0.05) * NOISE)
BINS = 50
TASK = TaskSpec(
    "measured",
    method="federated_evaluation",
    rounds=1,
    population="measured",
    cohort=CohortSpec(size=6, min_reports=4),
    deadlines=DeadlineSpec(120.0, 120.0, keys_s=60.0),
    options={
        "threshold": 0.999,
        "reference": REFERENCE.model_id,
        "reference_threshold": 0.998,
        "bins": BINS,
        "public_images": 7,
    },
    privacy=privacy_of(min_cohort=4, is_paired=True, bins=BINS),
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    folder = tmp_path_factory.mktemp("evaluation")
    shard = folder / "public.safetensors"
    shard.write_bytes(PUBLIC.to_bytes())
    with real_fleet(folder) as running:
        running.release(REFERENCE)
        running.release(MODEL, shard=shard)
        yield running


def records(fleet: RealFleet) -> list[dict[str, Any]]:
    """Return what the coordinator keeps of the model."""

    async def story() -> list[dict[str, Any]]:
        async with fleet.coordinator.operator() as operator:
            return await operator.evaluations(MODEL.model_id)

    return fleet.loop.run(story())


def test_the_record_over_phones_of_both_languages_is_that_of_the_plain_sum(fleet: RealFleet, tmp_path: Path) -> None:
    """Three of each kind measure two models; one of each is gone before the keys. The model stays as it is."""
    task_id = fleet.submit(TASK)
    jvm = [jvm_phone(fleet, tmp_path, TASK, i, **({"halt_at": "reported"} if i == 2 else {})) for i in range(3)]
    python = [PythonPhone(fleet, f"measuring-{i}", TASK, IDENTITIES[i], vanishes=i == 2) for i in range(3)]
    told = [phone.end(limit_s=PATIENCE_S) for phone in jvm]
    (report,) = fleet.outcome(task_id, limit_s=PATIENCE_S)
    assert (report.round.attempt, report.num_reports, report.model_id) == (1, 4, MODEL.model_id)
    with pytest.raises(GoneError):
        python[2].outcomes.result(PATIENCE_S)
    assert [len(phone.outcomes.result(PATIENCE_S)) for phone in python[:2]] == [1, 1]
    for lines in told[:2]:
        assert (lines[-1]["kind"], lines[-1]["num_reports"]) == ("COUNTED", "4")
        words = [line["word"] for line in lines if line["event"] == "progress"]
        assert words.index("measuring") < words.index("measured")
        assert not {"training", "summing"} & {*words}

    layout = FEDERATED_EVALUATION.contribution_layout(TASK, TINY.part(), TINY.spec.input.dim)
    total = Total.empty(layout)
    sent = [phone.contributions[0] for phone in python[:2]]
    for data in (*sent, *((tmp_path / f"sent-{i}").read_bytes() for i in range(2))):
        total = total.plus(layout.parse(data))
    state = FEDERATED_EVALUATION.server_start(TASK, TINY.part(), TINY.theta)
    expected = to_mapping(figures_of(TASK, FEDERATED_EVALUATION.server_step(TASK, TINY.part(), state, total, {})))
    (record,) = records(fleet)
    assert (record["num_phones"], record["num_mated_phones"], record["mated"]) == (4, 4, 20)
    assert record["reference_model_id"] == REFERENCE.model_id
    # Each phone's element is rounded by at most a step, so the mean over four by as much.
    step = 2.0 ** -plan_numbers(6, l2_clip=TASK.privacy.l2_clip, max_weight=1).frac_bits
    for name in ("model", "reference"):
        ours, theirs = record["figures"][name], expected[name]
        for histogram in ("mated", "non_mated"):
            np.testing.assert_allclose(ours[histogram], theirs[histogram], rtol=0, atol=step + 1e-8)
            assert max(ours[histogram]) > 100 * step
        assert ours["tar"]["value"] == pytest.approx(theirs["tar"]["value"], abs=step + 1e-8)
    drop = record["figures"]["tar_drop"]["value"]
    assert drop == pytest.approx(expected["tar_drop"]["value"], abs=step + 1e-8)
    assert record["figures"]["model"]["mated"] != record["figures"]["reference"]["mated"], "two models"
