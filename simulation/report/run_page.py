"""A run as a page: rounds, error curves before and after, operating points with counts, who held what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mien.errors import UndefinedMetricError
from mien.evaluation import DetCurve
from mien.format import count, percent, points, score
from simulation.report.figures import NamedCurve, NamedSeries, det_figure, roc_figure, rounds_figure
from simulation.report.html import Column, Facts, Figure, Headline, Headlines, Prose, Report, Section, Table, render


def run_page(spec: Mapping[str, Any], records: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None) -> str:
    """Return a self-contained HTML page of a run; `result` is None while it has not come to its end."""
    sections: list[Section] = []
    if result is None:
        text = f"{len(records)} of {spec['task']['rounds']} rounds are done. Go on with mien-sim run --resume."
        sections.append(Prose("Not finished", (text,), notice=True))
    else:
        sections += [_headlines(result), *_curves(result), _points(result)]
    if records:
        sections += _rounds(records)
    sections.append(_facts(spec, result))
    lede = spec.get("about") or f"{spec['task']['method']}, {spec['task']['rounds']} rounds."
    return render(Report(spec["name"], lede, tuple(sections)))


def _headlines(result: Mapping[str, Any]) -> Headlines:
    before, after = result["before"], result["after"]
    gap = after["eer"] - before["eer"]
    return Headlines(
        (
            Headline(
                "Equal error rate, test people",
                percent(after["eer"]),
                f"95 % over identities: {percent(after['eer_low'])} to {percent(after['eer_high'])}; "
                f"{percent(before['eer'])} before training, {points(gap)}",
                "plain" if gap == 0 else "good" if gap < 0 else "bad",
            ),
            Headline("Test people", count(result["test_people"]), f"{count(after['num_mated'])} mated comparisons"),
            Headline("Clients", count(result["partition"]["clients"]), f"{result['rounds']} rounds"),
        )
    )


def _curves(result: Mapping[str, Any]) -> list[Section]:
    curves = [
        NamedCurve("Before training", _curve(result["before"]), "before"),
        NamedCurve("After training", _curve(result["after"]), "after"),
    ]
    rest = f"{count(result['after']['num_non_mated'])} non-mated comparisons of people whom nobody trained on."
    roc = Figure(
        "ROC", roc_figure(curves), f"True accept rate over false match rate. {rest}", "The ROC before and after."
    )
    try:
        det = Figure(
            "DET", det_figure(curves), f"False non-match over false match rate. {rest}", "The DET before and after."
        )
    except UndefinedMetricError:  # no overlap of scores: nothing to draw on probit axes
        return [roc]
    return [det, roc]


def _curve(measured: Mapping[str, Any]) -> DetCurve:
    kept = measured["curve"]
    return DetCurve(
        np.array(kept["thresholds"], np.float64),
        np.array(kept["num_false_matches"], np.int64),
        np.array(kept["num_false_non_matches"], np.int64),
        measured["num_mated"],
        measured["num_non_mated"],
    )


def _points(result: Mapping[str, Any]) -> Table:
    rows = []
    for before, after in zip(result["before"]["points"], result["after"]["points"], strict=True):
        rows.append((percent(after["target_fmr"], 3), *_cells(before), *_cells(after)))
    columns = (
        Column("Target FMR", numeric=False),
        Column("TAR before"),
        Column("achieved FMR"),
        Column("threshold"),
        Column("TAR after"),
        Column("achieved FMR"),
        Column("threshold"),
    )
    return Table(
        "Operating points",
        "True accept rate at the smallest observed threshold that keeps the target.",
        columns,
        tuple(rows),
        command=result["command"],
    )


def _cells(point: Mapping[str, Any]) -> tuple[str, str, str]:
    if "not_measurable" in point:
        return ("not measurable", "", "")
    return percent(point["tar"]), percent(point["fmr"], 3), score(point["threshold"])


def _rounds(records: Sequence[Mapping[str, Any]]) -> list[Section]:
    numbers = tuple(int(record["round"]) for record in records)
    losses = [
        NamedSeries("Before local training", numbers, tuple(r["loss_before"] for r in records), "before"),
        NamedSeries("After local training", numbers, tuple(r["loss_after"] for r in records), "after"),
    ]
    figure = rounds_figure(losses, title="Loss", percent=False)
    sections: list[Section] = [
        Figure("Loss", figure, "Weighted mean over each round's clients.", "Clients' losses by round.", _log(records))
    ]
    measured = [record for record in records if "eer" in record]
    if measured:
        series = NamedSeries(
            "EER", tuple(int(r["round"]) for r in measured), tuple(r["eer"] for r in measured), "after"
        )
        figure = rounds_figure([series], title="Equal error rate")
        sections.append(Figure("Error by round", figure, "On the test people.", "Equal error rate by round."))
    return sections


def _log(records: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (str(r["round"]), count(r["clients"]), f"{r['weight']:g}", f"{r['loss_before']:.4f}", f"{r['loss_after']:.4f}")
        for r in records
    )
    columns = (
        Column("Round"),
        Column("Clients"),
        Column("Weight"),
        Column("Loss before"),
        Column("Loss after"),
    )
    return Table("Rounds", "One record a round.", columns, rows)


def _facts(spec: Mapping[str, Any], result: Mapping[str, Any] | None) -> Facts:
    items = [("Method", spec["task"]["method"]), ("Model", _model(spec["model"])), ("Paper", spec.get("paper", ""))]
    items.append(("Faces", ", ".join(source.get("path") or source["kind"] for source in spec["faces"])))
    if result is not None:
        items += [(name.replace("_", " ").capitalize(), count(n)) for name, n in result["partition"].items()]
        failed = ", ".join(f"{code} ({number})" for code, number in result["failures"].items())
        items += [
            ("Images without a usable face", failed or "none"),
            ("Model before", result["before"]["model_id"]),
            ("Model after", result["after"]["model_id"]),
            ("Seed", str(result["seed"])),
            ("Code", result["commit"]),
            ("Command", result["command"]),
        ]
    return Facts("How it was made", tuple((term, text) for term, text in items if text))


def _model(source: Mapping[str, Any]) -> str:
    if source["source"] == "sface":
        return "pretrained SFace"
    return source.get("path") or f"{source['backbone']}, new weights, seed {source['seed']}"
