"""Staged roll-outs in the database: the part of `Store` that moves a release from share to share, or takes it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa

from coordinator.store import audit
from coordinator.store.database import hold_commands
from coordinator.store.releases import ReleaseStore, history_of
from coordinator.store.rows import ROLL_OUT_ROWS, TASK_GOES_ON
from coordinator.store.tables import ROLL_OUTS, TASKS
from mien.errors import ConfigError, LateError, NotFoundError
from mien.evaluation.rollout_spec import RollOutSpec
from mien.format import cut
from mien.protocol.ids import AttemptNumber, ModelId, PopulationId, TaskId
from mien.rounds.records import BundleRecord, ReleaseRecord
from mien.rounds.releases import in_force
from mien.rounds.rollouts import Move, RollOutRecord, RollOutState, id_in_token, spec_to_json


class RollOutStore(ReleaseStore):
    """Releases, and roll-outs of them in stages; a `Store` is one."""

    def release(
        self,
        model_id: ModelId,
        *,
        population: PopulationId | None,
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
            hold_commands(db)
            if bundle is not None:
                self._keep_bundle(db, bundle, actor)
            self._release(db, model_id, population, actor, share, despite_gates=despite_gates)
            self._end_replaced(db, actor)

    def roll_back(self, population: PopulationId | None, *, actor: str) -> ReleaseRecord:
        """Return the release of the model that a population had before, now in force again for all its devices.

        It takes back the newest release that the given population has. Where that one is for all, every population goes
        back to what it had itself. Raises NotFoundError when there is nothing to go back to.
        """
        with self._transaction() as db:
            hold_commands(db)
            release = self._roll_back(db, population, actor)
            self._end_replaced(db, actor)
            return release

    def start_roll_out(
        self,
        model_id: ModelId,
        spec: RollOutSpec,
        *,
        population: PopulationId | None,
        actor: str,
        despite_gates: bool = False,
        bundle: BundleRecord | None = None,
    ) -> RollOutRecord:
        """Return a new roll-out, its model released to the first share of the phones.

        `population` is the model's own. Raises ConfigError as `release`, and where the model is in force already.
        """
        with self._transaction() as db:
            hold_commands(db)
            reference = in_force(history_of(db, PopulationId(spec.population)))
            if reference is None or reference.model_id == model_id:
                raise ConfigError(
                    "a roll-out goes from a model that all phones have to another one: release the first model to all, "
                    "and name one that is not in force already"
                )
            if is_under_way(db, model_id):
                raise ConfigError(
                    "this model is being rolled out already, and one population's word would not count beside "
                    "another's; fleet roll-outs says how far it is, fleet stop ends it"
                )
            if bundle is not None:
                self._keep_bundle(db, bundle, actor)
            self._release(db, model_id, population, actor, spec.stages[0], despite_gates=despite_gates)
            self._end_replaced(db, actor)
            return self._begin(db, model_id, spec, actor)

    def _begin(self, db: sa.Connection, model_id: ModelId, spec: RollOutSpec, actor: str) -> RollOutRecord:
        """Return the roll-out of a model that was just released to the first share, kept; over if that was all."""
        reference = in_force(history_of(db, PopulationId(spec.population)))
        assert reference is not None, "a model was just released"
        is_all = reference.model_id == model_id
        now_ms = self._clock.now_ms()
        record = RollOutRecord(
            id=0,
            model_id=model_id,
            reference_model_id=reference.model_id,
            population=PopulationId(spec.population),
            spec_json=spec_to_json(spec),
            state=RollOutState.DONE if is_all else RollOutState.EVALUATING,
            stage=len(spec.stages) - 1 if is_all else 0,
            attempt=AttemptNumber(1),
            started_ms=now_ms,
            started_by=actor,
            changed_ms=now_ms,
            reason="there was no model before; all phones have it" if is_all else "",
        )
        started = ROLL_OUT_ROWS.add(db, record)
        self._log_move(db, actor, "start", started)
        return started

    def roll_outs(self) -> list[RollOutRecord]:
        """Return all roll-outs, oldest first."""
        return self._find(ROLL_OUT_ROWS, order=ROLL_OUTS.c.id)

    def active_roll_outs(self) -> list[RollOutRecord]:
        """Return the roll-outs that are not over, oldest first."""
        with self._transaction() as db:
            return _active(db)

    def newest_roll_outs(self) -> list[RollOutRecord]:
        """Return each population's newest roll-out."""
        newest = sa.select(sa.func.max(ROLL_OUTS.c.id)).group_by(ROLL_OUTS.c.population)
        return self._find(ROLL_OUT_ROWS, ROLL_OUTS.c.id.in_(newest), order=ROLL_OUTS.c.id)

    def roll_out(self, roll_out_id: int) -> RollOutRecord:
        """Return a roll-out; raises NotFoundError."""
        found = self._first(ROLL_OUT_ROWS, ROLL_OUTS.c.id == roll_out_id)
        if found is None:
            raise NotFoundError(f"there is no roll-out {roll_out_id}; fleet roll-outs shows which there are")
        return found

    def move_roll_out(self, before: RollOutRecord, move: Move, *, actor: str) -> RollOutRecord:
        """Return the roll-out after a move, committed with the release that it makes.

        Where another release has taken its place it is replaced, and nothing is released. Raises LateError when
        somebody else has moved it since it was read.
        """
        with self._transaction() as db:
            history = history_of(db, before.population)
            after = move.after
            if not _holds(before, history):
                after = _replaced(before, history)
            elif move.widens or move.rolls_back:
                self._carry_out(db, before, move, history, actor)
            after = self._changed(db, before, after)
            if (after.state, after.stage) != (before.state, before.stage):
                self._log_move(db, actor, after.state.value, after)
            if move.widens or move.rolls_back:
                self._end_replaced(db, actor)
            return after

    def _changed(self, db: sa.Connection, before: RollOutRecord, after: RollOutRecord) -> RollOutRecord:
        """Return a roll-out that was changed, kept; raises LateError where that was not its newest state."""
        after = dataclasses.replace(after, changed_ms=self._clock.now_ms(), version=before.version + 1)
        unchanged = sa.and_(ROLL_OUTS.c.id == before.id, ROLL_OUTS.c.version == before.version)
        if db.execute(sa.update(ROLL_OUTS).where(unchanged).values(**ROLL_OUT_ROWS.values(after))).rowcount != 1:
            raise LateError("somebody else has moved this roll-out; look again")
        return after

    def _end_replaced(self, db: sa.Connection, actor: str) -> None:
        """End the roll-outs whose release is not in force any more, in the transaction that took its place."""
        for before in _active(db):
            history = history_of(db, before.population)
            if _holds(before, history):
                continue
            after = self._changed(db, before, _replaced(before, history))
            self._log_move(db, actor, after.state.value, after)

    def idle_evaluations(self) -> list[tuple[TaskId, PopulationId]]:
        """Return the evaluations that go on though their roll-out is over: task and population."""
        wanted = sa.select(TASKS.c.task_id, TASKS.c.population, TASKS.c.idempotency_token).where(
            TASKS.c.submitted_by == audit.COORDINATOR, TASK_GOES_ON
        )
        with self._transaction() as db:
            rows = db.execute(wanted).all()
            active = {each.id for each in _active(db)} if rows else set()
        found = [(row.task_id, row.population, id_in_token(row.idempotency_token)) for row in rows]
        return [(task_id, whose) for task_id, whose, of in found if of is not None and of not in active]

    def _carry_out(
        self, db: sa.Connection, before: RollOutRecord, move: Move, history: Sequence[ReleaseRecord], actor: str
    ) -> None:
        if move.rolls_back:
            self._roll_back(db, before.population, actor)
            return
        population, now_ms = history[-1].population, self._clock.now_ms()
        release = ReleaseRecord(before.model_id, population, now_ms, actor, move.after.share)
        self._put_in_force(db, release, {"roll_out": before.id})

    def _log_move(self, db: sa.Connection, actor: str, action: str, roll_out: RollOutRecord) -> None:
        detail: dict[str, object] = {
            "roll_out": roll_out.id,
            "population": roll_out.population,
            "share": roll_out.share,
            "reference": roll_out.reference_model_id,
        }
        detail |= {"reason": roll_out.reason} if roll_out.reason else {}
        detail |= {name: round(value, 6) for name, value in roll_out.figures.items()}
        self._log(db, actor, f"rollout.{action}", roll_out.model_id, detail)


