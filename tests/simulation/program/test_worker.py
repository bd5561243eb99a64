"""The coordinator's child process: models in, measurements out, and errors that arrive whole."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.release import worker as parent
from device_sdk.export.build import export_graphs
from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.models.packaged import sface_path
from device_sdk.runtimes import load_runtime
from device_sdk.runtimes.manifest import GraphFolder
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from mien.backbones.importers import import_model, with_adapter
from mien.errors import (
    TABLE,
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    LayoutMismatchError,
    MienError,
    MissingDependencyError,
    NonFiniteError,
    NotFoundError,
    UndefinedMetricError,
)
from mien.evaluation import Evidence
from mien.layout import ParameterLayout
from mien.models.known_thresholds import known_thresholds
from mien.records import to_mapping
from mien.shell import doing as shown
from mien.shell.doing import relayed
from mien.specs import GateSpec
from simulation.faces.datasets import digest, find_people, read_people
from simulation.faces.folder_protocol import evaluate_folder
from simulation.faces.models import Model, read_model, write_model
from simulation.program import cli as sim
from simulation.program import worker
from simulation.program.evaluate import evaluate_lfw
from simulation.synthetic import committed_faces
from tests.device_sdk.made_up_people import noise_crops
from tests.golden import _reference_evaluation as reference
from tests.golden import _reference_sface as reference_sface
from tests.simulation.untrained import untrained_model
from tests.without import hide

ODD = Path(__file__).resolve().parents[2] / "data" / "faces"


DOES = '{"doing": "Reading the faces", "done": 1, "total": 4, "amount": ""}'


class SeenSteps:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def begin(self, step: shown.Step) -> None:
        self.changed(step)

    def changed(self, step: shown.Step) -> None:
        self.seen.append((step.text, step.done, step.total))

    def end(self, _step: shown.Step) -> None:
        self.seen.append("ended")


def people_in(folder: Path, num_people: int, num_images: int) -> Path:
    """Return `folder` with some of the test people in it."""
    for name, files in list(committed_faces("test").items())[:num_people]:
        (folder / name).mkdir(parents=True)
        for path in files[:num_images]:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def sface(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SFace, unpacked by the child process that the coordinator starts."""
    folder = tmp_path_factory.mktemp("models") / "sface"
    parent.import_model(sface_path(), folder)
    return folder


class TestWithoutTorch:
    """As in the container's image: what the child does then is the same, and what it cannot do it says."""

    @pytest.fixture(autouse=True)
    def hidden(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hide(("torch", "onnx", "tflite"), tmp_path / "site", monkeypatch)
        told = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError: No module named 'torch'" in told.stderr

    def test_a_model_is_imported_and_measured_as_with_it(self, tmp_path: Path) -> None:
        parent.import_model(sface_path(), tmp_path / "m", adapter=True, graphs=True, embed_only=True)
        people = people_in(tmp_path / "people", 4, 3)
        packaged = parent.evaluate(tmp_path / "m", people, "folder")
        own = parent.evaluate(tmp_path / "m", people, "folder", graphs=tmp_path / "m")
        by_torch = evaluate_folder(read_model(tmp_path / "m"), people)
        assert (packaged["eer"], packaged["points"]) == (own["eer"], own["points"])
        assert packaged["model_id"] == by_torch["model_id"]
        assert packaged["eer"] == pytest.approx(by_torch["eer"], abs=0.01)

    async def _checked(self, tmp_path: Path) -> Evidence:
        for name in ("reference", "candidate"):
            parent.import_model(sface_path(), tmp_path / name)
        people = people_in(tmp_path / "people", 8, 4)
        spec = GateSpec(fmr=0.1)
        (tmp_path / "gates.json").write_text(json.dumps(to_mapping(spec)))
        paths = (tmp_path / "reference", tmp_path / "candidate", tmp_path / "gates.json")
        return (await parent.check(*paths, {"people": str(people)}, {}, limit_s=500))[0]

    def test_gates_judge_a_candidate(self, tmp_path: Path) -> None:
        (found,) = asyncio.run(self._checked(tmp_path)).sets
        assert found.candidate_tar == found.reference_tar > 0.5

    def test_what_needs_it_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "other.onnx").write_bytes(b"another model")
        write_model(untrained_model(), tmp_path / "m")
        people = people_in(tmp_path / "people", 2, 2)
        needs = r"needs (torch|onnx|tflite), which is not installed here; run: pip install '\.\[simulation\]'"
        for call in (
            lambda: parent.import_model(tmp_path / "other.onnx", tmp_path / "n"),
            lambda: parent.import_model(tmp_path / "m", tmp_path / "o", graphs=True),
            lambda: parent.evaluate(tmp_path / "m", people, "lfw"),
        ):
            with pytest.raises(MissingDependencyError, match=needs):
                call()
        with pytest.raises(NotFoundError, match="there are no graphs for"):
            parent.evaluate(tmp_path / "m", people, "folder")


