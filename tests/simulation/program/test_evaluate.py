"""Every published protocol on real files of its layout, made of rendered faces; figures by hand or by another way."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from device_sdk.faces import ChoiceRule, FacePipeline, align_face, choose_face, decode_image, load_detector
from device_sdk.runtimes import load_runtime
from mien.errors import ConfigError, CorruptDataError, EmptyFolderError, NotFoundError
from mien.evaluation import det_curve, equal_error_rate, pool_templates
from mien.evaluation.protocols import bins, folders, ijb, lfw, megaface, rfw
from simulation.faces.embedding import embed_flip_sum, embed_images
from simulation.faces.folder_protocol import evaluate_folder
from simulation.faces.listed import backbone_of
from simulation.faces.models import Model, sface
from simulation.program.cli import app
from simulation.program.evaluate import PROTOCOLS, Options, evaluate_lfw, measure
from simulation.synthetic import committed_faces

NO_FACE = Path(__file__).resolve().parents[2] / "data" / "faces" / "no_face.jpg"
PEOPLE = committed_faces("test")
NAMES = list(PEOPLE)


@pytest.fixture(scope="module")
def model() -> Model:
    return sface()


def put(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)


def put_twins(folder: Path, names: Sequence[str]) -> None:
    """Write each person's first picture twice: mated scores are 1, so only other people can be mistaken."""
    for name in names:
        for number in (1, 2):
            put(PEOPLE[name][0], folder / name / f"{name}_{number:04d}.jpg")


def neighbours(names: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(names, [*names[1:], names[0]], strict=True))


def crops_of(paths: Sequence[Path]) -> NDArray[np.uint8]:
    pipeline = FacePipeline(sface().spec.input, None, ChoiceRule.CENTRE)
    return np.stack([pipeline.acquire_file(path).crop for path in paths])


@pytest.fixture(scope="module")
def crops() -> NDArray[np.uint8]:
    """Two crops of each of ten people, one person after another."""
    return crops_of([PEOPLE[name][number] for name in NAMES[:10] for number in (0, 1)])


def check_origin(record: dict[str, Any], model: Model, protocol: tuple[str, str]) -> None:
    assert (record["protocol"], record["protocol_version"]) == protocol
    assert record["model_id"] == model.model_id
    assert len(record["dataset_sha256"]) == 64
    assert record["commit"]
    json.dumps(record, allow_nan=False)


