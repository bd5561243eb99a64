"""Model quality as drawings: TAR over releases, DET curves, monitors of collapse. Every figure has its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from coordinator.dashboard.views.common import model_link
from coordinator.dashboard.views.measured import Measured
from coordinator.dashboard.words import rate
from mien.format import count, moment, percent, score, several
from mien.rounds.records import ReleaseRecord
from mien.shell.pages import NOTHING, Cell, Chart, Figure, Series, Table, charts, columns

Records = Mapping[str, Sequence[Measured]]

_MAX_SETS: Final = 3
_FLOOR: Final = -4
_LOWEST_FNMR: Final = -3


def newest_by_set(records: Sequence[Measured]) -> dict[str, Measured]:
    """Return a model's newest measurement with operating points, for each data set."""
    return {record.dataset: record for record in records if record.points}


def sets_measured(records: Records) -> list[str]:
    """Return the data sets, those on which most models were measured first."""
    return most_common(newest_by_set(each) for each in records.values())


def most_common(measured: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the data sets of models' measurements, those on which most models were measured first."""
    counts = Counter(name for each in measured for name in each)
    return [name for name, _ in counts.most_common(_MAX_SETS)]


def tar_figures(releases: Sequence[ReleaseRecord], records: Records) -> Iterator[Figure]:
    """Yield, for each data set, TAR at each measured FMR over the releases."""
    for index, dataset in enumerate(sets_measured({r.model_id: records.get(r.model_id, ()) for r in releases})):
        measured = [
            (number, release, newest_by_set(records.get(release.model_id, ())).get(dataset))
            for number, release in enumerate(releases, 1)
        ]
        figure = _tar_figure(index, dataset, [(n, r, rec) for n, r, rec in measured if rec is not None])
        if figure is not None:
            yield figure


def _tar_figure(index: int, dataset: str, measured: Sequence[tuple[int, ReleaseRecord, Measured]]) -> Figure | None:
    targets = sorted({p.target_fmr for _, _, rec in measured for p in rec.points}, reverse=True)
    targets = targets[: charts.MAX_SERIES]
    tars = [{p.target_fmr: p.tar for p in record.points} for _, _, record in measured]
    if not targets:
        return None
    series = tuple(
        Series(
            f"FMR {rate(target)}",
            tuple((float(n), tar[target]) for (n, _, _), tar in zip(measured, tars, strict=True) if target in tar),
        )
        for target in targets
    )
    x = charts.whole_numbers(measured[0][0], measured[-1][0])
    values = [b for each in series for _, b in each.points]
    y = charts.linear(values, words=lambda value: percent(value, 1 if max(values) - min(values) < 0.1 else 0))
    rows = tuple(
        (
            Cell(str(number), note=moment(release.released_ms)[:10]),
            model_link(release.model_id, "rolled back to" if release.is_rollback else ""),
            *(percent(tar[target]) if target in tar else NOTHING for target in targets),
        )
        for (number, release, _), tar in zip(measured, tars, strict=True)
    )  # fmt: skip
    heads = columns("Release", "Model", *(f"#TAR at FMR {rate(t)}" for t in targets))
    last, first = tars[-1], tars[0]
    told = "; ".join(
        f"at FMR {rate(t)} it went from {percent(first[t])} to {percent(last[t])}"
        for t in targets
        if t in first and t in last
    )
    record = measured[-1][2]
    return Figure(
        f"tar-{index + 1}", f"TAR over releases, on {dataset}",
        (Chart(series, x, y, "release", "TAR"),),
        f"True accept rate on {number(record.mated)} mated and {number(record.non_mated)} non-mated comparisons.",
        f"TAR over {several(len(measured), 'release')}{': ' + told if told and len(measured) > 1 else ''}.",
        Table(f"tar-{index + 1}-table", "By release", f"TAR over releases on {dataset}", heads, rows),
    )  # fmt: skip


def det_figure(anchor: str, models: Sequence[tuple[str, str]], records: Records) -> Figure | None:
    """Return the DET curves of models, (id, words) each, on the set that most were measured on; None for no figures."""
    sets = sets_measured({model_id: records.get(model_id, ()) for model_id, _ in models})
    if not sets:
        return None
    dataset = sets[0]
    found = [(words, newest_by_set(records.get(model_id, ())).get(dataset)) for model_id, words in models]
    curves = [(words, record) for words, record in found if record is not None][: charts.MAX_SERIES]
    series = tuple(Series(words, tuple(_det_points(record))) for words, record in curves)
    chart = Chart(series, charts.decades(_FLOOR, -1, rate), charts.decades(_LOWEST_FNMR, 0, rate), "FMR", "FNMR")
    rows = tuple(
        (words, rate(p.target_fmr), f"{p.fmr:.2g}", f"{p.fnmr:.4f}", score(p.threshold))
        for words, record in curves
        for p in record.points
    )  # fmt: skip
    heads = columns("Model", "#Wanted FMR", "#FMR", "#FNMR", "#Threshold")
    told = "; ".join(f"{words}: equal error rate {percent(rec.eer)}" for words, rec in curves if rec.eer is not None)
    return Figure(
        anchor, f"DET on {dataset}", (chart,),
        "Through the measured operating points and the equal error rate; lower is better. An FNMR below 0.001 lies on "
        "the lowest line.",
        f"Detection error trade-off. {told or 'See the table'}.",
        Table(f"{anchor}-table", "Operating points", f"Operating points on {dataset}", heads, rows),
    )  # fmt: skip


def _det_points(record: Measured) -> list[tuple[float, float]]:
    points = [(point.fmr, point.fnmr) for point in record.points if point.fmr > 0]
    if record.eer is not None and 0 < record.eer <= 0.1:  # the axis ends there
        points.append((record.eer, record.eer))
    return sorted(points, key=lambda point: (point[0], -point[1]))


def monitor_figure(
    anchor: str, title: str, measured: Sequence[tuple[str, float]], *, words: str, zero: bool = False
) -> Figure:
    """Return a monitor over models, (model id, its value) each, oldest first."""
    values = [value for _, value in measured]
    series = Series(title, tuple((float(n), value) for n, value in enumerate(values, 1)))
    chart = Chart((series,), charts.whole_numbers(1, len(values)), charts.linear(values, zero=zero), "model")
    rows = tuple((str(n), model_link(model_id), f"{value:.3f}") for n, (model_id, value) in enumerate(measured, 1))
    return Figure(
        anchor, title, (chart,), words,
        f"{title} went from {values[0]:.3f} to {values[-1]:.3f} over {several(len(values), 'model')}.",
        Table(f"{anchor}-table", "By model", title, columns("Number", "Model", f"#{title}"), rows),
    )  # fmt: skip


def number(value: int | None) -> str:
    """Return a count, a dash where it is not known."""
    return "–" if value is None else count(value)
