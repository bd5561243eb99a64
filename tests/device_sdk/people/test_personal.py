"""The personal model on rendered faces with the real SFace: used where it is better, gone with any change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk import Device
from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.people.enroll import enroll
from device_sdk.people.enrolled import Template
from device_sdk.people.gallery import Gallery
from device_sdk.people.personal import PersonalRecogniser, personalise
from device_sdk.people.recogniser import Operating, Recogniser, operating_point
from device_sdk.people.stored_personal import StoredPersonal
from device_sdk.people.trained import Pending
from device_sdk.people.verify import Comparer, Match, Unknown
from device_sdk.runtimes.torch_runtime import TorchRuntime
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import ConfigError, NotFoundError, UnreachableError
from mien.methods.fedfr import PREVIOUS
from mien.protocol.canonical import model_to_json, to_canonical_json
from mien.protocol.tensors import PublicShard
from simulation.synthetic import committed_faces
from tests.device_sdk.made_up_people import noise_crops
from tests.device_sdk.synthetic import images_of, sface

pytestmark = pytest.mark.numerics

OWNER, STRANGER = "caucasian_0002", "asian_0007"
"""Two of the committed identities: for the first a branch is better than SFace alone, for the other it is not."""
NUM_PUBLIC = 30


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    model = sface()
    return Recogniser(model, TorchRuntime(model.spec, model.layout, threads=1))


@pytest.fixture(scope="module")
def pipeline() -> FacePipeline:
    return FacePipeline(MASTER)


@pytest.fixture(scope="module")
def shard(recogniser: Recogniser) -> PublicShard:
    people = [*committed_faces("public").values(), *committed_faces("test").values()][:NUM_PUBLIC]
    any_face = FacePipeline(MASTER, None, ChoiceRule.CENTRE)
    crops = np.stack([any_face.acquire_file(path).crop for files in people for path in files[:3]])
    labels = np.repeat(np.arange(len(people)), 3)
    return PublicShard(fit_crops(crops, recogniser.input), labels, "made up", "rendered")


@pytest.fixture(scope="module")
def at(recogniser: Recogniser) -> Operating:
    return operating_point(recogniser.model)


@pytest.fixture
def enrolled(gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline) -> Gallery:
    enroll("Owner", images_of(OWNER)[:6], gallery, recogniser, pipeline, now_unix_s=0, consent=True)
    return gallery


def in_use(gallery: Gallery, recogniser: Recogniser) -> PersonalRecogniser | None:
    stored = gallery.personal(recogniser.model_id)
    return None if stored is None else PersonalRecogniser(recogniser, stored)


def test_a_better_one_is_used_and_decides_by_its_own_threshold(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating, shard: PublicShard
) -> None:
    made = personalise(enrolled, recogniser, shard, at.value, "released")
    assert made.is_used
    assert made.gain is not None
    assert made.gain_error is not None
    assert made.gain > made.gain_error > 0
    own = made.thresholds["Owner"]
    assert (own.num_public, own.num_mated, own.is_held_out) == (NUM_PUBLIC - NUM_PUBLIC // 2, 6, True)
    assert own.num_missed <= own.num_missed_released
    personal = in_use(enrolled, recogniser)
    for image in images_of(OWNER)[6:9]:
        outcome = Comparer(enrolled, recogniser, pipeline, at, personal).verify("Owner", image)
        assert isinstance(outcome, Match)
        assert outcome.operating.personal == own
        assert isinstance(Comparer(enrolled, recogniser, pipeline, at, personal).identify(image), Match)
    stranger = Comparer(enrolled, recogniser, pipeline, at, personal).verify("Owner", images_of(STRANGER)[5])
    assert isinstance(stranger, Unknown)
    assert stranger.operating.value == own.value


def test_one_that_is_no_better_is_not_used_and_takes_an_earlier_one_along(
    gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating, shard: PublicShard
) -> None:
    enroll("Guest", images_of(STRANGER)[:6], gallery, recogniser, pipeline, now_unix_s=0, consent=True)
    gallery.keep_personal(stored(recogniser), gallery.state)
    made = personalise(gallery, recogniser, shard, at.value, "released")
    assert not made.is_used
    assert gallery.personal(recogniser.model_id) is None


def test_people_whom_it_was_not_made_for_are_compared_with_the_released_model(
    enrolled: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating, shard: PublicShard
) -> None:
    enroll("Guest", images_of(STRANGER)[:4], enrolled, recogniser, pipeline, now_unix_s=0, consent=False)
    made = personalise(enrolled, recogniser, shard, at.value, "released")
    assert set(made.thresholds) == {"Owner"}, "who has not agreed to training has no part in it"
    personal = in_use(enrolled, recogniser)
    for name, image in (("Guest", images_of(STRANGER)[6]), ("Owner", images_of(OWNER)[6])):
        verified = Comparer(enrolled, recogniser, pipeline, at, personal).verify(name, image)
        assert isinstance(verified, Match)
        assert (verified.operating.personal is None) == (name == "Guest")
        named = Comparer(enrolled, recogniser, pipeline, at, personal).identify(image)
        assert isinstance(named, Match)
        assert (named.name, named.operating) == (name, at)


def stored(recogniser: Recogniser) -> StoredPersonal:
    dim = recogniser.input.dim
    eye, zero = np.eye(dim, dtype=np.float32), np.zeros(dim, np.float32)
    return StoredPersonal(recogniser.model_id, "released", eye, zero, None, {}, 0.75)


@pytest.mark.parametrize("change", ["enroll", "remove", "withdraw", "reembed", "restore"])
def test_any_change_takes_the_personal_model_along(gallery: Gallery, recogniser: Recogniser, change: str) -> None:
    crops, dim = noise_crops(1), recogniser.input.dim
    features = np.random.default_rng(0).standard_normal((3, dim)).astype(np.float32)
    template = recogniser.template(features)
    gallery.enroll("Ada", crops, template, now_unix_s=0, consent=True)
    gallery.keep_personal(stored(recogniser), gallery.state)
    assert gallery.personal(recogniser.model_id) is not None
    match change:
        case "enroll":
            gallery.enroll("Bo", crops, template, now_unix_s=0, consent=True)
        case "remove":
            gallery.remove("Ada")
        case "withdraw":
            gallery.set_consent("Ada", granted_unix_s=None)
        case "reembed":
            gallery.reembed(recogniser.model_id, recogniser.input, lambda crops: features[: len(crops)])
        case "restore":
            gallery.restore([])
    assert gallery.personal(recogniser.model_id) is None


@pytest.mark.parametrize(
    ("option", "serves"),
    [({}, True), ({"verification.max_fmr": 1e-4}, False), ({"verification.threshold": 0.75}, True)],
)
def test_under_another_threshold_than_it_was_made_for_the_released_model_serves(
    tmp_path: Path, recogniser: Recogniser, option: dict[str, float], serves: bool
) -> None:
    strict = replace(recogniser.model.spec.thresholds[0], value=0.9, fmr=1e-4)
    model = replace(
        recogniser.model, spec=replace(recogniser.model.spec, thresholds=(*sface().spec.thresholds, strict))
    )
    with Device.open(tmp_path / "phone", options={"keystore": "file", **option}) as device:
        features = np.random.default_rng(0).standard_normal((3, recogniser.input.dim)).astype(np.float32)
        device.gallery.enroll("Ada", noise_crops(1), recogniser.template(features), now_unix_s=0, consent=True)
        device.gallery.keep_personal(stored(recogniser), device.gallery.state)
        assert (device._personal(replace(recogniser, model=model)) is not None) == serves
        known = {"model_id": model.model_id, "spec_json": model_to_json(model.spec, model.layout).decode()}
        described = to_canonical_json({**known, "theta": ["0" * 64, 4 * model.layout.size], "public_shard": None})
        device.home.models.mkdir(parents=True)
        (device.home.models / f"{model.model_id}.json").write_bytes(described)
        status = device.status()
        assert (status.personal_model, status.personal_model_is_stale) == ("released" if serves else None, not serves)


@pytest.mark.parametrize("option", [{}, {"verification.threshold": 0.75}])
def test_a_personal_model_of_a_model_that_is_not_here_serves_nobody(
    tmp_path: Path, recogniser: Recogniser, option: dict[str, float]
) -> None:
    with Device.open(tmp_path / "phone", options={"keystore": "file", **option}) as device:
        features = np.random.default_rng(0).standard_normal((3, recogniser.input.dim)).astype(np.float32)
        device.gallery.enroll("Ada", noise_crops(1), recogniser.template(features), now_unix_s=0, consent=True)
        device.gallery.keep_personal(stored(recogniser), device.gallery.state)
        status = device.status()
        assert (status.personal_model, status.personal_model_is_stale) == (None, False)


def test_new_rotations_and_keys_leave_it_in_use(gallery: Gallery, recogniser: Recogniser) -> None:
    crops = noise_crops(1)
    features = np.random.default_rng(0).standard_normal((3, recogniser.input.dim)).astype(np.float32)
    gallery.enroll("Ada", crops, recogniser.template(features), now_unix_s=0, consent=True)
    gallery.keep_personal(stored(recogniser), gallery.state)
    gallery.renew("Ada")
    gallery.rotate_key()
    assert gallery.personal(recogniser.model_id) is not None


def test_one_that_was_made_of_another_gallery_is_not_kept(gallery: Gallery, recogniser: Recogniser) -> None:
    before = gallery.state
    features = np.random.default_rng(0).standard_normal((3, recogniser.input.dim)).astype(np.float32)
    gallery.enroll("Ada", noise_crops(1), recogniser.template(features), now_unix_s=0, consent=True)
    with pytest.raises(UnreachableError, match="run again"):
        gallery.keep_personal(stored(recogniser), before)


@pytest.mark.parametrize("form", ["{}:" + "a" * 64, "b" * 64], ids=["variant", "other model"])
def test_one_that_was_made_on_another_form_than_the_gallerys_is_not_kept(
    gallery: Gallery, recogniser: Recogniser, form: str
) -> None:
    """Another process may change over between the loading of the model and the look at the gallery."""
    features = np.random.default_rng(0).standard_normal((3, recogniser.input.dim)).astype(np.float32)
    template = Template.of(features, form.format(recogniser.model_id), recogniser.input)
    gallery.enroll("Ada", noise_crops(1), template, now_unix_s=0, consent=True)
    with pytest.raises(UnreachableError, match="run again"):
        gallery.keep_personal(stored(recogniser), gallery.state)
    assert gallery.personal(recogniser.model_id) is None


def test_nothing_of_it_is_on_disk_in_clear_or_shown(tmp_path: Path, gallery: Gallery, recogniser: Recogniser) -> None:
    weight = np.random.default_rng(1).standard_normal((128, 128)).astype(np.float32)
    made = replace(stored(recogniser), pi_weight=weight)
    gallery.keep_personal(made, gallery.state)
    data = (tmp_path / "home" / "device.db").read_bytes()
    assert weight[0].tobytes() not in data
    assert "array" not in repr(made)
    gallery.close()
    again = Gallery.open(tmp_path / "home" / "device.db", FileKeyStore(tmp_path / "home" / "keys"))
    kept = again.personal(recogniser.model_id)
    assert kept is not None
    np.testing.assert_array_equal(kept.pi_weight, weight)
    again.close()


def test_what_is_missing_is_named(
    gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating, shard: PublicShard
) -> None:
    with pytest.raises(ConfigError, match="no public faces"):
        personalise(gallery, recogniser, None, at.value, "released")
    with pytest.raises(ConfigError, match="somebody enrolled who agreed"):
        personalise(gallery, recogniser, shard, at.value, "released")
    enroll("Owner", images_of(OWNER)[:3], gallery, recogniser, pipeline, now_unix_s=0, consent=True)
    few = PublicShard(shard.crops[:9], shard.labels[:9], "made up", "rendered")
    with pytest.raises(ConfigError, match="public faces of 20 people"):
        personalise(gallery, recogniser, few, at.value, "released")
    with pytest.raises(NotFoundError, match="fedfr task"):
        personalise(gallery, recogniser, shard, at.value, "local")


@pytest.fixture
def after_fedfr(enrolled: Gallery, recogniser: Recogniser) -> tuple[Gallery, NDArray[np.float32]]:
    """Return a gallery as a counted fedfr round leaves it: a backbone of its own, and a branch that changes nothing."""
    part = recogniser.model.layout.part(recogniser.model.spec.trainable)
    values = part.gather(recogniser.model.theta)
    moved = (values * (1 + 0.02 * np.random.default_rng(2).standard_normal(values.shape))).astype(np.float32)
    dim = recogniser.input.dim
    private = {
        "local_proxies": np.ones((1, dim), np.float32),
        PREVIOUS: moved,
        "pi_weight": np.eye(dim, dtype=np.float32),
        "pi_bias": np.zeros(dim, np.float32),
    }
    person = enrolled.person("Owner").id
    pending = Pending((person,), "task", 1, 1, b"", private, per_identity=("local_proxies",))
    enrolled.keep_pending(pending)
    enrolled.settle(pending, counted=True)
    return enrolled, moved


def test_the_local_form_compares_with_the_phones_own_backbone(
    after_fedfr: tuple[Gallery, NDArray[np.float32]],
    recogniser: Recogniser,
    pipeline: FacePipeline,
    at: Operating,
    shard: PublicShard,
) -> None:
    gallery, moved = after_fedfr
    made = personalise(gallery, recogniser, shard, at.value, "local")
    assert (made.form, made.gain, made.is_used) == ("local", None, True)
    assert not made.thresholds["Owner"].is_held_out
    personal = in_use(gallery, recogniser)
    assert personal is not None
    part = recogniser.model.layout.part(recogniser.model.spec.trainable)
    own = replace(recogniser, model=replace(recogniser.model, theta=part.scatter(recogniser.model.theta, moved)))
    crops = gallery.training_crops("Owner")
    np.testing.assert_allclose(personal.embed(crops), own.embed(crops), atol=1e-5)
    assert np.abs(personal.embed(crops) - recogniser.embed(crops)).max() > 1e-3
    assert isinstance(Comparer(gallery, recogniser, pipeline, at, personal).verify("Owner", images_of(OWNER)[7]), Match)
    assert isinstance(
        Comparer(gallery, recogniser, pipeline, at, personal).verify("Owner", images_of(STRANGER)[7]), Unknown
    )
