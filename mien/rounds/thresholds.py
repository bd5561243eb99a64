"""Thresholds out of an evaluation's record, as far as its data measured them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from mien.evaluation.gates import MIN_EXPECTED_ERRORS, is_measurable
from mien.protocol.canonical import model_from_json
from mien.protocol.ids import ModelId
from mien.specs import GroupRate, Threshold

PHONES_MAX_FMR: Final = 1e-3
"""A phone decides with a threshold of at most this false match rate, unless its owner says otherwise."""


def thresholds_of(record: Mapping[str, Any], now: datetime) -> list[Threshold]:
    """Return the thresholds in an evaluation's record, with where they come from.

    Left out is what could not be measured: a point at which fewer than 30 non-mated errors were to be expected. Those
    for galleries of many come from the tail, and say whether they were measured there or are a bound.
    """
    points = [point for point in record.get("points", ()) if not why_left_out(point)]
    date = f"{now:%Y-%m-%d}"
    pairs = [
        Threshold(
            value=point["threshold"],
            fmr=point["fmr"],
            dataset=_dataset(record, point),
            num_mated=point["num_mated"],
            num_non_mated=point["num_non_mated"],
            model_id=record["model_id"],
            date=date,
        )
        for point in points
    ]
    search = record.get("search", {})
    worst = (record.get("groups") or {}).get("worst_group")
    templates = _dataset(record, {"group": worst})
    return pairs + [
        Threshold(
            value=point["threshold"],
            fmr=point["fmr"],
            dataset=f"{templates}, templates" + ("" if point["is_measured"] else ", bound on the tail"),
            num_mated=0,
            num_non_mated=search["num_scores"],
            model_id=record["model_id"],
            date=date,
        )
        for point in search.get("points", ())
    ]


def _dataset(record: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """Return the data set that a point was measured on, with the group of people if it was one."""
    group = point.get("group")
    return f"{record['dataset']}, {group['attribute']} {group['group']}" if group else str(record["dataset"])


def group_rates_of(record: Mapping[str, Any], now: datetime) -> list[GroupRate]:
    """Return the false match rates of groups in an evaluation's record, as a model's description keeps them."""
    told = record.get("groups") or {}
    return [
        GroupRate(
            attribute=each["attribute"],
            group=each["group"],
            verdict=each["verdict"],
            target_fmr=told["target_fmr"],
            threshold=told["threshold"],
            num_people=each["people"],
            num_false_matches=0 if each["fmr"] is None else each["fmr"]["errors"],
            num_non_mated=0 if each["fmr"] is None else each["fmr"]["of"],
            dataset=record["dataset"],
            model_id=record["model_id"],
            date=f"{now:%Y-%m-%d}",
        )
        for each in told.get("rates", ())
    ]


def with_own(thresholds: Iterable[Threshold], *own: Threshold, brought: Collection[Threshold]) -> tuple[Threshold, ...]:
    """Return a model's thresholds with more of the operator's own, each once.

    The first that phones decide with takes the place of all that the model `brought`: those are of other people.
    """
    replaced = brought if any(each.fmr <= PHONES_MAX_FMR for each in own) else ()
    return tuple(dict.fromkeys([*(known for known in thresholds if known not in replaced), *own]))


def with_rates(rates: Iterable[GroupRate], own: Iterable[GroupRate], model_id: ModelId) -> tuple[GroupRate, ...]:
    """Return a model's rates by group with new ones, in place of those by the same attribute on the same data set."""
    found = tuple(own)
    anew = {(each.attribute, each.dataset) for each in found}
    stay = [each for each in rates if each.model_id == model_id and (each.attribute, each.dataset) not in anew]
    return (*stay, *found)


def decides(spec_json: bytes, model_id: ModelId) -> bool:
    """Return whether a model carries a threshold of its own with which phones decide."""
    spec, _ = model_from_json(spec_json)
    return any(known.model_id == model_id and known.fmr <= PHONES_MAX_FMR for known in spec.thresholds)


def why_left_out(point: Mapping[str, Any]) -> str:
    """Return why no threshold comes of an operating point; empty where one does."""
    if "threshold" not in point:
        return "it is not measurable"
    if not -1.0 <= point["threshold"] <= 1.0:
        return "no score from -1 to 1 is that rare"
    if is_measurable(point["target_fmr"], point["num_non_mated"]):
        return ""
    needed = MIN_EXPECTED_ERRORS / point["target_fmr"]
    return f"that needs {needed:,.0f} non-mated comparisons, there were {point['num_non_mated']:,}"
