"""Kept records of measurements, whoever made them.

A folder of faces and LFW are measured by `simulation.program.worker`, candidates by their gates, fleets by their
phones. Records come from outside and may be newer than this program: what it does not know is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

GATES: Final = "gates"
"""The protocol of what gates said; their measurements are records of their own."""


@dataclass(frozen=True)
class Point:
    """An operating point that was measured."""

    target_fmr: float
    fmr: float
    fnmr: float
    threshold: float

    @property
    def tar(self) -> float:
        """True accept rate."""
        return 1.0 - self.fnmr


@dataclass(frozen=True)
class Monitors:
    """Signs of collapse on one set."""

    effective_rank: float
    mean_non_mated: float


@dataclass(frozen=True)
class Measured:
    """One measurement; None stands for what its record does not say, or not in a way that this program knows."""

    dataset: str
    protocol: str
    made_ms: int
    made_by: str
    points: tuple[Point, ...] = ()
    eer: float | None = None
    accuracy: float | None = None
    mated: int | None = None
    non_mated: int | None = None
    failures: int | None = None
    monitors: Monitors | None = None

    @property
    def is_known(self) -> bool:
        """True if the record says how well the model did."""
        return bool(self.points) or self.eer is not None or self.accuracy is not None


@dataclass(frozen=True)
class Compared:
    """The gates' measurements on one set: the candidate beside the model that it would replace."""

    name: str
    tar: float | None
    reference_tar: float | None
    monitors: Monitors | None
    reference: Monitors | None


@dataclass(frozen=True)
class Judged:
    """The gates' verdict on a candidate, its evidence and tolerances; `passed` None: nobody can tell."""

    made_ms: int
    passed: bool | None
    reasons: tuple[str, ...]
    sets: tuple[Compared, ...]
    min_rank_share: float | None
    max_cosine_rise: float | None


Record = Mapping[str, Any]


def measured(records: Sequence[Record]) -> list[Measured]:
    """Return a model's measurements, in the records' order, without what gates said of it."""
    return [_measured(record) for record in records if record.get("protocol") != GATES]


def judged(records: Sequence[Record]) -> list[Judged]:
    """Return the gates' verdicts on a model, in the records' order."""
    return [_judged(record) for record in records if record.get("protocol") == GATES]


def _measured(record: Record) -> Measured:
    fleet = _object(_object(record.get("figures")).get("model"))
    version = record.get("protocol_version")
    return Measured(
        dataset=_text(record.get("dataset")) or "–",
        protocol=" ".join(filter(None, (_text(record.get("protocol")), _text(version)))) or "no protocol",
        made_ms=record["made_ms"],
        made_by=record["made_by"],
        points=tuple(
            point
            for each in (*_list(record.get("points")), *_list(fleet.get("points")))
            if (point := _point(_object(each))) is not None
        ),
        eer=_rate(record.get("eer")),
        accuracy=_rate(record.get("accuracy")),
        mated=_count(record.get("mated")),
        non_mated=_count(record.get("non_mated")),
        failures=_count(record.get("fte")),
        monitors=_monitors(record.get("monitors")),
    )


def _monitors(value: object) -> Monitors | None:
    found = _object(value)
    rank, alike = _number(found.get("effective_rank")), _number(found.get("mean_non_mated"))
    return None if rank is None or alike is None else Monitors(rank, alike)


def _point(point: Record) -> Point | None:
    """Return an operating point of a folder (error rates) or of a fleet (a mean TAR with its interval)."""
    tar = _rate(_object(point.get("tar")).get("value"))
    fnmr = _rate(point.get("fnmr")) if tar is None else 1.0 - tar
    target, fmr, threshold = _rate(point.get("target_fmr")), _rate(point.get("fmr")), _number(point.get("threshold"))
    if target is None or fmr is None or fnmr is None or threshold is None:
        return None
    return Point(target, fmr, fnmr, threshold)


def _judged(record: Record) -> Judged:
    gates, passed = _object(record.get("gates")), record.get("passed")
    return Judged(
        made_ms=record["made_ms"],
        passed=passed if isinstance(passed, bool) else None,
        reasons=tuple(filter(None, map(_text, _list(record.get("reasons"))))),
        sets=tuple(_compared(_object(each)) for each in _list(_object(record.get("evidence")).get("sets"))),
        min_rank_share=_number(gates.get("min_rank_share")),
        max_cosine_rise=_number(gates.get("max_cosine_rise")),
    )


def _compared(evidence: Record) -> Compared:
    return Compared(
        _text(evidence.get("name")) or "–",
        _rate(evidence.get("candidate_tar")),
        _rate(evidence.get("reference_tar")),
        _monitors(evidence.get("candidate")),
        _monitors(evidence.get("reference")),
    )


def _object(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _rate(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0.0 <= number <= 1.0 else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
