"""Thresholds out of an evaluation's record, and shares as people write them."""

from __future__ import annotations

import dataclasses
import functools
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from coordinator.commands.cli import app
from coordinator.commands.measured import by_group
from coordinator.commands.models import evaluations, imports
from coordinator.commands.models.common import percent, said_of_thresholds, share_of
from coordinator.commands.models.folder import SPEC, THETA
from coordinator.release import worker
from coordinator.release.signing import create_key
from mien.errors import ConfigError, KeyStoreError, MienError, NotFoundError
from mien.layout import model_id
from mien.protocol.canonical import model_to_json
from mien.rounds.thresholds import group_rates_of, thresholds_of
from mien.specs import Threshold
from tests.tiny import tiny_cnn

MODEL = "a" * 64
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_measured_points_become_thresholds_with_provenance() -> None:
    point = {"threshold": 0.31, "fmr": 0.0009, "num_mated": 50, "num_non_mated": 40_000, "target_fmr": 0.001}
    record = {
        "dataset": "faces",
        "model_id": MODEL,
        "points": [
            point,
            {"target_fmr": 1e-6, "not_measurable": "too few"},
            {**point, "threshold": 1.5},
            {**point, "target_fmr": 0.0001},  # 4 errors are expected: one that happened to be seen proves little
        ],
    }
    (threshold,) = thresholds_of(record, NOW)
    assert (threshold.value, threshold.fmr, threshold.dataset) == (0.31, 0.0009, "faces")
    assert (threshold.num_mated, threshold.num_non_mated, threshold.model_id) == (50, 40_000, MODEL)
    assert threshold.date == "2026-01-02"


def test_thresholds_for_galleries_say_how_far_they_were_measured() -> None:
    points = [
        {"fmr": 5e-4, "threshold": 0.4, "is_measured": True},
        {"fmr": 1e-6, "threshold": 0.7, "is_measured": False},
    ]
    record = {"dataset": "faces", "model_id": MODEL, "search": {"num_scores": 90_000, "points": points}}
    measured, bounded = thresholds_of(record, NOW)
    assert (measured.value, measured.fmr, measured.dataset) == (0.4, 5e-4, "faces, templates")
    assert (bounded.value, bounded.dataset) == (0.7, "faces, templates, bound on the tail")
    assert measured.num_non_mated == bounded.num_non_mated == 90_000
    assert thresholds_of({**record, "search": {"not_measurable": "too few"}}, NOW) == []


def test_a_record_without_points_gives_none() -> None:
    assert thresholds_of({"dataset": "LFW View 2", "model_id": MODEL, "accuracy": 0.99}, NOW) == []


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.1", 0.1), ("100%", 1.0), ("1", 1.0), ("0.5%", 0.005)])
def test_shares(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)
    assert share_of(percent(share)) == pytest.approx(share)


def test_shares_are_said_as_they_are_written() -> None:
    assert [percent(share) for share in (0.1, 1.0, 0.005)] == ["10%", "100%", "0.5%"]


