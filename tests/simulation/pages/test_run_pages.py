"""Pages of runs and sweeps say which seeds, which loss and which rounds they show."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from simulation.pages.figures import Band, rounds_chart
from simulation.pages.run_page import run_page
from simulation.pages.sweep_page import _seeds_in_words, sweep_page
from simulation.runs.grid import read_sweep
from simulation.runs.records import RunFolder
from tests.simulation.pages.synthetic_sweep import write_sweep_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of three settings and three seeds that nobody ran."""
    out = tmp_path_factory.mktemp("made_up")
    write_sweep_folder(out)
    return out


def text_of(page: str, term: str) -> str:
    """Return what a fact of the page says."""
    found = re.search(f"<dt>{term}</dt><dd>(.*?)</dd>", page)
    assert found is not None
    return html.unescape(found[1])


def test_the_error_before_training_is_that_of_every_run(folder: Path) -> None:
    results, command = read_sweep(folder)
    page = sweep_page(results, folder, command=command)
    evaluations = [json.loads(path.read_text()) for path in folder.glob("runs/*/evaluation.json")]
    errors = [evaluation["before"]["eer"] * 100 for evaluation in evaluations]
    assert f"{min(errors):.2f}" != f"{max(errors):.2f}"
    told = text_of(page, "Error before training").replace("\u202f", " ")
    assert re.findall(r"\d+\.\d+", told) == [f"{min(errors):.2f}", f"{max(errors):.2f}"]
    assert told.endswith("over 9 runs")
    assert (
        "The bands are 95 % intervals of a bootstrap over people. Of the test people. Seed 0 alone."
        in html.unescape(page)
    )


def test_a_figure_of_single_runs_names_their_seeds() -> None:
    assert _seeds_in_words([4, 4]) == "Seed 4 alone."
    assert _seeds_in_words([4, 0, 4]) == "One seed each, of 0, 4."


def test_round_0_is_explained_where_it_is_shown() -> None:
    titles = [rounds_chart([Band("a", rounds, (0.5, 0.4))], title="Loss").x_label for rounds in ((0, 1), (1, 2))]
    assert titles == ["Round (0: before training)", "Round"]


def test_a_run_says_which_loss_and_where_its_time_went(folder: Path) -> None:
    run = RunFolder(folder / "runs" / "private-s0")
    result = json.loads(run.evaluation.read_text())
    result["run"]["cpu_s"] = {"after": 4.0, "before": 2.0, "faces": 1.0, "rounds": 3.0}
    page = run_page(json.loads(run.experiment.read_text()), run.records(), result)
    assert "What fedface minimises on clients" in html.unescape(page)
    assert text_of(page, "Processor time") == (
        "finding and reading faces 1 s, measuring the model before training 2 s, training 3 s, measuring while and "
        "after training 4 s"
    )
