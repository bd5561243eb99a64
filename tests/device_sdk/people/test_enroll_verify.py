"""Enrolment, verification and identification on rendered faces with the real detector and the real SFace."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from device_sdk.faces import FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.people.enroll import (
    DUPLICATE,
    UNLIKE,
    RefusedImage,
    _second_group,
    _strangers,
    check_restored,
    collect,
    enroll,
    gather_images,
)
from device_sdk.people.enrolled import BackedUp, References, Template
from device_sdk.people.gallery import Gallery
from device_sdk.people.recogniser import Operating, Recogniser, operating_point, point_among
from device_sdk.people.verify import Comparer, LowQuality, Match, MultipleFaces, NoFace, Unknown
from device_sdk.program.words import typed
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    EmptyFolderError,
    LowQualityError,
    ModelMismatchError,
    NonFiniteError,
    NotEnrolledError,
    NotFoundError,
)
from mien.specs import FaceInputSpec, Threshold
from tests.device_sdk.made_up_people import MODEL_A, noise_crops, template_of
from tests.device_sdk.synthetic import DECIDES_AT, OWNER, STRANGER, Engine, images_of, sface


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(sface(), Engine(sface()))


@pytest.fixture(scope="module")
def pipeline() -> FacePipeline:
    return FacePipeline(MASTER)


@pytest.fixture
def at(recogniser: Recogniser) -> Operating:
    return operating_point(recogniser.model)


@pytest.fixture
def enrolled(gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline) -> Gallery:
    enroll("Owner", images_of(OWNER)[:4], gallery, recogniser, pipeline, now_unix_s=0, consent=True)
    return gallery


def test_the_owner_matches_and_a_stranger_does_not(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    own = [Comparer(enrolled, recogniser, pipeline, at).verify("owner", image) for image in images_of(OWNER)[5:8]]
    others = [Comparer(enrolled, recogniser, pipeline, at).verify("Owner", image) for image in images_of(STRANGER)[5:8]]
    assert all(isinstance(outcome, Match) and outcome.name == "Owner" for outcome in own)
    assert all(isinstance(outcome, Unknown) for outcome in others)


def test_identification_names_people_and_knows_nobody_else(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    assert isinstance(Comparer(enrolled, recogniser, pipeline, at).identify(images_of(STRANGER)[5]), Unknown)
    enroll("Other", images_of(STRANGER)[1:5], enrolled, recogniser, pipeline, now_unix_s=0, consent=False)
    for identity, name in ((OWNER, "Owner"), (STRANGER, "Other")):
        outcome = Comparer(enrolled, recogniser, pipeline, at).identify(images_of(identity)[6])
        assert isinstance(outcome, Match)
        assert outcome.name == name


def test_exactly_the_threshold_is_accepted(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    image = images_of(OWNER)[5]
    outcome = Comparer(enrolled, recogniser, pipeline, at).verify("Owner", image)
    assert isinstance(outcome, Match)
    same = Operating(outcome.score, None)
    above = Operating(float(np.nextafter(outcome.score, 2)), None)
    assert isinstance(Comparer(enrolled, recogniser, pipeline, same).verify("Owner", image), Match)
    assert isinstance(Comparer(enrolled, recogniser, pipeline, above).verify("Owner", image), Unknown)


def test_pictures_without_one_good_face_are_outcomes(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    blank = np.full((224, 224, 3), 128, np.uint8)
    one = np.asarray(cv2.cvtColor(cv2.imread(str(images_of(OWNER)[5])), cv2.COLOR_BGR2RGB))
    two = np.concatenate([one, one], axis=1)
    assert isinstance(Comparer(enrolled, recogniser, pipeline, at).verify("Owner", blank), NoFace)
    assert isinstance(Comparer(enrolled, recogniser, pipeline, at).verify("Owner", two), MultipleFaces)


def test_a_low_quality_face_names_its_reasons(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    one = np.asarray(cv2.cvtColor(cv2.imread(str(images_of(OWNER)[5])), cv2.COLOR_BGR2RGB))
    outcome = Comparer(enrolled, recogniser, pipeline, at).verify("Owner", cv2.GaussianBlur(one, (0, 0), 6))
    assert isinstance(outcome, LowQuality)
    assert "blurred" in outcome.reasons
    assert "focus" in outcome.message


def test_nobody_enrolled_is_an_error(
    gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    with pytest.raises(NotEnrolledError):
        Comparer(gallery, recogniser, pipeline, at).verify("Ada", images_of(OWNER)[0])
    with pytest.raises(NotEnrolledError, match="enroll"):
        Comparer(gallery, recogniser, pipeline, at).identify(images_of(OWNER)[0])


def test_another_models_templates_are_not_compared(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    newer = dataclasses.replace(recogniser, model=dataclasses.replace(recogniser.model, model_id="f" * 64))
    with pytest.raises(ModelMismatchError, match="re-embed"):
        Comparer(enrolled, newer, pipeline, at).verify("Owner", images_of(OWNER)[5])
    enrolled.reembed(newer.model_id, newer.input, newer.embed)
    assert isinstance(Comparer(enrolled, newer, pipeline, at).verify("Owner", images_of(OWNER)[5]), Match)


# --- enrolment ---


def test_every_refused_picture_is_named_with_its_reason(
    gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for image in images_of(OWNER)[:4]:
        shutil.copy(image, folder / image.name)
    shutil.copy(images_of(OWNER)[0], folder / "again.jpg")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    (folder / "empty.jpg").write_bytes(b"")
    cv2.imwrite(str(folder / "wall.png"), np.full((200, 200, 3), 90, np.uint8))
    shutil.copy(images_of(STRANGER)[1], folder / "somebody.jpg")
    heard: list[RefusedImage] = []
    enrollment = enroll(
        "Owner",
        gather_images([folder]),
        gallery,
        recogniser,
        pipeline,
        now_unix_s=5,
        consent=False,
        unlike_below=DECIDES_AT,
        on_refused=heard.append,
    )
    reasons = {str(Path(image.name).relative_to(folder)): image.reasons for image in enrollment.refused}
    assert all(image.message.startswith(image.name) for image in enrollment.refused)
    assert reasons == {
        # Sorted by name, "00.jpg" comes first and "again.jpg" is the copy.
        "again.jpg": (DUPLICATE,),
        "broken.jpg": ("unreadable",),
        "empty.jpg": ("unreadable",),
        "wall.png": ("no_face",),
        "somebody.jpg": (UNLIKE,),
    }
    assert all(image.name in image.message for image in enrollment.refused)
    assert tuple(heard) == enrollment.refused
    assert (enrollment.num_used, enrollment.person.num_images) == (4, 4)


def test_too_few_good_pictures_enrol_nobody(gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline) -> None:
    wall = np.full((200, 200, 3), 90, np.uint8)
    with pytest.raises(LowQualityError, match=r"2 of 3 pictures can be used, 3 are needed.*Add better") as error:
        enroll("Owner", [*images_of(OWNER)[:2], wall], gallery, recogniser, pipeline, now_unix_s=0, consent=True)
    assert error.value.reasons == ("no_face",)
    with pytest.raises(LowQualityError, match=r"2 of 2 pictures can be used, 3 are needed.*Add more") as error:
        enroll("Owner", images_of(OWNER)[:2], gallery, recogniser, pipeline, now_unix_s=0, consent=True)
    assert error.value.reasons == ()
    assert gallery.people() == ()


def test_pictures_that_are_too_few_for_being_unlike_name_the_way_to_keep_them(
    gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline
) -> None:
    images = [*images_of(OWNER)[:2], images_of(STRANGER)[1]]
    with pytest.raises(LowQualityError, match=r"2 of 3 pictures can be used.*or give `anyway=True` if all are of one"):
        enroll("Owner", images, gallery, recogniser, pipeline, now_unix_s=0, consent=True, unlike_below=DECIDES_AT)
    assert gallery.people() == ()


def test_one_more_template_needs_as_many_pictures(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline
) -> None:
    (before,) = enrolled.people()
    few = images_of(OWNER)[4:6]
    with pytest.raises(LowQualityError, match="3 are needed for one more template; nothing was stored"):
        enroll(before.name, few, enrolled, recogniser, pipeline, now_unix_s=0, consent=False, add=True)
    assert enrolled.people() == (before,)


def test_the_template_is_of_the_used_pictures_only(recogniser: Recogniser, pipeline: FacePipeline) -> None:
    collected = collect([*images_of(OWNER)[:3], images_of(STRANGER)[1]], recogniser, pipeline, unlike_below=DECIDES_AT)
    clean = collect(images_of(OWNER)[:3], recogniser, pipeline)
    np.testing.assert_array_equal(collected.crops, clean.crops)
    np.testing.assert_allclose(collected.features, clean.features, atol=1e-5)


def test_two_pictures_that_differ_are_both_kept(recogniser: Recogniser, pipeline: FacePipeline) -> None:
    collected = collect([images_of(OWNER)[0], images_of(STRANGER)[1]], recogniser, pipeline, unlike_below=DECIDES_AT)
    assert len(collected.crops) == 2


@pytest.mark.parametrize(("num_own", "num_others"), [(3, 3), (4, 2), (4, 4)])
def test_pictures_of_two_people_enrol_nobody(
    num_own: int, num_others: int, gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline
) -> None:
    images = [*images_of(OWNER)[:num_own], *images_of(STRANGER)[1 : 1 + num_others]]
    with pytest.raises(LowQualityError, match="seem to show different people") as error:
        enroll("Both", images, gallery, recogniser, pipeline, now_unix_s=0, consent=True, unlike_below=DECIDES_AT)
    assert error.value.reasons == (UNLIKE,)
    assert gallery.people() == ()


@pytest.mark.parametrize("counts", [(3, 3), (4, 2), (5, 5), (2, 2)])
def test_two_people_are_two_groups_however_steady_their_pictures(counts: tuple[int, int]) -> None:
    """Each row's cosine to the mean of all others passes 0.4, though the two people have nothing in common."""
    features = np.repeat(np.eye(2, 8, dtype=np.float32), counts, axis=0)
    strangers = _strangers(features, 0.4)
    assert {tuple(features[index]) for index in strangers} == {tuple(features[strangers[0]])}
    assert _second_group(features, strangers, 0.4) == sorted(strangers)


