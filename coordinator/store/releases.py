"""Releases, candidates and evaluations in the database: the part of `Store` that says which model is good for whom."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from coordinator.store import audit
from coordinator.store.tables import BUNDLES, CANDIDATES, EVALUATIONS, MODELS, RELEASES, ROUNDS, TASKS
from mien.errors import ConfigError, NotFoundError
from mien.rounds.records import (
    BundleRecord,
    CandidateRecord,
    CandidateState,
    EvaluationRecord,
    ModelRecord,
    ReleaseRecord,
    TaskState,
)
from mien.rounds.releases import Standing, in_force, rolled_back, standings
from mien.shell.clock import Clock

_MODEL_BLOBS = ("theta_sha256", "shard_sha256", "changes_sha256")
_MAX_REASON = 400


class ReleaseStore(ABC):
    """Releases, candidates and evaluations; a `Store` is one."""

    _clock: Clock

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[sa.Connection]: ...

    @abstractmethod
    def _log(
        self, db: sa.Connection, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> None: ...

    @abstractmethod
    def models(self) -> list[ModelRecord]:
        """Return all models, oldest first."""

    # Releases

    def release(
        self,
        model_id: str,
        *,
        population: str | None,
        actor: str,
        share: float = 1.0,
        despite_gates: bool = False,
        bundle: BundleRecord | None = None,
    ) -> None:
        """Put a model in force for a share of the devices; the same again changes nothing.

        `bundle` is what the release key signed of it. Raises ConfigError for a model that its gates rejected or have
        not judged, unless that is to be overridden, and for a bundle whose sequence number is not above all others.
        """
        with self._transaction() as db:
            if bundle is not None:
                self._keep_bundle(db, bundle, actor)
            self._release(db, model_id, population, actor, share, despite_gates=despite_gates)
            self._end_replaced(db, actor)

    @abstractmethod
    def _end_replaced(self, db: sa.Connection, actor: str) -> None:
        """End the staged roll-outs whose place a release in this transaction took."""

    def _keep_bundle(self, db: sa.Connection, bundle: BundleRecord, actor: str) -> None:
        newest = db.execute(sa.select(BUNDLES).order_by(BUNDLES.c.sequence.desc()).limit(1)).first()
        if newest is not None and newest.manifest_json == bundle.manifest_json:
            return
        if newest is not None and newest.sequence >= bundle.sequence:
            raise ConfigError(
                f"the bundle has sequence number {bundle.sequence}, an earlier one had {newest.sequence}: phones would "
                "refuse it; sign it again with a higher one"
            )
        kept = dataclasses.replace(bundle, added_ms=self._clock.now_ms(), added_by=actor)
        db.execute(sa.insert(BUNDLES).values(**dataclasses.asdict(kept)))
        self._log(db, actor, "model.bundle", bundle.model_id, {"sequence": bundle.sequence})

    def bundle(self, model_id: str) -> BundleRecord | None:
        """Return the newest signed bundle of a model."""
        wanted = sa.select(BUNDLES).where(BUNDLES.c.model_id == model_id).order_by(BUNDLES.c.sequence.desc()).limit(1)
        with self._transaction() as db:
            row = db.execute(wanted).first()
            return None if row is None else BundleRecord(**row._mapping)

    def _release(
        self,
        db: sa.Connection,
        model_id: str,
        population: str | None,
        actor: str,
        share: float,
        *,
        despite_gates: bool = False,
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"share is {share}; it must lie above 0 and not above 1")
        removed = db.execute(sa.select(MODELS.c.removed_ms).where(MODELS.c.model_id == model_id)).first()
        if removed is None or removed.removed_ms is not None:
            raise NotFoundError(f"there is no model {model_id}; list the models to see which there are")
        history = history_of(db, population)
        newest = history[-1] if history else None
        if newest is not None and (newest.model_id, newest.population, newest.share) == (model_id, population, share):
            return
        if share < 1 and in_force(history) is None:
            raise ConfigError("no model is released to all devices yet, which the others would have; release one first")
        if not despite_gates:
            _check_judged(db, model_id)
        release = ReleaseRecord(model_id, population, self._clock.now_ms(), actor, share)
        db.execute(sa.insert(RELEASES).values(**dataclasses.asdict(release)))
        detail: dict[str, object] = {"population": population, "share": share}
        self._log(
            db, actor, "model.release", model_id, {**detail, **({"despite_gates": True} if despite_gates else {})}
        )

    def _release_candidate(self, db: sa.Connection, candidate: CandidateRecord, population: str, share: float) -> None:
        """Release what passed its gates, to everybody where nothing is released to the others."""
        share = share if in_force(history_of(db, population)) is not None else 1.0
        self._release(db, candidate.model_id, population, audit.COORDINATOR, share)

    def ways_back(self, population: str | None) -> list[tuple[str, str]]:
        """Return whom a roll-back takes from which model to which one."""
        with self._transaction() as db:
            found = rolled_back(history_of(db), population)
            return [(taken, release.model_id) for taken, release in found if taken != release.model_id]

    def roll_back(self, population: str | None, *, actor: str) -> ReleaseRecord:
        """Return the release of the model that a population had before, now in force again for all its devices.

        It takes back the newest release that the given population has. Where that one is for all, every population goes
        back to what it had itself. Raises NotFoundError when there is nothing to go back to.
        """
        with self._transaction() as db:
            release = self._roll_back(db, population, actor)
            self._end_replaced(db, actor)
            return release

    def _roll_back(self, db: sa.Connection, population: str | None, actor: str) -> ReleaseRecord:
        found = rolled_back(history_of(db), population)
        if not found:
            raise NotFoundError("no earlier release is there to go back to; release another model")
        made = [
            (taken, dataclasses.replace(release, released_ms=self._clock.now_ms(), released_by=actor))
            for taken, release in found
        ]
        for taken, release in made:
            db.execute(sa.insert(RELEASES).values(**dataclasses.asdict(release)))
            whose = {"population": release.population}
            if taken == release.model_id:  # its own, which it keeps now that the one for all is another
                self._log(db, actor, "model.release", taken, {**whose, "share": release.share})
            else:
                self._log(db, actor, "model.rollback", release.model_id, {**whose, "from": taken})
        return next((release for _, release in made if release.population == population), made[0][1])

    def newest_release(self, population: str | None) -> ReleaseRecord | None:
        """Return the newest release that concerns a population, whatever its share."""
        with self._transaction() as db:
            history = history_of(db, population)
            return history[-1] if history else None

    def released(self, population: str | None, device_id: str | None = None) -> ReleaseRecord | None:
        """Return the release in force for a population, its own or one for all, whichever is newer.

        With a device: the one that is this device's, which a partial roll-out may have reached.
        """
        with self._transaction() as db:
            return in_force(history_of(db, population), device_id)

    def last_release(self) -> ReleaseRecord | None:
        """Return the newest release for any population."""
        with self._transaction() as db:
            history = history_of(db)
            return history[-1] if history else None

    def released_ids(self) -> set[str]:
        """Return the ids of the models that are in force for any population, or a share of one."""
        with self._transaction() as db:
            found = set()
            for population in db.scalars(sa.select(RELEASES.c.population).distinct()).all():
                history = history_of(db, population)
                found |= {release.model_id for release in (history[-1], in_force(history)) if release is not None}
            return found

    def standings(self) -> dict[str, Standing]:
        """Return where every model stands, by id."""
        models = self.models()
        with self._transaction() as db:
            return standings(models, history_of(db), all_candidates(db))

    # Candidates

    def candidate(self, task_id: str, state: CandidateState) -> CandidateRecord | None:
        """Return a task's newest candidate in that state."""
        wanted = sa.and_(CANDIDATES.c.task_id == task_id, CANDIDATES.c.state == state.value)
        with self._transaction() as db:
            row = db.execute(sa.select(CANDIDATES).where(wanted).order_by(CANDIDATES.c.round.desc()).limit(1)).first()
            return None if row is None else _candidate(row)

    # Evaluations

    def add_evaluation(self, model_id: str, record_json: bytes, *, actor: str) -> None:
        """Keep a measurement of a model."""
        with self._transaction() as db:
            keep_evaluations(db, [EvaluationRecord(model_id, record_json, self._clock.now_ms(), actor)])
            self._log(db, actor, "model.evaluate", model_id)

    def _keep_measured(self, db: sa.Connection, evaluations: Sequence[EvaluationRecord]) -> None:
        """Keep what a round of phones measured, in the transaction that closes it."""
        keep_evaluations(db, evaluations)
        for evaluation in evaluations:
            self._log(db, evaluation.made_by, "model.evaluate", evaluation.model_id)

    def evaluations(self, model_id: str) -> list[EvaluationRecord]:
        """Return all measurements of a model, oldest first."""
        wanted = sa.select(EVALUATIONS).where(EVALUATIONS.c.model_id == model_id).order_by(EVALUATIONS.c.id)
        with self._transaction() as db:
            return [
                EvaluationRecord(row.model_id, row.record_json, row.made_ms, row.made_by) for row in db.execute(wanted)
            ]

    # Retention

    def forget_round_models(self, task_id: str, keep: int) -> set[str]:
        """Return the blobs that nothing needs any more, after all but the newest `keep` round models were given up.

        What was ever released, a candidate, a base of a task or a round that goes on is kept, and every model's record.
        """
        held = sa.union(
            sa.select(RELEASES.c.model_id),
            sa.select(CANDIDATES.c.model_id),
            sa.select(TASKS.c.base_model_id),
            sa.select(TASKS.c.model_id),
            sa.select(ROUNDS.c.base_model_id).where(ROUNDS.c.ended_ms.is_(None)),
        )
        mine = sa.and_(MODELS.c.task_id == task_id, MODELS.c.removed_ms.is_(None))
        newest = sa.select(MODELS.c.model_id).where(mine).order_by(MODELS.c.round.desc()).limit(keep)
        with self._transaction() as db:
            kept = {*db.scalars(held), *db.scalars(newest)}
            ids = [
                model_id for model_id in db.scalars(sa.select(MODELS.c.model_id).where(mine)) if model_id not in kept
            ]
            if not ids:
                return set()
            theirs = MODELS.c.model_id.in_(ids)
            columns = [MODELS.c[name] for name in _MODEL_BLOBS]
            blobs = {sha256 for row in db.execute(sa.select(*columns).where(theirs)) for sha256 in row if sha256}
            db.execute(sa.update(MODELS).where(theirs).values(removed_ms=self._clock.now_ms()))
            needed = db.execute(sa.select(*columns).where(MODELS.c.removed_ms.is_(None)))
            return blobs - {sha256 for row in needed for sha256 in row if sha256}


