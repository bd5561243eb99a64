"""The committed synthetic faces, and the generator's parts that need no face model."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from device_sdk.faces import FacePipeline, Reason, decode_image, load_detector
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    LowQualityError,
    MissingDependencyError,
    MultipleFacesError,
    NoFaceError,
    NotFoundError,
)
from mien.specs import FaceInputSpec
from simulation import synthetic
from simulation.synthetic import committed_faces, committed_root, read_manifest, verify_manifest
from simulation.synthetic.bust import Bust, Part
from simulation.synthetic.generate import MAX_ATTEMPTS, Order, domain_of, generate, split_of
from simulation.synthetic.geometry import Floats, raise_surface, rotation_vector, turn, vertex_normals
from simulation.synthetic.model import FaceModel, load_anny
from simulation.synthetic.paint import hair_share
from simulation.synthetic.parameters import (
    ACTIONS_PER_IMAGE,
    DOMAINS,
    FACIAL_ACTIONS,
    SHAPE_REGIONS,
    IdentityParameters,
    ImageParameters,
    draw_identity,
    draw_image,
    shape_slider_names,
)
from simulation.synthetic.render import Image, Projection, corner_weights, draw, encode_jpeg, project, visible_triangles

SAMPLES = Path(__file__).parents[2] / "data" / "faces"

# A square of 20 cm that faces the camera, its two triangles counter-clockwise as seen from there.
SQUARE = np.array([(-0.1, 0.0, -0.1), (0.1, 0.0, -0.1), (0.1, 0.0, 0.1), (-0.1, 0.0, 0.1)])
SQUARE_TRIANGLES = np.array([(0, 1, 2), (0, 2, 3)], np.int32)


@dataclass(frozen=True, eq=False)
class FlatModel:
    """The smallest source of vertices: the square, as wide as the identity's first slider says."""

    bust: Bust

    def vertices(self, identity: IdentityParameters, image: ImageParameters) -> Floats:
        return SQUARE * (1 + 0.5 * identity.shape["head-angle-out"])


def square_bust(part: Part) -> Bust:
    zero = np.zeros(4)
    return Bust(
        triangles=SQUARE_TRIANGLES,
        part=np.full(2, part, np.uint8),
        template=SQUARE * 100,
        follow=np.ones(4),
        lips=zero,
        ears=zero,
        eyelids=zero,
    )


def plain_image() -> ImageParameters:
    """A picture straight from the front in even light, without the camera's faults."""
    return replace(
        draw_image(0, 0, 0),
        yaw_rad=0.0,
        pitch_rad=0.0,
        roll_rad=0.0,
        head_height=0.5,
        centre=(0.5, 0.5),
        light=(0.0, 1.0, 0.0),
        ambient=1.0,
        exposure=1.0,
        background=((255.0, 0.0, 0.0), (255.0, 0.0, 0.0)),
    )


def accept_all(image: Image) -> bool:
    return True


@pytest.fixture(scope="module")
def model() -> FaceModel:
    """The real face model, loaded once."""
    return FaceModel()


@pytest.fixture(scope="module")
def pipeline() -> FacePipeline:
    """The face pipeline with the device's default quality policy."""
    return FacePipeline(FaceInputSpec())