def test_single_strangers_are_left_out_and_varied_pictures_stay() -> None:
    alone = np.eye(8, dtype=np.float32)[[0, 0, 0, 0, 1, 2]]
    strangers = _strangers(alone, 0.4)
    assert sorted(strangers) == [4, 5]
    assert _second_group(alone, strangers, 0.4) == []
    turning = np.array([[np.cos(angle), np.sin(angle)] for angle in np.linspace(0, 1.6, 6)], np.float32)
    assert turning[0] @ turning[-1] < 0.4
    assert _strangers(turning, 0.4) == []
    few = np.repeat(np.eye(2, 8, dtype=np.float32), (7, 2), axis=0)
    assert sorted(_strangers(few, 0.4)) == [7, 8]
    assert _second_group(few, [7, 8], 0.4) == []


def test_files_of_the_same_name_in_two_folders_are_two_pictures(
    recogniser: Recogniser, pipeline: FacePipeline, tmp_path: Path
) -> None:
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        shutil.copy(images_of(OWNER)[number], tmp_path / str(number) / "face.jpg")
    collected = collect(gather_images([tmp_path / "0", tmp_path / "1"]), recogniser, pipeline)
    assert len(collected.crops) == 2
    assert collected.refused == ()


def test_a_second_enrolment_needs_add(enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline) -> None:
    more = images_of(OWNER)[5:8]
    with pytest.raises(AlreadyExistsError):
        enroll("Owner", more, enrolled, recogniser, pipeline, now_unix_s=0, consent=False)
    enrollment = enroll("Owner", more, enrolled, recogniser, pipeline, now_unix_s=0, consent=False, add=True)
    assert (enrollment.person.num_templates, enrollment.person.num_images) == (2, 7)
    # Consent once given is not taken back by adding pictures.
    assert enrollment.person.trains


