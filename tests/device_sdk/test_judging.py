"""What a validator's device refuses, and what it keeps: faces that judge a task never train in it, nor the reverse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.client import Duty
from device_sdk.judging import JUDGED, Judged, check_apart, check_duty, judge, stage_of
from mien.contribution import Arrays
from mien.errors import ConfigError, CorruptDataError, ViolationError
from mien.methods import METHODS
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
PART = TINY.part()
PFM = METHODS["pfm_fv"]
TASK = TaskSpec(
    "judging",
    method="pfm_fv",
    cohort=CohortSpec(size=3, min_reports=3),
    privacy=PrivacySpec(("local_models",), 3),
    options={"candidates": 2, "validation": "moving_norm"},
    validators=CohortSpec(size=3, min_reports=3),
)
LABELS = np.repeat(np.arange(4), 3).astype(np.int64)
CROPS = np.concatenate([made_up_crops(3, seed=k) for k in range(4)])
VALUES = np.stack([PART.gather(TINY.theta), 0.5 * PART.gather(TINY.theta)])
WORK = Judged(TASK, PART, TINY.theta, {"candidates": VALUES}, CROPS, LABELS, {})


def test_scores_leave_and_statistics_stay() -> None:
    output = judge(stage_of(PFM, TASK), WORK, TINY.runtime())
    assert output.contribution.vector.shape == (4,)
    assert set(output.private) == {"statistics", JUDGED}
    again = judge(stage_of(PFM, TASK), replace(WORK, private=output.private), TINY.runtime())
    assert not np.array_equal(again.private["statistics"], np.zeros(2))
    assert "array" not in repr(WORK)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"candidates": VALUES[:, :-1]},
        {"candidates": VALUES[0]},
        {"candidates": VALUES[:0]},
        {"candidates": np.full_like(VALUES, np.nan)},
    ],
    ids=["none", "short", "flat", "no rows", "not finite"],
)
def test_candidates_of_another_form_are_refused(told: Arrays) -> None:
    with pytest.raises(CorruptDataError, match="candidates"):
        judge(stage_of(PFM, TASK), replace(WORK, told=told), TINY.runtime())


def test_too_few_people_cannot_judge() -> None:
    few = replace(WORK, crops=CROPS[:9], labels=LABELS[:9])
    with pytest.raises(ConfigError, match=r"four people or more.* here are 3 people .* with 9 pictures"):
        judge(stage_of(PFM, TASK), few, TINY.runtime())
    with pytest.raises(ConfigError, match="here are 1 people"):
        judge(stage_of(PFM, TASK), replace(WORK, labels=None), TINY.runtime())


def test_a_device_does_what_it_offered_and_nothing_else() -> None:
    check_duty(Duty.VALIDATE, Duty.VALIDATE)
    with pytest.raises(ViolationError, match="asks this phone to train, and it offered to validate only"):
        check_duty(Duty.TRAIN, Duty.VALIDATE)
    with pytest.raises(ViolationError, match="has no validators"):
        stage_of(PFM, replace(TASK, options={"validation": "off"}, validators=None))
    with pytest.raises(ViolationError, match="has no validators"):
        stage_of(METHODS["fedavg"], replace(TASK, method="fedavg"))


def test_faces_that_train_do_not_judge_nor_the_reverse() -> None:
    trained = {"class_embeddings": np.zeros((4, 8), np.float32)}
    judged = {JUDGED: np.ones(1, np.float32)}
    for duty, kept in ((Duty.TRAIN, trained), (Duty.VALIDATE, judged), (Duty.TRAIN, {}), (Duty.VALIDATE, {})):
        check_apart(duty, kept, PFM)
    with pytest.raises(ConfigError, match="cannot judge it"):
        check_apart(Duty.VALIDATE, trained, PFM)
    with pytest.raises(ConfigError, match="do not train"):
        check_apart(Duty.TRAIN, judged, PFM)
