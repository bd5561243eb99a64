"""Studies: intervals against tables, records that resume, failures that cost nobody else's run, verdicts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mien.errors import ConfigError, UndefinedMetricError
from simulation.pages.study_page import study_page
from simulation.runs.experiment import (
    Claim,
    Column,
    Estimate,
    Experiment,
    Job,
    Results,
    Row,
    Table,
    estimate,
    harm,
    markdown,
    t_quantile,
)
from simulation.runs.pool import run_all


def measure(job: Job) -> Mapping[str, float]:
    """Return made-up figures; some rows fail in the ways that runs fail."""
    if job.settings.get("fails") == "mien":
        raise UndefinedMetricError("nothing to compare; add faces")
    if job.settings.get("fails") == "bug":
        raise KeyError("lost")
    if job.settings.get("fails") == "killed":
        os._exit(9)
    if job.settings.get("hears"):
        os.kill(os.getpid(), signal.SIGINT)
    return {"eer": job.settings["base"] + 0.01 * job.seed, "threads": float(os.environ["OMP_NUM_THREADS"])}


def sleep(job: Job) -> Mapping[str, float]:
    """Say which process this is, and measure for longer than any test."""
    assert job.faces is not None
    (job.faces / "worker").write_text(str(os.getpid()))
    time.sleep(600)
    return {}


def run_sleepers(folder: Path) -> None:
    """Run a study that does not end, in a process that a test kills."""
    run_all(replace(study(GOOD), measure=sleep), folder / "records", seeds=(0,), faces=folder)


def study(*rows: Row, claims: tuple[Claim, ...] = ()) -> Experiment:
    return Experiment("toy", "Toy", measure, (Table("One", rows, (Column("EER", "eer"),), ("paper",)),), claims)


GOOD = Row("good", "Good one", {"base": 0.1}, ("9.9",))
WORSE = Row("worse", "Worse one", {"base": 0.3})


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (30, 2.042)])
def test_t_quantiles_are_those_of_the_printed_table(degrees: int, value: float) -> None:
    assert t_quantile(0.95, degrees) == pytest.approx(value, abs=5e-4)


def test_an_estimate_is_mean_and_t_interval() -> None:
    found = estimate([1.0, 2.0, 3.0])  # deviation 1, half width 4.3027 / sqrt(3)
    assert found is not None
    assert found.mean == 2.0
    assert found.high == pytest.approx(2 + 2.48414, abs=1e-4)
    assert found.low == pytest.approx(2 - 2.48414, abs=1e-4)
    assert estimate([0.5]) == Estimate(0.5, None, None, 1)
    assert estimate([]) is None


def test_runs_resume_and_failures_cost_nobody_else(tmp_path: Path) -> None:
    rows = (GOOD, Row("mien", "m", {"fails": "mien"}), Row("bug", "b", {"fails": "bug"}), WORSE)
    one = study(*rows, Row("killed", "k", {"fails": "killed"}))
    told: list[str] = []
    results = run_all(one, tmp_path, seeds=(0, 1), jobs=2, tell=told.append)
    assert set(results.records) == {("good", 0), ("good", 1), ("worse", 0), ("worse", 1)}
    assert results.values("good", "eer") == {0: 0.1, 1: pytest.approx(0.11)}
    assert set(results.values("good", "threads").values()) == {1.0}
    assert {(f.row, f.seed) for f in results.failures} == {(r, s) for r in ("mien", "bug", "killed") for s in (0, 1)}
    reasons = {f.row: f.reason for f in results.failures}
    assert reasons["mien"] == "undefined_metric: nothing to compare; add faces"
    assert reasons["bug"] == "KeyError: 'lost'"
    assert reasons["killed"] == "its process ended with code 9"
    assert len([line for line in told if "FAILED" in line]) == 6

    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    changed = study(GOOD, replace(WORSE, settings={"base": 0.4}))
    again = run_all(changed, tmp_path, seeds=(0, 1))
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert again.values("worse", "eer") == {0: 0.4, 1: pytest.approx(0.41)}
    assert len(list(tmp_path.glob("*.json"))) == 6
    record = json.loads((tmp_path / changed.file_of(GOOD, 1)).read_text())
    assert (record["row"], record["seed"], record["settings"]) == ("good", 1, {"base": 0.1})


def test_ctrl_c_is_for_the_process_that_begins_the_others(tmp_path: Path) -> None:
    """A terminal sends it to all of them; one that heard it while it began would print a traceback."""
    results = run_all(study(GOOD, replace(WORSE, settings={"base": 0.3, "hears": True})), tmp_path, seeds=(0,))
    assert results.failures == ()
    assert results.values("worse", "eer") == {0: 0.3}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def ends(pid: int) -> bool:
    """Return whether a process has ended, or does so in a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):  # the second where it ends while it is read
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see whether a process has ended")
def test_workers_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.simulation.runs.test_study import run_sleepers\n"
    command = [sys.executable, "-c", code + "run_sleepers(Path(sys.argv[1]))", str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as parent:
        end = time.monotonic() + 120
        while not (tmp_path / "worker").is_file() or not (tmp_path / "worker").read_text():
            assert parent.poll() is None, "the study ended too early"
            assert time.monotonic() < end, "no worker began"
            time.sleep(0.05)
        parent.kill()
    assert ends(int((tmp_path / "worker").read_text()))


def results_of(values: Mapping[str, list[float]], *claims: Claim) -> Results:
    rows = tuple(Row(name, name, {"base": 0}) for name in values)
    records = {(name, seed): {"metrics": {"eer": v}} for name, vs in values.items() for seed, v in enumerate(vs)}
    return Results(study(*rows, claims=claims), (0, 1, 2), records)


@pytest.mark.parametrize(
    ("a", "b", "within", "verdict"),
    [
        ([0.5, 0.6, 0.7], [0.4, 0.49, 0.61], None, "holds"),  # paired differences 0.10, 0.11, 0.09
        ([0.5, 0.6, 0.7], [0.6, 0.1, 0.1], None, "holds on average"),
        ([0.5, 0.6, 0.7], [0.6, 0.7, 0.8], None, "does not hold"),
        ([0.5, 0.6, 0.7], [0.51, 0.61, 0.71], 0.02, "holds"),
        ([0.5, 0.6, 0.7], [0.6, 0.7, 0.8], 0.02, "does not hold"),
        ([0.5], [0.4], None, "holds on average"),
        ([0.5], [], None, "not measured"),
    ],
)
def test_verdicts(a: list[float], b: list[float], within: float | None, verdict: str) -> None:
    claim = Claim("a > b", "a", "b", "eer", within)
    assert results_of({"a": a, "b": b}, claim).verdict(claim) == verdict


def test_markdown_stands_beside_the_paper() -> None:
    claim = Claim("good beats worse", "worse", "good", "eer")
    one = study(GOOD, WORSE, claims=(claim,))
    records = {
        (row, seed): {"metrics": {"eer": base}} for row, base in (("good", 0.1), ("worse", 0.3)) for seed in (0, 1)
    }
    text = markdown(Results(one, (0, 1), records), command="mien-sim reproduce toy")
    assert "| system | paper: paper | EER, % | runs |" in text
    assert "| Good one | 9.9 | 10.00 ± 0.00 | 2 |" in text
    assert "| good beats worse | +20.00 ± 0.00 (EER) | holds |" in text
    assert "`mien-sim reproduce toy`" in text
    assert "not measured" in markdown(Results(one, (0, 1), {}))


def test_a_figure_says_of_how_many_runs_it_is_where_some_lack_it() -> None:
    rows, columns = (Row("a", "A", {}),), (Column("EER", "eer"), Column("TAR", "tar"))
    study = Experiment("toy", "Toy", measure, (Table("One", rows, columns),))
    metrics = ({"eer": 0.5, "tar": 0.25}, {"eer": 0.5}, {"eer": 0.5, "tar": 0.25})
    records = {("a", seed): {"metrics": each} for seed, each in enumerate(metrics)}
    (line,) = [line for line in markdown(Results(study, (0, 1, 2), records)).splitlines() if line.startswith("| A ")]
    assert line == "| A | 50.00 ± 0.00 | 25.00 ± 0.00 (2 of 3) | 3 |"


@pytest.mark.parametrize(
    ("before", "after", "low", "is_told"),
    [
        ([0.03, 0.03, 0.03], [0.05, 0.051, 0.049], None, True),
        ([0.03, 0.03, 0.03], [0.031, 0.05, 0.029], None, False),  # within what seeds differ by
        ([0.05, 0.05], [0.03, 0.03], None, False),
        ([0.03], [0.05], [0.04], True),
        ([0.03], [0.05], [0.02], False),  # within the interval over people
        ([0.03], [0.05], None, False),  # a record of before there was one
    ],
)
def test_training_that_harms_is_told(
    before: list[float], after: list[float], low: list[float] | None, is_told: bool
) -> None:
    records = {}
    for seed in range(len(before)):
        lows = {} if low is None else {"eer_low": low[seed]}
        records["good", seed] = {"metrics": {"eer_before": before[seed], "eer": after[seed], **lows}}
    results = Results(study(GOOD, WORSE), tuple(range(len(before))), records)
    told = f"Good one: training made the model worse: EER {before[0]:.2%} before"
    assert [each.startswith(told) for each in results.harmed()] == [True] * is_told
    assert ("**Worse than before training.**" in markdown(results)) == is_told
    assert ("Worse than before training" in study_page(results, command="")) == is_told


def test_a_run_says_whether_it_made_the_model_worse() -> None:
    after = {"eer": 0.05, "eer_low": 0.04}
    assert harm({"eer": 0.03}, after).startswith("training made the model worse: EER 3.00% before, 5.00% after")
    assert harm({"eer": 0.045}, after) == ""


def test_single_rows_are_measured_beside_those_that_lie_there(tmp_path: Path) -> None:
    one = study(GOOD, WORSE)
    assert set(run_all(one, tmp_path, seeds=(0,), only=("worse",)).records) == {("worse", 0)}
    assert set(run_all(one, tmp_path, seeds=(0,), only=("good",)).records) == {("good", 0), ("worse", 0)}
    with pytest.raises(ConfigError, match="toy has no row best; its rows: good, worse"):
        run_all(one, tmp_path, only=("best", "good"))


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot name a file"):
        Row("Fed/Face", "x", {})
    with pytest.raises(ConfigError, match="different settings"):
        study(GOOD, replace(GOOD, settings={"base": 1}))
    with pytest.raises(ConfigError, match="no table has: nobody"):
        study(GOOD, claims=(Claim("x", "good", "nobody", "eer"),))
    with pytest.raises(ConfigError, match="seeds are"):
        run_all(study(GOOD), tmp_path, seeds=(1, 1))
    with pytest.raises(ConfigError, match="jobs is 0"):
        run_all(study(GOOD), tmp_path, jobs=0)
    with pytest.raises(ConfigError, match="plain data"):
        study(Row("x", "x", {"path": Path()}))
