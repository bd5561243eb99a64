"""A measurement of a model as a table for people; `--json` has every figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.table import Table

from coordinator.commands.tables import facts

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
