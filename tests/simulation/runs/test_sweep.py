"""Sweeps: which settings there are, runs that survive a kill, folders that are never mixed."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mien.errors import TABLE, AlreadyExistsError, ConfigError, NotFoundError
from simulation.program.cli import app
from simulation.runs.collected import collect
from simulation.runs.experiment import Experiment, Job, heading
from simulation.runs.export import csv_text, write_events
from simulation.runs.grid import (
    changed,
    grid_line,
    load_sweep,
    make_sweep,
    num_rounds_of,
    read_sweep,
    rounds_done,
    run_sweep,
)
from simulation.runs.records import RunFolder
from simulation.runs.spec import parse_data
from tests.simulation.standing import killed_in_its_second_round

PROGRAM = Path(sys.executable).parent / "mien-sim"
BASE = """
name = "small"
about = "Two settings."
[[faces]]
kind = "shipped"
[model]
source = "new"
backbone = "mobilefacenet_folded"
dim = 128
[partition]
clients = 3
test = 6
[task]
method = "fedavg"
rounds = 2
trainable = ["embedding.*"]
[task.cohort]
size = 3
min_reports = 3
[task.local]
lr = 0.01
flip = false
[task.privacy]
min_cohort = 3
[evaluation]
every = 1
replicates = 100
"""
SWEPT = (
    BASE
    + """
