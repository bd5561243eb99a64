"""Releases, candidates and evaluations in the database: the part of `Store` that says which model is good for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from coordinator.store import audit, round_log
from coordinator.store.rows import (
    BUNDLE_ROWS,
    CANDIDATE_ROWS,
    EVALUATION_ROWS,
    MODEL_BLOBS,
    MODEL_ROWS,
    RELEASE_ROWS,
    TASK_GOES_ON,
    RecordStore,
)
from coordinator.store.tables import BUNDLES, CANDIDATES, EVALUATIONS, MODELS, RELEASES, ROUNDS, TASKS
from mien.errors import ConfigError, NotFoundError
from mien.format import cut
from mien.log.entries import release_entry
from mien.protocol.ids import DeviceId, ModelId, PopulationId, TaskId
from mien.rounds.records import BundleRecord, CandidateRecord, CandidateState, EvaluationRecord, ReleaseRecord
from mien.rounds.releases import Standing, in_force, in_force_everywhere, rolled_back, standings


class ReleaseStore(RecordStore):
    """Releases, candidates and evaluations; a `Store` is one."""

    # Releases

    def _keep_bundle(self, db: sa.Connection, bundle: BundleRecord, actor: str) -> None:
        newest = BUNDLE_ROWS.first(db, order=BUNDLES.c.sequence.desc())
        if newest is not None and newest.manifest_json == bundle.manifest_json:
            return
        if newest is not None and newest.sequence >= bundle.sequence:
            raise ConfigError(
                f"the bundle has sequence number {bundle.sequence}, an earlier one had {newest.sequence}: phones would "
                "refuse it; sign it again with a higher one"
            )
        BUNDLE_ROWS.add(db, dataclasses.replace(bundle, added_ms=self._clock.now_ms(), added_by=actor))
        self._log(db, actor, "model.bundle", bundle.model_id, {"sequence": bundle.sequence})

    def bundle(self, model_id: ModelId) -> BundleRecord | None:
        """Return the newest signed bundle of a model."""
        return self._first(BUNDLE_ROWS, BUNDLES.c.model_id == model_id, order=BUNDLES.c.sequence.desc())

    def _release(
        self,
        db: sa.Connection,
        model_id: ModelId,
        population: PopulationId | None,
        actor: str,
        share: float,
        *,
        despite_gates: bool = False,
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"share is {share}; it must lie above 0 and not above 1")
        wanted = sa.select(MODELS.c.removed_ms).where(MODELS.c.model_id == model_id)
        removed = db.execute(wanted.with_for_update(read=True)).first()  # another replica may be giving it up
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
        why = {"despite_gates": True} if despite_gates else {}
        self._put_in_force(db, ReleaseRecord(model_id, population, self._clock.now_ms(), actor, share), why)

    def _put_in_force(self, db: sa.Connection, release: ReleaseRecord, more: Mapping[str, object]) -> None:
        """Keep a new release; `more` is told in the audit log."""
        RELEASE_ROWS.add(db, release)
        detail = {"population": release.population, "share": release.share, **more}
        self._log(db, release.released_by, "model.release", release.model_id, detail)
        self._log_release(db, release)

    def _log_release(self, db: sa.Connection, release: ReleaseRecord) -> None:
        """Enter a release in the public log, behind the audit log's entry."""
        entry = release_entry(release.model_id, release.population, release.share)
        round_log.append(db, release.released_ms, [entry])

    def log_releases(self) -> None:
        """Enter releases in force that the public log lacks, for phones look a release up before they use it.

        They were made before there was such a log. Nothing happens where all are there.
        """
        with self._transaction() as db:
            round_log.read_head(db, for_update=True)  # another replica may be about to do the same
            for _, release, _ in in_force_everywhere(history_of(db)):
                if round_log.release_of(db, release.model_id, release.population) is None:
                    self._log_release(db, dataclasses.replace(release, released_ms=self._clock.now_ms()))

    def _release_candidate(
        self, db: sa.Connection, candidate: CandidateRecord, population: PopulationId, share: float
    ) -> None:
        """Release what passed its gates, to everybody where nothing is released to the others."""
        share = share if in_force(history_of(db, population)) is not None else 1.0
        self._release(db, candidate.model_id, population, audit.COORDINATOR, share)

    def ways_back(self, population: PopulationId | None) -> list[tuple[ModelId, ModelId]]:
        """Return whom a roll-back takes from which model to which one."""
        with self._transaction() as db:
            found = rolled_back(history_of(db), population)
            return [(taken, release.model_id) for taken, release in found if taken != release.model_id]

    def _roll_back(self, db: sa.Connection, population: PopulationId | None, actor: str) -> ReleaseRecord:
        found = rolled_back(history_of(db), population)
        if not found:
            raise NotFoundError("no earlier release is there to go back to; release another model")
        made = [
            (taken, dataclasses.replace(release, released_ms=self._clock.now_ms(), released_by=actor))
            for taken, release in found
        ]
        for taken, release in made:
            RELEASE_ROWS.add(db, release)
            whose = {"population": release.population}
            if taken == release.model_id:  # its own, which it keeps now that the one for all is another
                self._log(db, actor, "model.release", taken, {**whose, "share": release.share})
            else:
                self._log(db, actor, "model.rollback", release.model_id, {**whose, "from": taken})
            self._log_release(db, release)
        return next((release for _, release in made if release.population == population), made[0][1])

    def newest_release(self, *population: PopulationId | None) -> ReleaseRecord | None:
        """Return the newest release that concerns a population, or without one any, whatever its share."""
        with self._transaction() as db:
            history = history_of(db, *population)
            return history[-1] if history else None

    def released(self, population: PopulationId | None, device_id: DeviceId | None = None) -> ReleaseRecord | None:
        """Return the release in force for a population, its own or one for all, whichever is newer.

        With a device: the one that is this device's, which a partial roll-out may have reached.
        """
        with self._transaction() as db:
            return in_force(history_of(db, population), device_id)

    def released_ids(self) -> set[ModelId]:
        """Return the ids of the models that are in force for any population, or a share of one."""
        with self._transaction() as db:
            return {release.model_id for _, release, _ in in_force_everywhere(history_of(db))}

    def standings(self) -> dict[ModelId, Standing]:
        """Return where every model stands, by id."""
        with self._transaction() as db:
            models = MODEL_ROWS.find(db, order=(MODELS.c.created_ms, MODELS.c.model_id))
            return standings(models, history_of(db), all_candidates(db))

    # Candidates

    def candidate(self, task_id: TaskId, state: CandidateState) -> CandidateRecord | None:
        """Return a task's newest candidate in that state."""
        wanted = (CANDIDATES.c.task_id == task_id, CANDIDATES.c.state == state.value)
        return self._first(CANDIDATE_ROWS, *wanted, order=CANDIDATES.c.round.desc())

    # Evaluations

    def add_evaluation(self, model_id: ModelId, record_json: bytes, *, actor: str) -> None:
        """Keep a measurement of a model."""
        with self._transaction() as db:
            keep_evaluations(db, [EvaluationRecord(model_id, record_json, self._clock.now_ms(), actor)])
            self._log(db, actor, "model.evaluate", model_id)

    def _keep_measured(self, db: sa.Connection, evaluations: Sequence[EvaluationRecord]) -> None:
        """Keep what a round of phones measured, in the transaction that closes it."""
        keep_evaluations(db, evaluations)
        for evaluation in evaluations:
            self._log(db, evaluation.made_by, "model.evaluate", evaluation.model_id)

    def evaluations(self, model_id: ModelId) -> list[EvaluationRecord]:
        """Return all measurements of a model, oldest first."""
        return self._find(EVALUATION_ROWS, EVALUATIONS.c.model_id == model_id, order=EVALUATIONS.c.id)

    # Retention

    def forget_round_models(self, task_id: TaskId, keep: int) -> set[str]:
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
        ours = sa.select(MODELS.c.model_id).where(mine).order_by(MODELS.c.model_id)
        with self._transaction() as db:
            # Locked before it is asked what is needed: a replica that releases one of these has then done so, or waits.
            ids = list(db.scalars(ours.with_for_update(key_share=True)))
            kept = {*db.scalars(held), *db.scalars(newest)}
            ids = [model_id for model_id in ids if model_id not in kept]
            if not ids:
                return set()
            theirs = MODELS.c.model_id.in_(ids)
            blobs = {sha256 for row in db.execute(sa.select(*MODEL_BLOBS).where(theirs)) for sha256 in row if sha256}
            db.execute(sa.update(MODELS).where(theirs).values(removed_ms=self._clock.now_ms()))
            needed = db.execute(sa.select(*MODEL_BLOBS).where(MODELS.c.removed_ms.is_(None)))
            return blobs - {sha256 for row in needed for sha256 in row if sha256}