class TestPairLists:
    @pytest.fixture
    def lfw_folder(self, tmp_path: Path) -> Path:
        put_twins(tmp_path / "images", NAMES[:10])
        lines = [f"{name}\t1\t2\n{name}\t1\t{other}\t1\n" for name, other in neighbours(NAMES[:10])]
        (tmp_path / "protocol").mkdir()
        (tmp_path / "protocol" / "pairs.txt").write_text("10\t1\n" + "".join(lines))
        return tmp_path

    def test_twins_are_told_from_strangers(self, model: Model, lfw_folder: Path) -> None:
        record = measure(model, "lfw", Options(lfw_folder))
        check_origin(record, model, (lfw.PROTOCOL, lfw.VERSION))
        assert (record["accuracy"], record["std"], record["eer"]) == (1.0, 0.0, 0.0)
        assert (record["mated"], record["non_mated"], record["fte"], record["images"]) == (10, 10, 0, 20)
        assert len(record["fold_thresholds"]) == 10
        assert record["points"][0]["fnmr"] == 0.0
        assert all("at least" in point["not_measurable"] for point in record["points"][1:])
        the_coordinators = evaluate_lfw(model, lfw_folder)
        assert the_coordinators == {name: record[name] for name in the_coordinators}

    def test_a_sample_without_a_face_is_a_rejection(self, model: Model, lfw_folder: Path) -> None:
        put(NO_FACE, lfw_folder / "images" / NAMES[0] / f"{NAMES[0]}_0002.jpg")
        record = measure(model, "lfw", Options(lfw_folder))
        assert record["fte"] == 1
        assert record["accuracy"] == pytest.approx((9 * 1.0 + 0.5) / 10)
        assert record["accuracy_algorithm_level"] == 1.0
        assert (record["mated"], record["non_mated"]) == (10, 10)
        assert record["points"][0]["num_false_non_matches"] == 1

    def test_sllfw(self, model: Model, tmp_path: Path) -> None:
        put_twins(tmp_path / "images", NAMES[:10])
        lines = []
        for name, other in neighbours(NAMES[:10]):
            lines += [f"{name}/{name}_0001.jpg", f"{name}/{name}_0002.jpg"]
            lines += [f"{name}/{name}_0001.jpg", f"{other}/{other}_0001.jpg"]
        with pytest.raises(NotFoundError, match=r"pair_SLLFW\.txt cannot be read"):
            measure(model, "sllfw", Options(tmp_path))
        (tmp_path / "protocol").mkdir()
        (tmp_path / "protocol" / "pair_SLLFW.txt").write_text("\n".join(lines))
        record = measure(model, "sllfw", Options(tmp_path))
        check_origin(record, model, ("sllfw-pairs-10fold", "1"))
        assert (record["accuracy"], record["mated"], record["non_mated"], record["fte"]) == (1.0, 10, 10, 0)
        (tmp_path / "protocol" / "pair_SLLFW.txt").write_text("\n".join(lines[:-1]))
        with pytest.raises(CorruptDataError, match="39 lines, which is odd"):
            measure(model, "sllfw", Options(tmp_path))
        (tmp_path / "protocol" / "pair_SLLFW.txt").write_bytes(b"\xff\xfe")
        with pytest.raises(CorruptDataError, match="no text in UTF-8"):
            measure(model, "sllfw", Options(tmp_path))

    def test_rfw(self, model: Model, tmp_path: Path) -> None:
        """Two people a group, their twins found at rank 1; the second group has no list of people."""
        for i, group in enumerate(rfw.GROUPS):
            first, second = NAMES[2 * i : 2 * i + 2]
            put_twins(tmp_path / "data" / group, (first, second))
            (tmp_path / "txts" / group).mkdir(parents=True)
            pairs = f"{first}\t1\t2\n{first}\t1\t{second}\t1\n" * 10
            (tmp_path / "txts" / group / f"{group}_pairs.txt").write_text(pairs)
            if i != 1:
                (tmp_path / "txts" / group / f"{group}_people.txt").write_text(f"{first} 2\n{second} 2\n")
        put(NO_FACE, tmp_path / "data" / "Indian" / NAMES[7] / f"{NAMES[7]}_0002.jpg")
        record = measure(model, "rfw", Options(tmp_path))
        check_origin(record, model, (rfw.PROTOCOL, rfw.VERSION))
        assert list(record["groups"]) == list(rfw.GROUPS)
        assert (record["accuracy_algorithm_level"], record["std_over_groups"]) == (1.0, 0.0)
        assert record["skewed_error_ratio"] is None
        assert (record["mated"], record["non_mated"], record["fte"]) == (40, 40, 1)
        assert record["groups"]["Asian"]["search"] is None
        assert record["groups"]["African"]["search"] == {
            "mated": 2,
            "identities": 2,
            "rank_1": 1.0,
            "rank_5": 1.0,
            "rank_10": 1.0,
        }
        assert record["groups"]["Indian"]["search"]["rank_1"] == 0.5
        assert record["points"][0]["groups"]["Caucasian"] == {"fmr": 0.0, "fnmr": 0.0}
        (tmp_path / "txts" / "Asian" / "Asian_pairs.txt").unlink()
        with pytest.raises(NotFoundError, match=r"Asian_pairs\.txt cannot be read"):
            measure(model, "rfw", Options(tmp_path))


