"""Notes of a process of emulated phones, and the figures that are made of all processes' notes."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from device_sdk.server.client import StageEvent
from mien.protocol.rounds import RoundRef, Stage

ENDS: Final = (Stage.CLOSED.name, Stage.ABORTED.name)
STAGES: Final = tuple(
    stage.name for stage in (Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)
)


@dataclass(frozen=True)
class RoundNotes:
    """One attempt as phones saw it: when each stage was first heard of (Unix time), what was sent, how it ended.

    `uploaded` are the ids of the phones whose contribution was accepted, `upload_span` when the first began to send it
    and when the last was done.
    """

    ref: RoundRef
    stages: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    model_id: str = ""
    num_reports: int = 0
    uploaded: tuple[str, ...] = field(default=(), repr=False)
    uploaded_bytes: int = 0
    upload_span: tuple[float, ...] = ()

    @property
    def end(self) -> str:
        """CLOSED, ABORTED, or nothing where nobody heard of the end."""
        return next((name for name in ENDS if name in self.stages), "")

    def with_(self, other: RoundNotes) -> RoundNotes:
        """Return what both saw of an attempt."""
        names = self.stages.keys() | other.stages.keys()
        never = float("inf")
        spans = (*self.upload_span, *other.upload_span)
        return RoundNotes(
            self.ref,
            {name: min(self.stages.get(name, never), other.stages.get(name, never)) for name in sorted(names)},
            self.reason or other.reason,
            self.model_id or other.model_id,
            max(self.num_reports, other.num_reports),
            (*self.uploaded, *other.uploaded),
            self.uploaded_bytes + other.uploaded_bytes,
            (min(spans), max(spans)) if spans else (),
        )

    def stage_s(self) -> dict[str, float]:
        """Return how long stages took, from when the first phone heard of one to when one heard of the next."""
        heard = sorted(self.stages.items(), key=lambda item: item[1])
        return {name: after - at for (name, at), (_, after) in itertools.pairwise(heard)}

    def record(self) -> dict[str, Any]:
        """Return the attempt as its line in the file of records has it."""
        return {
            **asdict(self.ref),
            "end": self.end.lower() or "unknown",
            "reason": self.reason,
            "model_id": self.model_id,
            "num_reports": self.num_reports,
            "num_uploads": len(self.uploaded),
            "uploaded_bytes": self.uploaded_bytes,
            "stage_s": {name.lower(): round(took_s, 3) for name, took_s in self.stage_s().items()},
        }


@dataclass(frozen=True)
class ProcessNotes:
    """Notes of one process, as they travel to the one that started it; `first_bytes` is its memory without phones."""

    phones: int
    counts: Mapping[str, int]
    lost: Mapping[str, int]
    not_counted: Mapping[str, int]
    calls_ms: Mapping[str, Sequence[float]]
    rounds: tuple[RoundNotes, ...]
    cpu_s: float
    first_bytes: int
    peak_bytes: int


class Notes:
    """Collects the notes of a process's phones, from any thread."""

    def __init__(self, unix_s: Callable[[], float]) -> None:
        self._unix_s, self._lock = unix_s, threading.Lock()
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._not_counted: Counter[str] = Counter()
        self._calls_ms: defaultdict[str, list[float]] = defaultdict(list)
        self._rounds: dict[RoundRef, RoundNotes] = {}
        self._last_work_s = unix_s()

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._counts[what] += count

    def lost(self, stage: Stage) -> None:
        """Count a phone that vanished before its answer of a stage."""
        with self._lock:
            self._lost[stage.name] += 1

    def not_counted(self, code: str) -> None:
        """Count a round that ended for a phone without its contribution, by the reason's code."""
        with self._lock:
            self._not_counted[code] += 1

    def answered(self, call: str, took_ms: float) -> None:
        """Note how soon a call was answered."""
        with self._lock:
            self._calls_ms[call].append(round(took_ms, 3))

    def saw(self, ref: RoundRef, event: StageEvent) -> None:
        """Note that a phone heard of a stage."""
        reason = event.reason if event.stage is Stage.ABORTED else ""
        stages = {event.stage.name if event.stage else "OTHER": self._unix_s()}
        self._put(RoundNotes(ref, stages, reason, event.model_id, event.num_reports))

    def uploaded(self, ref: RoundRef, device_id: str, size_bytes: int, took_s: float) -> None:
        """Note a contribution that was accepted."""
        now = self._unix_s()
        span = (now - took_s, now)
        self._put(RoundNotes(ref, uploaded=(device_id,), uploaded_bytes=size_bytes, upload_span=span))

    def _put(self, seen: RoundNotes) -> None:
        with self._lock:
            self._last_work_s = self._unix_s()
            known = self._rounds.get(seen.ref)
            self._rounds[seen.ref] = seen if known is None else known.with_(seen)

    @property
    def rounds(self) -> tuple[RoundNotes, ...]:
        """All attempts so far."""
        with self._lock:
            return tuple(self._rounds.values())

    @property
    def num_closed(self) -> int:
        """Rounds of which a phone of this process heard that they closed."""
        return sum(each.end == Stage.CLOSED.name for each in self.rounds)

    @property
    def idle_s(self) -> float:
        """Seconds since anything was heard of a round."""
        with self._lock:
            return self._unix_s() - self._last_work_s

    def figures(self, phones: int, *, cpu_s: float, first_bytes: int, peak_bytes: int) -> ProcessNotes:
        """Return everything that was noted."""
        rounds = self.rounds
        with self._lock:
            return ProcessNotes(
                phones,
                dict(self._counts),
                dict(self._lost),
                dict(self._not_counted),
                {name: tuple(took) for name, took in self._calls_ms.items()},
                rounds,
                cpu_s,
                first_bytes,
                peak_bytes,
            )


