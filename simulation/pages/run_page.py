"""A run as a page: rounds, error curves before and after, operating points with counts, who held what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.errors import UndefinedMetricError
from mien.evaluation import DetCurve
from mien.format import count, percent, points, score, several
from mien.records import from_mapping, to_mapping
from mien.shell.files import write_atomically
from mien.shell.pages import Facts, Figure, Prose, Report, Section, Table, Tile, Tiles, columns, render
from simulation.pages.figures import (
    AFTER,
    BEFORE,
    Band,
    NamedCurve,
    angles_figure,
    det_figure,
    map_chart,
    roc_chart,
    rounds_chart,
)
from simulation.runs.experiment import harm
from simulation.runs.records import REPORT, RunFolder
from simulation.runs.spec import RunSpec

MAP_WORDS = {"pca": "the two directions of largest variance (PCA)", "tsne": "t-SNE, which keeps neighbours near"}


def write_run(folder: Path) -> Path:
    """Write a run's page from its records and return where it is."""
    run = RunFolder(folder)
    page = run_page(to_mapping(run.spec()), run.records(), run.result())
    write_atomically(folder / REPORT, page.encode())
    return folder / REPORT


def run_page(spec: Mapping[str, Any], records: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None) -> str:
    """Return a self-contained HTML page of a run; `result` is None while it has not come to its end."""
    run = from_mapping(RunSpec, spec)
    sections: list[Section] = []
    if result is None:
        done = (
            f"{len(records)} of {several(run.num_rounds, 'round')} done" if run.num_rounds else "The run has not ended"
        )
        text = f"{done}. Go on with mien-sim run --resume."
        sections.append(Prose("unfinished", "Not finished", (text,), is_notice=True))
    else:
        worse = harm(result["before"], result["after"])
        sections += worse_notice([worse] if worse else [])
        sections += [_headlines(result), *_curves(result), _points(result)]
    if warnings := _warnings(records):
        sections.append(Prose("warnings", "Trained nothing", warnings, is_notice=True))
    if records:
        sections += _rounds(records, result, run.trains_by)
    if result is not None:
        sections += [*_personal(result), *_shown(result), *_privacy(result)]
    sections.append(_facts(spec, run.trains_by, result))
    lede = run.about or f"{run.trains_by}, {several(run.num_rounds, 'round')}."
    return render(Report(run.name, lede, tuple(sections)))


def worse_notice(sentences: Sequence[str]) -> list[Section]:
    """Return the notice of runs that made their models worse; none where none did."""
    words = tuple(f"{each[0].upper()}{each[1:]}." for each in sentences)
    return [Prose("worse", "Worse than before training", words, is_notice=True)] if words else []


