"""Records that were changed, but are still JSON: reports and exports name the file, and make nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mien.errors import CorruptDataError
from simulation.faces.partitions import MAX_SEED
from simulation.program import cli, reports
from simulation.runs.collected import collect
from simulation.runs.records import RunFolder
from tests.simulation.pages.synthetic_sweep import write_sweep_folder

WRONG: tuple[Any, ...] = (None, "<script>", [], {}, True, 10**400, float("nan"), [None], {"x": "<"})
MAY_BE_EMPTY = ("failures", "run.cpu_s", "run.wall_s")
TEXTS = ("commit", "command", "after.model_id", "run.machine", "run.commit", "run.data_sha256")
NAMED = (
    *("rounds", "test_people", "seed", "commit", "command", "partition", "failures", "before", "after"),
    *("before.eer", "after.eer", "after.eer_low", "after.eer_high", "after.num_mated", "after.num_non_mated"),
    *("after.model_id", "after.points", "after.curve", "after.curve.thresholds", "after.curve.num_false_matches"),
    *("partition.clients", "run", "run.cpu_s", "run.wall_s", "run.machine", "run.commit", "run.data_sha256"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of a sweep that nobody ran."""
    out = tmp_path_factory.mktemp("made_up")
    write_sweep_folder(out)
    return RunFolder(next((out / "runs").glob("*")))


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of its own, to be damaged."""
    for path in (whole.evaluation, whole.experiment, whole.journal.path):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return RunFolder(tmp_path)


def export(folder: Path) -> None:
    cli.export(folder, folder / "out.csv", as_json=True)


def report(folder: Path) -> None:
    reports.report(folder, None, as_json=True)


def changed(run: RunFolder, name: str, *values: object) -> None:
    """Write the run's evaluation with one field changed, or left out."""
    evaluation = json.loads(run.evaluation.read_bytes())
    *tables, last = name.split(".")
    place = evaluation
    for table in tables:
        place = place[table]
    place.pop(last, None)
    place.update((last, value) for value in values)
    run.evaluation.write_text(json.dumps(evaluation))


def test_what_a_run_wrote_is_read(run: RunFolder) -> None:
    assert run.result() == json.loads(run.evaluation.read_bytes())
    assert len(run.records()) == 6
    run.evaluation.unlink()
    assert run.result() is None


def test_the_largest_seed_is_read(run: RunFolder) -> None:
    changed(run, "seed", MAX_SEED)
    found = run.result()
    assert found is not None
    assert found["seed"] == MAX_SEED


@pytest.mark.parametrize("name", NAMED)
def test_an_evaluation_of_another_form_is_refused(run: RunFolder, name: str) -> None:
    kept = run.evaluation.read_bytes()
    for wrong in WRONG:
        if (wrong == {} and name in MAY_BE_EMPTY) or (wrong == "<script>" and name in TEXTS):
            continue
        run.evaluation.write_bytes(kept)
        changed(run, name, wrong)
        with pytest.raises(CorruptDataError, match=r"evaluation\.json is damaged.*into a new folder"):
            run.result()
    run.evaluation.write_bytes(kept)
    changed(run, name)
    with pytest.raises(CorruptDataError, match=r"evaluation\.json is damaged \("):
        run.result()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("after.num_mated", 0),
        ("after.points", [{"target_fmr": 0.1}]),
        ("after.curve.thresholds", [0.5]),
        ("after.band", {"fmr": [0.1], "low": [0.1], "high": [2.0]}),
        ("after.band", {"fmr": [0.1], "low": [0.1, 0.2], "high": [0.2]}),
        ("angles", {"edges_deg": [0.0, 2.0], "counts": [1, 2], "classes": 3}),
        ("angles", {"edges_deg": [0.0, 2.0]}),
        ("map", {"kind": "pca", "people": [0], "points": [[1.0]]}),
        ("map", {"kind": "<script>", "people": [0], "points": [[1.0, 2.0]]}),
        ("privacy", {"epsilon": 8.0}),
    ],
)
def test_parts_that_contradict_each_other_are_refused(run: RunFolder, name: str, wrong: object) -> None:
    changed(run, name, wrong)
    with pytest.raises(CorruptDataError, match=r"evaluation\.json is damaged"):
        run.result()


@pytest.mark.parametrize("command", [report, export])
@pytest.mark.parametrize("text", ['{"x": 1}', "{}", "[]", "1", "[" * 100_000, '{"seed": ' + "9" * 5_000 + "}"])
def test_reports_and_exports_name_a_damaged_evaluation(
    run: RunFolder, command: Callable[[Path], None], text: str
) -> None:
    run.evaluation.write_text(text)
    with pytest.raises(CorruptDataError, match=r"evaluation\.json"):
        command(run.folder)


@pytest.mark.parametrize("command", [report, export])
@pytest.mark.parametrize(
    "name", ["eer", "loss_before", "loss_after", "clients", "weight", "cpu_s", "wall_s", "workers"]
)
def test_reports_and_exports_name_damaged_rounds(run: RunFolder, command: Callable[[Path], None], name: str) -> None:
    header, *rounds = run.journal.path.read_text().splitlines()
    for wrong in WRONG:
        if name == "workers" and wrong == []:
            continue
        last = {**json.loads(rounds[-1]), name: wrong}
        run.journal.path.write_text("\n".join([header, *rounds[:-1], json.dumps(last)]) + "\n")
        with pytest.raises(CorruptDataError, match=rf"records\.jsonl is damaged \(round 6\.{name}"):
            command(run.folder)


def test_a_sweeps_damaged_run_is_named_too(whole: RunFolder) -> None:
    kept = whole.evaluation.read_bytes()
    whole.evaluation.write_text('{"x": 1}')
    try:
        with pytest.raises(CorruptDataError, match=r"evaluation\.json"):
            collect(whole.folder.parent.parent)
    finally:
        whole.evaluation.write_bytes(kept)