def attempts(processes: Sequence[ProcessNotes]) -> list[RoundNotes]:
    """Return every attempt as all processes saw it, in order."""
    found: dict[RoundRef, RoundNotes] = {}
    for process in processes:
        for seen in process.rounds:
            found[seen.ref] = found[seen.ref].with_(seen) if seen.ref in found else seen
    return sorted(found.values(), key=lambda each: min(each.stages.values(), default=0.0))


def summary(processes: Sequence[ProcessNotes]) -> dict[str, Any]:
    """Return the figures of a run."""
    rounds = attempts(processes)
    closed = [each for each in rounds if each.end == Stage.CLOSED.name]
    phones = sum(process.phones for process in processes)
    cpu_s = sum(process.cpu_s for process in processes)
    used = sum(max(0, process.peak_bytes - process.first_bytes) for process in processes)
    parts = sum(len(each.uploaded) for each in rounds)
    return {
        "phones": phones,
        "processes": len(processes),
        "rounds_closed": len(closed),
        "rounds_aborted": sum(each.end == Stage.ABORTED.name for each in rounds),
        "rounds_per_minute": _per_minute(closed),
        "uploads": parts,
        "uploaded_bytes": sum(each.uploaded_bytes for each in rounds),
        "upload_mb_s": _upload_mb_s(rounds),
        "stage_p50_s": _stage_medians(closed),
        "calls": {name: _call_figures(processes, name) for name in sorted({n for p in processes for n in p.calls_ms})},
        "counts": _added([process.counts for process in processes]),
        "lost_at": {name.lower(): count for name, count in _added([process.lost for process in processes]).items()},
        "not_counted": _added([process.not_counted for process in processes]),
        "cpu_s": round(cpu_s, 2),
        "cpu_ms_per_phone_and_round": round(1e3 * cpu_s / parts, 2) if parts else None,
        "memory_mb_per_phone": round(used / max(phones, 1) / 1e6, 3),
        "memory_mb_first": round(max((process.first_bytes for process in processes), default=0) / 1e6, 1),
    }


def _per_minute(closed: Sequence[RoundNotes]) -> float | None:
    """Return the pace from when the first round was heard of to when the last one closed."""
    if not closed:
        return None
    span_s = max(each.stages[Stage.CLOSED.name] for each in closed) - min(min(each.stages.values()) for each in closed)
    return round(60 * len(closed) / span_s, 2) if span_s > 0 else None


def _upload_mb_s(rounds: Sequence[RoundNotes]) -> float | None:
    spans = [each.upload_span for each in rounds if each.upload_span]
    took_s = sum(last - first for first, last in spans)
    return round(sum(each.uploaded_bytes for each in rounds) / took_s / 1e6, 2) if took_s > 0 else None


def _stage_medians(closed: Sequence[RoundNotes]) -> dict[str, float]:
    took = [each.stage_s() for each in closed]
    medians = {name: [each[name] for each in took if name in each] for name in STAGES}
    return {name.lower(): round(float(np.median(found)), 3) for name, found in medians.items() if found}


def _call_figures(processes: Sequence[ProcessNotes], name: str) -> dict[str, float]:
    took_ms = np.concatenate([np.asarray(process.calls_ms.get(name, ()), np.float64) for process in processes])
    p50, p99 = np.percentile(took_ms, (50, 99))
    return {"calls": len(took_ms), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