class TestCommittedFaces:
    def test_every_file_is_as_the_manifest_says(self) -> None:
        manifest = verify_manifest()
        assert (manifest.identities, manifest.images_per_identity) == (60, 10)
        assert manifest.licence == "CC0-1.0"
        assert manifest.dataset_sha256 in (committed_root() / "README.md").read_text(encoding="utf-8")
        assert manifest.command in (committed_root() / "README.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize(("split", "people"), [("phones", 10), ("public", 20), ("test", 30)])
    def test_split_has_ten_pictures_of_each_person(self, split: str, people: int) -> None:
        faces = committed_faces(split)
        assert len(faces) == people
        assert all([path.name for path in paths] == [f"{k:02d}.jpg" for k in range(10)] for paths in faces.values())
        assert all(path.parts[-3] == split and path.is_file() for paths in faces.values() for path in paths)

    def test_nobody_is_in_two_splits_and_domains_are_balanced(self) -> None:
        names = [name for split in synthetic.SPLITS for name in committed_faces(split)]
        assert len({name.split("_")[1] for name in names}) == 60
        assert [sum(name.startswith(domain) for name in names) for domain in DOMAINS] == [20, 20, 20]
        of_test = committed_faces("test")
        assert [sum(name.startswith(domain) for name in of_test) for domain in DOMAINS] == [10, 10, 10]

    def test_files_are_small_pictures_without_metadata(self) -> None:
        files = [path for split in synthetic.SPLITS for paths in committed_faces(split).values() for path in paths]
        assert 2e6 < sum(path.stat().st_size for path in files) < 4.5e6
        for path in files[::25]:
            data = path.read_bytes()
            assert b"Exif" not in data
            assert decode_image(data).shape == (224, 224, 3)

    def test_detector_finds_one_face(self) -> None:
        detector = load_detector()
        for split in synthetic.SPLITS:
            for number, paths in enumerate(committed_faces(split).values()):
                assert len(detector.detect(decode_image(paths[number % 10]))) == 1, paths[number % 10].name

    def test_parameters_still_draw_the_people_of_the_manifest(self) -> None:
        manifest = read_manifest()
        expected = {f"{split_of(i, manifest.identities)}/{domain_of(i)}_{i:04d}" for i in range(manifest.identities)}
        assert {path.rsplit("/", 1)[0] for path in manifest.sha256_of_file} == expected

    def test_unknown_split_is_refused_by_name(self) -> None:
        with pytest.raises(ConfigError, match="'train' is unknown; use one of phones, public, test"):
            committed_faces("train")

    def test_sface_finds_the_test_people_hard(self) -> None:
        import torch

        from device_sdk.models.packaged import sface_path
        from mien.backbones.importers import import_sface
        from mien.evaluation.scores import all_pairs
        from mien.evaluation.verification import det_curve, equal_error_rate
        from simulation.faces.datasets import read_people

        backbone, _ = import_sface(sface_path().read_bytes())
        backbone.eval()
        people = read_people(committed_faces("test"), FacePipeline(backbone.input_spec, policy=None))
        assert people.failures == ()
        batches = np.array_split(people.crops, 75)
        with torch.inference_mode():
            embeddings = [backbone(torch.from_numpy(backbone.input_spec.network_input(batch))) for batch in batches]
        comparisons = all_pairs(torch.cat(embeddings).numpy(), people.labels)
        assert (len(comparisons.mated), len(comparisons.non_mated)) == (1350, 43500)
        # faces/README.md states 15.7 %; far from it, experiments on these people would mean something else.
        assert equal_error_rate(det_curve(comparisons)).value == pytest.approx(0.157, abs=0.005)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of six people, as it was generated."""
    folder = tmp_path_factory.mktemp("generated") / "set"
    generate(FlatModel(square_bust(Part.TONGUE)), Order(identities=6, images=2, seed=5), folder, accept_all)
    return folder


class TestManifest:
    @pytest.fixture
    def folder(self, generated: Path, tmp_path: Path) -> Path:
        """A set of a test's own."""
        return Path(shutil.copytree(generated, tmp_path / "set"))

    def test_loader_reads_another_set(self, folder: Path) -> None:
        assert list(committed_faces("phones", folder)) == ["african_0000"]
        assert list(committed_faces("public", folder)) == ["asian_0001", "caucasian_0002"]
        assert list(committed_faces("test", folder)) == ["african_0003", "asian_0004", "caucasian_0005"]
        assert verify_manifest(folder).images_per_identity == 2

    def test_changed_picture_is_named(self, folder: Path) -> None:
        victim = folder / "public/asian_0001/01.jpg"
        victim.write_bytes(victim.read_bytes() + b"\0")
        with pytest.raises(CorruptDataError, match=r"public/asian_0001/01\.jpg is not the picture"):
            verify_manifest(folder)

    def test_missing_picture_is_named(self, folder: Path) -> None:
        (folder / "test/african_0003/00.jpg").unlink()
        with pytest.raises(CorruptDataError, match=r"test/african_0003/00\.jpg is missing"):
            verify_manifest(folder)

    def test_stray_picture_is_named(self, folder: Path) -> None:
        (folder / "test/african_0003/07.jpg").write_bytes(b"")
        with pytest.raises(CorruptDataError, match=r"test/african_0003/07\.jpg is not in"):
            verify_manifest(folder)

    def test_folder_without_a_manifest_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="generate the set again"):
            read_manifest(tmp_path)

    @pytest.mark.parametrize("path", ["test/../../x.jpg", "../a/00.jpg", "train/a/00.jpg", "a.jpg", "test//00.jpg"])
    def test_paths_out_of_the_set_are_refused(self, folder: Path, path: str) -> None:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        manifest["files"][path] = {"sha256": "00", "attempt": 0}
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        with pytest.raises(CorruptDataError, match="not of format 1"):
            verify_manifest(folder)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "nonsense"])
    def test_other_formats_are_refused(self, folder: Path, text: str) -> None:
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        with pytest.raises(CorruptDataError, match="not of format 1"):
            read_manifest(folder)