# What other transactions of the store do about candidates


def offer(db: sa.Connection, candidate: CandidateRecord) -> None:
    """Keep a new candidate."""
    db.execute(sa.insert(CANDIDATES).values(**{**dataclasses.asdict(candidate), "state": candidate.state.value}))


def decide(db: sa.Connection, candidate: CandidateRecord) -> None:
    """Keep what the gates say of a candidate; only the one that passed last keeps the server state to go back to."""
    mine = sa.and_(CANDIDATES.c.task_id == candidate.task_id, CANDIDATES.c.round == candidate.round)
    values = {
        "state": candidate.state.value,
        "reason": candidate.reason[:_MAX_REASON],
        "decided_ms": candidate.decided_ms,
    }
    db.execute(sa.update(CANDIDATES).where(mine).values(**values))
    others = sa.and_(CANDIDATES.c.task_id == candidate.task_id, CANDIDATES.c.round != candidate.round)
    forgets = others if candidate.state is CandidateState.PASSED else mine
    db.execute(sa.update(CANDIDATES).where(forgets).values(arrays_sha256=None, revealed_sha256=None))


def candidate_state_blobs(db: sa.Connection) -> set[str]:
    """Return the hashes of the server state that some task may have to go back to."""
    goes_on = TASKS.c.state.not_in([state.value for state in TaskState if state.is_over])
    rows = db.execute(
        sa.select(CANDIDATES.c.arrays_sha256, CANDIDATES.c.revealed_sha256)
        .join(TASKS, TASKS.c.task_id == CANDIDATES.c.task_id)
        .where(goes_on)
    )
    return {sha256 for row in rows for sha256 in row if sha256}


