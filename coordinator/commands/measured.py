"""A measurement of a model as a table for people; `--json` has every figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.commands.tables import Column, facts, listing
from mien.format import several

_COUNTS: Final = {
    "identities": "people",
    "images": "images",
    "fte": "images without a usable face",
    "mated": "mated comparisons",
    "non_mated": "non-mated comparisons",
}
_RATES: Final = {
    "accuracy": "accuracy",
    "std": "its deviation over the folds",
    "standard_error": "its standard error",
    "eer": "equal error rate",
}
_MONITORS: Final = {"mean_non_mated": "mean cosine of different people", "effective_rank": "directions in use"}


def table_of(record: Mapping[str, Any]) -> Table:
    """Return a measurement: of what, how much was compared, how well, and at which operating points."""
    rows = [("model", str(record["model_id"])), ("data set", str(record["dataset"]))]
    rows.append(("protocol", f"{record['protocol']}, version {record['protocol_version']}"))
    rows += [(words, f"{record[name]:,}") for name, words in _COUNTS.items() if name in record]
    rows += [(words, f"{record[name]:.4f}") for name, words in _RATES.items() if name in record]
    rows += [_point(point) for point in record.get("points", ())]
    monitors = record.get("monitors", {})
    rows += [(words, f"{monitors[name]:.3f}") for name, words in _MONITORS.items() if name in monitors]
    if "thresholds_kept" in record:
        rows.append(("thresholds kept", _kept(record)))
    return facts("measure", "value", rows)


def _kept(record: Mapping[str, Any]) -> str:
    """Return how many thresholds were kept, and which were not and why."""
    from mien.rounds.thresholds import why_left_out  # numpy comes with it, which most commands do without

    left_out = [(point["target_fmr"], why_left_out(point)) for point in record.get("points", ())]
    told = [f"not at FMR {target:g}: {why}" for target, why in left_out if why]
    return "; ".join([str(record["thresholds_kept"]), *told])


def _point(point: Mapping[str, Any]) -> tuple[str, str]:
    """Return an operating point in words: the threshold, what it lets in, and how much it lets through."""
    name = f"at FMR {point['target_fmr']:g}"
    if "not_measurable" in point:
        return name, f"not measurable: {point['not_measurable']}"
    tar = 1 - point["fnmr"]
    return name, f"threshold {point['threshold']:.4f}, TAR {tar:.4f} (FMR {point['fmr']:.2g} measured)"


_VERDICTS: Final = {"measured": "measured", "exceeds": "TOO HIGH", "too_small": "too small to tell"}
_GROUPS: Final = (
    Column("group"),
    Column("people", rank=3),
    Column("FMR"),
    Column("95 %", rank=1),
    Column("false matches of", rank=2),
    Column("FNMR"),
    Column("FNMR 95 %", rank=4),
    Column("FTE", rank=5),
    Column("verdict", folds=True),
)
_BETWEEN: Final = (
    Column("groups"),
    Column("FMR"),
    Column("95 %", rank=1),
    Column("false matches of", rank=2),
)


def by_group(record: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """Yield what a measurement says of groups of people, within `width` characters; nothing where it says nothing."""
    if not (told := record.get("groups")):
        return
    worst = told.get("worst_group")
    whose = f"the worst group, {worst['attribute']} {worst['group']}" if worst else "all people"
    head = f"By group, at the threshold {told['threshold']:.4f} for FMR {told['target_fmr']:g} of {whose}"
    not_stated = [
        f"{several(number, 'person states', 'people state')} no {name}"
        for name, number in told["not_stated"].items()
        if number
    ]
    yield Text("; ".join([head, *not_stated]) + ":")
    rows = [
        (
            f"{each['attribute']} {each['group']}",
            str(each["people"]),
            *rate_words(each["fmr"]),
            *rate_words(each["fnmr"])[:2],
            rate_words(each["fte"])[0],
            _VERDICTS.get(each["verdict"], each["verdict"]),
        )
        for each in told["rates"]
    ]
    yield listing(_GROUPS, rows, width)
    if told["between"]:
        pairs = [
            (f"{each['attribute']} {each['first']} with {each['second']}", *rate_words(each["fmr"]))
            for each in told["between"]
        ]
        yield listing(_BETWEEN, pairs, width)
    for each in told["rates"]:
        if each["verdict"] == "too_small":
            yield Text(f"Too small to tell: {each['attribute']} {each['group']}: {each['reason']}.")
    for warning in told["warnings"]:
        yield Text(f"WARNING: {warning}.")


def rate_words(rate: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return an error rate of a record in words: the rate, its interval, and its counts; dashes for none."""
    if rate is None:
        return "–", "–", "–"
    interval = rate.get("interval")
    bounds = f"{interval['low']:.2g} to {interval['high']:.2g}" if interval else "–"
    return f"{rate['rate']:.2g}", bounds, f"{rate['errors']:,} of {rate['of']:,}"