class TestParameters:
    def test_equal_arguments_draw_equal_parameters(self) -> None:
        assert draw_identity(3, 8, "asian") == draw_identity(3, 8, "asian")
        assert draw_image(3, 8, 2, 1) == draw_image(3, 8, 2, 1)

    def test_every_argument_counts(self) -> None:
        assert draw_identity(3, 8, "asian").shape != draw_identity(3, 9, "asian").shape
        assert draw_identity(3, 8, "asian").shape != draw_identity(4, 8, "asian").shape
        poses = {
            draw_image(*key).yaw_rad for key in ((3, 8, 2, 1), (4, 8, 2, 1), (3, 9, 2, 1), (3, 8, 3, 1), (3, 8, 2, 0))
        }
        assert len(poses) == 5

    def test_draws_do_not_depend_on_the_machine(self) -> None:
        # numpy promises the streams of SeedSequence and PCG64: the first uniform number of the key (0, 0, 0, 0).
        first = np.random.Generator(np.random.PCG64(np.random.SeedSequence((0, 0, 0, 0)))).uniform(0.0, 0.12)
        assert draw_identity(0, 0, "asian").phenotype["african"] == first

    def test_faces_are_symmetric(self) -> None:
        shape = draw_identity(0, 1, "african").shape
        left = [name for name in shape if name.startswith("l-")]
        assert len(left) == 31
        assert all(shape[name] == shape["r-" + name[2:]] for name in left)
        assert not any(name.endswith("-trans-out") and not name.startswith(("l-", "r-")) for name in shape)

    def test_sliders_are_the_groups_of_the_model(self) -> None:
        assert sum(len(groups) for groups in SHAPE_REGIONS.values()) == 102
        names = shape_slider_names()
        assert len(names) == len(set(names)) == 102 + 31
        assert set(draw_identity(0, 0, "asian").shape) == set(names)

    def test_spread_is_as_stated(self) -> None:
        people = [draw_identity(0, i, DOMAINS[i % 3]).shape for i in range(300)]
        nose = np.array([[v for k, v in shape.items() if k.startswith("nose")] for shape in people])
        mouth = np.array([[v for k, v in shape.items() if k.startswith("mouth")] for shape in people])
        # 6000 and 6300 draws: the standard error of a standard deviation is below 1 %.
        assert nose.std() == pytest.approx(synthetic_spread("SHAPE_SPREAD"), rel=0.04)
        assert mouth.std() == pytest.approx(synthetic_spread("QUIET_SPREAD"), rel=0.04)

    def test_expression_moves_six_actions_within_limits(self) -> None:
        assert len(set(FACIAL_ACTIONS)) == 52
        for k in range(50):
            actions = draw_image(0, 0, k).actions
            assert len(actions) == ACTIONS_PER_IMAGE
            assert set(actions) <= set(FACIAL_ACTIONS)
            assert all(0 <= value <= 0.6 for value in actions.values())

    @pytest.mark.parametrize("key", [(-1, 0, 0), (0, -1, 0), (2**32, 0, 0)])
    def test_numbers_out_of_range_are_refused(self, key: tuple[int, int, int]) -> None:
        with pytest.raises(ConfigError, match="use integers from 0"):
            draw_image(*key)

    def test_unknown_domain_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'martian' is unknown"):
            draw_identity(0, 0, "martian")