def is_in_force(roll_out: RollOutRecord, newest: ReleaseRecord | None) -> bool:
    """Return whether a population's newest release is still the one that a roll-out made."""
    return newest is not None and (newest.model_id, newest.share) == (roll_out.model_id, roll_out.share)


def _holds(roll_out: RollOutRecord, history: Sequence[ReleaseRecord]) -> bool:
    return is_in_force(roll_out, history[-1] if history else None)


def _replaced(roll_out: RollOutRecord, history: Sequence[ReleaseRecord]) -> RollOutRecord:
    """Return a roll-out that is over because a population's newest release is another one, and by whom."""
    newest = history[-1]
    if newest.is_rollback:
        why = f"rolled back by {newest.released_by}"
    elif newest.model_id == roll_out.model_id:
        why = f"{newest.released_by} released the model to {newest.share:.4g} of the phones"
    else:
        why = f"{newest.released_by} released model {newest.model_id[:12]} in its place"
    return dataclasses.replace(roll_out, state=RollOutState.REPLACED, reason=cut(why))


def _active(db: sa.Connection) -> list[RollOutRecord]:
    states = [state.value for state in RollOutState if not state.is_over]
    return ROLL_OUT_ROWS.find(db, ROLL_OUTS.c.state.in_(states), order=ROLL_OUTS.c.id)


def is_under_way(db: sa.Connection, model_id: ModelId) -> bool:
    """Return whether a model has a roll-out, whoever is asked: a second one would move the same release."""
    return any(each.model_id == model_id for each in _active(db))