def test_pictures_that_are_enrolled_already_are_not_added_again(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline
) -> None:
    before = enrolled.person("Owner")
    with pytest.raises(LowQualityError, match="0 of 4 pictures can be used") as refused:
        enroll("Owner", images_of(OWNER)[:4], enrolled, recogniser, pipeline, now_unix_s=0, consent=False, add=True)
    assert refused.value.reasons == (DUPLICATE,)
    more = images_of(OWNER)[3:7]
    added = enroll("owner", more, enrolled, recogniser, pipeline, now_unix_s=0, consent=False, add=True)
    assert added.num_used == 3
    assert "is enrolled already" in added.refused[0].message
    assert added.person.num_images == before.num_images + 3


DECIDED = {"unlike_below": DECIDES_AT, "alike_from": DECIDES_AT}


def test_what_is_added_has_to_look_like_who_is_enrolled(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline
) -> None:
    def add(images: list[Path]) -> None:
        enroll("owner", images, enrolled, recogniser, pipeline, now_unix_s=0, consent=False, add=True, **DECIDED)

    with pytest.raises(LowQualityError, match=r"do not look like Owner as enrolled; .*`anyway=True`") as refused:
        add(images_of(STRANGER)[1:5])
    assert refused.value.reasons == (UNLIKE,)
    assert enrolled.person("Owner").num_templates == 1
    add(images_of(OWNER)[2:8])
    assert enrolled.person("Owner").num_templates == 2


