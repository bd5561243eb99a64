"""FacePipeline end to end: image in, crop or one typed refusal out."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from device_sdk.faces import (
    ChoiceRule,
    FaceDetector,
    FacePipeline,
    Frame,
    QualityPolicy,
    Reason,
    align_face,
    decode_image,
)
from device_sdk.faces.images import is_picture, pixels_of
from mien.errors import ConfigError, ImageError, LowQualityError, MultipleFacesError, NoFaceError
from mien.specs import FaceInputSpec
from tests.device_sdk.faces.conftest import spread

pytestmark = pytest.mark.numerics

SPEC = FaceInputSpec()


@pytest.fixture(scope="module")
def good(pipeline: FacePipeline, synthetic_files: list[Path]) -> Path:
    """A picture that passes."""
    for path in synthetic_files:
        try:
            pipeline.acquire_file(path)
        except LowQualityError:
            continue
        return path
    pytest.fail("no synthetic picture passes the gate")


def test_acquires_the_crop_that_its_steps_make(pipeline: FacePipeline, detector: FaceDetector, good: Path) -> None:
    image = decode_image(good)
    acquired = pipeline.acquire_file(good)
    (face,) = detector.detect(image)
    assert acquired.crop.shape == (112, 112, 3)
    assert acquired.crop.dtype == np.uint8
    np.testing.assert_array_equal(acquired.crop, align_face(image, face.landmarks, SPEC))
    assert acquired.box == face.box
    assert acquired.num_faces == 1
    assert acquired.quality.accepted
    assert SPEC.network_input(acquired.crop[None]).shape == (1, 3, 112, 112)


def test_same_image_same_crop(pipeline: FacePipeline, good: Path) -> None:
    first, second = pipeline.acquire_file(good), FacePipeline(SPEC).acquire_file(good)
    np.testing.assert_array_equal(first.crop, second.crop)
    assert first.quality == second.quality


def test_a_source_is_a_file_or_pixels(pipeline: FacePipeline, good: Path, tmp_path: Path) -> None:
    crop = pipeline.acquire_file(good).crop
    pixels = decode_image(good)
    bgr = Frame(pixels[..., ::-1], order="bgr")
    picture = Image.open(good)
    for source in (good, str(good), pixels, Frame(pixels, order="rgb"), bgr, good.read_bytes(), picture):
        np.testing.assert_array_equal(pipeline.acquire_source(source).crop, crop)
    assert picture.size == (224, 224)
    wall = np.full((200, 200, 3), 120, np.uint8)
    Image.fromarray(wall).save(tmp_path / "wall.png")
    with pytest.raises(NoFaceError, match=rf"^{re.escape(str(tmp_path))}/wall\.png: no face found"):
        pipeline.acquire_source(tmp_path / "wall.png")
    with pytest.raises(NoFaceError, match=r"^no face found"):
        pipeline.acquire_source(wall)


def test_crop_stays_out_of_the_representation(pipeline: FacePipeline, good: Path) -> None:
    text = repr(pipeline.acquire_file(good))
    assert "crop" not in text
    assert "array" not in text


def test_no_face(pipeline: FacePipeline, tmp_path: Path) -> None:
    path = tmp_path / "wall.png"
    Image.new("RGB", (200, 200), (90, 120, 150)).save(path)
    with pytest.raises(NoFaceError, match=f"^{re.escape(str(path))}: no face found"):
        pipeline.acquire_file(path)
    with pytest.raises(NoFaceError, match=r"^no face found"):
        pipeline.acquire(decode_image(path))


def test_two_people(detector: FaceDetector, pipeline: FacePipeline, good: Path) -> None:
    image = decode_image(good)
    both = np.concatenate((image, image), axis=1)
    with pytest.raises(MultipleFacesError, match=r"^group: 2 faces"):
        pipeline.acquire(both, name="group")
    centre = FacePipeline(SPEC, choice=ChoiceRule.CENTRE, detector=detector)
    assert centre.acquire(both).num_faces == 2


def test_low_quality_has_reasons_and_hints(pipeline: FacePipeline, good: Path) -> None:
    with pytest.raises(LowQualityError) as raised:
        pipeline.acquire((decode_image(good) * 0.15).astype(np.uint8), name="cellar.jpg")
    assert Reason.TOO_DARK in raised.value.reasons
    assert str(raised.value).startswith("cellar.jpg: ")
    assert Reason.TOO_DARK.hint in str(raised.value)


def test_policy_is_obeyed_and_none_rejects_nothing(detector: FaceDetector, good: Path) -> None:
    strict = FacePipeline(SPEC, QualityPolicy(min_eye_distance_px=500), detector=detector)
    with pytest.raises(LowQualityError, match="move closer"):
        strict.acquire_file(good)
    dark = (decode_image(good) * 0.15).astype(np.uint8)
    assert FacePipeline(SPEC, None, detector=detector).acquire(dark).quality.reasons == ()


def test_a_policy_may_refuse_faces_that_are_not_upright(detector: FaceDetector, good: Path) -> None:
    turned = np.ascontiguousarray(np.rot90(decode_image(good), 2))
    strict = FacePipeline(SPEC, QualityPolicy(max_roll_deg=45), detector=detector)
    with pytest.raises(LowQualityError, match="turn the picture"):
        strict.acquire(turned)
    assert FacePipeline(SPEC, detector=detector).acquire(turned).quality.accepted


def test_aligned_crops_are_taken_as_they_are(pipeline: FacePipeline, good: Path) -> None:
    crop = pipeline.acquire_file(good).crop
    acquired = FacePipeline(SPEC, aligned=True).acquire(crop)
    np.testing.assert_array_equal(acquired.crop, crop)
    assert acquired.box is None
    assert acquired.quality.geometry is None
    assert acquired.quality.appearance == pipeline.acquire_file(good).quality.appearance


def test_aligned_needs_no_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_sdk.faces.pipeline.load_detector", lambda: pytest.fail("detector was loaded"))
    FacePipeline(SPEC, aligned=True)


def test_aligned_is_never_guessed(good: Path) -> None:
    pipeline = FacePipeline(SPEC, aligned=True)
    with pytest.raises(ImageError, match=rf"^{re.escape(str(good))}: the image is 224x224, an aligned crop is 112x112"):
        pipeline.acquire_file(good)


@pytest.mark.parametrize(
    "image",
    [np.zeros((9, 9), np.uint8), np.zeros((9, 9, 4), np.uint8), np.zeros((9, 9, 3), np.float32)],
    ids=["grey", "four channels", "float"],
)
def test_other_arrays_are_refused(pipeline: FacePipeline, image: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match="uint8 RGB"):
        pipeline.acquire(image)
    with pytest.raises(ConfigError, match=r"give pixels \(height, width, 3\)"):
        Frame(image, order="bgr")


@pytest.mark.parametrize("source", [None, 7, [[0]], open], ids=["nothing", "number", "list", "function"])
def test_what_is_no_picture_is_refused_by_a_sentence(pipeline: FacePipeline, source: object) -> None:
    with pytest.raises(
        ConfigError, match=r"a picture is given as .*; give a file, its bytes, a Pillow picture, a Frame"
    ):
        pipeline.acquire_source(source)  # type: ignore[arg-type]


def test_one_picture_is_told_from_several(good: Path) -> None:
    one = np.zeros((4, 4, 3), np.uint8)
    assert all(map(is_picture, (good, str(good), b"jpeg", one, Frame(one, order="bgr"), Image.new("L", (2, 2)))))
    assert not any(map(is_picture, ([one], (good,), one[np.newaxis], iter([one]))))


def test_a_frame_says_the_order_of_its_colours() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(Frame(pixels, order="bgr").rgb, pixels[..., ::-1])
    assert "array" not in repr(Frame(pixels, order="rgb"))
    with pytest.raises(ConfigError, match="order is 'gbr'; say rgb, or bgr"):
        Frame(pixels, order="gbr")  # type: ignore[arg-type]


def test_a_pillow_picture_is_read_as_its_file_would_be_and_left_alone() -> None:
    clear = Image.new("RGBA", (3000, 10), (255, 0, 0, 0))
    np.testing.assert_array_equal(pixels_of(clear)[0, 0], [255, 255, 255])
    assert (clear.size, clear.mode) == ((3000, 10), "RGBA")
    large = Image.new("RGB", (3000, 10))
    assert pixels_of(large).shape[1] == 2048
    assert large.size == (3000, 10)
    with pytest.raises(ImageError, match="the picture holds F pixels"):
        pixels_of(Image.new("F", (4, 4)))


def test_threads_may_share_a_pipeline(pipeline: FacePipeline, synthetic_files: list[Path]) -> None:
    images = [decode_image(path) for path in spread(synthetic_files, 6)]
    images = [np.ascontiguousarray(image[: 224 - 8 * i]) for i, image in enumerate(images)]  # different sizes
    lenient = FacePipeline(SPEC, None, ChoiceRule.CENTRE, detector=pipeline._detector)
    expected = [lenient.acquire(image).crop for image in images]
    results: list[bool] = []

    def work() -> None:
        for image, crop in zip(images, expected, strict=True):
            results.append(bool((lenient.acquire(image).crop == crop).all()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 18