def synthetic_spread(name: str) -> float:
    from simulation.synthetic import parameters

    return float(getattr(parameters, name))


class TestGeometry:
    def test_normals_of_a_square_point_to_the_camera(self) -> None:
        assert np.allclose(vertex_normals(SQUARE, SQUARE_TRIANGLES), (0, -1, 0))

    def test_lone_vertex_has_no_normal(self) -> None:
        lone = np.vstack([SQUARE, (5.0, 5.0, 5.0)])
        assert np.array_equal(vertex_normals(lone, SQUARE_TRIANGLES)[4], (0, 0, 0))

    def test_raised_surface_moves_along_its_normals(self) -> None:
        raised = raise_surface(SQUARE, SQUARE_TRIANGLES, np.array([0.0, 0.01, 0.02, 0.03]))
        assert np.allclose(raised - SQUARE, [(0, 0, 0), (0, -0.01, 0), (0, -0.02, 0), (0, -0.03, 0)])

    @pytest.mark.parametrize(
        ("yaw", "pitch", "roll", "expected"),
        [
            (0.0, 0.0, 0.0, (0, -1, 0)),
            (np.pi / 2, 0.0, 0.0, (1, 0, 0)),  # looks to its own left
            (0.0, np.pi / 2, 0.0, (0, 0, -1)),  # looks down
            (0.0, 0.0, np.pi / 2, (0, -1, 0)),  # rolls about the view axis
            (np.pi / 2, np.pi / 2, 0.0, (0, 0, -1)),  # down first, then to the left
        ],
    )
    def test_head_turns_as_named(self, yaw: float, pitch: float, roll: float, expected: tuple[int, ...]) -> None:
        gaze = turn(np.array([(0.0, -1.0, 0.0)]), np.ones(1), rotation_vector(yaw, pitch, roll), np.zeros(3))
        assert np.allclose(gaze[0], expected, atol=1e-12)

    def test_neck_turns_by_its_share(self) -> None:
        points = np.array([(0.0, -1.0, 0.0)] * 3)
        turned = turn(points, np.array([0.0, 0.5, 1.0]), rotation_vector(np.pi / 2, 0, 0), np.zeros(3))
        half = np.sqrt(0.5)
        assert np.allclose(turned, [(0, -1, 0), (half, -half, 0), (1, 0, 0)])