def test_one_face_under_two_names_is_noticed(enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline) -> None:
    images = images_of(OWNER)[2:8]
    with pytest.raises(AlreadyExistsError, match=r"Ada has the face of Owner, who is enrolled already.*`anyway=True`"):
        enroll("Ada", images, enrolled, recogniser, pipeline, now_unix_s=0, consent=False, **DECIDED)
    assert not enrolled.has("Ada")
    enroll("Ada", images, enrolled, recogniser, pipeline, now_unix_s=0, consent=False)
    enroll("Other", images_of(STRANGER)[1:5], enrolled, recogniser, pipeline, now_unix_s=0, consent=False, **DECIDED)
    with pytest.raises(LowQualityError, match="do not look like Other as enrolled, but like Ada and Owner"):
        enroll("other", images, enrolled, recogniser, pipeline, now_unix_s=0, consent=False, add=True, **DECIDED)


def test_a_backup_is_compared_with_who_is_enrolled_and_within_itself() -> None:
    def person(name: str, *seeds: int) -> tuple[BackedUp, list[Template]]:
        crops = tuple(noise_crops(seed) for seed in seeds)
        return BackedUp(name, 0, None, crops), [template_of(each) for each in crops]

    own = References(MODEL_A, ("Ada",), template_of(noise_crops(1)).embedding[None])
    empty = References(MODEL_A, (), np.empty((0, 0), np.float32))
    limits = {"unlike_below": 0.9, "alike_from": 0.9}
    check_restored([person("Bob", 2), person("Cem", 3, 3)], own, **limits)
    check_restored([person("Ada", 1), person("Bob", 2)], empty, **limits)
    with pytest.raises(AlreadyExistsError, match="Bob has the face of Ada"):
        check_restored([person("Bob", 1)], own, **limits)
    with pytest.raises(AlreadyExistsError, match="Cem has the face of Bob"):
        check_restored([person("Bob", 2), person("Cem", 2)], empty, **limits)
    with pytest.raises(LowQualityError, match="do not look like Bob as enrolled"):
        check_restored([person("Bob", 2, 3)], empty, **limits)
    with pytest.raises(AlreadyExistsError, match="If they are one person, remove that one here first"):
        check_restored([person("Bob", 1)], own, **limits)
    for anyway in (limits, {"unlike_below": None, "alike_from": None}):
        with pytest.raises(AlreadyExistsError, match=r"^Ada is enrolled here already; nobody.*remove Ada here"):
            check_restored([person("Bob", 2), person("ada", 1)], own, **anyway)
    check_restored([person("Bob", 1, 3), person("Cem", 1)], own, unlike_below=None, alike_from=None)


