"""One running task: feeds the state machine, commits each transition, and only then lets anyone know.

A runner is the single writer of its task, or in asynchronous mode one of several that write in turns (`shared_task`).
Calls become messages in its inbox; all that are there are taken together and committed in one transaction. Deadlines
wake it, nothing polls.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from coordinator.rounds.backoff import Backoff
from coordinator.rounds.closing_io import Closed, Offered, Stores
from coordinator.rounds.ledger_io import TaskLedger
from coordinator.rounds.masking_io import Masking
from coordinator.rounds.pulse import Pulse
from coordinator.rounds.shared_task import SharedTask
from coordinator.store import audit
from mien.contribution import Arrays
from mien.errors import (
    BudgetExceededError,
    CorruptDataError,
    LateError,
    MienError,
    StorageError,
    UnreachableError,
)
from mien.methods.base import CANDIDATES, shared_words
from mien.protocol.rounds import Role, Stage
from mien.rounds import verdicts
from mien.rounds.machine import (
    COUNTED,
    Cancelled,
    CheckedIn,
    Effect,
    Event,
    Left,
    Resumed,
    RoundRules,
    RoundState,
    Step,
    SumFailed,
    Summed,
    SumWanted,
    TimePassed,
    Uploaded,
    advance,
    wakes_at,
)
from mien.rounds.plan import TaskPlan
from mien.rounds.records import (
    CandidateRecord,
    CandidateState,
    RoundChange,
    RoundRecord,
    StepRecord,
    SumOpening,
    TaskRecord,
    TaskState,
)
from mien.rounds.verdicts import Verdict
from mien.secagg.keys import VerifyLeaf
from mien.shell.clock import Clock

_LOG: Final = structlog.get_logger()

_SUM_IS_OPEN: Final = (Stage.UNMASK, Stage.CLOSING, Stage.CLOSED)
_RETRY_S: Final = 0.5
"""First pause before a transition that the disk refused is tried again; each further one is longer."""


@dataclass(frozen=True)
class RunnerSettings:
    """What an operator may change about running rounds."""

    max_step_ratio: float = 1.0
    max_aborted: int = 5
    has_gates: bool = False
    releases_by_itself: bool = True
    keep_round_models: int = 1_000_000
    restart_grace_s: float = 30.0
    close_retry_s: float = 300.0
    threads: int = 2


@dataclass(frozen=True)
class TaskCommand:
    """An operator pauses, resumes or cancels a task."""

    state: TaskState
    reason: str
    actor: str


@dataclass(frozen=True)
class _Message:
    """Something that happened. `round_id` pins device events to one attempt; `answer` is resolved after the commit.

    `duty` is what devices that check in offer to do.
    """

    event: Event | TaskCommand | Verdict
    round_id: int | None = None
    answer: asyncio.Future[None] | None = None
    closed: Closed | Offered | None = field(default=None, repr=False)
    step: StepRecord | None = field(default=None, repr=False)
    duty: Role = Role.TRAIN


@dataclass(frozen=True)
class _Side:
    """What attempts of one duty run on."""

    plan: TaskPlan
    ledger: TaskLedger
    masking: Masking


class TaskRunner:
    """Runs one task until it is done, cancelled or failed; in asynchronous mode one cohort at a time of it."""

    def __init__(
        self,
        shared: SharedTask,
        plan: TaskPlan,
        stores: Stores,
        clock: Clock,
        settings: RunnerSettings,
        verify: VerifyLeaf,
        on_change: Callable[[bool], None],
    ) -> None:
        """`verify` says whom a leaf certificate of this task's population names."""
        self._shared = shared
        self.round: RoundRecord | None = None
        self.state: RoundState | None = None
        self.changed = Pulse()
        self.has_committed = False
        self._rules: RoundRules | None = None
        self._stores, self._clock, self._settings = stores, clock, settings
        self._on_change = on_change
        plans = {Role.TRAIN: plan, **({Role.VALIDATE: plan.validators} if plan.validators is not None else {})}
        self._sides = {duty: self._make_side(each, verify) for duty, each in plans.items()}
        self._barred: frozenset[str] = frozenset()
        self._inbox: asyncio.Queue[_Message] = asyncio.Queue()
        self._closing: asyncio.Task[None] | None = None
        self._closing_id = 0
        self._closer = shared.closer
        self._not_before = 0.0
        self._pauses = Backoff(_RETRY_S)
        self._batch: Sequence[_Message] = ()
        self._has_ended = False
        shared.join(self)

    @property
    def task(self) -> TaskRecord:
        """The task as it was last committed."""
        return self._shared.record

    @task.setter
    def task(self, record: TaskRecord) -> None:
        self._shared.record = record

    def _make_side(self, plan: TaskPlan, verify: VerifyLeaf) -> _Side:
        stores = self._stores
        ledger = TaskLedger(self.task.task_id, plan, stores.store, stores.thread, self._shared_words)
        return _Side(plan, ledger, Masking(plan, ledger, stores, verify, threads=self._settings.threads))

    # What others may ask, without waiting

    @property
    def duty(self) -> Role:
        """What the open attempt asks of its devices, or without one the next."""
        if self.round is not None and self.state is not None and not self.state.stage.is_over:
            return self.round.duty
        return Role.TRAIN if self.task.candidates_sha256 is None else Role.VALIDATE

    @property
    def plan(self) -> TaskPlan:
        """What the task means for the devices of the open attempt, or without one of the next."""
        return self._sides[self.duty].plan

    @property
    def _ledger(self) -> TaskLedger:
        return self._sides[self.duty].ledger

    @property
    def _masking(self) -> Masking:
        return self._sides[self.duty].masking

    @property
    def wants_devices(self) -> bool:
        """Whether a check-in now could lead to an assignment."""
        return self._shared.wants_devices(self)

    @property
    def queue_length(self) -> int:
        """How many messages wait to be handled."""
        return self._inbox.qsize()

    def bars(self, device_id: str) -> bool:
        """Return whether the privacy ledger, or another cohort that it is in, keeps a device out of the attempt."""
        is_selecting = self.state is not None and self.state.stage is Stage.SELECTING
        return (is_selecting and device_id in self._barred) or self._shared.is_busy(device_id, self)

    def step_of(self, device_id: str) -> Step | None:
        """Return how far a device got in the current attempt."""
        return None if self.state is None else self.state.participants.get(device_id)

    def is_current(self, round_id: int) -> bool:
        """Return whether an attempt is the newest one, and this runner knows its state and takes messages about it.

        Of an attempt that was over when this runner took up the task, the store knows more.
        """
        is_newest = self.round is not None and self.round.id == round_id
        return is_newest and self.state is not None and not self._has_ended

    def message_for(self, device_id: str) -> bytes:
        """Return what secure aggregation tells a device at the current stage; nothing under plain sums."""
        return b"" if self.state is None else self._masking.message_for(device_id, self.state.stage)

    @property
    def upload_bytes(self) -> int:
        """Length of a contribution to the current attempt on the wire."""
        return self._masking.upload_bytes

    async def reply_to(self, device_id: str) -> Arrays:
        """Return what the method tells a device: a momentum, say, or an answer to what the device revealed earlier.

        Validators are told the candidates.
        """
        if self.duty is Role.VALIDATE:
            return await self._closer.candidates(self.task)
        return self.plan.method.reply(await self._closer.server_state(self.task), device_id)

    async def _shared_words(self) -> bytes:
        """Return the words that all devices of the open or the next attempt are told alike, and agree on."""
        names = self.plan.requirements.shared_reply if self.duty is Role.TRAIN else (CANDIDATES,)
        return shared_words(await self.reply_to(""), names) if names else b""

    # Messages

    async def post(
        self,
        event: Event | TaskCommand | Verdict,
        *,
        round_id: int | None = None,
        step: StepRecord | None = None,
        duty: Role = Role.TRAIN,
    ) -> None:
        """Hand an event over and return once it is committed; raises what the state machine or the disk refuses.

        `step` is what a device said at a stage of secure aggregation: it has to hold before the event counts. `duty` is
        what a device that checks in offers to do; while the task asks for something else, nothing happens.
        """
        if self._has_ended and not self.task.state.is_over:
            raise UnreachableError("the task is being picked up; try again", retry_after_s=0.5)
        if self._has_ended:
            raise LateError(f"the task is {self.task.state}; check in again")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(_Message(event, round_id, answer, step=step, duty=duty))
        await answer

    async def hear(self, verdict: Verdict) -> None:
        """Take what the gates say of this task's candidate and return once that is committed."""
        await self.post(verdict)

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""
        self._inbox.put_nowait(_Message(event))

    # The loop

    async def run(self) -> None:
        """Run until the task is over; whoever still waits for an answer then gets one, whatever ended the loop."""
        try:
            while self._goes_on:
                self._batch = await self._next_messages()
                await self._handle(self._batch)
        finally:
            self._has_ended = True
            waiting = [*self._batch, *(self._inbox.get_nowait() for _ in range(self._inbox.qsize()))]
            away = UnreachableError("the task is being picked up; try again", retry_after_s=0.5)
            _refuse(waiting, LateError(f"the task is {self.task.state}") if self.task.state.is_over else away)
        if self._closing is not None:  # a sum that nobody wants any more writes state until it is through
            await asyncio.wait({self._closing})
        await self._tidy(self._closer.forget_all())

    @property
    def _goes_on(self) -> bool:
        """Whether there is a task, or in asynchronous mode a cohort of one that is over, to bring to its end."""
        if self._shared.is_asynchronous and self.state is not None and not self.state.stage.is_over:
            return True
        return not self.task.state.is_over

    async def abandon(self) -> None:
        """Give up a sum that is being taken, so that another runner can take it: this one's loop was ended by an error.

        Whatever the sum has laid down so far is as after a crash: nothing refers to it.
        """
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait({self._closing})

    async def _tidy(self, cleaning: Coroutine[Any, Any, None]) -> None:
        """Clean up after a commit. What bucket or database refuse now is left to the next start; the task goes on."""
        try:
            await cleaning
        except MienError as error:
            _LOG.warning("not cleaned up yet", task=self.task.name, error=error.code, reason=error.message)

    async def pick_up(self, last: RoundRecord | None) -> None:
        """Go on with the task's last attempt where the last run of this program stopped; to be called before `run`."""
        if last is None or last.stage.is_over:
            self.round = last
            await self._call_validators()
            return
        await self.place(last)
        await self.go_on()

    async def place(self, record: RoundRecord) -> None:
        """Take an attempt over as it was last committed; it moves only once it goes on."""
        participants = await self._stores.thread.run(self._stores.store.participants, record.id)
        deadline = math.inf if record.deadline_ms is None else record.deadline_ms / 1000
        self._set_round(record, RoundState(record.stage, deadline, {}, participants))

    async def go_on(self) -> None:
        """Go on with the attempt that was taken over."""
        assert self.round is not None
        record = self.round
        await self._restore()
        await self._handle([_Message(Resumed(self._settings.restart_grace_s))])
        _LOG.info("resumed", task=self.task.name, round=record.round, attempt=record.attempt, stage=str(record.stage))

    async def _next_messages(self) -> list[_Message]:
        """Return everything in the inbox, or the news that the deadline has passed."""
        now, deadline = self._clock.now(), math.inf
        if self.state is not None and self._rules is not None:
            deadline = wakes_at(self._rules, self.state, now)
        wait_s = max(deadline, self._not_before) - now
        try:
            async with asyncio.timeout(None if wait_s == math.inf else max(wait_s, 0.0)):
                messages = [await self._inbox.get()]
        except TimeoutError:
            return [_Message(TimePassed())]
        while not self._inbox.empty():
            messages.append(self._inbox.get_nowait())
        if wait_s <= 0:  # a deadline must not starve under a stream of messages
            messages.append(_Message(TimePassed()))
        return messages

    async def _handle(self, messages: Sequence[_Message]) -> None:
        """Carry out a batch when it is this runner's turn."""
        async with self._shared.turn:
            if reason := self._shared.why_given_up(self):
                messages = [_Message(Cancelled(reason)), *messages]
            await self._carry_through(await self._without_overtaken(messages))

    async def _without_overtaken(self, messages: Sequence[_Message]) -> list[_Message]:
        """Return the messages without steps of attempts that were given up, and without those on models that are not
        the newest any more: these are taken again.
        """
        kept = []
        for message in messages:
            closed = message.closed
            if closed is None or (self._is_closing(message.round_id) and not self._shared.is_overtaken(closed)):
                kept.append(message)
                continue
            await self._tidy(self._closer.drop(closed))
            if self.round is not None and message.round_id == self.round.id:
                self._start_closing()
        return kept

    async def _carry_through(self, messages: Sequence[_Message]) -> None:
        """Carry out a batch: commands first, then the current attempt's events, then check-ins, which may open one."""
        commands = [m for m in messages if isinstance(m.event, TaskCommand)]
        check_ins = [m for m in messages if isinstance(m.event, CheckedIn)]
        others = [m for m in messages if not isinstance(m.event, TaskCommand | Verdict | CheckedIn)]
        for message in commands:
            await self._command(message)
        for message in messages:
            if isinstance(message.event, Verdict):
                await self._judged(message, message.event)
        if others:
            await self._apply(others)
        if check_ins:
            await self._check_in(check_ins)
        await self._call_validators()

    async def _call_validators(self) -> None:
        """Open the attempt in which validators judge, once there is something to judge.

        Trainers are waited for without end; a sum of theirs is not to wait so: where validators stay away, attempts are
        aborted at their deadlines, and the task is paused after as many as for trainers.
        """
        if self.duty is Role.VALIDATE and self.wants_devices and (self.state is None or self.state.stage.is_over):
            await self._open_attempt(())

    async def _command(self, message: _Message) -> None:
        command = message.event
        assert isinstance(command, TaskCommand)
        if command.state is TaskState.RUNNING:
            try:
                command = replace(command, state=verdicts.resumed(await self._waiting_candidate()))
            except MienError as error:
                _refuse([message], error)
                return
        task = self._commanded(command)
        if task is not None:
            try:
                await self._stores.thread.settle(
                    self._stores.store.save_task, task, actor=command.actor, action=f"task.{command.state}"
                )
            except MienError as error:
                _refuse([message], error)
                return
            self.task = task
            stage = None if self.state is None else self.state.stage
            if task.state.is_over or (task.state is TaskState.PAUSED and stage is Stage.SELECTING):
                await self._apply([_Message(Cancelled(f"task {task.state} by {command.actor}"))])
        _resolve(message)
        self._on_change(True)

    def _commanded(self, command: TaskCommand) -> TaskRecord | None:
        """Return the task after a command, None where it changes nothing."""
        if self.task.state.is_over or self.task.state is command.state:
            return None
        task = replace(self.task, state=command.state, reason=command.reason, aborted_in_a_row=0)
        return task.ended(command.state, command.reason, self._clock.now_ms()) if command.state.is_over else task

    async def _waiting_candidate(self) -> CandidateRecord | None:
        """Return the candidate that the gates have not judged yet."""
        store = self._stores.store
        return await self._stores.thread.run(store.candidate, self.task.task_id, CandidateState.WAITING)

    async def _judged(self, message: _Message, verdict: Verdict) -> None:
        """Do what the gates' verdict asks for, unless the task is over meanwhile."""
        if self.task.state.is_over:
            _refuse([message], LateError(f"the task is {self.task.state}"))
            return
        thread, store = self._stores.thread, self._stores.store
        try:
            passed = await thread.run(store.candidate, self.task.task_id, CandidateState.PASSED)
            decision = verdicts.decide(self.plan.task, self.task, verdict, passed, self._clock.now_ms())
            if not self._settings.releases_by_itself:  # what passed waits for the operator's signature
                decision = replace(decision, release_share=0.0)
            await thread.run(store.save_verdict, decision, verdict)
        except MienError as error:
            _refuse([message], error)
            return
        has_gone_back = decision.task.model_id != self.task.model_id
        if decision.candidate is not None:
            self._shared.await_verdict(False)
        self.task = decision.task
        if has_gone_back:
            await self._tidy(self._closer.go_back())
        _resolve(message)
        self._on_change(True)

    async def _check_in(self, messages: Sequence[_Message]) -> None:
        """Offer all devices at once, so that the draw is among all of them; the first ones open a new attempt."""
        wanted = []
        for message in messages:
            if self.wants_devices and message.duty is self.duty:
                wanted.append(message)
            else:
                _resolve(message)
        if not wanted:
            return
        if self.state is None or self.state.stage.is_over:
            opened = await self._open_attempt(wanted)
            if not opened:
                return
        events = [m.event for m in wanted]
        device_ids = frozenset[str]().union(*(e.device_ids for e in events if isinstance(e, CheckedIn)))
        idle = frozenset(device for device in device_ids - self._barred if not self._shared.is_busy(device, self))
        merged = _Message(CheckedIn(idle))
        await self._apply([merged], answers=wanted)

    async def _open_attempt(self, messages: Sequence[_Message]) -> bool:
        number, attempt = self._shared.next_attempt(self.round)
        rules = RoundRules.of(self.plan.task, task_id=self.task.task_id, round_number=number, attempt=attempt)
        deadline = self._clock.now() + rules.selecting_s
        try:
            self._barred = await self._ledger.ask(number, attempt, self.task.model_id)
            opened = await self._stores.thread.settle(
                self._stores.store.open_attempt,
                self.task,
                round_number=number,
                attempt=attempt,
                deadline=deadline,
                duty=self.duty,
            )
        except (BudgetExceededError, CorruptDataError) as error:  # a spent budget, or a ledger that does not verify
            await self._pause(error.message)
            for message in messages:
                _resolve(message)
            return False
        except MienError as error:
            _refuse(messages, error)
            return False
        self._set_round(opened, RoundState(Stage.SELECTING, deadline))
        self._shared.last_number = opened.round
        self._on_change(True)
        return True

    async def _pause(self, reason: str) -> None:
        """Pause the task with a reason that its operator sees."""
        task = replace(self.task, state=TaskState.PAUSED, reason=reason)
        await self._stores.thread.settle(
            self._stores.store.save_task, task, actor=audit.COORDINATOR, action=f"task.{TaskState.PAUSED}"
        )
        self.task = task
        _LOG.warning("task paused", task=task.name, reason=reason)
        self._on_change(True)

    def _set_round(self, record: RoundRecord, state: RoundState) -> None:
        self.round, self.state = record, state
        self._forget_masking()
        self._rules = RoundRules.of(
            self.plan.task, task_id=self.task.task_id, round_number=record.round, attempt=record.attempt
        )
        self._stores.traces.stage(self.task.name, record, state.stage)

    def _forget_masking(self) -> None:
        for side in self._sides.values():
            side.masking.forget()

    async def _apply(self, messages: Sequence[_Message], *, answers: Sequence[_Message] = ()) -> None:
        """Advance the current attempt by a batch of events: fold, commit, then answer and carry out the effects."""
        if self.round is None or self.state is None or self._rules is None:
            for message in messages:
                _refuse([message], LateError("that round is over; nothing is lost, check in again"))
            return
        before, state, now = self.state, self.state, self._clock.now()
        accepted, change = [*answers], RoundChange(self.round, state)
        effects: list[Effect] = []
        for message in messages:
            try:
                state, new_effects = await self._advance(state, message, now)
            except MienError as error:
                _refuse([message], error)
                continue
            accepted.append(message)
            effects.extend(new_effects)
            change = _noted(change, message)
        change = self._change(change, before, state, messages)
        if change.sum_opening is not None:
            if not await self._commit_opening(change, accepted):
                await self._restore()  # the protocol had ended a stage that goes on, and left small groups behind
                return
        elif (change.messages or _is_worth_keeping(before, state)) and not await self._commit(change, accepted):
            await self._restore()  # the protocol had accepted what is not on disk
            return
        self.state = state
        for message in accepted:
            _resolve(message)
        if effects:
            self._carry_out(effects)
        self._on_change(bool(effects))

    async def _advance(self, state: RoundState, message: _Message, now: float) -> tuple[RoundState, tuple[Effect, ...]]:
        """Return the state after one message, its step checked and the stages that it ends ended."""
        assert self.round is not None
        assert self._rules is not None
        event = message.event
        assert not isinstance(event, TaskCommand | Verdict)
        if message.round_id is not None and message.round_id != self.round.id:
            raise LateError("that attempt of the round is over; nothing is lost, check in again")
        after = advance(self._rules, state, event, now)
        if message.step is not None:
            after = await self._masking.take(self._rules, self.round, state, now, message.step, event, after)
        return await self._masking.follow(self._rules, self.round, after, now)

    async def _restore(self) -> None:
        """Make the protocol's side of the current attempt again; the attempt is aborted where that fails."""
        assert self.round is not None
        assert self.state is not None
        assert self._rules is not None
        try:
            await self._masking.restore(self._rules, self.round, self.state)
        except MienError as error:
            _LOG.error("cannot go on with a masked round", task=self.task.name, reason=error.message)
            self.tell(SumFailed(f"after a restart, {error.message}"))

    def _change(
        self, change: RoundChange, before: RoundState, state: RoundState, messages: Sequence[_Message]
    ) -> RoundChange:
        """Return all that has to be committed for the step from `before` to `state`."""
        steps = {d: step for d, step in state.participants.items() if before.participants.get(d) is not step}
        change = replace(change, state=state, steps=steps, sum_opening=self._sum_opening(before, state))
        if before.stage is Stage.SELECTING and state.stage is Stage.TRAINING:
            change = replace(change, record=self._shared.based_on_newest(change.record))
        if before.stage.is_over or not state.stage.is_over:
            return change
        closed = next((m.closed for m in messages if m.closed is not None), None)
        if state.stage is Stage.CLOSED and isinstance(closed, Offered):
            return replace(change, task=self._task_after_offer(closed), metrics=closed.metrics)
        if state.stage is Stage.CLOSED and isinstance(closed, Closed):
            task, candidate = self._task_after(closed)
            return replace(
                change,
                task=task,
                candidate=candidate,
                model=closed.model,
                metrics=closed.metrics,
                next_clip=closed.next_clip,
                evaluations=closed.evaluations,
            )
        if any(isinstance(m.event, Cancelled) for m in messages):
            return change
        return replace(change, task=self._after_abort(state.reason))

    def _sum_opening(self, before: RoundState, state: RoundState) -> SumOpening | None:
        """Return what the ledger is told by a transition after which the coordinator can open a sum."""
        if before.stage in _SUM_IS_OPEN or state.stage not in _SUM_IS_OPEN:
            return None
        assert self.round is not None
        record = self.round
        return self._ledger.opening(record.round, record.attempt, self._masking.config, state.devices(*COUNTED))

    def _task_after(self, closed: Closed) -> tuple[TaskRecord, CandidateRecord | None]:
        """Return the task after a round, and the round's model as a candidate where it is due to be one."""
        rounds_closed = self.task.rounds_closed + 1
        if self.task.state.is_over:  # cancelled while the sum was being taken: the model counts, the state does not
            return replace(self.task, rounds_closed=rounds_closed, model_id=closed.model.model_id), None
        task = replace(
            self.task,
            rounds_closed=rounds_closed,
            aborted_in_a_row=0,
            model_id=closed.model.model_id,
            arrays_sha256=closed.arrays_sha256,
            revealed_sha256=closed.revealed_sha256,
            candidates_sha256=None,
        )
        spec, now_ms = self.plan.task, self._clock.now_ms()
        candidate = verdicts.offered(spec, task, closed.model, has_gates=self._settings.has_gates, now_ms=now_ms)
        return verdicts.after_round(spec, task, candidate, now_ms), candidate

    def _task_after_offer(self, offered: Offered) -> TaskRecord:
        """Return the task in the middle of a round: its trainers' part is over, validators are due."""
        if self.task.state.is_over:
            return self.task
        return replace(self.task, aborted_in_a_row=0, candidates_sha256=offered.candidates_sha256)

    def _after_abort(self, reason: str) -> TaskRecord:
        return verdicts.after_abort(self.task, reason, duty=self.duty, max_aborted=self._settings.max_aborted)

    async def _commit_opening(self, change: RoundChange, accepted: Sequence[_Message]) -> bool:
        """Commit a transition after which a sum can be opened; what the ledger refuses is aborted, unopened."""
        try:
            return await self._commit(change, accepted)
        except BudgetExceededError as error:
            assert self.state is not None
            assert self._rules is not None
            _LOG.warning("the privacy ledger refuses a sum", task=self.task.name, reason=error.message)
            state, effects = advance(self._rules, self.state, SumFailed(error.message), self._clock.now())
            aborted = RoundChange(change.record, state, task=self._after_abort(error.message))
            if await self._commit(aborted, accepted):
                self.state = state
                for message in accepted:
                    _resolve(message)
                self._carry_out(effects)
                self._on_change(True)
            return False

    async def _commit(self, change: RoundChange, accepted: Sequence[_Message]) -> bool:
        """Commit a transition; what the disk refused is told to those who wait, and the rest is tried again."""
        try:
            self.round = await self._stores.thread.settle(self._stores.store.save_round, change)
        except BudgetExceededError:
            raise
        except MienError as error:
            _LOG.error("transition refused by the disk", task=self.task.name, reason=error.message)
            _refuse(accepted, error)
            pause_s = self._pauses.next_s()
            self._not_before = self._clock.now() + pause_s
            for message in accepted:
                if message.answer is None and not isinstance(message.event, TimePassed | CheckedIn):
                    asyncio.get_running_loop().call_later(pause_s, self._inbox.put_nowait, message)
            return False
        self._pauses.reset()
        self.has_committed = True
        if change.candidate is not None and change.candidate.state is CandidateState.WAITING:
            self._shared.await_verdict(True)
        if change.task is not None:
            self.task = change.task
            closed = next((m.closed for m in accepted if m.closed is not None), None)
            if closed is not None:
                await self._tidy(self._closer.committed(closed))
        return True

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Do what the state machine asks for, and tell followers."""
        assert self.round is not None
        assert self.state is not None
        wanted = [effect for effect in effects if isinstance(effect, SumWanted)]
        if wanted:
            self._start_closing()
        if self.state.stage.is_over:
            self._forget_masking()
            self._stores.spool.remove_round(self.round.id)
        self.changed.beat()
        self._stores.traces.stage(self.task.name, self.round, self.state.stage)
        _LOG.info(
            "round",
            task=self.task.name,
            round=self.round.round,
            attempt=self.round.attempt,
            duty=str(self.round.duty),
            stage=str(self.state.stage),
            reports=self.round.num_reports,
            reason=self.state.reason,
        )

    # Closing

    def _start_closing(self) -> None:
        """Have the attempt's sum taken, unless that is being done."""
        assert self.round is not None
        assert self.state is not None
        earlier = self._closing
        if earlier is not None and not earlier.done() and self._closing_id == self.round.id:
            return
        closing = self._close(self.round, self.state.devices(*COUNTED), earlier)
        self._closing, self._closing_id = asyncio.create_task(closing, name="closing"), self.round.id
        self._closing.add_done_callback(self._closing_ended)

    async def _close(
        self, record: RoundRecord, device_ids: Sequence[str], earlier: asyncio.Task[None] | None = None
    ) -> None:
        """Take the sum and the server's step, lay down the blobs, then ask for the commit.

        What an earlier attempt, given up since, still reads or writes is waited for.
        """
        if earlier is not None:
            await asyncio.wait({earlier})
        give_up, pauses = self._clock.now() + self._settings.close_retry_s, Backoff(_RETRY_S)
        while True:
            try:
                async with self._shared.stepping():
                    if not self._is_closing(record.id):
                        return
                    closed = await self._closer.close(self.task, record, device_ids, self._masking.current)
            except (StorageError, UnreachableError) as error:
                if self._clock.now() >= give_up or self.task.state.is_over:
                    self.tell(SumFailed(error.message))
                    return
                _LOG.error("cannot close the round yet", task=self.task.name, reason=error.message)
                await asyncio.sleep(pauses.next_s())
            except MienError as error:
                self.tell(SumFailed(error.message))
                return
            else:
                self._inbox.put_nowait(_Message(Summed(), record.id, closed=closed))
                return

    def _is_closing(self, round_id: int | None) -> bool:
        """Return whether a sum is still wanted: its attempt may have been given up while it waited for its turn."""
        is_current = self.round is not None and self.round.id == round_id
        return is_current and self.state is not None and self.state.stage is Stage.CLOSING

    def _closing_ended(self, ended: asyncio.Task[None]) -> None:
        """A fault of the program itself must not leave a round that never ends."""
        if not ended.cancelled() and (error := ended.exception()) is not None:
            _LOG.error("closing failed", task=self.task.name, exc_info=error)
            self.tell(SumFailed(f"internal error while closing: {type(error).__name__}; see the log"))


def _noted(change: RoundChange, message: _Message) -> RoundChange:
    """Return the change with what an accepted event says about one device."""
    if message.step is not None and message.step.stage is change.record.stage:
        change = replace(change, messages=(*change.messages, message.step))
    if isinstance(message.event, Uploaded):
        return replace(change, committed=(*change.committed, message.event.device_id))
    if isinstance(message.event, Left):
        return replace(change, error_codes={**change.error_codes, message.event.device_id: message.event.error_code})
    return change


def _is_worth_keeping(before: RoundState, state: RoundState) -> bool:
    """Return whether a transition changes more than who is waiting to be chosen, which a restart may forget."""
    return replace(before, candidates={}) != replace(state, candidates={})


def _resolve(message: _Message) -> None:
    if message.answer is not None and not message.answer.done():
        message.answer.set_result(None)


def _refuse(messages: Sequence[_Message], error: MienError) -> None:
    for message in messages:
        if message.answer is not None and not message.answer.done():
            message.answer.set_exception(error)