class TestRenderer:
    def test_projection_of_hand_computed_points(self) -> None:
        # The camera stands 1.4 m before the target: a point 1.4 m behind the target is half as large.
        view = project(np.array([(0.0, 0.0, 0.0), (0.1, 0.0, 0.1), (0.1, 1.4, 0.1)]), np.zeros(3), 100.0, (50.0, 50.0))
        assert np.allclose(view.pixels, [(50, 50), (60, 40), (55, 45)])
        assert np.allclose(view.depth, [1.4, 1.4, 2.8])

    def test_nearer_triangle_hides_the_farther(self) -> None:
        pixels = np.array([(0.0, 9.0), (9.0, 9.0), (0.0, 0.0)] * 2)
        triangles = np.array([(0, 1, 2), (3, 4, 5)], np.int32)
        near_first = visible_triangles(Projection(pixels, np.array([1.0] * 3 + [2.0] * 3)), triangles, 10)
        near_last = visible_triangles(Projection(pixels, np.array([2.0] * 3 + [1.0] * 3)), triangles, 10)
        assert set(np.unique(near_first)) == {-1, 0}
        assert set(np.unique(near_last)) == {-1, 1}
        assert np.array_equal(near_first >= 0, near_last >= 0)

    def test_triangle_that_looks_away_is_not_drawn(self) -> None:
        view = Projection(np.array([(0.0, 9.0), (9.0, 9.0), (0.0, 0.0)]), np.ones(3))
        assert (visible_triangles(view, np.array([(0, 2, 1)], np.int32), 10) == -1).all()

    def test_corner_weights_are_barycentric(self) -> None:
        view = Projection(np.array([(0.0, 0.0), (4.0, 0.0), (0.0, 4.0)]), np.ones(3))
        corners = np.array([(0, 1, 2)] * 3, np.int32)
        weights = corner_weights(view, corners, np.array([(0.0, 0.0), (1.0, 2.0), (2.0, 2.0)]))
        assert np.allclose(weights, [(1, 0, 0), (0.25, 0.25, 0.5), (0, 0.5, 0.5)])

    def test_square_is_drawn_where_and_as_light_as_it_should(self) -> None:
        look = draw_identity(0, 0, "asian").look
        picture = draw(square_bust(Part.TONGUE), SQUARE, look, plain_image(), size_px=100)
        # A tongue is (150, 80, 80); even light from all round reaches an upright surface with 0.8 of its strength:
        # 150 * 0.8 ** (1 / 2.2) = 135.5 and 80 * 0.8 ** (1 / 2.2) = 72.3, as blue, green, red.
        assert np.abs(picture[50, 50].astype(float) - (72.3, 72.3, 135.5)).max() <= 1
        assert picture[5, 5].tolist() == [0, 0, 255]
        drawn = (np.abs(picture.astype(int) - (0, 0, 255)).sum(axis=2) > 60).sum()
        assert 50**2 <= drawn <= 52**2  # half the picture's height; the filler includes its border

    def test_light_from_the_side_darkens_the_far_side(self) -> None:
        bust = square_bust(Part.HEAD)
        look = draw_identity(0, 0, "asian").look
        from_left = replace(plain_image(), ambient=0.4, light=(1.0, 0.0, 0.0))
        towards = draw(bust, SQUARE, look, replace(from_left, yaw_rad=0.9), 64).astype(int)
        away = draw(bust, SQUARE, look, replace(from_left, yaw_rad=-0.9), 64).astype(int)
        assert towards[32, 32].sum() > 1.3 * away[32, 32].sum()

    def test_hair_covers_the_crown_but_neither_face_nor_ears(self) -> None:
        crown, chin, forehead, nape = (0.0, -8.0, 10.8), (0.0, 0.5, -10.0), (0.0, 1.0, 3.5), (0.0, -16.0, -3.0)
        points = np.array([crown, chin, forehead, nape, crown])
        share = hair_share(points, np.array([0.0, 0.0, 0.0, 0.0, 1.0]), hairline_cm=6.3)
        assert share.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]

    def test_bust_refuses_a_mesh_that_does_not_fit(self) -> None:
        good = square_bust(Part.HEAD)
        with pytest.raises(ConfigError, match=r"outside 0\.\.3"):
            replace(good, triangles=np.array([(0, 1, 4), (0, 1, 2)], np.int32))
        with pytest.raises(ConfigError, match="lips must hold one number"):
            replace(good, lips=np.zeros(3))
        with pytest.raises(ConfigError, match="part must hold one part"):
            replace(good, part=np.zeros(3, np.uint8))