[sweep]
seeds = [0, 4]
paper_columns = ["LFW"]
[sweep.grid]
"task.rounds" = [1, 2]
[[sweep.cases]]
name = "wide"
label = "margin 1"
paper = ["68.88"]
"task.options" = { margin = 1.0 }
[[sweep.cases]]
name = "narrow"
task.options.margin = 0.5
"""
)


def sweep_of(text: str, grid: dict[str, list[Any]] | None = None) -> Experiment:
    data, table = parse_data(text)
    return make_sweep(data, table, grid or {})


class TestSettings:
    def test_cases_times_grid(self) -> None:
        sweep = sweep_of(SWEPT)
        assert [p.name for p in sweep.rows] == [
            "wide_rounds-1",
            "wide_rounds-2",
            "narrow_rounds-1",
            "narrow_rounds-2",
        ]
        assert [(p.spec.task.options["margin"], p.spec.task.rounds) for p in sweep.rows] == [
            (1.0, 1), (1.0, 2), (0.5, 1), (0.5, 2),
        ]  # fmt: skip
        assert sweep.seeds == (0, 4)
        assert sweep.rows[0].label == "margin 1 \u00b7 rounds 1"
        assert (sweep.rows[0].paper, sweep.rows[2].paper) == (("68.88",), ())
        assert num_rounds_of(sweep) == 2 * (1 + 2 + 1 + 2)

    def test_an_experiment_without_a_table_is_one_setting(self) -> None:
        sweep = sweep_of(BASE)
        assert [(p.name, p.label, p.settings["changes"]) for p in sweep.rows] == [("base", "as written", {})]

    def test_options_of_the_command_join_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "e.toml"
        file.write_text(BASE)
        sweep = load_sweep(file, ["task.local.lr=0.01,0.1", "task.method=fedavg,fedprox"], 3)
        assert len(sweep.rows) == 4
        assert sweep.seeds == (0, 1, 2)
        assert {(p.spec.task.local.lr, p.spec.task.method) for p in sweep.rows} == {
            (lr, method) for lr in (0.01, 0.1) for method in ("fedavg", "fedprox")
        }

    def test_another_method_with_the_options_of_the_files_names_the_way_out(self) -> None:
        options = "[task.options]\nspread_out = {}\n[task.cohort]\n"
        fedface = BASE.replace('"fedavg"', '"fedface"').replace("[task.cohort]\n", options)
        fedface = fedface.replace("clients = 3", "clients = 3\npublic = 2")
        says = (
            r"'task.options.spread_out'.*\(options of fedavg\), in the sweep's setting method-fedavg; options "
            r"belong to one method: write a \[\[sweep.cases\]\] for each method, with .* \"task.options\" = \{\}"
        )
        with pytest.raises(ConfigError, match=says):
            sweep_of(fedface, {"task.method": ["fedface", "fedavg"]})
        case = '[[sweep.cases]]\nname = "plain"\n"task.method" = "fedavg"\n"task.options" = {}\n'
        (point,) = sweep_of(fedface + case).rows
        assert (point.spec.task.method, point.spec.task.options) == ("fedavg", {})

    @pytest.mark.parametrize("seeds", [10_001, 10**9, 10**30])
    def test_too_many_seeds_are_refused_before_they_are_counted_out(self, tmp_path: Path, seeds: int) -> None:
        file = tmp_path / "e.toml"
        file.write_text(BASE)
        with pytest.raises(ConfigError, match=f"--seeds is {seeds}; it must lie between 1 and 10000"):
            load_sweep(file, [], seeds)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a.b=1,2", ("a.b", [1, 2])),
            ("a = 0.5", ("a", [0.5])),
            ("a=x,y", ("a", ["x", "y"])),
            ("a=true,no", ("a", [True, "no"])),
            ('a=["x.*"],["y", "z"]', ("a", [["x.*"], ["y", "z"]])),
        ],
    )
    def test_values_on_a_command_line(self, text: str, expected: tuple[str, list[Any]]) -> None:
        assert grid_line(text) == expected

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (('"task.rounds" = [1, 2]', '"task.round" = [1]'), "'task.round'; did you mean 'task.rounds'"),
            (('"task.rounds" = [1, 2]', '"task.rounds" = 2'), "give a list of values"),
            (('"task.rounds" = [1, 2]', '"task.rounds" = [2, 2]'), "twice"),
            (('"task.rounds" = [1, 2]', '"task.rounds" = [2026-01-02]'), "values are numbers"),
            (('"task.rounds" = [1, 2]', '"task.local.lr" = [nan]'), "values are numbers"),
            (('"task.rounds" = [1, 2]', '"task.seed" = [2, 3]'), "task.seed cannot be swept"),
            (('"task.rounds" = [1, 2]', '"model.seed" = [2, 3]'), "model.seed cannot be swept"),
            (('"task.rounds" = [1, 2]', '"name.x" = [2, 3]'), "name.x names no field"),
            (("seeds = [0, 4]", "seeds = [0, 0]"), "sweep.seeds"),
            (("seeds = [0, 4]", "seeds = []"), "sweep.seeds"),
            (("seeds = [0, 4]", "seed = [0]"), "unknown field 'sweep.seed'"),
            (('name = "narrow"', 'name = "wide"'), "two settings of the sweep are named"),
            (('paper = ["68.88"]', 'paper = "68.88"'), "give a list of texts"),
        ],
    )  # fmt: skip
    def test_mistakes_are_named(self, change: tuple[str, str], says: str) -> None:
        text = SWEPT.replace(*change)
        assert text != SWEPT
        with pytest.raises(ConfigError, match=says.replace(".", r"\.")):
            sweep_of(text)

    @pytest.mark.parametrize("text", ["task.rounds", "=1", "task.rounds=", "task.seed=1,2"])
    def test_set_that_sets_nothing(self, text: str) -> None:
        with pytest.raises(ConfigError):
            grid_line(text)

    def test_a_quoted_path_replaces_a_table(self) -> None:
        assert changed({"a": {"b": {"c": 1, "d": 2}}}, {"a.b": {"e": 3}}) == {"a": {"b": {"e": 3}}}
        assert changed({"a": {"b": 1}}, {"a.c.d": 2}) == {"a": {"b": 1, "c": {"d": 2}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two settings that was killed in its first run, and then went on to its end."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "e.toml").write_text(BASE)
    arguments = ["sweep", str(folder / "e.toml"), "--set", "task.rounds=4,5", "--out", str(folder / "out")]
    # Its workers find out themselves that it was killed.
    killed_in_its_second_round(folder / "out" / "runs" / "rounds-4-s0" / "records.jsonl", *arguments)
    assert not list((folder / "out" / "records").glob("*.json"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(PROGRAM), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    (folder / "answer.json").write_text(done.stdout)
    return folder


class TestRuns:
    def test_every_run_is_whole(self, folder: Path) -> None:
        answer = json.loads((folder / "answer.json").read_text())
        assert (answer["runs"], answer["failures"]) == (2, [])
        results, command = read_sweep(folder / "out")
        sweep = results.experiment
        assert command.endswith("--set task.rounds=4,5")
        assert rounds_done(sweep, folder / "out") == num_rounds_of(sweep) == 9
        for run in ("rounds-4-s0", "rounds-5-s0"):
            place = RunFolder(folder / "out" / "runs" / run)
            assert [record["round"] for record in place.records()] == list(range(1, int(run[7]) + 1))
            assert not list(place.folder.glob("checkpoint.*"))
        for record in results.records.values():
            assert set(record["metrics"]) >= {"eer", "eer_before", "tar_0.1", "cpu_s"}

    def test_nothing_is_measured_again(self, folder: Path) -> None:
        sweep = load_sweep(folder / "e.toml", ["task.rounds=4,5"])
        told: list[str] = []
        run_sweep(sweep, folder / "out", folder, tell=told.append)
        assert told == []

    def test_other_settings_are_not_mixed_in(self, folder: Path) -> None:
        sweep = sweep_of(BASE.replace("lr = 0.01", "lr = 0.02"), {"task.rounds": [4, 5]})
        with pytest.raises(AlreadyExistsError, match=r"another experiment.*--out"):
            run_sweep(sweep, folder / "out", folder)

    def test_csv_says_every_figure(self, folder: Path) -> None:
        rows = list(csv.DictReader(io.StringIO(csv_text(collect(folder / "out")))))
        assert list(rows[0]) == ["run", "seed", "task.rounds", "round", "metric", "value"]
        losses = [row for row in rows if row["metric"] == "loss_after"]
        assert [(row["task.rounds"], row["round"]) for row in losses] == [
            (rounds, str(n)) for rounds in ("4", "5") for n in range(1, int(rounds) + 1)
        ]
        (after,) = (row for row in rows if row["run"] == "rounds-4" and row["metric"] == "after.eer")
        results, _ = read_sweep(folder / "out")
        assert float(after["value"]) == results.records["rounds-4", 0]["metrics"]["eer"]
        assert after["round"] == ""

    def test_event_files(self, folder: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        places = write_events(collect(folder / "out"), folder / "events")
        assert [place.name for place in places] == ["rounds-4-s0", "rounds-5-s0"]
        events = EventAccumulator(str(places[1])).Reload()
        losses = events.Scalars("loss/after local training")
        assert [each.step for each in losses] == [1, 2, 3, 4, 5]
        records = RunFolder(folder / "out" / "runs" / "rounds-5-s0").records()
        assert [each.value for each in losses] == pytest.approx([record["loss_after"] for record in records], rel=1e-5)

    def test_page_and_tables(self, folder: Path) -> None:
        done = CliRunner().invoke(app, ["report", str(folder / "out"), "--markdown", str(folder / "r.md"), "--json"])
        assert done.exit_code == 0
        page = (folder / "out" / "report.html").read_text()
        for title in ("Settings", "Error by round", "Error trade-off", "Loss by round", "How it was made"):
            assert f">{title}</h2>" in page
        assert "## small" in (folder / "r.md").read_text()

    def test_what_export_refuses(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="holds no records"):
            collect(tmp_path)
        refused = subprocess.run(
            [str(PROGRAM), "export", str(folder / "out"), "--json"], capture_output=True, text=True, check=False
        )
        assert refused.returncode == TABLE[ConfigError].exit_code
        assert "--csv" in json.loads(refused.stderr)["message"]


def instead_of_a_run(job: Job, **_: Any) -> dict[str, float]:
    return {"eer_before": 0.5, "eer": 0.25, "cpu_s": 1.0}


class TestFacesThatChange:
    """Faces of a case or of a grid's value are looked at as those of the experiment itself are."""

    @pytest.fixture
    def swept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
        for name in "ab":
            (tmp_path / name / "Ada").mkdir(parents=True)
            (tmp_path / name / "Ada" / "1.png").write_bytes(name.encode())
        monkeypatch.setattr("simulation.runs.grid.measure_run", instead_of_a_run)
        faces = '"faces" = [{kind = "folder", path = "%s"}]\n'
        cases = "".join(f'[[sweep.cases]]\nname = "{name}"\n{faces % name}' for name in "ab")
        return sweep_of(BASE.replace('kind = "shipped"', 'kind = "folder"\npath = "a"') + cases)

    def test_nothing_is_kept_as_measured_on_others(self, swept: Experiment, tmp_path: Path) -> None:
        out = tmp_path / "out"
        first = run_sweep(swept, out, tmp_path)
        assert set(first.records) == {("a", 0), ("b", 0)}
        assert set(read_sweep(out)[0].records) == set(first.records)
        told = list[str]()
        run_sweep(swept, out, tmp_path, tell=told.append)
        assert told == []
        (tmp_path / "b" / "Ada" / "1.png").write_bytes(b"another")
        with pytest.raises(AlreadyExistsError, match=r"runs of b on other faces.*--out"):
            run_sweep(swept, out, tmp_path)
        # Without the list of what was done, and where the case was left out meanwhile, it is measured anew.
        run_sweep(replace(swept, tables=(replace(swept.tables[0], rows=swept.rows[:1]),)), out, tmp_path)
        run_sweep(swept, out, tmp_path, tell=told.append)
        assert told[-1].startswith("1/1 ")
        assert set(read_sweep(out)[0].records) == set(first.records)

    def test_what_is_on_the_experiments_own_faces_has_the_records_that_it_had(
        self, swept: Experiment, tmp_path: Path
    ) -> None:
        own = run_sweep(swept, tmp_path / "out", tmp_path).experiment.tables[0].rows
        assert ["data_sha256" in row.settings for row in own] == [False, True]


def test_rates_in_headings_are_per_cent() -> None:
    study = sweep_of(BASE + "targets = [0.1, 0.01, 0.001, 0.00001]\n")
    heads = [heading(column) for column in study.tables[0].columns]
    assert heads[2:6] == [f"TAR at FMR {rate} %, %" for rate in ("10", "1", "0.1", "0.001")]