# What other transactions of the store do about candidates


def decide(db: sa.Connection, candidate: CandidateRecord) -> None:
    """Keep what the gates say of a candidate; only the one that passed last keeps the server state to go back to."""
    mine = sa.and_(CANDIDATES.c.task_id == candidate.task_id, CANDIDATES.c.round == candidate.round)
    values = {
        "state": candidate.state.value,
        "reason": cut(candidate.reason),
        "decided_ms": candidate.decided_ms,
    }
    db.execute(sa.update(CANDIDATES).where(mine).values(**values))
    others = sa.and_(CANDIDATES.c.task_id == candidate.task_id, CANDIDATES.c.round != candidate.round)
    forgets = others if candidate.state is CandidateState.PASSED else mine
    db.execute(sa.update(CANDIDATES).where(forgets).values(arrays_sha256=None, revealed_sha256=None))


def candidate_state_blobs(db: sa.Connection) -> set[str]:
    """Return the hashes of the server state that some task may have to go back to."""
    blobs = sa.select(CANDIDATES.c.arrays_sha256, CANDIDATES.c.revealed_sha256)
    rows = db.execute(blobs.join(TASKS, TASKS.c.task_id == CANDIDATES.c.task_id).where(TASK_GOES_ON))
    return {sha256 for row in rows for sha256 in row if sha256}


