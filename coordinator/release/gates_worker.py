"""Has candidates measured, one after another, and tells their tasks what the gates say."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from coordinator.home.config import EvaluationSets
from coordinator.release import worker
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine
from coordinator.rounds.pulse import in_thread, log_failure
from coordinator.rounds.task import Task
from coordinator.store import audit
from mien.errors import ConfigError, LateError, MienError, StorageError, UnavailableError
from mien.evaluation.gates import Evidence, judge
from mien.protocol.canonical import model_from_json, model_to_json, to_canonical_json
from mien.protocol.ids import AttemptNumber, ModelId, PopulationId
from mien.protocol.rounds import RoundRef
from mien.records import to_mapping
from mien.rounds.records import CandidateRecord, CandidateState, EvaluationRecord, ModelRecord
from mien.rounds.thresholds import thresholds_of
from mien.rounds.verdicts import Verdict
from mien.shell.clock import Clock
from mien.shell.files import storage_errors, write_atomically
from mien.specs import GateSpec, TaskSpec

_LOG: Final = structlog.get_logger()
PROTOCOL: Final = ("gates", "1")
_RETRY_S: Final = 5.0
"""Pause before a candidate that could not be looked up, or a verdict that the disk refused, is tried again."""


class Gatekeeper:
    """Judges the candidates of all tasks of one engine, in a child process that may take its time."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        clock: Clock,
        sets: EvaluationSets,
        *,
        limit_s: float,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._retry_s = retry_s
        self._engine, self._stores, self._clock = engine, stores, clock
        self._sets, self._limit_s = sets, limit_s

    async def run(self) -> None:
        """Judge whatever waits, until cancelled; what was not finished is begun again after a restart.

        What keeps one task's candidate from being judged is logged and tried again: it must not end the others' gates.
        """
        while True:
            count, has_failed = self._engine.changed.count, False
            for task in self._engine.checking():
                (error,) = await asyncio.gather(self._serve(task), return_exceptions=True)
                if error is not None:
                    has_failed = True
                    log_failure("gates", error, task=task.record.name)
            if has_failed:
                await asyncio.sleep(self._retry_s)
            else:
                await self._engine.changed.after(count)

    async def _serve(self, task: Task) -> None:
        thread, store = self._stores.thread, self._stores.store
        candidate = await thread.run(store.candidate, task.record.task_id, CandidateState.WAITING)
        if candidate is None:
            return
        verdict = await self._verdict_or_defect(task, candidate)
        while True:
            try:
                await task.hear(verdict)
            except LateError:
                _LOG.info("verdict came after the task's end", task=task.record.name)
            except (StorageError, UnavailableError) as error:
                _LOG.error("verdict not kept yet", task=task.record.name, reason=error.message)
                await asyncio.sleep(self._retry_s)
                continue
            except MienError as error:  # what cannot be released or kept as it is must not stop other tasks' gates
                if verdict.problem:
                    raise
                verdict = Verdict(candidate, problem=error.message)
                continue
            return

    async def _verdict_or_defect(self, task: Task, candidate: CandidateRecord) -> Verdict:
        """Return the gates' verdict; a fault of this program pauses the task with that as the reason."""
        judging = self._verdict(task.plan.task, task.record.base_model_id, candidate)
        (verdict,) = await asyncio.gather(judging, return_exceptions=True)
        if isinstance(verdict, BaseException):
            log_failure("gates", verdict, task=task.record.name)
            return Verdict(candidate, problem=f"internal error: {type(verdict).__name__}; see the log")
        return verdict

    async def _verdict(self, task: TaskSpec, base_model_id: ModelId, candidate: CandidateRecord) -> Verdict:
        """Return the gates' verdict; a failure to measure is reported, too, and is not the candidate's fault."""
        try:
            with self._stores.traces.work("gates", RoundRef(candidate.task_id, candidate.round, AttemptNumber(0))):
                reference, model, evidence, records = await self._measure(task, base_model_id, candidate)
        except MienError as error:
            _LOG.warning("candidate not checked", task=task.name, round=candidate.round, reason=error.message)
            return Verdict(candidate, problem=error.message)
        reasons = judge(task.gates, evidence)
        _LOG.info("gates", task=task.name, round=candidate.round, passed=not reasons, reasons=list(reasons))
        made_by = f"mien-coordinator serve: gates of task {task.name}, round {candidate.round}"
        summary = _summary(task.gates, candidate, reference, evidence, reasons)
        kept = [{**record, "command": made_by} for record in (*records, summary)]
        now_ms = self._clock.now_ms()
        return Verdict(
            candidate,
            reasons=reasons,
            evaluations=tuple(
                EvaluationRecord(candidate.model_id, to_canonical_json(record), now_ms, audit.COORDINATOR)
                for record in kept
            ),
            spec_json=self._described(model, records) if records and not reasons else None,
        )

    async def _measure(
        self, task: TaskSpec, base_model_id: ModelId, candidate: CandidateRecord
    ) -> tuple[ModelRecord, ModelRecord, Evidence, list[dict[str, Any]]]:
        """Return the released model (or the one that the task began with), the candidate, and what was measured."""
        thread, store = self._stores.thread, self._stores.store
        sets = self._sets.chosen(task.gates.sets)
        if not sets.names:
            raise ConfigError("coordinator.toml names no evaluation_sets any more; name one, then restart")
        release = await thread.run(store.released, PopulationId(task.population))
        reference = await thread.run(store.model, base_model_id if release is None else release.model_id)
        model = await thread.run(store.model, candidate.model_id)
        with storage_errors("the gates' folder"), tempfile.TemporaryDirectory(prefix="mien-gates-") as temporary:
            folder = Path(temporary)
            for name, each in (("reference", reference), ("candidate", model)):
                await in_thread(self._write, each, folder / name)
            write_atomically(folder / "gates.json", to_canonical_json(to_mapping(task.gates)))
            evidence, records = await worker.check(
                *(folder / "reference", folder / "candidate", folder / "gates.json"),
                *(sets.raw, sets.crops),
                limit_s=self._limit_s,
            )
        return reference, model, evidence, records

    def _write(self, model: ModelRecord, folder: Path) -> None:
        """Lay a model down as `model export` does."""
        folder.mkdir()
        with (folder / "theta.f32").open("wb") as file:
            for piece in self._stores.models.stream(model.theta.sha256):
                file.write(piece)
        write_atomically(folder / "model.json", model.spec_json)

    def _described(self, model: ModelRecord, records: list[dict[str, Any]]) -> bytes:
        """Return the candidate's description with the thresholds that the first set measured on it."""
        spec, layout = model_from_json(model.spec_json)
        found = thresholds_of(records[0], self._clock.now_utc())
        return model_to_json(replace(spec, thresholds=(*spec.thresholds, *found)), layout)


def _summary(
    gates: GateSpec,
    candidate: CandidateRecord,
    reference: ModelRecord,
    evidence: Evidence,
    reasons: tuple[str, ...],
) -> dict[str, Any]:
    """Return the verdict as a record beside those of the measurements."""
    name, version = PROTOCOL
    return {
        "protocol": name,
        "protocol_version": version,
        "model_id": candidate.model_id,
        "reference_model_id": reference.model_id,
        "gates": to_mapping(gates),
        "evidence": to_mapping(evidence),
        "passed": not reasons,
        "reasons": list(reasons),
    }