class TestFromTheCoordinator:
    def test_import_brings_the_whole_model(self, sface: Path) -> None:
        model = read_model(sface)
        expected = import_model(sface_path().read_bytes(), "sface.onnx")
        brought = known_thresholds(model.model_id)
        assert brought, "phones recognise people with it before anybody has measured it"
        assert (model.spec, model.layout) == (replace(expected.spec, thresholds=brought), expected.layout)
        assert np.array_equal(model.theta, expected.theta)
        assert sorted(path.name for path in sface.iterdir()) == ["model.json", "theta.f32"]

    def test_import_with_an_adapter_trains_that_alone(self, tmp_path: Path) -> None:
        parent.import_model(sface_path(), tmp_path / "adapted", adapter=True)
        model = read_model(tmp_path / "adapted")
        assert (model.spec.backbone, model.spec.trainable) == ("sface_adapter", ("adapter.*",))
        plain = import_model(sface_path().read_bytes(), "sface.onnx")
        assert np.array_equal(model.theta[: plain.layout.size], plain.theta)
        assert np.array_equal(model.theta[plain.layout.size :], np.append(np.eye(128, dtype=np.float32), np.zeros(128)))

    def test_graphs_that_only_embed_come_with_the_program_and_need_no_torch(self, tmp_path: Path) -> None:
        """What a phone of such a release runs: a picture goes through the frozen network once."""
        code = (
            "import sys\nfrom simulation.program import worker\nfrom pathlib import Path\n"
            "worker.import_file(Path(sys.argv[1]), out=Path(sys.argv[2]), adapter=True, graphs=True, embed_only=True)\n"
            "assert not {'torch', 'onnx'} & set(sys.modules)"
        )
        folder = tmp_path / "m"
        subprocess.run([sys.executable, "-c", code, str(sface_path()), str(folder)], check=True)
        model = read_model(folder)
        graphs = GraphFolder.at(folder, model.spec, model.layout)
        assert [(graph.kind, graph.stage) for graph in graphs.manifest.graphs] == [
            ("embed", ""), ("trunk", "adapter"), ("tail", "adapter"),
        ]  # fmt: skip
        crops = noise_crops(1, 3)
        other = model.theta.copy()
        other[-128 * 129 :] += np.random.default_rng(0).normal(0, 0.01, 128 * 129)
        runtime = OnnxRuntime(model.spec, model.layout, graphs)
        for theta in (model.theta, other):
            expected = load_runtime(model.spec, model.layout, choice="torch").embed(theta, crops)
            np.testing.assert_allclose(runtime.embed(theta, crops), expected, atol=1e-4)

    def test_graphs_measure_as_torch_does(self, tmp_path: Path) -> None:
        model = with_adapter(import_model(sface_path().read_bytes(), "sface.onnx"))
        write_model(Model(model.spec, model.layout, model.theta), tmp_path / "m")
        export_graphs(model.spec, model.layout, tmp_path / "m", forms=())
        people = people_in(tmp_path / "people", 3, 2)
        by_graphs = parent.evaluate(tmp_path / "m", people, "folder", graphs=tmp_path / "m")
        by_torch = evaluate_folder(read_model(tmp_path / "m"), people)
        assert (by_graphs["mated"], by_graphs["model_id"]) == (by_torch["mated"], by_torch["model_id"])
        assert by_graphs["eer"] == pytest.approx(by_torch["eer"], abs=0.01)

    def test_what_the_child_does_its_parent_shows(
        self, sface: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        display = SeenSteps()
        monkeypatch.setattr(shown, "_shown", display)
        parent.evaluate(sface, people_in(tmp_path / "people", 2, 2), "folder")
        assert display.seen[0] == ("Starting a process of its own for the model", 0, None)
        assert ("Reading the faces", 4, 4) in display.seen
        assert display.seen[-1] == "ended"
        assert capfd.readouterr() == ("", "")

    def test_measuring_with_graphs_starts_without_torch(self) -> None:
        code = (
            "import sys, simulation.program.worker; print([m for m in ('torch', 'scipy', 'onnx') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"

    def test_measuring_with_a_folder_without_graphs_says_what_to_do(self, sface: Path, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"there are no graphs for sface in .*device_sdk\.export"):
            parent.evaluate(sface, people_in(tmp_path / "people", 2, 2), "folder", graphs=tmp_path)

    def test_import_with_a_gate_wants_enough_people_to_know_its_own(self, tmp_path: Path) -> None:
        folder = people_in(tmp_path / "people", 3, 2)
        with pytest.raises(ConfigError, match=r"--gate people gives 12 pairs of strangers, and .* 0\.001 needs 30000"):
            parent.import_model(sface_path(), tmp_path / "gated", gate=folder)

    def test_evaluation_equals_an_independent_one(
        self, sface: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """ONNX Runtime on the file as published, and the definitions of EER and thresholds in plain loops."""
        folder = people_in(tmp_path / "people", 7, 3)
        shutil.copy(ODD / "no_face.jpg", folder / next(iter(find_people(folder))))
        record = parent.evaluate(sface, folder, "folder")

        people = find_people(folder)
        faces = read_people(people, FacePipeline(read_model(sface).spec.input, None, ChoiceRule.CENTRE))
        embeddings = reference_sface.embed(reference_sface.dequantised(sface_path().read_bytes()), faces.crops)
        pairs = [(i, j) for i in range(len(embeddings)) for j in range(i)]
        scores = [reference.cosine(embeddings[i].tolist(), embeddings[j].tolist()) for i, j in pairs]
        same = [faces.labels[i] == faces.labels[j] for i, j in pairs]
        mated = [score for score, is_same in zip(scores, same, strict=True) if is_same]
        non_mated = [score for score, is_same in zip(scores, same, strict=True) if not is_same]

        assert record["mated"] == len(mated) == 7 * 3
        assert record["non_mated"] == len(non_mated) == 21 * 20 // 2 - 21
        assert (record["identities"], record["images"], record["fte"]) == (7, 22, 1)
        assert record["eer"] == pytest.approx(float(reference.eer(mated, non_mated)), abs=1e-9)
        assert record["dataset_sha256"] == digest(people)
        assert (record["dataset"], record["model_id"]) == ("people", read_model(sface).model_id)
        assert (record["protocol"], record["protocol_version"], record["seed"]) == ("folder-all-pairs", "1", 0)
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ODD)
        assert head.stdout.startswith(record["commit"]) or (head.returncode, record["commit"]) == (128, "unknown")
        assert record["command"].startswith(
            f"python -m simulation.program.worker evaluate --model {sface} --data {folder}"
        )
        first, *others = record["points"]
        expected = reference.threshold_at_fmr(mated, non_mated, Fraction(1, 10))
        assert first["threshold"] == pytest.approx(expected, abs=1e-4)
        assert first["num_false_matches"] / first["num_non_mated"] == first["fmr"] <= first["target_fmr"] == 0.1
        assert first["num_false_non_matches"] / first["num_mated"] == first["fnmr"]
        assert all(point["not_measurable"] for point in others[1:])  # 189 comparisons cannot show an FMR of 0.1 %
        printed = capfd.readouterr()
        assert (printed.out, printed.err) == ("", "")

    def test_error_of_the_child_arrives_whole(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "a model with a long name that would be wrapped on a narrow terminal.onnx"
        file.write_bytes(b"\x08no model")
        with pytest.raises(ConfigError) as raised:
            parent.import_model(file, tmp_path / "out")
        with pytest.raises(ConfigError) as expected:
            import_model(file.read_bytes(), file.name)
        assert raised.value.message == expected.value.message
        assert not (tmp_path / "out").exists()
        assert capfd.readouterr().err == ""  # it is told once, by whoever catches it

    def test_a_record_may_be_longer_than_a_pipe_holds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of hundreds of groups, say; a child that waits to be read would wait for ever."""
        record, path = {f"group {number}": "x" * 1000 for number in range(1000)}, tmp_path / "record.json"
        path.write_text(json.dumps(record), encoding="utf-8")
        monkeypatch.setattr(parent, "_MODULE", "json.tool")
        assert json.loads(parent._run([str(path)])) == record

    def test_defect_of_the_child_is_told_with_its_last_line(self) -> None:
        """A traceback, a signal, silence: never a success, never an unknown class."""
        for code, line, says in (
            (1, "ZeroDivisionError: division by zero\n", r"exit code 1\): ZeroDivisionError"),
            (-9, "", r"exit code -9\): it said nothing; a system short of memory"),
            (-9, f"{DOES}\n{DOES}\n", r"exit code -9\): it said nothing"),
            (-9, f"{DOES}\nno memory is left\n{DOES}\n", r"exit code -9\): no memory is left; a system"),
            (1, '{"no": "message"}', "exit code 1"),
        ):
            error = parent._error(code, line)
            assert type(error) is CorruptDataError
            with pytest.raises(CorruptDataError, match=says):
                raise error

    @pytest.mark.parametrize("code", [-signal.SIGINT, -signal.SIGTERM, 130])
    def test_ctrl_c_in_the_child_is_ours_and_no_damage(self, code: int) -> None:
        with pytest.raises(KeyboardInterrupt):
            parent._check(code, f"{DOES}\n")
        parent._check(0, "")

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
    def test_a_number_that_is_not_finite_is_no_record(self, number: str) -> None:
        assert parent._object('{"evidence": {"change": 1e-3}, "n": 2}') == {"evidence": {"change": 1e-3}, "n": 2}
        for text in (f'{{"change": {number}}}', f'{{"evidence": {{"sets": [{{"chance": {number}}}]}}}}'):
            with pytest.raises(CorruptDataError, match="no record"):
                parent._object(text)

    @pytest.mark.parametrize("cls", TABLE, ids=lambda cls: cls.code)
    def test_every_error_keeps_its_class(self, cls: type[MienError]) -> None:
        line = json.dumps({"error": cls.code, "message": "what to do"})
        error = parent._error(TABLE[cls].exit_code, line)
        assert type(error) is cls
        assert error.message == "what to do"


class TestCommand:
    """One real process for each way out; what leads there is tested below, without one."""

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simulation.program.worker", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    def test_answer_is_one_json_object(self, tmp_path: Path) -> None:
        write_model(untrained_model(), tmp_path / "model")
        done = self.run("evaluate", "--model", tmp_path / "model", "--data", people_in(tmp_path / "people", 2, 2))
        assert done.returncode == 0
        steps = [relayed(line) for line in done.stderr.splitlines()]
        assert [each.total for each in steps if each and each.text == "Reading the faces"][-1] == 4
        assert all(steps)
        (line,) = done.stdout.splitlines()
        assert json.loads(line)["mated"] == 2

    def test_error_is_one_json_object_and_an_exit_code(self, tmp_path: Path) -> None:
        model = untrained_model()
        model.theta[5] = np.nan
        write_model(model, tmp_path / "model")
        done = self.run("evaluate", "--model", tmp_path / "model", "--data", people_in(tmp_path / "people", 2, 2))
        assert done.returncode == TABLE[NonFiniteError].exit_code
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert json.loads(line)["error"] == "non_finite"

    @pytest.mark.parametrize("arguments", [["evaluate", "--modle", "x"], ["evaluate"], ["import"], ["measure"]])
    def test_wrong_options_are_a_usage_error(self, arguments: list[str]) -> None:
        done = CliRunner().invoke(worker.app, arguments)
        assert done.exit_code == 2
        assert "Error: " in done.stderr
        assert done.stdout == ""

    def test_a_crash_never_prints_what_variables_hold(self) -> None:
        for app in (worker.app, sim.app, sim.data_app):
            assert app.pretty_exceptions_show_locals is False
        for app in (worker.app, sim.app):
            assert app.pretty_exceptions_enable is False


class TestWhatIsRefused:
    def test_protocol(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(
            worker.app, ["evaluate", "--model", str(tmp_path), "--data", str(tmp_path), "--protocol", "ijb"]
        )
        assert isinstance(done.exception, ConfigError)
        assert "'ijb'; known: folder, lfw" in done.exception.message

    def test_model_file_that_is_not_there(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(worker.app, ["import", str(tmp_path / "none.onnx"), "--out", str(tmp_path / "out")])
        assert isinstance(done.exception, NotFoundError)
        assert not (tmp_path / "out").exists()

    def test_folder_that_holds_a_model(self, tmp_path: Path) -> None:
        write_model(untrained_model(), tmp_path)
        done = CliRunner().invoke(worker.app, ["import", str(sface_path()), "--out", str(tmp_path)])
        assert isinstance(done.exception, MienError)
        assert done.exception.code == "already_exists"
        assert read_model(tmp_path).spec.source == "untrained"

    def test_one_person_or_one_image_each_has_no_eer(self, tmp_path: Path) -> None:
        with pytest.raises(UndefinedMetricError, match="non-mated"):
            evaluate_folder(untrained_model(), people_in(tmp_path / "one", 1, 3))
        with pytest.raises(UndefinedMetricError, match="mated"):
            evaluate_folder(untrained_model(), people_in(tmp_path / "three", 3, 1))

    def test_folder_without_faces(self, tmp_path: Path) -> None:
        (tmp_path / "ada").mkdir()
        with pytest.raises(EmptyFolderError, match="nobody"):
            evaluate_folder(untrained_model(), tmp_path)
        shutil.copy(ODD / "no_face.jpg", tmp_path / "ada")
        with pytest.raises(EmptyFolderError, match="no_face"):
            evaluate_folder(untrained_model(), tmp_path)

    def test_raw_pictures_are_no_aligned_crops(self, tmp_path: Path) -> None:
        with pytest.raises(EmptyFolderError, match=r"image \(2\)"):
            evaluate_folder(untrained_model(), people_in(tmp_path, 1, 2), aligned=True)

    @pytest.mark.parametrize("protocol", [evaluate_folder, evaluate_lfw])
    def test_model_of_another_layout(self, tmp_path: Path, protocol: object) -> None:
        """Two equally large tensors that change places leave the size as it is: only the layout's hash tells."""
        assert callable(protocol)
        model = untrained_model()
        entries = list(model.layout.entries)
        i, j = next((i, j) for j, b in enumerate(entries) for i, a in enumerate(entries[:j]) if a.shape == b.shape)
        entries[i], entries[j] = entries[j], entries[i]
        layout = ParameterLayout(tuple(entries))
        other = Model(dataclasses.replace(model.spec, layout_sha256=layout.sha256), layout, model.theta)
        write_pairs(people_in(tmp_path, 2, 2))
        with pytest.raises(LayoutMismatchError):
            protocol(other, tmp_path)

    def test_lfw_that_is_not_whole(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"pairs\.txt"):
            evaluate_lfw(untrained_model(), tmp_path)
        write_pairs(tmp_path)
        with pytest.raises(NotFoundError, match="images of LFW are missing"):
            evaluate_lfw(untrained_model(), tmp_path)
        with pytest.raises(ConfigError, match="--aligned"):
            evaluate_lfw(untrained_model(), tmp_path, aligned=True)


def write_pairs(folder: Path) -> None:
    """Write a pair list of LFW's form about people who are not there."""
    lines = ["10\t300"]
    for fold in range(10):
        lines += [f"P{fold}_{i}\t1\t2" for i in range(300)]
        lines += [f"P{fold}_{i}\t1\tQ{fold}_{i}\t1" for i in range(300)]
    (folder / "protocol").mkdir()
    (folder / "protocol" / "pairs.txt").write_text("\n".join(lines) + "\n")


class TestGroups:
    """Groups on a folder of rendered people; the counts themselves are tried in tests/golden."""

    def test_folders_of_groups_are_measured_as_a_csv_of_the_same(self, tmp_path: Path) -> None:
        people = people_in(tmp_path / "people", 8, 3)
        names = sorted(path.name for path in people.iterdir())
        for n, name in enumerate(names):
            shutil.copytree(people / name, tmp_path / "apart" / ("one" if n < 5 else "two") / name)
        (tmp_path / "groups.csv").write_text(
            "person,group\n" + "".join(f"{name},{'one' if n < 5 else 'two'}\n" for n, name in enumerate(names)),
            encoding="utf-8",
        )
        for folder in (people / names[0], tmp_path / "apart" / "one" / names[0]):
            shutil.copy(ODD / "no_face.jpg", folder)
        by_file = evaluate_folder(untrained_model(), people, groups=tmp_path / "groups.csv")
        by_folder = evaluate_folder(untrained_model(), tmp_path / "apart", groups=tmp_path / "apart")
        assert by_file["groups"]["rates"] == by_folder["groups"]["rates"]
        assert by_file["groups"]["between"] == by_folder["groups"]["between"]
        one = by_file["groups"]["rates"][0]
        assert (one["group"], one["people"]) == ("one", 5)
        assert (one["fte"]["errors"], one["fte"]["of"]) == (1, 16)
        assert (
            sum(each["fmr"]["of"] for each in by_file["groups"]["rates"]) + by_file["groups"]["between"][0]["fmr"]["of"]
            == (by_file["non_mated"])
        )

    def test_the_worst_group_sets_a_threshold_at_which_each_group_keeps_the_rate(self, tmp_path: Path) -> None:
        people = people_in(tmp_path / "people", 20, 3)
        names = sorted(path.name for path in people.iterdir())
        text = "person,half\n" + "".join(f"{name},{'ab'[n // 10]}\n" for n, name in enumerate(names))
        (tmp_path / "groups.csv").write_text(text, encoding="utf-8")
        plain = evaluate_folder(untrained_model(), people, groups=tmp_path / "groups.csv")
        worst = evaluate_folder(untrained_model(), people, groups=tmp_path / "groups.csv", worst_group=True)
        told = worst["groups"]
        assert told["threshold"] >= plain["groups"]["threshold"]
        assert told["target_fmr"] == plain["groups"]["target_fmr"] == 0.1
        assert max(each["fmr"]["rate"] for each in told["rates"]) <= 0.1
        assert max(each["fmr"]["rate"] for each in plain["groups"]["rates"]) > 0.1
        deciding = next(each for each in told["rates"] if each["group"] == told["worst_group"]["group"])
        point = next(each for each in worst["points"] if each["target_fmr"] == 0.1)
        assert deciding["fmr"]["errors"] == point["num_false_matches"]
        assert point["group"] == told["worst_group"]
        assert [each for each in told["warnings"] if "with which phones decide" in each] == [
            "no group has the 30,000 non-mated comparisons that FMR 0.001, with which phones decide, needs: "
            "the worst group is known at FMR 0.1 only; add people to the groups"
        ]
        assert not any("with which phones decide" in each for each in plain["groups"]["warnings"])

    def test_groups_too_small_for_any_rate_set_no_threshold(self, tmp_path: Path) -> None:
        people = people_in(tmp_path / "people", 10, 3)
        names = sorted(path.name for path in people.iterdir())
        groups = tmp_path / "groups.csv"
        groups.write_text("person,half\n" + "".join(f"{name},{'ab'[n % 2]}\n" for n, name in enumerate(names)))
        with pytest.raises(
            UndefinedMetricError, match=r"no group has the 300 non-mated .* measure FMR 0\.1; add people"
        ):
            evaluate_folder(untrained_model(), people, groups=groups, worst_group=True)
        with pytest.raises(ConfigError, match="--worst-group needs --groups"):
            evaluate_folder(untrained_model(), people, worst_group=True)
        with pytest.raises(UndefinedMetricError, match="so few comparisons have no false match rate"):
            evaluate_folder(untrained_model(), people_in(tmp_path / "few", 2, 2), groups=ages(tmp_path, "few"))

    def test_folders_of_groups_are_the_faces(self, tmp_path: Path) -> None:
        people_in(tmp_path / "people", 2, 2)
        people_in(tmp_path / "other" / "group", 2, 2)
        with pytest.raises(ConfigError, match="give --groups alone"):
            evaluate_folder(untrained_model(), tmp_path / "people", groups=tmp_path / "other")


def ages(folder: Path, faces: str) -> Path:
    """Return a CSV that says everybody is of one age."""
    file = folder / "ages.csv"
    file.write_text("person,age\n" + "".join(f"{path.name},30\n" for path in sorted((folder / faces).iterdir())))
    return file