def keep_evaluations(db: sa.Connection, evaluations: Sequence[EvaluationRecord]) -> None:
    """Keep measurements of models."""
    for evaluation in evaluations:
        EVALUATION_ROWS.add(db, evaluation)


def _check_judged(db: sa.Connection, model_id: ModelId) -> None:
    """Raise ConfigError unless the gates have nothing against a model, or were never asked."""
    offers = CANDIDATE_ROWS.find(db, CANDIDATES.c.model_id == model_id, order=CANDIDATES.c.offered_ms)
    if not offers:
        return
    newest = offers[-1]
    if newest.state is CandidateState.WAITING:
        raise ConfigError("this model's gates have not decided yet; wait for them, or use --despite-gates")
    if newest.state is CandidateState.FAILED:
        raise ConfigError(f"this model failed its gates: {newest.reason}; --despite-gates releases it nevertheless")


def history_of(db: sa.Connection, *population: PopulationId | None) -> list[ReleaseRecord]:
    """Return the releases that concern a population (None: those for all), or without one all, oldest first."""
    theirs: sa.ColumnElement[bool] = RELEASES.c.population.is_(None)
    if population and population[0] is not None:
        theirs = sa.or_(theirs, RELEASES.c.population == population[0])
    return RELEASE_ROWS.find(db, *((theirs,) if population else ()), order=RELEASES.c.id)


def all_candidates(db: sa.Connection) -> list[CandidateRecord]:
    """Return all candidates, oldest first."""
    return CANDIDATE_ROWS.find(db, order=(CANDIDATES.c.offered_ms, CANDIDATES.c.round))