def _warnings(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what rounds warned of, each once and with how many rounds did."""
    told = Counter(record["warning"] for record in records if "warning" in record)
    return tuple(f"In {rounds} of {several(len(records), 'round')} {warning}." for warning, rounds in told.items())


def _headlines(result: Mapping[str, Any]) -> Tiles:
    before, after = result["before"], result["after"]
    gap = after["eer"] - before["eer"]
    between = f", {percent(result['pretrained']['eer'])} after pre-training" if "pretrained" in result else ""
    return Tiles(
        "headlines",
        "",
        (
            Tile(
                "Equal error rate, test people",
                percent(after["eer"]),
                f"95 % over identities: {percent(after['eer_low'])} to {percent(after['eer_high'])}; "
                f"{percent(before['eer'])} before training{between}, {points(gap)}",
                "plain" if gap == 0 else "good" if gap < 0 else "bad",
            ),
            Tile("Test people", count(result["test_people"]), f"{count(after['num_mated'])} mated comparisons"),
            Tile("Clients", count(result["partition"]["clients"]), f"{several(result['rounds'], 'round')}"),
        ),
    )


def _curves(result: Mapping[str, Any]) -> list[Section]:
    curves = [
        curve_of("Before training", result["before"], BEFORE),
        curve_of("After training", result["after"], AFTER),
    ]
    rest = f"{count(result['after']['num_non_mated'])} non-mated comparisons of people whom nobody trained on."
    words = f"True accept rate over false match rate. {rest}"
    roc = Figure("roc", "ROC", (roc_chart(curves),), words, "The ROC before and after.")
    try:
        det = det_figure(curves, rest, "The error curves before and after, with their bands.")
    except UndefinedMetricError:  # no overlap of scores: nothing to draw on probit axes
        return [roc]
    return [det, roc]


def curve_of(name: str, measured: Mapping[str, Any], number: int = 0) -> NamedCurve:
    """Return the error curve that a record holds, with its band, where there is one."""
    kept, band = measured["curve"], measured.get("band") or {"fmr": (), "low": (), "high": ()}
    curve = DetCurve(
        np.array(kept["thresholds"], np.float64),
        np.array(kept["num_false_matches"], np.int64),
        np.array(kept["num_false_non_matches"], np.int64),
        measured["num_mated"],
        measured["num_non_mated"],
    )
    return NamedCurve(name, curve, number, tuple(band["fmr"]), tuple(band["low"]), tuple(band["high"]))


def _points(result: Mapping[str, Any]) -> Table:
    rows = []
    for before, after in zip(result["before"]["points"], result["after"]["points"], strict=True):
        rows.append((percent(after["target_fmr"], 3), *_cells(before), *_cells(after)))
    heads = columns(
        "Target FMR", "#TAR before", "#achieved FMR", "#threshold", "#TAR after", "#achieved FMR", "#threshold"
    )
    caption = "True accept rate at the smallest observed threshold that keeps the target."
    return Table("points", "Operating points", caption, heads, tuple(rows), command=result["command"])


def _cells(point: Mapping[str, Any]) -> tuple[str, str, str]:
    if "not_measurable" in point:
        return (percent(point["tar"]) if "tar" in point else "not measurable", "", "")
    return percent(point["tar"]), percent(point["fmr"], 3), score(point["threshold"])


def _rounds(records: Sequence[Mapping[str, Any]], result: Mapping[str, Any] | None, method: str) -> list[Section]:
    numbers = tuple(float(record["round"]) for record in records)
    sections: list[Section] = []
    known = [name for name in _LOSSES if all(name in r for r in records)]  # engines leave out what they do not know
    losses = [
        Band(_LOSSES[name][0], numbers, tuple(r[name] for r in records), number=_LOSSES[name][1]) for name in known
    ]
    if losses:
        chart = rounds_chart(losses, title="Training loss", percent=False)
        caption = f"What {method} minimises on clients' own images: the weighted mean over each round's clients."
        sections.append(Figure("loss", "Loss", (chart,), caption, "Clients' losses by round.", _log(records)))
    measured = [(float(record["round"]), float(record["eer"])) for record in records if "eer" in record]
    if measured:
        if result is not None:
            measured.insert(0, (0.0, float(result["before"]["eer"])))
        band = Band("EER", tuple(n for n, _ in measured), tuple(eer for _, eer in measured))
        chart = rounds_chart([band], title="Equal error rate")
        sections.append(Figure("eer", "Error by round", (chart,), "On the test people.", "Equal error rate by round."))
    return sections


def _shown(result: Mapping[str, Any]) -> list[Section]:
    """Return what is known of classes and embeddings, as counts and as a map of nobody's faces."""
    sections: list[Section] = []
    if angles := result.get("angles"):
        classes = several(angles["classes"], "class", "classes")
        caption = f"of {classes}; a right angle is as far apart as many people can be on average."
        sections.append(angles_figure({"After training": [angles]}, caption))
    if flat := result.get("map"):
        caption = (
            f"Embeddings of {len(set(flat['people']))} test people who do not exist, on {MAP_WORDS[flat['kind']]}; "
            "one mark a picture, one colour and shape a person. Two of many dimensions: what lies apart is apart, what "
            "lies together need not be near."
        )
        described = (
            f"A map of {several(len(flat['points']), 'embedding')} of "
            f"{several(len(set(flat['people'])), 'person', 'people')}."
        )
        chart = map_chart(flat["points"], flat["people"])
        sections.append(Figure("map", "Embeddings", (chart,), caption, described))
    return sections


def _personal(result: Mapping[str, Any]) -> list[Section]:
    """Return how well clients' own models tell clients' people apart; nothing where nobody asked."""
    found = result.get("personal")
    if not found:
        return []
    intro = (
        f"Means over {several(found['clients'], 'client')}, {count(found['own_models'])} of them with a model "
        f"of their own "
        f"({found['model']}), on images of all clients' people that nobody trained on."
    )
    left_out = found.get("left_out", {})
    items = tuple(
        (_personal_name(name), percent(value) + _without(left_out.get(name.removesuffix("_min"), 0)))
        for name, value in found["figures"].items()
    )
    return [Facts("personal", "Clients' own models", items, intro=intro)]


def _without(left_out: int) -> str:
    return f" (without {count(left_out)} whose images cannot measure it)" if left_out else ""


def _personal_name(name: str) -> str:
    kind, _, target = name.removesuffix("_min").partition("_")
    worst = ", the worst client's" if name.endswith("_min") else ""
    return f"{_PERSONAL[kind]}{f' {float(target) * 100:g} %' if target else ''}{worst}"


_PERSONAL: Final[Mapping[str, str]] = {
    "rank1": "1:N, rank 1",
    "tar": "1:1, TAR at FMR",
    "tpir": "1:N, TPIR at FPIR",
    "tpr": "1:1, TPR at FPR of FedFR's code",
    "pr": "1:N, PR at FAR of FedFR's code",
}


def _privacy(result: Mapping[str, Any]) -> list[Section]:
    """Return what the noise of the sums amounts to; nothing for sums without noise."""
    spent = result.get("privacy")
    if not spent:
        return []
    items = (
        ("Epsilon", f"{spent['epsilon']:.3g} at delta {spent['delta']:g}, by Renyi accounting"),
        ("Noise", f"{spent['noise_multiplier']:g} times the clip, {spent['mechanism']}"),
        ("Clip", f"{spent['l2_clip']:g}"),
        ("Sums of one phone", f"{spent['num_sums']} of {several(spent['num_rounds'], 'round')}"),
        ("Losses", "withheld: phones tell none under differential privacy"),
    )
    intro = "As a coordinator counts, which keeps a phone out of further sums; a simulation keeps nobody out."
    return [Facts("privacy", "Differential privacy", items, intro=intro)]


_LOSSES: Final[Mapping[str, tuple[str, int]]] = {
    "loss_before": ("Before local training", BEFORE),
    "loss_after": ("After local training", AFTER),
}


def _loss(record: Mapping[str, Any], name: str) -> str:
    return f"{record[name]:.4f}" if name in record else ""


def _log(records: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (str(r["round"]), count(r["clients"]), f"{r['weight']:g}", _loss(r, "loss_before"), _loss(r, "loss_after"))
        for r in records
    )
    heads = columns("#Round", "#Clients", "#Weight", "#Loss before", "#Loss after")
    return Table("rounds", "Rounds", "One record a round.", heads, rows)


def _facts(spec: Mapping[str, Any], method: str, result: Mapping[str, Any] | None) -> Facts:
    items = [("Method", method), ("Model", _model(spec["model"])), ("Paper", spec.get("paper", ""))]
    items.append(("Faces", ", ".join(source.get("path") or source["kind"] for source in spec["faces"])))
    if result is not None:
        items += [(name.replace("_", " ").capitalize(), count(n)) for name, n in result["partition"].items()]
        failed = ", ".join(f"{code} ({number})" for code, number in result["failures"].items())
        items += [
            ("Images without a usable face", failed or "none"),
            ("Model before", result["before"]["model_id"]),
            ("Model after", result["after"]["model_id"]),
            ("Seed", str(result["seed"])),
            ("Processor time", _times(result["run"]["cpu_s"])),
            ("Wall clock", f"{sum(result['run']['wall_s'].values()):.0f} s"),
            ("Machine", result["run"]["machine"]),
            ("Code", result["commit"]),
            ("Faces, SHA-256", result["run"]["data_sha256"]),
            ("Command", result["command"]),
        ]
    return Facts("made", "How it was made", tuple((term, text) for term, text in items if text))


_PARTS: Final = {
    "faces": "finding and reading faces",
    "before": "measuring the model before training",
    "rounds": "training",
    "after": "measuring while and after training",
}


def _times(spent: Mapping[str, float]) -> str:
    """Return the time of each part of a run, in the order of the parts."""
    return ", ".join(f"{text} {spent[name]:.0f} s" for name, text in _PARTS.items() if name in spent)


def _model(source: Mapping[str, Any]) -> str:
    if source["source"] == "sface":
        return "pretrained SFace"
    return source.get("path") or f"{source['backbone']}, new weights, seed {source['seed']}"
