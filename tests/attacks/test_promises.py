"""What differential privacy promises, when a coordinator renames tasks and an adversary sees noised bits."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from device_sdk.rounds.attempts import Attempts, promised
from device_sdk.storage.keystore import FileKeyStore
from mien.dp.accountant import epsilon_rdp
from mien.dp.clipping import bit_noise, update_multiplier
from mien.errors import BudgetExceededError
from mien.methods import METHODS
from mien.protocol.ids import AttemptNumber, ModelId, RoundNumber, TaskId
from mien.secagg.masks import WordStream
from mien.secagg.noise import release
from mien.secagg.pipeline import encode
from mien.secagg.planner import RoundIds, plan_numbers, plan_round
from mien.secagg.vector import CLIP_BIT, Addends, VectorLayout
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from simulation.testing import LAYOUT, SPEC

DP = DpSpec("skellam", 2.1, 8.0, 1e-5, max_participations=10, min_separation=1)


def test_tasks_under_many_names_take_no_more_of_a_phone_than_one_of_them_promised(tmp_path: Path) -> None:
    """p05: twelve tasks of ten rounds, each of which promises 8 over all; it was 37.3."""
    log = Attempts.open(tmp_path / "attempts.db", FileKeyStore(tmp_path / "keys"), "default")
    part, refused = LAYOUT.part(SPEC.trainable), 0
    for number in range(12):
        task = TaskSpec(
            f"task{number}",
            method="fedavg",
            rounds=10,
            cohort=CohortSpec(size=20, min_reports=16),
            privacy=PrivacySpec(max_weight=1, dp=DP),
            trainable=("tail.*",),
        )
        layout = METHODS["fedavg"].contribution_layout(task, part, 8)
        for each in range(1, 11):
            ids = RoundIds.of(
                *(task, TaskId(f"id{number}"), RoundNumber(each), AttemptNumber(1), SPEC, ModelId("00" * 32))
            )
            config, under = plan_round(task, layout, ids), log.under(promised(task, None))
            try:
                under.begin(config)
            except BudgetExceededError:
                refused += 1
                continue
            under.record_masked(config.attempt_id)
    found = [release(sum_, DP) for sum_ in log.participations()]
    releases = [(each, 1) for each in found if each is not None]
    assert len(releases) == len(found) == 120 - refused
    assert 1 <= len(found) < 120
    assert epsilon_rdp(releases, DP.delta) <= DP.epsilon * (1 + 1e-6)


@pytest.mark.parametrize(("n", "z"), [(16, 2.1), (20, 2.1), (1000, 2.1), (16, 6.8), (100, 6.8)])
def test_an_adaptive_clip_is_charged_for_both_worlds_that_its_code_sends(n: int, z: float) -> None:
    """p06b: an update beyond the clip, and an empty one in its place, in ten sums; 7.08 were charged of 9.95."""
    numbers, layout = plan_numbers(16, l2_clip=1.0, max_weight=1), VectorLayout(64, 0)

    def bit(update: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
        return int(encode(Addends(1, update, ()), layout, numbers, bytes(32), WordStream(bytes(32)))[CLIP_BIT])

    beyond = np.zeros(64, np.float32)
    beyond[0] = 5.0
    moves = abs(bit(np.zeros(64, np.float32)) - bit(beyond))
    sigma_b = bit_noise(n, z)
    # Twice the count of unclipped updates is sent, under noise of twice sigma_b.
    spent = math.hypot(1 / update_multiplier(z, sigma_b), 2 * moves / (2 * sigma_b))
    assert moves == 1
    assert spent <= 1 / z * (1 + 1e-9)