def keep_evaluations(db: sa.Connection, evaluations: Sequence[EvaluationRecord]) -> None:
    """Keep measurements of models."""
    for evaluation in evaluations:
        db.execute(sa.insert(EVALUATIONS).values(**dataclasses.asdict(evaluation)))


def _check_judged(db: sa.Connection, model_id: str) -> None:
    """Raise ConfigError unless the gates have nothing against a model, or were never asked."""
    wanted = sa.select(CANDIDATES).where(CANDIDATES.c.model_id == model_id).order_by(CANDIDATES.c.offered_ms)
    rows = [_candidate(row) for row in db.execute(wanted)]
    if not rows:
        return
    newest = rows[-1]
    if newest.state is CandidateState.WAITING:
        raise ConfigError("this model's gates have not decided yet; wait for them, or use --despite-gates")
    if newest.state is CandidateState.FAILED:
        raise ConfigError(f"this model failed its gates: {newest.reason}; --despite-gates releases it nevertheless")


def history_of(db: sa.Connection, *population: str | None) -> list[ReleaseRecord]:
    """Return the releases that concern a population (None: those for all), or without one all, oldest first."""
    wanted = sa.select(RELEASES).order_by(RELEASES.c.id)
    if population:
        mine: sa.ColumnElement[bool] = RELEASES.c.population.is_(None)
        if population[0] is not None:
            mine = sa.or_(mine, RELEASES.c.population == population[0])
        wanted = wanted.where(mine)
    return [_release_of(row) for row in db.execute(wanted)]


def all_candidates(db: sa.Connection) -> list[CandidateRecord]:
    """Return all candidates, oldest first."""
    rows = db.execute(sa.select(CANDIDATES).order_by(CANDIDATES.c.offered_ms, CANDIDATES.c.round))
    return [_candidate(row) for row in rows]


def _release_of(row: sa.Row[Any]) -> ReleaseRecord:
    return ReleaseRecord(**{name: value for name, value in row._mapping.items() if name != "id"})


def _candidate(row: sa.Row[Any]) -> CandidateRecord:
    return CandidateRecord(**{**row._mapping, "state": CandidateState(row.state)})
