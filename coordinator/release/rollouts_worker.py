"""Carries staged roll-outs on: has phones asked at each stage, and does what their answer means.

Everything is read from the database and written there in single transactions, and an evaluation is submitted under a
token of its own: a keeper that dies at any instant, or two of them at once, do nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import structlog

from coordinator.release.rollback_check import check_way_back
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine
from coordinator.rounds.pulse import log_failure
from coordinator.store import audit
from coordinator.store.rollouts import is_in_force
from mien.errors import ConfigError, LateError, MienError, NotFoundError, StorageError, UnavailableError
from mien.evaluation.fleet import FleetFigures, judge_fleet
from mien.format import cut
from mien.methods.federated_evaluation import PROTOCOL
from mien.protocol.canonical import parse_json
from mien.protocol.ids import ModelId, PopulationId
from mien.records import from_mapping
from mien.rounds.records import TaskRecord, TaskState
from mien.rounds.rollouts import (
    Move,
    RollOutRecord,
    RollOutState,
    answered,
    evaluation_task,
    held,
    task_name,
    task_token,
    threshold_for,
)
from mien.specs import TaskSpec

_LOG: Final = structlog.get_logger()
_RETRY_S: Final = 5.0
_LOOK_S: Final = 60.0
"""After this they are looked at though nothing has changed here: another coordinator may have begun one."""

_PAUSE_S: Final = 0.2
"""However often rounds change, roll-outs are not looked at more often than this."""


class RollOutKeeper:
    """Looks after the roll-outs of one coordinator."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        release_key: str,
        *,
        leads: Callable[[PopulationId], bool] = lambda _population: True,
    ) -> None:
        """`leads` says whose roll-outs this coordinator looks after, by population, where there are several."""
        self._engine, self._stores, self._release_key = engine, stores, release_key
        self._leads = leads

    async def run(self) -> None:
        """Look after all roll-outs, until cancelled; what goes wrong with one is logged and tried again."""
        while True:
            count = self._engine.changed.count
            (has_failed,) = await asyncio.gather(self._look_after_all(), return_exceptions=True)
            if isinstance(has_failed, BaseException):
                log_failure("roll-out", has_failed, model="all")
            await asyncio.sleep(_RETRY_S if has_failed else _PAUSE_S)
            if not has_failed:
                await self._engine.changed.after(count, _LOOK_S)

    async def _look_after_all(self) -> bool:
        """Return whether something went wrong."""
        has_failed = False
        active = await self._stores.thread.run(self._stores.store.active_roll_outs)
        for roll_out in [each for each in active if self._leads(each.population)]:
            (error,) = await asyncio.gather(self._serve(roll_out), return_exceptions=True)
            if error is not None:
                has_failed = True
                log_failure("roll-out", error, model=roll_out.model_id[:12])
        idle = await self._stores.thread.run(self._stores.store.idle_evaluations)
        for task_id in [task_id for task_id, population in idle if self._leads(population)]:
            await self._engine.command(task_id, TaskState.CANCELLED, actor=audit.COORDINATOR)
        return has_failed

    async def _serve(self, roll_out: RollOutRecord) -> None:
        thread, store = self._stores.thread, self._stores.store
        task = None if roll_out.task_id is None else await thread.run(store.task, roll_out.task_id)
        if not is_in_force(roll_out, await thread.run(store.newest_release, roll_out.population)):
            await self._move(roll_out, Move(roll_out))  # which finds that it is replaced
        elif roll_out.state is RollOutState.EVALUATING:
            await self._evaluate(roll_out, task)

    async def _evaluate(self, roll_out: RollOutRecord, task: TaskRecord | None) -> None:
        """Have the stage's phones asked; once they have answered, do what that means."""
        if task is None:
            await self._submit(roll_out)
        elif task.state is TaskState.DONE:
            await self._hear(roll_out, task)
        elif task.state.is_over:
            why = f"its evaluation is {task.state}{': ' + task.reason if task.reason else ''}"
            await self._move(roll_out, held(roll_out, f"{why}; fleet continue asks again"))
        elif (said := cut(task.reason if task.state is TaskState.PAUSED else "")) != roll_out.reason:
            await self._move(roll_out, Move(replace(roll_out, reason=said)))

    async def _submit(self, roll_out: RollOutRecord) -> None:
        try:
            spec = await self._task(roll_out)
            task = await self._engine.submit(spec, token=task_token(roll_out), actor=audit.COORDINATOR)
        except (StorageError, UnavailableError):
            raise
        except MienError as error:
            await self._move(roll_out, held(roll_out, f"phones cannot be asked: {error.message}"))
            return
        await self._move(roll_out, Move(replace(roll_out, task_id=task.task_id)))

    async def _task(self, roll_out: RollOutRecord) -> TaskSpec:
        """Return the stage's evaluation; raises ConfigError for a model without a threshold."""
        spec = replace(roll_out.spec, population=roll_out.population)
        thresholds = [
            threshold_for(await self._described(model_id), model_id, spec.gates.fmr).value
            for model_id in (roll_out.model_id, roll_out.reference_model_id)
        ]
        return evaluation_task(
            spec,
            name=task_name(roll_out),
            model_id=roll_out.model_id,
            threshold=thresholds[0],
            reference=(roll_out.reference_model_id, thresholds[1]),
            share=roll_out.share,
        )

    async def _described(self, model_id: ModelId) -> bytes:
        """Return a model's description as phones have it: what the release key signed, where it signed any."""
        thread, store = self._stores.thread, self._stores.store
        bundle = await thread.run(store.bundle, model_id)
        return bundle.spec_json if bundle is not None else (await thread.run(store.model, model_id)).spec_json

    async def _hear(self, roll_out: RollOutRecord, task: TaskRecord) -> None:
        found = await self._figures(roll_out, task)
        if found is None:
            await self._move(roll_out, held(roll_out, "phones were asked and no figures were kept; fleet continue"))
            return
        move = answered(roll_out, found, judge_fleet(roll_out.spec.gates, found))
        if move.rolls_back:
            thread = self._stores.thread
            try:
                await thread.run(check_way_back, self._stores.store, self._release_key, roll_out.population)
            except (ConfigError, NotFoundError) as error:
                told = replace(roll_out, figures=move.after.figures)
                move = held(told, f"{move.after.reason}; and it cannot go back by itself: {error.message}")
        await self._move(roll_out, move)

    async def _figures(self, roll_out: RollOutRecord, task: TaskRecord) -> FleetFigures | None:
        """Return the phones' figures in the stage's evaluation."""
        kept = await self._stores.thread.run(self._stores.store.evaluations, roll_out.model_id)
        for each in reversed(kept):
            record: Any = parse_json(each.record_json, what="an evaluation's record")
            if (record.get("protocol"), record.get("task_id")) == (PROTOCOL[0], task.task_id):
                return from_mapping(FleetFigures, record["figures"])
        return None

    async def _move(self, roll_out: RollOutRecord, move: Move) -> None:
        try:
            after = await self._stores.thread.run(
                self._stores.store.move_roll_out, roll_out, move, actor=audit.COORDINATOR
            )
        except LateError:
            return  # somebody else has moved it: it is looked at anew
        if (after.state, after.stage) != (roll_out.state, roll_out.stage):
            _LOG.info(
                "roll-out",
                model=after.model_id[:12],
                population=after.population,
                state=after.state.value,
                share=after.share,
                reason=after.reason,
            )
        self._engine.changed.beat()