def test_folders_and_files_are_gathered(tmp_path: Path) -> None:
    folder = tmp_path / "faces"
    folder.mkdir()
    with pytest.raises(EmptyFolderError):
        gather_images([folder])
    (folder / "b.jpg").write_bytes(b"")
    (folder / "a.png").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"")
    single = tmp_path / "c.jpg"
    single.write_bytes(b"")
    assert [path.name for path in gather_images([folder, single, single])] == ["a.png", "b.jpg", "c.jpg"]
    with pytest.raises(NotFoundError, match=r"missing\.jpg"):
        gather_images([tmp_path / "missing.jpg"])
    with pytest.raises(ConfigError):
        gather_images([])


# --- thresholds, crops, embeddings ---


def threshold(value: float, fmr: float, model_id: str) -> Threshold:
    return Threshold(value, fmr, "pairs", 10, 1000, model_id, "2026-01-01")


def with_thresholds(recogniser: Recogniser, *rows: tuple[float, float]) -> Recogniser:
    own = tuple(threshold(value, fmr, recogniser.model_id) for value, fmr in rows)
    spec = dataclasses.replace(recogniser.model.spec, thresholds=own)
    return dataclasses.replace(recogniser, model=dataclasses.replace(recogniser.model, spec=spec))


def test_the_threshold_is_the_models_for_the_wanted_false_match_rate(recogniser: Recogniser) -> None:
    model = with_thresholds(recogniser, (0.2, 1e-2), (0.4, 9e-4), (0.6, 1e-5)).model
    assert operating_point(model, max_fmr=1e-3).value == 0.4
    assert operating_point(model, max_fmr=1e-2).value == 0.2
    assert operating_point(model, max_fmr=1e-4).value == 0.6
    with pytest.raises(ConfigError, match="1e-05"):
        operating_point(model, max_fmr=1e-6)
    by_hand = operating_point(model, threshold=0.5)
    assert (by_hand.value, by_hand.provenance) == (0.5, None)
    assert "no false match rate" in str(by_hand)
    assert "1000 non-mated comparisons of pairs" in str(operating_point(model, max_fmr=1e-3))


def test_a_threshold_of_another_model_does_not_count(recogniser: Recogniser) -> None:
    spec = dataclasses.replace(recogniser.model.spec, thresholds=(threshold(0.4, 1e-4, "e" * 64),))
    with pytest.raises(ConfigError, match="measure this model's thresholds, then call") as plain:
        operating_point(dataclasses.replace(recogniser.model, spec=spec))
    assert "sign" not in plain.value.message


def test_a_signed_models_thresholds_come_with_another_signature(recogniser: Recogniser) -> None:
    spec = dataclasses.replace(recogniser.model.spec, thresholds=())
    with pytest.raises(ConfigError) as error:
        operating_point(dataclasses.replace(recogniser.model, spec=spec), signed=True)
    steps = ("evaluate", "--keep-thresholds", "model export", "model sign", "release --bundle", "mien-device update")
    message = typed(error.value.message)
    found = [message.find(step) for step in steps]
    assert -1 not in found
    assert found == sorted(found)


@pytest.mark.parametrize("value", [-1.5, 36.3])
def test_a_threshold_that_is_no_cosine_is_refused(recogniser: Recogniser, value: float) -> None:
    with pytest.raises(ConfigError, match="cosine"):
        operating_point(recogniser.model, threshold=value)


