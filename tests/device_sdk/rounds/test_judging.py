"""What a validator's device refuses, and what it keeps: faces that judge a task never train in it, nor the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.faces.source import SourceFaces
from device_sdk.people.gallery import Gallery
from device_sdk.people.trained import Pending
from device_sdk.rounds.judging import JUDGED, Judged, check_apart, check_can_judge, check_role, judge, stage_of
from device_sdk.rounds.training_people import Pool, pool_of
from device_sdk.storage.keystore import FileKeyStore
from mien.contribution import Arrays
from mien.errors import ConfigError, CorruptDataError, ViolationError
from mien.methods import METHODS
from mien.protocol.rounds import Role
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from tests.device_sdk.made_up_people import noise_crops, template_of
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
    assert set(output.private) == {"percent_statistics", JUDGED}
    again = judge(stage_of(PFM, TASK), replace(WORK, private=output.private), TINY.runtime())
    assert not np.array_equal(again.private["percent_statistics"], np.zeros(2))
    assert "array" not in repr(WORK)


def test_faces_can_judge_where_one_method_takes_them() -> None:
    check_can_judge(METHODS.values(), LABELS)
    check_can_judge([METHODS["fedavg"]], LABELS[:1])  # that has no validators: nobody asks for any
    with pytest.raises(ConfigError, match="four people or more"):
        check_can_judge([METHODS["fedavg"], PFM], LABELS[LABELS < 3])
    faces = SourceFaces("1" * 64, CROPS, LABELS)
    np.testing.assert_array_equal(Pool(source=faces).labels, LABELS)


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
    check_role(Role.VALIDATE, Role.VALIDATE)
    with pytest.raises(ViolationError, match="asks this phone to train, and it offered to validate only"):
        check_role(Role.TRAIN, Role.VALIDATE)
    with pytest.raises(ViolationError, match="has no validators"):
        stage_of(PFM, replace(TASK, options={"validation": "off"}, validators=None))
    with pytest.raises(ViolationError, match="has no validators"):
        stage_of(METHODS["fedavg"], replace(TASK, method="fedavg"))


def test_faces_that_train_do_not_judge_nor_the_reverse() -> None:
    trained = {"class_embeddings": np.zeros((4, 8), np.float32)}
    judged = {JUDGED: np.ones(1, np.float32)}
    for role, kept in ((Role.TRAIN, trained), (Role.VALIDATE, judged), (Role.TRAIN, {}), (Role.VALIDATE, {})):
        check_apart(role, kept, PFM, frozenset({role}))
    with pytest.raises(ConfigError, match="cannot judge it"):
        check_apart(Role.VALIDATE, trained, PFM, frozenset())
    with pytest.raises(ConfigError, match="do not train"):
        check_apart(Role.TRAIN, judged, PFM, frozenset())


class Home:
    """A gallery with four people who agreed, whose faces do their part of rounds of a task."""

    def __init__(self, path: Path, key_store: FileKeyStore) -> None:
        self.gallery = Gallery.open(path, key_store)
        for seed, name in enumerate(NAMES, 1):
            self.enroll(name, seed)

    def enroll(self, name: str, seed: int, *, add: bool = False) -> None:
        crops = noise_crops(seed)
        self.gallery.enroll(name, crops, template_of(crops), now_unix_s=1, consent=True, add=add)

    def does(self, role: Role, pool: Pool, task_id: str = "task", *, counted: bool = True) -> None:
        """A round, as `Participant` goes through it; raises ConfigError where these faces may not."""
        faces = pool.faces(self.gallery, task_id, PFM)
        check_apart(role, faces.private, PFM, faces.roles)
        pending = Pending(faces.people, task_id, 1, 1, b"", {}, source=faces.source, role=role)
        self.gallery.keep_pending(pending, faces.crops if faces.source else None)
        self.gallery.settle(pending, counted=counted)

    def may(self, role: Role, pool: Pool | None = None) -> bool:
        faces = (pool or pool_of(self.gallery, "", None)).faces(self.gallery, "task", PFM)
        try:
            check_apart(role, faces.private, PFM, faces.roles)
        except ConfigError:
            return False
        return True


NAMES = ("Ada", "Bo", "Cy", "Di")
OTHER = {Role.TRAIN: Role.VALIDATE, Role.VALIDATE: Role.TRAIN}


def source(name: str, *seeds: int) -> Pool:
    crops = np.concatenate([noise_crops(seed) for seed in seeds])
    return Pool(source=SourceFaces(name * 64, crops, np.repeat(np.arange(len(seeds)), 3)))


@pytest.fixture
def home(tmp_path: Path, key_store: FileKeyStore) -> Iterator[Home]:
    made = Home(tmp_path / "device.db", key_store)
    yield made
    made.gallery.close()


@pytest.mark.parametrize("role", list(Role))
def test_a_duty_stays_with_each_person_whoever_else_changes(home: Home, role: Role) -> None:
    gallery, other = home.gallery, OTHER[role]
    home.does(role, pool_of(gallery, "", None))
    for name in NAMES:
        assert not home.may(other, pool_of(gallery, name, None))
    gallery.set_consent("Ada", granted_unix_s=None)
    assert not home.may(other)
    for name in NAMES:
        gallery.set_consent(name, granted_unix_s=None)
        gallery.set_consent(name, granted_unix_s=2)
    assert not home.may(other)
    assert home.may(role)
    # A round of some of them, of somebody new, with other pictures: the rest stay what they were.
    home.does(role, pool_of(gallery, "Bo", None))
    home.enroll("Eve", 9)
    home.enroll("Cy", 10, add=True)
    assert home.may(other, pool_of(gallery, "Eve", None))
    assert not home.may(other, pool_of(gallery, "Cy", None))
    assert not home.may(other)


@pytest.mark.parametrize("role", list(Role))
def test_a_duty_stays_with_a_sources_pictures_whatever_it_is_called(home: Home, role: Role) -> None:
    other = OTHER[role]
    home.does(role, source("a", 11, 12))
    home.does(other, source("b", 13))
    assert not home.may(other, source("a", 11, 12))
    assert not home.may(other, source("c", 14, 12))
    assert home.may(other, source("a", 14))
    # The same pictures, enrolled; and the reverse.
    home.enroll("Eve", 12)
    assert not home.may(other, pool_of(home.gallery, "Eve", None))
    home.does(role, pool_of(home.gallery, "Ada", None))
    assert not home.may(other, source("d", 1))


def test_a_duty_is_a_tasks_own_and_goes_with_whoever_is_removed(home: Home) -> None:
    home.does(Role.VALIDATE, pool_of(home.gallery, "", None), "another")
    assert home.may(Role.TRAIN)
    home.does(Role.VALIDATE, pool_of(home.gallery, "Ada", None), counted=False)
    assert not home.may(Role.TRAIN)
    home.gallery.remove("Ada")
    assert home.may(Role.TRAIN)
