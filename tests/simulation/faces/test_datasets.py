"""Folders of people as crops: what is read, what is left out, and that nobody goes missing without a word."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.errors import ConfigError, EmptyFolderError, NotFoundError
from mien.specs import FaceInputSpec
from simulation.faces.datasets import digest, find_people, read_people, split_people
from simulation.synthetic import committed_faces

ODD = Path(__file__).resolve().parents[2] / "data" / "faces"
SPEC = FaceInputSpec()


@pytest.fixture(scope="module")
def pipeline() -> FacePipeline:
    return FacePipeline(SPEC, policy=None, choice=ChoiceRule.CENTRE)


def fill(folder: Path, num_people: int, num_images: int) -> dict[str, list[Path]]:
    """Copy synthetic people into `folder` as person0, person1, ... and return their files."""
    faces = list(committed_faces("public").values())[:num_people]
    people = {}
    for number, files in enumerate(faces):
        person = folder / f"person{number}"
        person.mkdir(parents=True)
        people[person.name] = [Path(shutil.copy(path, person)) for path in files[:num_images]]
    return people


class TestFindPeople:
    def test_people_and_images_come_in_order(self, tmp_path: Path) -> None:
        for name in ("bea/2.png", "bea/10.JPG", "ada/x.jpeg", "ada/notes.txt"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.touch()
        found = find_people(tmp_path)
        assert [(name, [p.name for p in files]) for name, files in found.items()] == [
            ("ada", ["x.jpeg"]),
            ("bea", ["10.JPG", "2.png"]),
        ]

    def test_junk_is_not_a_person(self, tmp_path: Path) -> None:
        expected = fill(tmp_path, 2, 1)
        (tmp_path / "loose.jpg").touch()
        (tmp_path / "README").touch()
        (tmp_path / "empty").mkdir()
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "a.txt").touch()
        for junk in (".thumbnails/a.jpg", "__MACOSX/._a.jpg", "person0/nested/deeper/b.jpg", "deep/below/c.jpg"):
            path = tmp_path / junk
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(expected["person0"][0], path)
        (tmp_path / "person1" / "folder.jpg").mkdir()
        os.mkfifo(tmp_path / "person1" / "pipe.jpg")
        assert find_people(tmp_path) == expected

    def test_people_with_too_few_images_are_left_out(self, tmp_path: Path) -> None:
        fill(tmp_path, 2, 2)
        (tmp_path / "person1" / "00.jpg").unlink()
        assert list(find_people(tmp_path, min_images=2)) == ["person0"]
        with pytest.raises(EmptyFolderError, match="nobody with at least 3 images"):
            find_people(tmp_path, min_images=3)

    @pytest.mark.parametrize("num_images", [0, -1])
    def test_a_person_has_an_image_at_least(self, tmp_path: Path, num_images: int) -> None:
        (tmp_path / "nobody").mkdir()
        with pytest.raises(EmptyFolderError):
            find_people(tmp_path, min_images=num_images)

    def test_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path / "none", tmp_path / "file"):
            with pytest.raises(NotFoundError, match="a folder of images per person"):
                find_people(path)

    def test_links_are_followed_and_dead_ones_left_out(self, tmp_path: Path) -> None:
        elsewhere = fill(tmp_path / "elsewhere", 2, 2)
        folder = tmp_path / "faces"
        (folder / "linked_files").mkdir(parents=True)
        for path in elsewhere["person0"]:
            (folder / "linked_files" / path.name).symlink_to(path)
        (folder / "linked_files" / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
        (folder / "linked_files" / "loop.jpg").symlink_to(folder / "linked_files" / "loop.jpg")
        (folder / "linked_folder").symlink_to(elsewhere["person1"][0].parent)
        (folder / "dead").symlink_to(tmp_path / "nowhere")
        (folder / "up").symlink_to(folder)  # holds no images itself, only people
        found = find_people(folder)
        assert {name: len(files) for name, files in found.items()} == {"linked_files": 2, "linked_folder": 2}
        assert digest({"x": found["linked_folder"]}) == digest({"x": elsewhere["person1"]})

    def test_one_person_under_two_names_is_refused(self, tmp_path: Path) -> None:
        fill(tmp_path, 1, 1)
        (tmp_path / "zoe").symlink_to(tmp_path / "person0")
        with pytest.raises(ConfigError, match="person0 and zoe are one folder"):
            find_people(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
    def test_folder_that_may_not_be_read(self, tmp_path: Path) -> None:
        fill(tmp_path, 1, 1)
        (tmp_path / "person0").chmod(0)
        try:
            with pytest.raises(NotFoundError, match="permissions"):
                find_people(tmp_path)
        finally:
            (tmp_path / "person0").chmod(0o700)


class TestReadPeople:
    def test_failures_are_listed_and_labels_stay_with_their_people(
        self, tmp_path: Path, pipeline: FacePipeline
    ) -> None:
        good = fill(tmp_path, 2, 2)
        (tmp_path / "person0" / "a_broken.jpg").write_bytes(good["person0"][0].read_bytes()[:500])
        (tmp_path / "person0" / "b_text.png").write_text("no image")
        (tmp_path / "person0" / "c_empty.jpg").touch()
        shutil.copy(ODD / "no_face.jpg", tmp_path / "person0" / "d_no_face.jpg")
        (tmp_path / "hidden").mkdir()  # sorted before person0: everybody's label moves
        shutil.copy(ODD / "no_face.jpg", tmp_path / "hidden")
        read = read_people(find_people(tmp_path), pipeline)
        assert read.names == ("hidden", "person0", "person1")
        assert read.labels.tolist() == [1, 1, 2, 2]
        assert read.crops.shape == (4, 112, 112, 3)
        assert read.crops.dtype == np.uint8
        assert {(f.name, f.code) for f in read.failures} == {
            ("hidden/no_face.jpg", "no_face"),
            ("person0/a_broken.jpg", "image"),
            ("person0/b_text.png", "image"),
            ("person0/c_empty.jpg", "image"),
            ("person0/d_no_face.jpg", "no_face"),
        }
        for name in ("person0", "person1"):
            expected = [pipeline.acquire_file(path).crop for path in good[name]]
            assert np.array_equal(read.of(name), np.stack(expected))
        assert len(read.of("hidden")) == 0

    def test_of_two_faces_the_rule_chooses(self, tmp_path: Path, pipeline: FacePipeline) -> None:
        (tmp_path / "two").mkdir()
        shutil.copy(ODD / "two_faces.jpg", tmp_path / "two")
        people = find_people(tmp_path)
        assert len(read_people(people, pipeline).crops) == 1
        with pytest.raises(EmptyFolderError, match=r"multiple_faces \(1\)"):
            read_people(people, FacePipeline(SPEC, policy=None, choice=ChoiceRule.ONLY))

    def test_nobody_usable_says_why(self, tmp_path: Path, pipeline: FacePipeline) -> None:
        (tmp_path / "ada").mkdir()
        shutil.copy(ODD / "no_face.jpg", tmp_path / "ada")
        (tmp_path / "ada" / "x.jpg").touch()
        (tmp_path / "ada" / "y.jpg").touch()
        with pytest.raises(EmptyFolderError, match=r"of these 1 people gives a face: image \(2\), no_face \(1\)"):
            read_people(find_people(tmp_path), pipeline)

    def test_aligned_crops_are_taken_as_they_are(self, tmp_path: Path) -> None:
        crop = np.random.default_rng(0).integers(0, 256, (112, 112, 3), dtype=np.uint8)
        (tmp_path / "ada").mkdir()
        assert cv2.imwrite(str(tmp_path / "ada" / "0.png"), crop[:, :, ::-1])
        assert cv2.imwrite(str(tmp_path / "ada" / "1.png"), crop[:50])
        read = read_people(find_people(tmp_path), FacePipeline(SPEC, policy=None, aligned=True))
        assert np.array_equal(read.crops, crop[None])
        assert [(f.name, f.code) for f in read.failures] == [("ada/1.png", "image")]

    def test_repr_shows_no_faces(self, tmp_path: Path, pipeline: FacePipeline) -> None:
        fill(tmp_path, 1, 1)
        shown = repr(read_people(find_people(tmp_path), pipeline))
        assert "array" not in shown
        assert "person0" not in shown


class TestDigest:
    def test_is_of_names_and_contents(self, tmp_path: Path) -> None:
        (tmp_path / "ada").mkdir()
        (tmp_path / "ada" / "1.jpg").write_bytes(b"one")
        (tmp_path / "ada" / "2.jpg").write_bytes(b"two")
        people = find_people(tmp_path)
        plain = hashlib.sha256()
        for name, content in ((b"ada/1.jpg", b"one"), (b"ada/2.jpg", b"two")):
            plain.update(name + b"\0" + hashlib.sha256(content).digest())
        assert digest(people) == plain.hexdigest()
        assert digest({"bea": people["ada"]}) != plain.hexdigest()
        (tmp_path / "ada" / "2.jpg").write_bytes(b"twO")
        assert digest(people) != plain.hexdigest()

    def test_does_not_depend_on_the_order_of_people(self) -> None:
        people = dict(list(committed_faces("public").items())[:3])
        assert digest(dict(reversed(people.items()))) == digest(people)

    def test_file_that_went_away(self, tmp_path: Path) -> None:
        people = fill(tmp_path, 1, 1)
        people["person0"][0].unlink()
        with pytest.raises(NotFoundError, match=r"person0/00\.jpg cannot be read"):
            digest(people)

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        folder = os.fsencode(tmp_path) + b"/\xff\xfe"
        os.mkdir(folder)  # noqa: PTH102 - pathlib takes no bytes
        shutil.copy(ODD / "no_face.jpg", os.fsdecode(folder))
        assert len(digest(find_people(tmp_path))) == 64


class TestSplitPeople:
    PEOPLE: ClassVar = {f"p{i}": [Path(f"p{i}/0.jpg")] for i in range(10)}

    def test_groups_are_disjoint_complete_and_repeatable(self) -> None:
        groups = split_people(self.PEOPLE, (3, 2, -1), seed=4)
        assert [len(group) for group in groups] == [3, 2, 5]
        assert sorted(name for group in groups for name in group) == sorted(self.PEOPLE)
        assert groups == split_people(dict(reversed(self.PEOPLE.items())), (3, 2, -1), seed=4)
        assert groups != split_people(self.PEOPLE, (3, 2, -1), seed=5)
        assert all(list(group) == sorted(group) for group in groups)

    @pytest.mark.parametrize("counts", [(11,), (3, 8), (10, -1), (0, 3), (-1, 1), (-2,), (3, -5)])
    def test_splits_that_cannot_be(self, counts: tuple[int, ...]) -> None:
        with pytest.raises(EmptyFolderError, match="10 usable people"):
            split_people(self.PEOPLE, counts, seed=0)