def test_the_threshold_of_a_search_follows_from_how_many_are_enrolled(recogniser: Recogniser) -> None:
    def known(value: float, fmr: float) -> Threshold:
        return Threshold(value, fmr, "faces, templates", 0, 10_000, recogniser.model_id, "2026-01-01")

    found = (known(0.4, 1e-3), known(0.41, 9.9e-5), known(0.5, 1e-4), known(0.6, 1e-5))
    model = dataclasses.replace(recogniser.model, spec=dataclasses.replace(recogniser.model.spec, thresholds=found))
    one = point_among(model, None, 1)
    assert (one.value, one.fpir, one.too_many) == (0.4, 1e-3, "")
    assert point_among(model, None, 10).value == 0.4
    assert point_among(model, None, 11).value == 0.5
    # Pairs gave 0.41 for a rate below that for which templates gave 0.5: the stricter one holds.
    between = point_among(model, None, 101)
    assert (between.value, between.fpir, between.too_many) == (0.5, pytest.approx(9.9e-5 * 101), "")
    largest = point_among(model, None, 1000)
    assert (largest.value, largest.fpir, largest.too_many) == (0.6, pytest.approx(0.01), "")
    assert "in a search a stranger is named in at most 0.01 of looks" in str(largest)
    beyond = point_among(model, None, 2000)
    assert (beyond.value, beyond.fpir) == (0.6, pytest.approx(0.02))
    assert "too many are enrolled for this model: a stranger may be named in 0.02" in beyond.too_many
    assert point_among(model, None, 2000, max_fpir=0.05).too_many == ""
    by_hand = point_among(model, None, 2000, threshold=0.3)
    assert (by_hand.value, by_hand.fpir, by_hand.too_many) == (0.3, None, "")


def test_a_search_is_stricter_than_a_comparison_and_tells_ties(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> None:
    enroll("Twin", images_of(OWNER)[2:8], enrolled, recogniser, pipeline, now_unix_s=0, consent=False)
    asked: list[int] = []

    def among(number: int) -> Operating:
        asked.append(number)
        return Operating(at.value if len(asked) == 1 else 0.999, None)

    comparer = Comparer(enrolled, recogniser, pipeline, at, among=among)
    found = comparer.identify(images_of(OWNER)[8])
    assert isinstance(found, Match)
    assert {found.name, *found.also} == {"Owner", "Twin"}
    assert isinstance(comparer.identify(images_of(OWNER)[8]), Unknown)
    assert asked == [2, 2]
    assert isinstance(comparer.verify("Owner", images_of(OWNER)[8]), Match)


def test_a_narrow_model_takes_the_middle_of_the_crop() -> None:
    crops = noise_crops(0, 2)
    narrow = FaceInputSpec(width=96)
    np.testing.assert_array_equal(fit_crops(crops, narrow), crops[:, :, 8:104])
    # The narrow template is the wide one, 8 pixels to the left.
    np.testing.assert_allclose(narrow.template[:, 0], MASTER.template[:, 0] - 8)
    with pytest.raises(ConfigError):
        fit_crops(crops[:, :, 8:104], narrow)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_embeddings_that_are_not_usable_are_an_error(recogniser: Recogniser, bad: float) -> None:
    class Broken(Engine):
        def embed(self, theta: np.ndarray, crops: np.ndarray) -> np.ndarray:
            return np.full((len(crops), 128), bad, np.float32)

    with pytest.raises(NonFiniteError):
        dataclasses.replace(recogniser, runtime=Broken(recogniser.model)).embed(noise_crops(0))


def test_outcomes_do_not_show_scores(at: Operating) -> None:
    assert "0.987" not in repr((Match("Ada", 0.987, at), Unknown(0.987, at)))


def test_an_outcome_explains_its_score_when_asked(at: Operating) -> None:
    for outcome in (Match("Ada", 0.4567, at), Unknown(0.4567, at)):
        assert outcome.explain() == f"Score 0.457 (cosine); threshold {at}."
