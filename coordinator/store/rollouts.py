"""Staged roll-outs in the database: the part of `Store` that moves a release from share to share, or takes it back."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from coordinator.releases import in_force
from coordinator.rollouts import Move, RollOutRecord, RollOutState, spec_to_json
from coordinator.store.records import BundleRecord, ReleaseRecord
from coordinator.store.releases import ReleaseStore, history_of
from coordinator.store.tables import RELEASES, ROLL_OUTS
from mien.errors import ConfigError, LateError, NotFoundError
from mien.rollouts import RollOutSpec


class RollOutStore(ReleaseStore, ABC):
    """Releases, and roll-outs of them in stages; a `Store` is one."""

    def start_roll_out(
        self,
        model_id: str,
        spec: RollOutSpec,
        *,
        population: str | None,
        actor: str,
        despite_gates: bool = False,
        bundle: BundleRecord | None = None,
    ) -> RollOutRecord:
        """Return a new roll-out, its model released to the first share of the phones.

        `population` is the model's own. Raises ConfigError as `release`, and where the model is in force already.
        """
        with self._transaction() as db:
            reference = in_force(history_of(db, spec.population))
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
            return self._begin(db, model_id, spec, actor)

    def _begin(self, db: sa.Connection, model_id: str, spec: RollOutSpec, actor: str) -> RollOutRecord:
        """Return the roll-out of a model that was just released to the first share, kept; over if that was all."""
        reference = in_force(history_of(db, spec.population))
        assert reference is not None, "a model was just released"
        is_all = reference.model_id == model_id
        now_ms = self._clock.now_ms()
        record = RollOutRecord(
            id=0,
            model_id=model_id,
            reference_model_id=reference.model_id,
            population=spec.population,
            spec_json=spec_to_json(spec),
            state=RollOutState.DONE if is_all else RollOutState.EVALUATING,
            stage=len(spec.stages) - 1 if is_all else 0,
            attempt=1,
            started_ms=now_ms,
            started_by=actor,
            changed_ms=now_ms,
            reason="there was no model before; all phones have it" if is_all else "",
        )
        values = _values(record)
        del values["id"]
        made = db.execute(sa.insert(ROLL_OUTS).values(**values)).inserted_primary_key
        assert made is not None
        started = dataclasses.replace(record, id=made[0])
        self._log_move(db, actor, "start", started)
        return started

    def roll_outs(self) -> list[RollOutRecord]:
        """Return all roll-outs, oldest first."""
        with self._transaction() as db:
            return [_roll_out(row) for row in db.execute(sa.select(ROLL_OUTS).order_by(ROLL_OUTS.c.id))]

    def active_roll_outs(self) -> list[RollOutRecord]:
        """Return the roll-outs that are not over, oldest first."""
        with self._transaction() as db:
            return _active(db)

    def newest_roll_outs(self) -> list[RollOutRecord]:
        """Return each population's newest roll-out."""
        newest = sa.select(sa.func.max(ROLL_OUTS.c.id)).group_by(ROLL_OUTS.c.population)
        wanted = sa.select(ROLL_OUTS).where(ROLL_OUTS.c.id.in_(newest)).order_by(ROLL_OUTS.c.id)
        with self._transaction() as db:
            return [_roll_out(row) for row in db.execute(wanted)]

    def roll_out(self, roll_out_id: int) -> RollOutRecord:
        """Return a roll-out; raises NotFoundError."""
        with self._transaction() as db:
            row = db.execute(sa.select(ROLL_OUTS).where(ROLL_OUTS.c.id == roll_out_id)).first()
            if row is None:
                raise NotFoundError(f"there is no roll-out {roll_out_id}; fleet roll-outs shows which there are")
            return _roll_out(row)

    def move_roll_out(self, before: RollOutRecord, move: Move, *, actor: str) -> RollOutRecord:
        """Return the roll-out after a move, committed with the release that it makes.

        Where another release has taken its place it is replaced, and nothing is released. Raises LateError when
        somebody else has moved it since it was read.
        """
        with self._transaction() as db:
            history = history_of(db, before.population)
            after = move.after
            if not _holds(before, history):
                after = dataclasses.replace(
                    before, state=RollOutState.REPLACED, reason="another release took its place"
                )
            elif move.widens or move.rolls_back:
                self._carry_out(db, before, move, history, actor)
            after = dataclasses.replace(after, changed_ms=self._clock.now_ms(), version=before.version + 1)
            unchanged = sa.and_(ROLL_OUTS.c.id == before.id, ROLL_OUTS.c.version == before.version)
            if db.execute(sa.update(ROLL_OUTS).where(unchanged).values(**_values(after))).rowcount != 1:
                raise LateError("somebody else has moved this roll-out; look again")
            if (after.state, after.stage) != (before.state, before.stage):
                self._log_move(db, actor, after.state.value, after)
            return after

    def _carry_out(
        self, db: sa.Connection, before: RollOutRecord, move: Move, history: Sequence[ReleaseRecord], actor: str
    ) -> None:
        if move.rolls_back:
            self._roll_back(db, before.population, actor)
            return
        share = move.after.share
        release = ReleaseRecord(before.model_id, history[-1].population, self._clock.now_ms(), actor, share)
        db.execute(sa.insert(RELEASES).values(**dataclasses.asdict(release)))
        detail = {"population": release.population, "share": share, "roll_out": before.id}
        self._log(db, actor, "model.release", before.model_id, detail)

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


def _active(db: sa.Connection) -> list[RollOutRecord]:
    states = [state.value for state in RollOutState if not state.is_over]
    wanted = sa.select(ROLL_OUTS).where(ROLL_OUTS.c.state.in_(states)).order_by(ROLL_OUTS.c.id)
    return [_roll_out(row) for row in db.execute(wanted)]


def is_under_way(db: sa.Connection, model_id: str) -> bool:
    """Return whether a model has a roll-out, whoever is asked: a second one would move the same release."""
    return any(each.model_id == model_id for each in _active(db))


def _values(record: RollOutRecord) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    figures = json.dumps(dict(values.pop("figures")), allow_nan=False, sort_keys=True)
    return {**values, "state": record.state.value, "figures_json": figures}


def _roll_out(row: sa.Row[Any]) -> RollOutRecord:
    values = dict(row._mapping)
    figures = json.loads(values.pop("figures_json"))
    return RollOutRecord(**{**values, "state": RollOutState(row.state), "figures": figures})
