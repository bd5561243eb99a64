"""Reproductions by name: the list, mistakes, a toy run from the command line, rendering again without running."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.errors import ConfigError, MienError, NotFoundError
from mien.methods import METHODS
from mien.records import from_mapping
from simulation.program import reproduce
from simulation.program.cli import app
from simulation.program.reports import report
from simulation.runs import reproduced
from simulation.runs.experiment import Results


def test_what_lies_deeper_than_a_report_looks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, deeper = reproduced.Options("fedgc", quick=True, seeds=(0,)), tmp_path / "reproduce"

    def reproduced_in(folder: Path) -> None:
        (folder / "records").mkdir(parents=True)
        reproduce.write(Results(options.study(), options.seeds, {}), options, folder)

    reproduced_in(deeper / "fedgc")
    with pytest.raises(NotFoundError, match=r"holds no records; name one of .*/reproduce$"):
        report(tmp_path, None, as_json=True)
    reproduced_in(tmp_path / "fedgc")
    report(tmp_path, None, as_json=True)
    shown = capsys.readouterr()
    assert f"Left out, for it lies deeper: {deeper}; mien-sim report {deeper}" in shown.err.splitlines()
    assert json.loads(shown.out)["written"] == [str(tmp_path / "fedgc" / "report.html")]


def test_the_list_is_in_columns() -> None:
    shown = CliRunner().invoke(app, ["reproduce", "--list"]).stdout
    found = {name: re.search(rf"^{name} +", shown, re.MULTILINE) for name in reproduced.EXPERIMENTS}
    assert len({match and len(match[0]) for match in found.values()}) == 1
    assert all(found.values())


def test_the_list_names_papers_for_machines() -> None:
    done = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    assert done.exit_code == 0
    listed = {each["name"]: each for each in json.loads(done.stdout)["experiments"]}
    assert {"fedface", "fedfr", "pfm_fv", "fedgc", "fedfr_uda"} <= set(listed)
    assert all(each["paper"] and each["shows"] for each in listed.values())


@pytest.mark.parametrize("name", reproduced.EXPERIMENTS)
def test_every_experiment_has_a_study_at_both_scales(name: str) -> None:
    quick = reproduced.Options(name, quick=True).study()
    assert quick.name == name
    assert quick.rows
    assert quick.tables
    assert quick.claims == ()
    assert quick.notes[-1] == reproduced.TOY


@pytest.mark.parametrize("name", reproduced.EXPERIMENTS)
def test_a_spread_out_of_our_own_rates_is_called_tuned_in_every_study(name: str) -> None:
    """It was called FedFace as published, at 3,000 times the released code's rate and with a server's momentum."""
    for row in reproduced.Options(name).study().rows:
        task = row.settings.get("task", {})
        is_shown = "class_embeddings" in task.get("privacy", {}).get("reveals", ())
        if not is_shown or task.get("method") not in ("fedface", "fedaws"):
            continue
        options = from_mapping(METHODS[task["method"]].options, task.get("options", {}))
        if options.preset == "own":
            assert "published" not in row.label, row.name
            assert "paper" not in row.label, row.name


@pytest.mark.parametrize("command", [["run"], ["report"], ["reproduce"]])
def test_every_command_has_an_example(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    assert "Example: mien-sim " + command[0] in " ".join(done.stdout.split())


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIEN_DATA", raising=False)
    with pytest.raises(ConfigError, match="did you mean 'fedface'"):
        reproduced.known("fedfase")
    with pytest.raises(ConfigError, match="--seeds is 0"):
        reproduce.seeds_of(0)
    with pytest.raises(ConfigError, match="--seeds is 1000000000; more than 1000"):
        reproduce.seeds_of(10**9)
    with pytest.raises(NotFoundError, match="--faces"):
        reproduce.faces_for("fedface", None, quick=False)
    with pytest.raises(NotFoundError, match="MIEN_DATA to a folder that holds celeba112 and bollywood112"):
        reproduce.faces_for("fedfr_real", None, quick=False)
    with pytest.raises(NotFoundError, match="there is no folder"):
        reproduce.faces_for("fedface", tmp_path / "none", quick=True)
    assert reproduce.faces_for("fedface", None, quick=True) is None
    assert reproduce.faces_for("fedface", Path("shipped"), quick=True) is None
    with pytest.raises(NotFoundError, match="fedface needs hundreds of people"):
        reproduce.faces_for("fedface", Path("shipped"), quick=False)
    with pytest.raises(MienError, match="holds no records"):
        report(tmp_path, None, as_json=True)


def test_results_are_rendered_again_from_records(tmp_path: Path) -> None:
    """Made-up records in the places of real ones: what is written is what they say, and nothing is run."""
    options = reproduced.Options("fedgc", quick=True, seeds=(0, 1))
    study = options.study()
    folder = tmp_path / "fedgc"
    (folder / "records").mkdir(parents=True)
    for row in study.rows:
        for seed in options.seeds:
            record = {"metrics": {"eer": 0.125}, "cpu_s": 1.0, "commit": "abc"}
            (folder / "records" / study.file_of(row, seed)).write_text(json.dumps(record))
    reproduce.write(Results(study, options.seeds, {}), options, folder)
    report(tmp_path, tmp_path / "results.md", as_json=True)
    text = (tmp_path / "results.md").read_text()
    assert text.startswith("# Results\n")
    assert "| softmax: FedPE | 94.77 | 12.50 ± 0.00 | not measured | not measured | 2 |" in text
    assert "`mien-sim reproduce fedgc --quick --seeds 2`" in text
    page = (folder / "report.html").read_text()
    assert "12.50 ± 0.00" in page
    assert "What the paper claims" not in page
    assert "does not hold" not in text + page
    assert reproduced.TOY in text
    results, again = reproduced.read(folder)
    assert (again, len(results.records)) == (options, 2 * len(study.rows))