@pytest.mark.parametrize("text", ["", "10", "0%", "101%", "-5%", "all", "nan"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 10%"):
        share_of(text)


def _import(folder: Path, key: Path) -> BaseException | None:
    """Return how `model import` into a signed bundle ends; what it imports is none of this test's business."""
    (folder / "net.onnx").write_bytes(b"a network")
    options = ("--graphs", str(folder / "new" / "bundle"), "--key", str(key), "--release", "--home", str(folder / "C"))
    return CliRunner().invoke(app, ["model", "import", str(folder / "net.onnx"), *options]).exception


def test_a_mistyped_release_key_is_noticed_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "import_model", lambda *_, **__: pytest.fail("minutes of work"))
    (tmp_path / "no.key").write_bytes(b"no key")
    (tmp_path / "no.key").chmod(0o600)
    for name, error in (("missing.key", NotFoundError), ("no.key", KeyStoreError)):
        ended = _import(tmp_path, tmp_path / name)
        assert isinstance(ended, error)
        assert name in str(ended)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("--graphs", "bundle", "--release"), "graphs reach phones only with a signature: add --key"),
        (("--graphs", "bundle", "--release", "--key", "release.key", "--unsigned"), "--unsigned goes with"),
        (("--graphs", "bundle", "--unsigned"), "--unsigned goes with"),
        (("--release", "--unsigned"), "--unsigned goes with"),
        (("--graphs", "bundle", "--release", "--unsigned"), ""),
        (("--graphs", "bundle", "--release", "--key", "release.key"), ""),
        (("--graphs", "bundle"), ""),
        (("--release",), ""),
    ],
)
def test_what_is_released_with_graphs_is_signed_or_said_to_be_unsigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], refused: str
) -> None:
    class ReachedTheWorkError(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise ReachedTheWorkError

    monkeypatch.setattr(worker, "import_model", stop)
    monkeypatch.chdir(tmp_path)
    create_key(tmp_path / "release.key")
    (tmp_path / "net.onnx").write_bytes(b"a network")
    ended = CliRunner().invoke(app, ["model", "import", "net.onnx", *options, "--home", "C"]).exception
    assert isinstance(ended, ConfigError if refused else ReachedTheWorkError)
    assert refused in str(ended)
    assert not (tmp_path / "bundle").exists()


def test_an_import_that_fails_leaves_no_folder_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is made; the coordinator cannot be asked, because it has no home."""
    made: list[Path] = []

    tiny = tiny_cnn()

    def make(_: Path, folder: Path, **__: object) -> dict[str, Any]:
        made.append(folder)
        (folder / "model.json").write_bytes(model_to_json(tiny.spec, tiny.layout))
        (folder / "theta.f32").write_bytes(tiny.theta.astype("<f4").tobytes())
        return {"model_id": MODEL}

    monkeypatch.setattr(worker, "import_model", make)
    create_key(tmp_path / "release.key")
    first, second = (_import(tmp_path, tmp_path / "release.key") for _ in range(2))
    assert isinstance(first, MienError)
    assert (type(second), str(second)) == (type(first), str(first))
    assert len(made) == 2
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("fmr", "of", "is_lacking"), [(1e-3, MODEL, False), (1e-2, MODEL, True), (1e-3, "b" * 64, True)]
)
def test_a_model_without_a_threshold_that_phones_decide_by_is_told_with_the_next_commands(
    fmr: float, of: str, is_lacking: bool
) -> None:
    tiny = tiny_cnn()
    threshold = Threshold(0.4, fmr, "faces", 10, 100_000, of, "2026-01-01")
    spec_json = model_to_json(dataclasses.replace(tiny.spec, thresholds=(threshold,)), tiny.layout)
    said = said_of_thresholds(spec_json, MODEL, Path("fleet"), ", then sign it")
    command = (
        "Next: mien-coordinator model evaluate aaaaaaaaaaaa --data FACES --keep-thresholds --home fleet, then sign it"
    )
    assert said.endswith(command) if is_lacking else said == ""


def test_a_new_bundle_is_measured_on_its_faces_or_the_first_evaluation_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What measures is a child process of its own, tried with a running fleet; here it is which faces it gets."""
    asked: list[tuple[Path, bool]] = []

    def evaluate(_: Path, data: Path, __: str, *, aligned: bool, graphs: Path | None, **groups: Any) -> dict[str, Any]:
        assert (graphs, groups) == (None, {"groups": None, "worst_group": False})
        asked.append((data, aligned))
        return {}

    monkeypatch.setattr(worker, "evaluate", evaluate)
    monkeypatch.setattr(imports, "configured_sets", lambda _: [(tmp_path / "gone", False), (tmp_path / "crops", True)])
    faces = tmp_path / "faces"
    faces.mkdir()
    assert imports._for_thresholds(tmp_path, tmp_path, None, aligned=False) is None
    (tmp_path / "crops").mkdir()
    for folder in (faces, None):
        assert imports._for_thresholds(tmp_path, tmp_path, folder, aligned=False) is not None
    assert asked == [(faces, False), (tmp_path / "crops", True)]


def test_each_folder_is_named_before_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def measure(_: Path, data: Path, *, aligned: bool) -> dict[str, Any]:
        assert not aligned
        assert str(data) in told[-1]
        return {"of": len(told)}

    monkeypatch.setattr(evaluations, "ask", lambda *_: None)  # the model would come from a coordinator
    sets = [(tmp_path / "one", False), (tmp_path / "two", False)]
    records = evaluations._measured(tmp_path, "released", sets, measure, needs_graphs=False, tell=told.append)
    assert [record["of"] for record in records] == [1, 2]


def rate(errors: int, of: int) -> dict[str, Any]:
    return {"rate": errors / of, "errors": errors, "of": of, "interval": {"low": 0.0, "high": 0.5}}


def by_age() -> dict[str, Any]:
    """Return a record of two ages, the young above ten times the target and one old person."""
    rates = [
        {"group": "0-12", "people": 30, "verdict": "exceeds", "reason": "FMR 0.1", "fmr": rate(40, 400)},
        {"group": "60+", "people": 1, "verdict": "too_small", "reason": "one person; add people", "fmr": None},
    ]
    return {
        "dataset": "faces",
        "model_id": MODEL,
        "points": [],
        "groups": {
            "target_fmr": 1e-3,
            "threshold": 0.4,
            "by_worst_group": True,
            "worst_group": {"attribute": "age", "group": "0-12"},
            "not_stated": {"age": 3},
            "rates": [{"attribute": "age", **each, "fnmr": rate(1, 30), "fte": rate(0, 60)} for each in rates],
            "between": [{"attribute": "age", "first": "0-12", "second": "60+", "fmr": rate(1, 90)}],
            "warnings": ["age 0-12: FMR 0.1"],
        },
    }


def test_groups_are_told_with_counts_and_warnings() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for told in by_group(by_age(), 200):
        console.print(told)
    text = console.export_text()
    for part in (
        "at the threshold 0.4000 for FMR 0.001 of the worst group, age 0-12; 3 people state no age:",
        "40 of 400",
        "TOO HIGH",
        "age 0-12 with 60+",
        "Too small to tell: age 60+: one person; add people.",
        "WARNING: age 0-12: FMR 0.1.",
    ):
        assert part in text
    assert list(by_group({"dataset": "faces"}, 200)) == []


def test_rates_by_group_and_thresholds_of_the_worst_one_say_whose_they_are() -> None:
    point = {"threshold": 0.31, "fmr": 0.0009, "num_mated": 50, "num_non_mated": 40_000, "target_fmr": 0.001}
    group = {"attribute": "age", "group": "0-12"}
    search = {"num_scores": 90_000, "points": [{"fmr": 1e-6, "threshold": 0.7, "is_measured": True}]}
    record = {**by_age(), "points": [{**point, "group": group}, point], "search": search}
    told = [threshold.dataset for threshold in thresholds_of(record, NOW)]
    assert told == ["faces, age 0-12", "faces", "faces, age 0-12, templates"]
    young, old = group_rates_of(record, NOW)
    assert (young.verdict, young.num_false_matches, young.num_non_mated) == ("exceeds", 40, 400)
    assert (old.verdict, old.num_false_matches, old.num_non_mated) == ("too_small", 0, 0)
    assert (young.threshold, young.date, young.model_id) == (0.4, "2026-01-02", MODEL)
    assert group_rates_of({"dataset": "faces"}, NOW) == []


def test_the_faces_are_named_once(tmp_path: Path) -> None:
    csv, folders, data = tmp_path / "g.csv", tmp_path / "folders", tmp_path / "data"
    csv.touch()
    folders.mkdir()
    faces_of = functools.partial(evaluations._faces_of, protocol="folder", worst_group=False)
    assert faces_of(data, csv) == data
    assert faces_of(None, folders) == faces_of(folders, folders) == folders
    assert faces_of(None, None) is None
    with pytest.raises(ConfigError, match="name it with --data"):
        faces_of(None, csv)
    with pytest.raises(ConfigError, match="leave --data out"):
        faces_of(data, folders)
    with pytest.raises(NotFoundError, match="--groups takes a CSV"):
        faces_of(data, tmp_path / "none")
    with pytest.raises(ConfigError, match="--worst-group needs --groups"):
        evaluations._faces_of(data, None, protocol="folder", worst_group=True)
    with pytest.raises(ConfigError, match="--groups does not go with --protocol lfw"):
        evaluations._faces_of(data, csv, protocol="lfw", worst_group=False)


@pytest.mark.parametrize("has_usual", [True, False])
def test_what_follows_a_signature_can_be_typed_where_the_coordinator_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_usual: bool
) -> None:
    monkeypatch.setenv("MIEN_COORDINATOR_HOME", str(tmp_path if has_usual else tmp_path / "none"))
    tiny = tiny_cnn()
    folder, key = tmp_path / "my model", tmp_path / "release.key"
    folder.mkdir()
    create_key(key)
    (folder / SPEC).write_bytes(model_to_json(tiny.spec, tiny.layout))
    (folder / THETA).write_bytes(tiny.theta.astype("<f4").tobytes())
    done = CliRunner().invoke(app, ["model", "sign", str(folder), "--key", str(key)], catch_exceptions=False)
    home = "" if has_usual else " --home COORDINATOR_FOLDER"
    begins = f"Next: mien-coordinator model release {model_id(tiny.layout.sha256, tiny.theta)[:12]} --bundle"
    assert done.output.splitlines()[-1] == f"{begins} '{folder}'{home}"
