"""The protocol's server of a task's current attempt, kept in step with the state machine and with the disk."""

from __future__ import annotations

from coordinator.rounds.closing_io import Stores
from coordinator.rounds.ledger_io import TaskLedger
from coordinator.rounds.masked import MaskedRound
from coordinator.rounds.pulse import in_thread
from mien.errors import LateError, MienError, NotFoundError, ViolationError
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.machine import (
    COUNTED,
    MASKED,
    Dropped,
    Event,
    RoundRules,
    RoundState,
    Stepped,
    SumFailed,
    Transition,
    advance,
)
from mien.rounds.plan import TaskPlan
from mien.rounds.records import RoundRecord, StepRecord
from mien.secagg import Elsewhere, RoundConfig
from mien.secagg.groups import deal
from mien.secagg.keys import VerifyLeaf


class Masking:
    """Holds the current attempt's `MaskedRound`, None under plain sums and between attempts."""

    def __init__(self, plan: TaskPlan, ledger: TaskLedger, stores: Stores, verify: VerifyLeaf, *, threads: int) -> None:
        self._plan, self._ledger, self._stores = plan, ledger, stores
        self._verify, self._threads = verify, threads
        self.current: MaskedRound | None = None

    @property
    def config(self) -> RoundConfig | None:
        """What the devices of the current attempt agree on."""
        return None if self.current is None else self.current.config

    @property
    def upload_bytes(self) -> int:
        """Length of a contribution on the wire: the masked vector and what is revealed, or the plain vector."""
        if self.current is None:
            return self._plan.contribution.size_bytes
        return self.current.payload_bytes + self._plan.contribution.revealed_bytes

    def message_for(self, device_id: str, stage: Stage) -> bytes:
        """Return what a device is told at the stage; nothing under plain sums."""
        return b"" if self.current is None else self.current.message_for(device_id, stage)

    def forget(self) -> None:
        """Let go of the attempt."""
        self.current = None

    async def take(
        self,
        rules: RoundRules,
        record: RoundRecord,
        state: RoundState,
        now: float,
        step: StepRecord,
        event: Event,
        after: Transition,
    ) -> Transition:
        """Return the transition that a device's event makes once its step has held; `after` is what it makes by itself.

        Raises what does not hold; the protocol's server is then as it was.
        """
        if state.stage not in rules.path:
            return after
        if self.current is None:
            raise ViolationError("this task's sums are not masked; do what its stage events say")
        payload = await self._payload(record.id, step.device_id) if step.stage is Stage.UPLOAD else b""
        try:
            await in_thread(self.current.accept, step, payload)
        except LateError:
            if after[0] is not state:
                raise  # else the machine counts the device already, and needs nothing more of it
        if isinstance(event, Stepped) and event.stage is Stage.UNMASK and self.current.can_open:
            return advance(rules, state, Stepped(event.device_id, event.stage, is_enough=True), now)
        return after

    async def _payload(self, round_id: int, device_id: str) -> bytes | Elsewhere:
        """Return the masked vector of a device, whose bytes are on stable storage, or that a replica holds it."""
        assert self.current is not None
        upload = await self._stores.thread.run(self._stores.store.upload, round_id, device_id)
        if upload is None:
            raise NotFoundError("this device has sent no vector; upload it, then go on")
        if self._stores.sums_of(self._plan) is not None:
            return _elsewhere(upload.blob)
        read = self._stores.spool.read_unhashed  # the protocol checks the vector's hash itself
        data = await in_thread(read, round_id, device_id, upload.blob.size_bytes)
        return data[: self.current.payload_bytes]

    async def follow(self, rules: RoundRules, record: RoundRecord, transition: Transition, now: float) -> Transition:
        """Return the transition once the protocol has ended the stages that the machine left.

        Where too few devices are left for it, the attempt is aborted.
        """
        state, effects = transition
        if state.stage is Stage.KEYS and self.current is None:
            self.current = await self._begin(rules, record, state)
        while self.current is not None and state.stage in MASKED and state.stage is not self.current.stage:
            try:
                lost = await in_thread(self.current.close, self.current.stage, state.devices(*COUNTED))
            except MienError as error:
                state, more = advance(rules, state, SumFailed(error.message), now)
            else:
                state, more = advance(rules, state, Dropped(lost), now)
            effects = (*effects, *more)
        return state, effects

    async def _begin(self, rules: RoundRules, record: RoundRecord, state: RoundState) -> MaskedRound:
        """Return the protocol's server before its first step."""
        config = await self._ledger.terms(record.round, record.attempt, record.base_model_id)
        assert config is not None, "plain sums have no stage of keys"
        groups = deal(state.participants, self._plan.task.privacy.groups, rules.seed)
        return MaskedRound(self._plan, config, groups, self._verify, threads=self._threads)

    async def restore(self, rules: RoundRules, record: RoundRecord, state: RoundState) -> None:
        """Make the protocol's server again from what is on disk; raises what does not hold any more."""
        self.current = None
        if not self._plan.task.privacy.is_masked or state.stage not in (*MASKED[1:], Stage.CLOSING):
            return
        steps = await self._stores.thread.run(self._stores.store.steps, record.id)
        uploads = await self._stores.thread.run(self._stores.store.uploads, record.id)
        masked, read = await self._begin(rules, record, state), self._stores.spool.read

        def payload_of(device_id: str) -> bytes | Elsewhere:
            if self._stores.sums_of(self._plan) is not None:
                return _elsewhere(uploads[device_id].blob)
            return read(record.id, device_id, uploads[device_id].blob)[: masked.payload_bytes]

        await in_thread(masked.replay, steps, state.stage, state.devices(*COUNTED), payload_of)
        self.current = masked


def _elsewhere(blob: BlobId) -> Elsewhere:
    """Return a vector that was checked against its hash where it arrived, and is added up there."""
    return Elsewhere(bytes.fromhex(blob.sha256), blob.size_bytes)
