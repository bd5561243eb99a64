"""One attempt of a round while it runs: its record, its state, and the protocol's server, all in step with the disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from coordinator.rounds.masked import MaskedRound
from coordinator.rounds.pulse import Pulse, in_thread
from mien.errors import LateError, MienError, NotFoundError, ViolationError
from mien.log.entries import LogEntry, result_entry, roster_entry
from mien.protocol.ids import AttemptNumber, DeviceId, RoundNumber
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.machine import (
    COUNTED,
    MASKED,
    SUM_IS_OPEN,
    Dropped,
    Event,
    RoundRules,
    RoundState,
    Step,
    Stepped,
    SumFailed,
    Transition,
    advance,
)
from mien.rounds.records import RoundChange, RoundRecord, StepRecord, SumOpening
from mien.secagg import Elsewhere
from mien.secagg.groups import deal
from mien.secagg.planner import raw_task_id

if TYPE_CHECKING:
    from coordinator.rounds.cohort import Cohort
    from coordinator.rounds.task import Side
    from mien.contribution import Arrays

_MAY_TRAIN: Final = (Stage.TRAINING, Stage.KEYS, Stage.UPLOAD)
"""Stages at which a device that has sent no vector may still do its part."""


class Attempt:
    """An attempt from its opening on, as it was last committed. What devices say of it is posted here.

    `masked` is the protocol's server, None under plain sums and before the stage of keys. `barred` are the devices that
    the privacy ledger keeps out.
    """

    def __init__(
        self,
        cohort: Cohort,
        side: Side,
        record: RoundRecord,
        state: RoundState,
        barred: frozenset[DeviceId] = frozenset(),
    ) -> None:
        self._cohort, self._side, self._stores = cohort, side, side.stores
        self.record, self.state, self.barred = record, state, barred
        self.masked: MaskedRound | None = None
        self.plan, self.changed = side.plan, Pulse()
        self.rules = RoundRules.of(
            self.plan.task, task_id=record.task_id, round_number=record.round, attempt=record.attempt
        )

    # What others may ask, without waiting

    @property
    def is_current(self) -> bool:
        """True while this is its cohort's newest attempt, and messages about it are still taken."""
        return self._cohort.attempt is self and not self._cohort.has_ended

    @property
    def upload_bytes(self) -> int:
        """Length of a contribution on the wire: the masked vector and what is revealed, or the plain vector."""
        layout = self.plan.contribution
        return layout.size_bytes if self.masked is None else self.masked.payload_bytes + layout.revealed_bytes

    def step_of(self, device_id: DeviceId) -> Step | None:
        """Return the step that a device has reached."""
        return self.state.participants.get(device_id)

    def may_train(self, device_id: DeviceId) -> bool:
        """Return whether a device may still do its part."""
        return self.state.stage in _MAY_TRAIN and self.step_of(device_id) in (Step.SELECTED, Step.TRAINED)

    def message_for(self, device_id: DeviceId) -> bytes:
        """Return the message of secure aggregation to a device at the current stage; nothing under plain sums."""
        return b"" if self.masked is None else self.masked.message_for(device_id, self.state.stage)

    async def reply_to(self, device_id: DeviceId) -> Arrays:
        """Return the method's reply to a device, sent with its assignment."""
        return await self._side.reply_to(device_id)

    async def post(self, event: Event, *, step: StepRecord | None = None) -> None:
        """Hand over what a device did and return once it is committed; raises what the round or the disk refuses.

        `step` is what the device said at a stage of secure aggregation: it has to hold before the event counts.
        """
        await self._cohort.post(event, attempt=self, step=step)

    # How it moves; what is returned is not committed yet

    async def advance(self, state: RoundState, event: Event, step: StepRecord | None, now: float) -> Transition:
        """Return the state after one event, its step checked and the stages that it ends ended."""
        after = advance(self.rules, state, event, now)
        if step is not None:
            after = await self._taken(state, event, step, after, now)
        return await self._followed(after, now)

    async def _taken(
        self, state: RoundState, event: Event, step: StepRecord, after: Transition, now: float
    ) -> Transition:
        """Return the transition that a device's event makes once its step has held; `after` is what it makes by itself.

        Raises what does not hold; the protocol's server is then as it was.
        """
        if state.stage not in self.rules.path:
            return after
        if self.masked is None:
            raise ViolationError("this task's sums are not masked; do what its stage events say")
        try:
            await self._accepted(self.masked, step)
        except LateError:
            if after[0] is not state:
                raise  # else the machine counts the device already, and needs nothing more of it
        if isinstance(event, Stepped) and event.stage is Stage.UNMASK and self.masked.can_open:
            return advance(self.rules, state, Stepped(event.device_id, event.stage, is_enough=True), now)
        return after

    async def _accepted(self, masked: MaskedRound, step: StepRecord) -> None:
        """Have the protocol's server take a step, which brings a vector where its stage is that of uploads."""
        if step.stage is not Stage.UPLOAD:
            masked.accept(step)  # less work than to have a thread do it, which would have Python's lock as well
            await asyncio.sleep(0)  # other calls go on between two steps
        elif self._stores.sums_of(self.plan) is None:
            await in_thread(self._take_vector, masked, step)
        else:
            upload = await self._stores.thread.run(self._stores.store.upload, self.record.id, step.device_id)
            if upload is None:
                raise NotFoundError("this device has sent no vector; upload it, then go on")
            await in_thread(masked.accept, step, _elsewhere(upload.blob))

    def _take_vector(self, masked: MaskedRound, step: StepRecord) -> None:
        """Add a masked vector to the sum, whose bytes are on stable storage here; the protocol checks its hash."""
        data = self._stores.spool.read_unhashed(self.record.id, step.device_id, self.upload_bytes)
        masked.accept(step, data[: masked.payload_bytes])

    async def _followed(self, transition: Transition, now: float) -> Transition:
        """Return the transition once the protocol has ended the stages that the machine left.

        Where too few devices are left for it, the attempt is aborted.
        """
        state, effects = transition
        if state.stage is Stage.KEYS and self.masked is None:
            self.masked = await self._begin(state)
        while self.masked is not None and state.stage in MASKED and state.stage is not self.masked.stage:
            try:
                lost = await in_thread(self.masked.close, self.masked.stage, state.devices(*COUNTED))
            except MienError as error:
                state, more = advance(self.rules, state, SumFailed(error.message), now)
            else:
                state, more = advance(self.rules, state, Dropped(lost), now)
            effects = (*effects, *more)
        return state, effects

    async def _begin(self, state: RoundState) -> MaskedRound:
        """Return the protocol's server before its first step."""
        record, task = self.record, self.plan.task
        config = await self._side.ledger.terms(record.round, record.attempt, record.base_model_id)
        assert config is not None, "plain sums have no stage of keys"
        groups = deal(state.participants, task.privacy.groups, self.rules.seed)
        return MaskedRound(self.plan, config, groups, self._side.verify, threads=self._side.threads)

    async def restore(self) -> None:
        """Make the protocol's server again from what is on disk; raises what does not hold any more."""
        self.masked, state, round_id = None, self.state, self.record.id
        if not self.plan.task.privacy.is_masked or state.stage not in (*MASKED[1:], Stage.CLOSING):
            return
        steps = await self._stores.thread.run(self._stores.store.steps, round_id)
        uploads = await self._stores.thread.run(self._stores.store.uploads, round_id)
        masked, read = await self._begin(state), self._stores.spool.read

        def payload_of(device_id: DeviceId) -> bytes | Elsewhere:
            if self._stores.sums_of(self.plan) is not None:
                return _elsewhere(uploads[device_id].blob)
            return read(round_id, device_id, uploads[device_id].blob)[: masked.payload_bytes]

        await in_thread(masked.replay, steps, state.stage, state.devices(*COUNTED), payload_of)
        self.masked = masked

    async def entries(self, change: RoundChange) -> tuple[LogEntry, ...]:
        """Return what the public log is to hold from a change on: the statement, the rosters, or the result.

        They are there before any device is told that it may go on, or trains the model that came of it.
        """
        record, state, before = change.record, change.state, self.state.stage
        if before is Stage.SELECTING and state.stage is Stage.TRAINING:
            return (await self._side.ledger.entry(record.round, record.attempt, record.base_model_id),)
        if before is Stage.KEYS and self.masked is not None and not state.stage.is_over and state.stage is not before:
            return (roster_entry(*_logged_as(record), self.masked.bindings),)
        if change.model is not None:
            measured = [each.record_json for each in change.evaluations]
            return (result_entry(*_logged_as(record), model_sha256=change.model.model_id, measured=measured),)
        return ()

    def sum_opening(self, state: RoundState) -> SumOpening | None:
        """Return the ledger's entry on a transition to `state` after which the coordinator can open a sum."""
        if self.state.stage in SUM_IS_OPEN or state.stage not in SUM_IS_OPEN:
            return None
        record, config = self.record, None if self.masked is None else self.masked.config
        return self._side.ledger.opening(record.round, record.attempt, config, state.devices(*COUNTED))


def _logged_as(record: RoundRecord) -> tuple[str, RoundNumber, AttemptNumber]:
    return raw_task_id(record.task_id).hex(), record.round, record.attempt


def _elsewhere(blob: BlobId) -> Elsewhere:
    """Return a vector that was checked against its hash where it arrived, and is added up there."""
    return Elsewhere(bytes.fromhex(blob.sha256), blob.size_bytes)