class TestBin:
    def file(self, path: Path, crops: NDArray[np.uint8]) -> Path:
        """Write ten mated pairs and ten of neighbours, as insightface does: a list of bytes and one of flags."""
        encoded = [cv2.imencode(".png", crop[:, :, ::-1])[1].tobytes() for crop in crops]
        images, flags = list[bytes](), list[bool]()
        for i in range(10):
            images += [encoded[2 * i], encoded[2 * i + 1], encoded[2 * i], encoded[(2 * i + 2) % 20]]
            flags += [True, False]
        path.write_bytes(pickle.dumps((images, flags), protocol=pickle.HIGHEST_PROTOCOL))
        return path

    def test_agrees_with_the_protocol(self, model: Model, tmp_path: Path, crops: NDArray[np.uint8]) -> None:
        file = self.file(tmp_path / "rendered.bin", crops)
        record = measure(model, "bin", Options(tmp_path))
        assert record == {**measure(model, "bin", Options(file)), "command": record["command"]}
        check_origin(record, model, (bins.PROTOCOL, bins.VERSION))
        assert (record["dataset"], record["dataset_sha256"]) == (
            "rendered",
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        assert (record["mated"], record["non_mated"], record["images"]) == (10, 10, 40)
        pairs = bins.parse_bin(file.read_bytes())
        order = [row for i in range(10) for row in (2 * i, 2 * i + 1, 2 * i, (2 * i + 2) % 20)]
        embeddings = embed_flip_sum(backbone_of(model), crops[order])
        expected = pairs.accuracy(embeddings)
        assert (record["accuracy"], record["std"]) == (expected.mean, expected.std_population)
        assert record["eer"] == pytest.approx(
            equal_error_rate(det_curve(pairs.comparisons(embeddings))).value, abs=1e-12
        )

    def test_what_is_refused(self, model: Model, tmp_path: Path, crops: NDArray[np.uint8]) -> None:
        with pytest.raises(NotFoundError, match=r"no \.bin file"):
            measure(model, "bin", Options(tmp_path))
        file = self.file(tmp_path / "a.bin", crops)
        (tmp_path / "b.bin").write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ConfigError, match=r"2 pair sets; name one of a\.bin, b\.bin"):
            measure(model, "bin", Options(tmp_path))
        with pytest.raises(CorruptDataError, match="it is damaged"):
            measure(model, "bin", Options(tmp_path / "b.bin"))
        self.file(file, crops[:, 8:, :])
        with pytest.raises(CorruptDataError, match=r"40 images are no crops of 112x112, first 0"):
            measure(model, "bin", Options(file))


