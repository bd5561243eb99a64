"""A labelled source: folders become numbers, unusable pictures are named, and the same folders are the same source."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER
from device_sdk.faces.source import read_source
from mien.errors import ConfigError, NotFoundError
from tests.device_sdk.made_up_people import noise_crops
from tests.device_sdk.synthetic import images_of

ALIGNED = FacePipeline(MASTER, None, aligned=True)


def write(folder: Path, people: dict[str, int]) -> None:
    """Write aligned crops of noise, a lossless file each, the person's number as the seed."""
    for seed, (name, count) in enumerate(people.items()):
        (folder / name).mkdir(parents=True)
        for number, crop in enumerate(noise_crops(seed, count)):
            cv2.imwrite(str(folder / name / f"{number}.png"), np.ascontiguousarray(crop[..., ::-1]))


def test_each_folder_is_one_person_in_order_of_names(tmp_path: Path) -> None:
    write(tmp_path, {"zoe": 2, "ada": 3})
    (tmp_path / "notes.txt").write_text("not a person")
    source = read_source(tmp_path, ALIGNED)
    np.testing.assert_array_equal(source.labels, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(source.crops, np.concatenate([noise_crops(1, 3), noise_crops(0, 2)]))
    assert source.num_people == 2


def test_what_cannot_be_used_is_said_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"ada": 2, "bo": 1})
    (tmp_path / "empty").mkdir()
    cv2.imwrite(str(tmp_path / "bo" / "0.png"), np.zeros((50, 50, 3), np.uint8))
    refused: list[str] = []
    source = read_source(tmp_path, ALIGNED, on_refused=refused.append)
    assert (len(source.crops), source.num_people) == (2, 1)
    assert refused[0].startswith(f"{tmp_path}/bo/0.png: the image is 50x50")
    assert "'empty'" in refused[1] or "empty" in refused[1]


def test_other_people_are_another_source(tmp_path: Path) -> None:
    write(tmp_path / "a", {"ada": 1, "bo": 1})
    write(tmp_path / "b", {"ada": 2, "bo": 2})
    write(tmp_path / "c", {"ada": 1, "cy": 1})
    first, more_pictures, others = (read_source(tmp_path / name, ALIGNED).id for name in "abc")
    assert first == more_pictures != others


def test_photographs_are_detected_and_aligned(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    for path in images_of("asian_0007")[:2]:
        (tmp_path / "ada" / path.name).write_bytes(path.read_bytes())
    source = read_source(tmp_path, FacePipeline(MASTER, None, ChoiceRule.CENTRE))
    assert source.crops.shape == (2, 112, 112, 3)


def test_a_folder_without_people_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="check `source`"):
        read_source(tmp_path / "nowhere", ALIGNED)
    with pytest.raises(ConfigError, match="one folder a person"):
        read_source(tmp_path, ALIGNED)