class TestGenerator:
    order = Order(identities=3, images=2, seed=1)

    def test_same_order_draws_the_same_files(self, tmp_path: Path) -> None:
        source = FlatModel(square_bust(Part.HEAD))
        first = generate(source, self.order, tmp_path / "a", accept_all)
        second = generate(source, self.order, tmp_path / "b", accept_all)
        assert first == second
        assert len(set(first.sha256_of_file.values())) == 6

    def test_refused_draws_are_counted(self, tmp_path: Path) -> None:
        verdicts = iter([False, False, True] + [True] * 5)
        manifest = generate(FlatModel(square_bust(Part.HEAD)), self.order, tmp_path, lambda image: next(verdicts))
        assert list(manifest.attempt_of_file.values()) == [2, 0, 0, 0, 0, 0]

    def test_gives_up_after_the_stated_number_of_draws(self, tmp_path: Path) -> None:
        seen: list[Image] = []

        def refuse(image: Image) -> bool:
            seen.append(image)
            return False

        with pytest.raises(LowQualityError, match="use another seed"):
            generate(FlatModel(square_bust(Part.HEAD)), self.order, tmp_path, refuse)
        assert len(seen) == MAX_ATTEMPTS
        assert not (tmp_path / "manifest.json").exists()

    def test_existing_set_is_not_overwritten(self, tmp_path: Path) -> None:
        source = FlatModel(square_bust(Part.HEAD))
        generate(source, self.order, tmp_path, accept_all)
        with pytest.raises(AlreadyExistsError, match="name another folder"):
            generate(source, self.order, tmp_path, accept_all)

    @pytest.mark.parametrize("numbers", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
    def test_impossible_orders_are_refused(self, numbers: tuple[int, int, int]) -> None:
        with pytest.raises(ConfigError):
            Order(*numbers)

    def test_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "anny", None)  # how Python itself marks a module that must not be found
        with pytest.raises(
            MissingDependencyError, match=r"anny, not installed here; run: pip install '\.\[synthetic\]'"
        ):
            load_anny()

    @pytest.mark.skipif(importlib.util.find_spec("anny") is not None, reason="the extra [synthetic] is installed")
    def test_command_line_names_the_missing_extra(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "simulation.synthetic", "--out", str(tmp_path / "set"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 19
        assert json.loads(done.stderr.strip().splitlines()[-1])["error"] == "missing_dependency"
        assert ".[synthetic]" in done.stderr
        assert not (tmp_path / "set").exists()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("anny") is None, reason="needs the extra [synthetic]")
class TestFaceModel:
    def test_committed_picture_is_drawn_again(self, model: FaceModel) -> None:
        from simulation.synthetic.generate import picture

        manifest = read_manifest()
        name, paths = next(iter(committed_faces("phones").items()))
        person = draw_identity(manifest.seed, 0, domain_of(0))
        attempt = manifest.attempt_of_file[f"phones/{name}/00.jpg"]
        again = decode_image(picture(model, person, draw_image(manifest.seed, 0, 0, attempt)))
        # Parameters are equal; pixels may differ by a grey level between versions of the libraries.
        assert np.abs(again.astype(int) - decode_image(paths[0])).mean() < 1.0

    def test_identity_is_symmetric(self, model: FaceModel) -> None:
        person = draw_identity(0, 0, "asian")
        vertices = model.vertices(person, replace(plain_image(), actions={}))
        mirrored = vertices * (-1, 1, 1)
        far = [np.sqrt(((vertices - point) ** 2).sum(axis=1).min()) for point in mirrored[::50]]
        assert max(far) < 1e-3  # metres; the model's own mean face is half a millimetre off


class TestSamples:
    """The pictures for enrolment tests are what their README says."""

    def test_every_sample_is_listed(self) -> None:
        text = (SAMPLES / "README.md").read_text(encoding="utf-8")
        assert all(f"`{path.name}`" in text for path in SAMPLES.glob("*.jpg"))
        assert len(list(SAMPLES.glob("*.jpg"))) == 6

    def test_two_faces(self, pipeline: FacePipeline) -> None:
        with pytest.raises(MultipleFacesError):
            pipeline.acquire_file(SAMPLES / "two_faces.jpg")

    def test_no_face(self, pipeline: FacePipeline) -> None:
        with pytest.raises(NoFaceError):
            pipeline.acquire_file(SAMPLES / "no_face.jpg")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("dark.jpg", Reason.TOO_DARK), ("blurred.jpg", Reason.BLURRED), ("turned.jpg", Reason.TURNED)],
    )
    def test_low_quality_has_its_reason(self, pipeline: FacePipeline, name: str, reason: Reason) -> None:
        with pytest.raises(LowQualityError) as raised:
            pipeline.acquire_file(SAMPLES / name)
        assert reason in raised.value.reasons

    def test_rotated_picture_is_upright_only_with_its_orientation_tag(self, pipeline: FacePipeline) -> None:
        path = SAMPLES / "rotated_exif6.jpg"
        raw = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        assert raw.shape == (224, 300, 3)
        assert decode_image(path).shape == (300, 224, 3)
        box = pipeline.acquire_file(path).box
        assert box is not None
        _, y, width, height = box
        assert height > width
        assert y + height / 2 < 150  # the face is in the upper half of the upright picture


def test_jpeg_round_trip_keeps_the_picture() -> None:
    picture = np.full((32, 32, 3), (30, 120, 200), np.uint8)
    decoded = cv2.imdecode(np.frombuffer(encode_jpeg(picture, 90), np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(decoded.astype(int) - picture).max() <= 3