class TestTemplates:
    """Six templates of IJB's lists: two pictures of a person each, of two media, and a probe of each of two people."""

    TEMPLATES = ((1, 0, (0, 1)), (2, 1, (0, 1)), (3, 2, (0, 1)), (11, 0, (2,)), (12, 1, (2,)), (13, 2, (2, 3)))

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        detector, meta, media, points = load_detector(), tmp_path / "meta", [], []
        number = 0
        for template, person, pictures in self.TEMPLATES:
            for picture in pictures:
                number += 1
                source = PEOPLE[NAMES[person]][picture]
                put(source, tmp_path / "loose_crop" / f"{number}.jpg")
                pixels = decode_image(source)
                face = choose_face(detector.detect(pixels), pixels.shape, ChoiceRule.CENTRE)
                media.append(f"{number}.jpg {template} {100 + number}\n")
                numbers = [repr(float(value)) for value in face.landmarks.reshape(-1)]
                points.append(f"{number}.jpg {' '.join(numbers)} 0.{number}\n")
        meta.mkdir()
        (meta / "ijbc_face_tid_mid.txt").write_text("".join(media))
        (meta / "ijbc_name_5pts_score.txt").write_text("".join(points))
        (meta / "ijbc_template_pair_label.txt").write_text("1 11 1\n2 12 1\n3 13 1\n1 12 0\n2 13 0\n3 11 0\n1 2 0\n")
        return tmp_path

    def search_lists(self, folder: Path) -> None:
        header, meta = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n", folder / "meta"
        (meta / "ijbc_1N_gallery_G1.csv").write_text(header + "1,100,a\n2,200,b\n")
        (meta / "ijbc_1N_gallery_G2.csv").write_text(header + "3,300,c\n")
        (meta / "ijbc_1N_probe_mixed.csv").write_text(header + "11,100,a\n12,200,b\n13,300,c\n")

    def test_agrees_with_the_protocol(self, model: Model, folder: Path) -> None:
        self.search_lists(folder)
        record = measure(model, "ijbc", Options(folder))
        check_origin(record, model, (ijb.PROTOCOL, ijb.VERSION))
        assert record["dataset"] == "IJB-C"
        assert (record["mated"], record["non_mated"], record["fte"], record["images"]) == (3, 4, 0, 10)
        assert (record["templates"], record["failed_templates"]) == (6, 0)

        landmarks = ijb.parse_landmarks((folder / "meta" / "ijbc_name_5pts_score.txt").read_text())
        crops = [
            align_face(decode_image(folder / "loose_crop" / image), points, model.spec.input)
            for image, points in zip(landmarks.images, landmarks.points, strict=True)
        ]
        table = ijb.parse_face_media((folder / "meta" / "ijbc_face_tid_mid.txt").read_text())
        templates = pool_templates(
            embed_flip_sum(backbone_of(model), np.stack(crops)),
            table.template_ids,
            table.media_ids,
            detector_scores=landmarks.detector_scores,
        )
        pairs = ijb.parse_template_pairs((folder / "meta" / "ijbc_template_pair_label.txt").read_text())
        curve = det_curve(pairs.score(templates))
        assert record["eer"] == pytest.approx(equal_error_rate(curve).value, abs=1e-9)
        vectors = dict(zip(templates.ids.tolist(), templates.vectors, strict=True))
        first = vectors[1] @ vectors[11] > vectors[2] @ vectors[11], vectors[2] @ vectors[12] > vectors[1] @ vectors[12]
        found = record["search"]
        # 13 is alone in its gallery; there 11 and 12 have no mate, as 13 has none in the other one.
        assert (found["mated"], found["non_mated"], found["rank_1"]) == (3, 3, (1 + sum(first)) / 3)
        assert (found["rank_5"], found["rank_10"]) == (1.0, 1.0)
        assert "not measurable" in found["points"][0]["not_measurable"]

    def test_a_template_without_an_image_is_missed(self, model: Model, folder: Path) -> None:
        self.search_lists(folder)
        (folder / "loose_crop" / "1.jpg").write_bytes(b"no image")  # template 1 has another one
        (folder / "loose_crop" / "7.jpg").write_bytes(b"no image")  # template 11 has not
        record = measure(model, "ijbc", Options(folder))
        assert (record["fte"], record["failures"], record["failed_templates"]) == (2, {"image": 2}, 1)
        assert (record["mated"], record["non_mated"], record["failed_comparisons"]) == (3, 4, 2)
        assert record["points"][0]["not_measurable"]
        assert record["search"]["mated"] == 3
        assert record["search"]["rank_10"] == 2 / 3

    def test_without_lists_of_subjects_nobody_is_searched_for(self, model: Model, folder: Path) -> None:
        assert measure(model, "ijbc", Options(folder))["search"] is None
        self.search_lists(folder)
        (folder / "meta" / "ijbc_1N_gallery_G2.csv").unlink()
        with pytest.raises(NotFoundError, match=r"ijbc_1N_gallery_G2\.csv cannot be read"):
            measure(model, "ijbc", Options(folder))

    def test_ijbb_has_names_of_its_own(self, model: Model, folder: Path) -> None:
        with pytest.raises(NotFoundError, match=r"ijbb_face_tid_mid\.txt cannot be read"):
            measure(model, "ijbb", Options(folder))
        for path in list((folder / "meta").iterdir()):
            path.rename(path.with_name(path.name.replace("ijbc", "ijbb")))
        record = measure(model, "ijbb", Options(folder))
        assert (record["dataset"], record["mated"], record["non_mated"]) == ("IJB-B", 3, 4)

    def test_damaged_lists(self, model: Model, folder: Path) -> None:
        media, points, pairs = (
            folder / "meta" / f"ijbc_{name}.txt" for name in ("face_tid_mid", "name_5pts_score", "template_pair_label")
        )
        whole = {path: path.read_text() for path in (media, points, pairs)}

        def with_text(path: Path, text: str) -> Options:
            for each, kept in whole.items():
                each.write_text(kept)
            path.write_text(text)
            return Options(folder)

        with pytest.raises(CorruptDataError, match="no image of template 99"):
            measure(model, "ijbc", with_text(pairs, "1 99 1\n1 2 0\n"))
        with pytest.raises(CorruptDataError, match=r"ijbc_template_pair_label\.txt, line 1"):
            measure(model, "ijbc", with_text(pairs, "1 2\n"))
        lines = whole[points].splitlines()
        with pytest.raises(CorruptDataError, match=r"lacks 1 images, first 10\.jpg"):
            measure(model, "ijbc", with_text(points, "\n".join(lines[:-1])))
        with pytest.raises(CorruptDataError, match=r"other points of 1\.jpg"):
            measure(model, "ijbc", with_text(points, "\n".join([*lines, lines[0] + "5"])))
        options = with_text(media, whole[media] + "gone.jpg 1 7\n")
        points.write_text(whole[points] + lines[0].replace("1.jpg", "gone.jpg", 1))
        with pytest.raises(NotFoundError, match=r"1 images of IJB-C are missing, first gone\.jpg"):
            measure(model, "ijbc", options)

    def test_points_are_of_the_image_as_it_is_stored(self, model: Model, tmp_path: Path) -> None:
        """A picture of more than 2048 pixels comes out smaller than it is stored; its points go with it."""
        small = decode_image(PEOPLE[NAMES[0]][0])
        face = choose_face(load_detector().detect(small), small.shape, ChoiceRule.CENTRE)
        factor = 3000 // max(small.shape[:2]) + 1
        large = cv2.resize(small, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
        images = []
        for name, pixels in (("small.png", small), ("large.png", large)):
            cv2.imwrite(str(tmp_path / name), pixels[:, :, ::-1])
            images.append(tmp_path / name)
        points = np.stack([face.landmarks, (face.landmarks + 0.5) * factor - 0.5])
        first, second = embed_images(backbone_of(model), images, lambda _: None, landmarks=points).embeddings
        assert first @ second / np.linalg.norm(first) / np.linalg.norm(second) > 0.98


class TestMegaFace:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        probes = [(f"{name}/{name}_{i}.jpg", name) for name in NAMES[:3] for i in (1, 2)]
        for path, name in probes:
            put(PEOPLE[name][0], tmp_path / "facescrub_images" / path)
        others = [f"set/{name}.jpg" for name in NAMES[10:15]]
        for name, path in zip(NAMES[10:15], others, strict=True):
            put(PEOPLE[name][0], tmp_path / "megaface_images" / path)
        lists = {"path": [path for path, _ in probes], "id": [name for _, name in probes]}
        (tmp_path / "facescrub_features_list.json").write_text(json.dumps(lists))
        (tmp_path / "megaface_features_list.json_5_1").write_text(json.dumps({"path": others}))
        return tmp_path

    def test_twins_are_found_among_strangers(self, model: Model, folder: Path) -> None:
        record = measure(model, "megaface", Options(folder))
        check_origin(record, model, (megaface.PROTOCOL, megaface.VERSION))
        assert (record["variant"], record["probes"], record["distractors"], record["fte"]) == ("raw", 6, 5, 0)
        assert (record["rank_1"], record["searches"], record["failed_searches"]) == (1.0, 6, 0)
        assert (record["mated"], record["non_mated"]) == (6, 30)

    def test_a_distractor_that_is_the_probe_ties_and_so_beats_it(self, model: Model, folder: Path) -> None:
        put(PEOPLE[NAMES[0]][0], folder / "megaface_images" / "set" / f"{NAMES[10]}.jpg")
        assert measure(model, "megaface", Options(folder))["rank_1"] == 4 / 6

    def test_noise_is_left_out(self, model: Model, folder: Path) -> None:
        with pytest.raises(NotFoundError, match=r"facescrub_noises\.txt"):
            measure(model, "megaface", Options(folder, refined=True))
        (folder / "facescrub_noises.txt").write_text(f"# noisy\n{NAMES[0]}_1.jpg\n")
        (folder / "megaface_noises.txt").write_text(f"set/{NAMES[10]}.jpg\n")
        record = measure(model, "megaface", Options(folder, refined=True))
        assert (record["variant"], record["probes"], record["distractors"]) == ("refined", 5, 4)
        assert (record["searches"], record["mated"], record["non_mated"]) == (4, 4, 20)

    def test_a_probe_without_a_face_is_missed(self, model: Model, folder: Path) -> None:
        put(NO_FACE, folder / "facescrub_images" / NAMES[0] / f"{NAMES[0]}_1.jpg")
        record = measure(model, "megaface", Options(folder))
        assert (record["fte"], record["failures"]) == (1, {"no_face": 1})
        assert (record["rank_1"], record["rank_1_algorithm_level"], record["failed_searches"]) == (4 / 6, 1.0, 2)

    def test_list_of_distractors(self, model: Model, folder: Path) -> None:
        with pytest.raises(NotFoundError, match="json_7_1 cannot be read"):
            measure(model, "megaface", Options(folder, distractors=7))
        (folder / "megaface_features_list.json_2_1").write_text(
            json.dumps({"path": [f"set/{name}.jpg" for name in NAMES[10:12]]})
        )
        with pytest.raises(ConfigError, match="2 lists of distractors"):
            measure(model, "megaface", Options(folder))
        assert measure(model, "megaface", Options(folder, distractors=2))["distractors"] == 2


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in NAMES[:4]:
            for picture in PEOPLE[name][:3]:
                put(picture, tmp_path / "people" / name / picture.name)
        return tmp_path / "people"

    def test_all_pairs(self, model: Model, folder: Path) -> None:
        assert measure(model, "folder", Options(folder)) == evaluate_folder(model, folder)

    def test_fixed_pairs(self, model: Model, folder: Path) -> None:
        record = measure(model, "folder", Options(folder, pairs=8, seed=3))
        check_origin(record, model, (folders.PROTOCOL, folders.VERSION))
        assert (record["mated"], record["non_mated"], record["fte"], record["seed"]) == (8, 8, 0, 3)
        keys = [f"{name}/{path.name}" for name in NAMES[:4] for path in PEOPLE[name][:3]]
        sample = folders.sample_pairs(keys, [key.split("/")[0] for key in keys], num_mated=8, num_non_mated=8, seed=3)
        crops = crops_of([folder / key for key in keys])
        scores = sample.score(load_runtime(model.spec, model.layout).embed(model.theta, crops))
        assert record["eer"] == pytest.approx(equal_error_rate(det_curve(scores)).value, abs=1e-9)
        lost = keys[int(sample.first[0])]
        put(NO_FACE, folder / lost)
        again = measure(model, "folder", Options(folder, pairs=8, seed=3))
        of_lost = [
            i for i, (a, b) in enumerate(zip(sample.first, sample.second, strict=True)) if lost in (keys[a], keys[b])
        ]
        assert (again["fte"], again["failed_comparisons"]) == (1, len(of_lost))
        assert again["mated"] + again["non_mated"] == 16 - len(of_lost)
        with pytest.raises(ConfigError, match="--pairs"):
            measure(model, "folder", Options(folder, seed=3))


class TestCommand:
    def test_json_and_table(self, tmp_path: Path) -> None:
        for name in NAMES[:3]:
            for picture in PEOPLE[name][:2]:
                put(picture, tmp_path / name / picture.name)
        arguments = ["evaluate", "sface", "--data", str(tmp_path), "--protocol", "folder"]
        done = CliRunner().invoke(app, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        record = json.loads(done.stdout)
        assert (record["protocol"], record["mated"], record["non_mated"]) == ("folder-all-pairs", 3, 12)
        assert record["command"].startswith("mien-sim")
        drawn = CliRunner().invoke(app, arguments)
        assert drawn.exit_code == 0
        assert "non mated" in drawn.stdout
        assert "FMR wanted" in drawn.stdout

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_help_names_every_protocol_and_an_empty_folder_is_told(
        self, model: Model, tmp_path: Path, protocol: str
    ) -> None:
        assert f"  {protocol} " in CliRunner().invoke(app, ["evaluate", "--help"]).stdout
        with pytest.raises((NotFoundError, EmptyFolderError)):
            measure(model, protocol, Options(tmp_path))

    def test_what_does_not_go_together(self, model: Model, tmp_path: Path) -> None:
        for protocol, wrong in (
            ("lfw", Options(tmp_path, aligned=True)),
            ("bin", Options(tmp_path, refined=True)),
            ("ijbc", Options(tmp_path, distractors=10)),
            ("rfw", Options(tmp_path, pairs=5)),
            ("megaface", Options(tmp_path, seed=0)),
        ):
            with pytest.raises(ConfigError, match=f"does not go with --protocol {protocol}"):
                measure(model, protocol, wrong)
        with pytest.raises(ConfigError, match="'ijba'; known: lfw, bin"):
            measure(model, "ijba", Options(tmp_path))
        done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "none"), "--data", str(tmp_path)])
        assert isinstance(done.exception, NotFoundError)
