"""A sweep as a page: its settings side by side in a table, over rounds, as error curves and as angles of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mien.errors import UndefinedMetricError
from mien.format import count, percent, several
from mien.shell.files import write_atomically
from mien.shell.pages import Facts, Figure, Prose, Report, Section, Table, columns, render
from mien.shell.pages.charts import MAX_SERIES
from simulation.pages.figures import angles_figure, band_of, det_figure, rounds_chart
from simulation.pages.run_page import curve_of, worse_notice
from simulation.pages.study_page import study_tables
from simulation.runs.collected import CollectedRun, collect
from simulation.runs.experiment import Experiment, Results, markdown
from simulation.runs.grid import base_of, read_sweep
from simulation.runs.records import REPORT, TABLES

MOST: Final = MAX_SERIES


def write_sweep(folder: Path) -> tuple[Results, str]:
    """Write a sweep's table and page from its records; return its results and the command that gave them."""
    results, command = read_sweep(folder)
    write_atomically(folder / TABLES, markdown(results, command=command).encode())
    write_atomically(folder / REPORT, sweep_page(results, folder, command=command).encode())
    return results, command


def sweep_page(results: Results, folder: Path, *, command: str) -> str:
    """Return a self-contained HTML page of a sweep's runs in `folder`, of those that are there."""
    sweep, runs = results.experiment, collect(folder)
    shown, left_out = _shown(sweep, runs)
    sections: list[Section] = []
    missing = len(sweep.rows) * len(sweep.seeds) - len(results.records)
    if missing:
        text = f"{missing} of {several(len(sweep.rows) * len(sweep.seeds), 'run')} not done. The same command goes on."
        sections.append(Prose("unfinished", "Not finished", (text,), is_notice=True))
    sections += worse_notice(results.harmed())
    sections += study_tables(results, command)
    if left_out:
        told = f"Figures show the {MOST} settings of the lowest error, of {len(sweep.rows)}."
        sections.append(Prose("shown", "", (told,)))
    sections += _rounds(shown, "eer", "Error by round", "Equal error rate", percent_axis=True)
    sections += _curves(shown)
    sections += _rounds(shown, "loss_after", "Loss by round", "Training loss after local training", percent_axis=False)
    sections += _angles(shown)
    sections.append(_facts(results, runs, command))
    base = base_of(sweep)
    lede = base.about or f"{len(sweep.rows)} settings of {base.task.method} side by side."
    return render(Report(sweep.name, lede, tuple(sections)))


def _shown(sweep: Experiment, runs: Sequence[CollectedRun]) -> tuple[dict[str, list[CollectedRun]], bool]:
    """Return label -> runs of as many settings as a figure can show: the best ones, in the sweep's order."""
    of = {row.name: [run for run in runs if run.name == row.name] for row in sweep.rows}
    held = [name for name, each in of.items() if each]
    best = sorted(held, key=lambda name: min((r.figures.get("after.eer", 1.0) for r in of[name]), default=1.0))[:MOST]
    labels = {row.name: row.label for row in sweep.rows}
    return {labels[name]: of[name] for name in held if name in best}, len(held) > MOST


def _rounds(
    shown: Mapping[str, list[CollectedRun]], metric: str, title: str, axis: str, *, percent_axis: bool
) -> list[Section]:
    bands = [band for label, runs in shown.items() if (band := band_of(label, [_series(r, metric) for r in runs])).x]
    if not bands:
        return []
    chart = rounds_chart(bands, title=axis, percent=percent_axis)
    caption = "Means over seeds; the bands are 95 % t-intervals."
    if not any(b.low for b in bands):
        caption = _seeds_in_words([r.seed for runs in shown.values() for r in runs if _series(r, metric)])
    rows = tuple(
        (b.name, *(f"{v * 100:.2f}" if percent_axis else f"{v:.4f}" for v in (b.mean[0], b.mean[-1]))) for b in bands
    )
    heads = columns("Setting", "#First measured round", "#Last")
    described = f"{axis} by round of {len(bands)} settings."
    ends = Table(f"{metric}-ends", "The ends", axis, heads, rows)
    return [Figure(metric.replace("_", "-"), title, (chart,), caption, described, ends)]


def _seeds_in_words(seeds: Sequence[int]) -> str:
    """Return which seed a figure shows, where it shows one run of each setting."""
    named = sorted(set(seeds))
    return f"Seed {named[0]} alone." if len(named) == 1 else f"One seed each, of {', '.join(map(str, named))}."


def _series(run: CollectedRun, metric: str) -> dict[float, float]:
    """Return a run's figure by round; the equal error rate also before training, as round 0."""
    start = {0.0: run.figures["before.eer"]} if metric == "eer" and "before.eer" in run.figures else {}
    return start | {float(r["round"]): float(r[metric]) for r in run.rounds if metric in r}


def _curves(shown: Mapping[str, list[CollectedRun]]) -> list[Section]:
    curves, seeds = [], []
    for label, runs in shown.items():
        done = [run for run in runs if run.evaluation]
        if done:
            curves.append(curve_of(label, done[0].evaluation["after"]))
            seeds.append(done[0].seed)
    if not curves:
        return []
    rest = f"Of the test people. {_seeds_in_words(seeds)}"
    try:
        return [det_figure(curves, rest, f"Error curves of {len(curves)} settings.")]
    except UndefinedMetricError:  # scores do not overlap: nothing to draw on probit axes
        return []


def _angles(shown: Mapping[str, list[CollectedRun]]) -> list[Section]:
    found = {name: [a for run in runs if (a := run.evaluation.get("angles"))] for name, runs in shown.items()}
    found = {name: records for name, records in found.items() if records}
    caption = "of all seeds together; a right angle is as far apart as many people can be on average."
    return [angles_figure(found, caption)] if found else []


def _before(done: Sequence[CollectedRun]) -> str:
    """Return the error of the models that training began with: one, or from which to which over the runs."""
    errors = sorted(run.evaluation["before"]["eer"] for run in done)
    if not errors:
        return ""
    low, high = percent(errors[0]), percent(errors[-1])
    return low if low == high else f"{low} to {high}, over {several(len(errors), 'run')}"


def _facts(results: Results, runs: Sequence[CollectedRun], command: str) -> Facts:
    sweep, done = results.experiment, [run for run in runs if run.evaluation]
    machines = sorted({run.evaluation["run"]["machine"] for run in done})
    commits = sorted({run.evaluation["run"]["commit"] for run in done})
    seconds = sum(v for run in done for name, v in run.figures.items() if name.endswith("_cpu_s"))
    items = [
        ("Command", command),
        ("Paper", sweep.source),
        ("Settings", count(len(sweep.rows))),
        ("Seeds", ", ".join(map(str, sweep.seeds))),
        ("Runs", f"{len(results.records)} of {len(sweep.rows) * len(sweep.seeds)}"),
        ("Test people", count(done[0].evaluation["test_people"]) if done else ""),
        ("Error before training", _before(done)),
        ("Processor time", f"{seconds / 60:.1f} min"),
        ("Machine", "; ".join(machines)),
        ("Code", ", ".join(commits)),
        ("Faces, SHA-256", results.experiment.data_sha256),
    ]
    return Facts("made", "How it was made", tuple((term, text) for term, text in items if text))
