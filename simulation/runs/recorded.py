"""The form of a run's records: what their readers need, told apart from records that were changed or cut off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mien.errors import CorruptDataError
from simulation.faces.partitions import MAX_SEED

# A form is `int`, `float` (a finite number) or `str`, a list with the form of its items, or a mapping from names to
# forms: "name?" may be left out, "*" are all names, further ones are nobody's business.
_LARGEST: Final = MAX_SEED  # larger whole numbers than seeds are in no record
_CURVE: Final = {"thresholds": [float], "num_false_matches": [int], "num_false_non_matches": [int]}
_BAND: Final = {"fmr?": [float], "low?": [float], "high?": [float]}
_POINT: Final = {"target_fmr": float, "not_measurable?": str, "tar?": float, "fmr?": float, "threshold?": float}
_MEASURED: Final = {
    **dict.fromkeys(("eer", "eer_low", "eer_high"), float),
    **dict.fromkeys(("num_mated", "num_non_mated"), int),
    "model_id": str,
    "points": [_POINT],
    "curve": _CURVE,
    "band?": _BAND,
}
_PRIVACY: Final = {
    **dict.fromkeys(("epsilon", "delta", "noise_multiplier", "l2_clip"), float),
    "mechanism": str,
    "num_sums": int,
    "num_rounds": int,
}
_EVALUATION: Final = {
    **dict.fromkeys(("rounds", "test_people", "seed"), int),
    **dict.fromkeys(("commit", "command"), str),
    "partition": {"clients": int, "*": int},
    "failures": {"*": int},
    "before": _MEASURED,
    "after": _MEASURED,
    "angles?": {"edges_deg?": [float], "counts?": [int], "classes?": int},
    "map?": {"kind?": str, "people?": [int], "points?": [[float]]},
    "privacy?": _PRIVACY,
    "run": {"cpu_s": {"*": float}, "wall_s": {"*": float}, "machine": str, "commit": str, "data_sha256": str},
}
_ROUND: Final = {
    "round": int,
    "clients": int,
    "weight": float,
    "workers?": [str],
    **dict.fromkeys(("loss_before?", "loss_after?", "eer?", "staleness?", "cpu_s?", "wall_s?"), float),
}


def check_rounds(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raise CorruptDataError naming the file and the field where a round's record is of another form."""
    for record in records:
        _refuse(_faults(record, _ROUND, f"round {record.get('round')}"), path)


def check_evaluation(evaluation: Mapping[str, Any], path: Path) -> None:
    """Raise CorruptDataError naming the file and the field where a run's evaluation is of another form."""
    _refuse(_faults(evaluation, _EVALUATION, ""), path)
    _refuse(_contradictions(evaluation), path)


def _refuse(faults: Iterator[str], path: Path) -> None:
    if (fault := next(faults, None)) is not None:
        raise CorruptDataError(f"{path} is damaged ({fault}); run the experiment again into a new folder")


def _faults(value: Any, form: Any, where: str) -> Iterator[str]:
    """Yield the fields of a value that are missing or of another form."""
    if isinstance(form, list):
        if not isinstance(value, list):
            yield where
        else:
            for index, item in enumerate(value):
                yield from _faults(item, form[0], f"{where}[{index}]")
    elif isinstance(form, dict):
        yield from _faults_of_fields(value, form, where)
    elif form is str:
        if not isinstance(value, str):
            yield where
    elif not _is_number(value) or (form is int and not isinstance(value, int)):
        yield where


def _faults_of_fields(value: Any, form: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield where or "no record"
        return
    named = {name.rstrip("?"): name for name in form if name != "*"}
    for name, written in named.items():
        inner = f"{where}.{name}" if where else name
        if name in value:
            yield from _faults(value[name], form[written], inner)
        elif not written.endswith("?"):
            yield inner
    if "*" in form:
        for name in value.keys() - named.keys():
            yield from _faults(value[name], form["*"], f"{where}.{name}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _LARGEST if isinstance(value, int) else math.isfinite(value)


def _contradictions(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of an evaluation whose parts do not go together."""
    before, after = evaluation["before"], evaluation["after"]
    for name, measured in (("before", before), ("after", after)):
        yield from (f"{name}.{field}" for field in _contradictions_of_model(measured))
    if [p["target_fmr"] for p in before["points"]] != [p["target_fmr"] for p in after["points"]]:
        yield "after.points"
    angles, flat = evaluation.get("angles"), evaluation.get("map")
    if angles and not (angles.keys() >= {"edges_deg", "counts", "classes"} and _are_bins(angles)):
        yield "angles"
    if flat and not (flat.keys() >= {"kind", "people", "points"} and _is_map(flat)):
        yield "map"


def _contradictions_of_model(measured: Mapping[str, Any]) -> Iterator[str]:
    curve, mated, non_mated = measured["curve"], measured["num_mated"], measured["num_non_mated"]
    if min(mated, non_mated) < 1:
        yield "num_mated" if mated < 1 else "num_non_mated"
    if not curve["thresholds"] or len({len(curve[name]) for name in _CURVE}) != 1:
        yield "curve"
    for name, most in (("num_false_matches", non_mated), ("num_false_non_matches", mated)):
        if any(not 0 <= number <= most for number in curve[name]):
            yield f"curve.{name}"
    band = measured.get("band") or {}
    if band and (len(band) < len(_BAND) or len({len(side) for side in band.values()}) != 1 or not _are_shares(band)):
        yield "band"
    for point in measured["points"]:
        if not 0 < point["target_fmr"] <= 1 or not point.keys() & {"not_measurable", "tar"}:
            yield "points"
        if "not_measurable" not in point and not point.keys() >= {"fmr", "threshold"}:
            yield "points"


def _are_shares(band: Mapping[str, Sequence[float]]) -> bool:
    return all(0 <= share <= 1 for side in band.values() for share in side)


def _are_bins(angles: Mapping[str, Any]) -> bool:
    return len(angles["edges_deg"]) == len(angles["counts"]) + 1 and min(angles["counts"], default=0) >= 0


def _is_map(flat: Mapping[str, Any]) -> bool:
    pairs = all(len(point) == 2 for point in flat["points"])
    return pairs and len(flat["people"]) == len(flat["points"]) and flat["kind"] in ("pca", "tsne")
