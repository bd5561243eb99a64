"""Leads one cohort of a task at a time: feeds the state machine, commits each transition, and only then answers.

Calls become messages in a cohort's inbox; all that are there are taken together and committed in one transaction.
Deadlines wake it, nothing polls. Cohorts of one task write in turns (`Task.turn`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.rounds.attempt import Attempt
from coordinator.rounds.closing import Closed, Offered
from mien.errors import (
    BudgetExceededError,
    CorruptDataError,
    LateError,
    MienError,
    StorageError,
    UnreachableError,
)
from mien.protocol.ids import DeviceId
from mien.protocol.rounds import Role, Stage
from mien.rounds.machine import (
    COUNTED,
    Cancelled,
    CheckedIn,
    Effect,
    Event,
    Left,
    Resumed,
    RoundState,
    SumFailed,
    Summed,
    SumWanted,
    TimePassed,
    Uploaded,
    advance,
    wakes_at,
)
from mien.rounds.records import CandidateState, RoundChange, RoundRecord, StepRecord
from mien.shell.backoff import Backoff

if TYPE_CHECKING:
    from coordinator.rounds.task import Side, Task

_LOG: Final = structlog.get_logger()

_RETRY_S: Final = 0.5
"""First pause before a transition that the disk refused is tried again; each further one is longer."""

_NOTHING: Final = TimePassed()


Job = Callable[[], Awaitable[str]]
"""An action on the task as a whole; returns why that ends the attempt, nothing where it goes on."""


@dataclass(frozen=True)
class _Message:
    """Something that happened. `attempt` pins device events to one; `answer` is resolved after the commit.

    `role` is what devices that check in offer to do, `job` what is to be done before all events.
    """

    event: Event = _NOTHING
    attempt: Attempt | None = None
    job: Job | None = None
    answer: asyncio.Future[None] | None = None
    closed: Closed | Offered | None = field(default=None, repr=False)
    step: StepRecord | None = field(default=None, repr=False)
    role: Role = Role.TRAIN

    def resolve(self) -> None:
        """Report the commit to those who wait."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(None)

    def refuse(self, error: MienError) -> None:
        """Report the failure to those who wait."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)


class Cohort:
    """Runs one attempt after another until its task is over; `attempt` is the newest one, open or just over."""

    def __init__(self, task: Task) -> None:
        self.task, self.has_ended, self.has_committed = task, False, False
        self.attempt: Attempt | None = None
        self._stores, self._clock = task.stores, task.clock
        self._inbox: asyncio.Queue[_Message] = asyncio.Queue()
        self._batch: Sequence[_Message] = ()
        self._not_before, self._pauses = 0.0, Backoff(_RETRY_S)
        self._closing: asyncio.Task[None] | None = None
        self._closing_of: Attempt | None = None

    # What others may ask, without waiting

    @property
    def under_way(self) -> Attempt | None:
        """The attempt, None between attempts."""
        return None if self.attempt is None or self.attempt.state.stage.is_over else self.attempt

    @property
    def is_gathering(self) -> bool:
        """True while devices are being chosen for the attempt."""
        return self.attempt is not None and self.attempt.state.stage is Stage.SELECTING

    def has_no_place_for(self, device_id: DeviceId) -> bool:
        """Return whether devices are being chosen of whom this one, which checked in, is none: there is no room."""
        return self.attempt is not None and self.is_gathering and device_id not in self.attempt.state.candidates

    @property
    def side(self) -> Side:
        """The side that the open attempt runs on, or without one the next."""
        open_ = self.under_way
        return self.task.side if open_ is None else self.task.sides[open_.record.role]

    @property
    def wants_devices(self) -> bool:
        """True while a check-in could lead to an assignment."""
        return self.task.wants_devices(self)

    @property
    def queue_length(self) -> int:
        """Number of messages that wait to be handled."""
        return self._inbox.qsize()

    def bars(self, device_id: DeviceId) -> bool:
        """Return whether the privacy ledger, or another cohort that it is in, keeps a device out of the attempt."""
        return self.leaves_out(device_id) or self.task.is_busy(device_id, self)

    def leaves_out(self, device_id: DeviceId) -> bool:
        """Return whether the attempt that gathers devices may not have this one: by the ledger, or for spoiled sums."""
        return self.attempt is not None and self.is_gathering and device_id in self.attempt.barred

    # Messages

    async def post(
        self,
        event: Event = _NOTHING,
        *,
        attempt: Attempt | None = None,
        job: Job | None = None,
        step: StepRecord | None = None,
        role: Role = Role.TRAIN,
    ) -> None:
        """Hand an event or a job over and return once it is committed; raises what it, or the disk, refuses.

        `role` is what a device that checks in offers to do; while the task asks for something else, nothing happens.
        """
        if self.has_ended:
            raise self._why_ended("; check in again")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(_Message(event, attempt, job, answer, step=step, role=role))
        await answer

    def tell(self, event: Event) -> None:
        """Hand an event over without waiting."""
        self._inbox.put_nowait(_Message(event))

    def _why_ended(self, remedy: str = "") -> MienError:
        state = self.task.record.state
        if state.is_over:
            return LateError(f"the task is {state}{remedy}")
        return UnreachableError("the task is being picked up; try again", retry_after_s=0.5)

    # The loop

    async def run(self) -> None:
        """Run until the task is over; whoever still waits for an answer then gets one, whatever ended the loop."""
        try:
            while self._goes_on:
                self._batch = await self._next_messages()
                await self._handle(self._batch)
        finally:
            self.has_ended = True
            waiting = [*self._batch, *(self._inbox.get_nowait() for _ in range(self._inbox.qsize()))]
            for message in waiting:
                message.refuse(self._why_ended())
        if self._closing is not None:  # a sum that nobody wants any more writes state until it is through
            await asyncio.wait({self._closing})
        await self.task.tidy(self.task.closer.forget_all())

    @property
    def _goes_on(self) -> bool:
        """True while there is a task, or in asynchronous mode a cohort of one that is over, to bring to its end."""
        is_in_flight = self.task.is_asynchronous and self.under_way is not None
        return is_in_flight or not self.task.record.state.is_over

    async def abandon(self) -> None:
        """Give up a sum that is being taken, so that another cohort can take it: this one's loop was ended by an error.

        Whatever the sum has laid down so far is as after a crash: nothing refers to it.
        """
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait({self._closing})

    async def place(self, record: RoundRecord) -> Attempt:
        """Take an attempt over as it was last committed; it moves only once it goes on."""
        thread, store = self._stores.thread, self._stores.store
        participants = await thread.run(store.participants, record.id)
        labelled = await thread.run(store.labelled, record.id)
        deadline = math.inf if record.deadline_ms is None else record.deadline_ms / 1000
        barred = self.task.kept_out(self.task.sides[record.role])
        return self._begin(record, RoundState(record.stage, deadline, {}, participants, labelled=labelled), barred)

    async def go_on(self, attempt: Attempt) -> None:
        """Go on with the attempt that was taken over."""
        record = attempt.record
        await self._restore(attempt)
        await self._handle([_Message(Resumed(self.task.settings.restart_grace_s))])
        where = {"round": record.round, "attempt": record.attempt, "stage": str(record.stage)}
        _LOG.info("resumed", task=self.task.record.name, **where)

    async def _next_messages(self) -> list[_Message]:
        """Return everything in the inbox, or the news that the deadline has passed."""
        now, deadline = self._clock.now(), math.inf
        if self.attempt is not None:
            deadline = wakes_at(self.attempt.rules, self.attempt.state, now)
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
        """Carry out a batch when it is this cohort's turn."""
        async with self.task.turn:
            if reason := self.task.why_given_up(self):
                messages = [_Message(Cancelled(reason)), *messages]
            await self._carry_through(await self._without_overtaken(messages))

    async def _without_overtaken(self, messages: Sequence[_Message]) -> list[_Message]:
        """Return the messages without steps of attempts that were given up, and without those on models that are not
        the newest any more: these are taken again.
        """
        kept = []
        for message in messages:
            closed, attempt = message.closed, message.attempt
            if closed is None or (self._is_closing(attempt) and not self.task.is_overtaken(closed)):
                kept.append(message)
                continue
            await self.task.tidy(self.task.closer.drop(closed))
            if attempt is not None and attempt is self.attempt:
                self._start_closing(attempt)
        return kept

    async def _carry_through(self, messages: Sequence[_Message]) -> None:
        """Carry out a batch: jobs first, then the current attempt's events, then check-ins, which may open one."""
        for message in messages:
            if message.job is not None:
                await self._do(message, message.job)
        if events := [m for m in messages if m.job is None and not isinstance(m.event, CheckedIn)]:
            await self._apply(events)
        if check_ins := [m for m in messages if isinstance(m.event, CheckedIn)]:
            await self._check_in(check_ins)
        await self.call_validators()

    async def _do(self, message: _Message, job: Job) -> None:
        try:
            reason = await job()
        except MienError as error:
            message.refuse(error)
            return
        if reason:
            await self._apply([_Message(Cancelled(reason))])
        message.resolve()
        self.task.on_change(True)

    # Opening

    async def call_validators(self) -> None:
        """Open the attempt in which validators judge, once there is something to judge.

        Trainers are waited for without end; a sum of theirs is not to wait so: where validators stay away, attempts are
        aborted at their deadlines, and the task is paused after as many as for trainers.
        """
        if self.under_way is None and self.side.role is Role.VALIDATE and self.wants_devices:
            await self._open(())

    async def _check_in(self, messages: Sequence[_Message]) -> None:
        """Offer all devices at once, so that the draw is among all of them; the first ones open a new attempt."""
        wanted = []
        self.task.known.update(*(m.event.device_ids for m in messages if isinstance(m.event, CheckedIn)))
        for message in messages:
            if self.wants_devices and message.role is self.side.role:
                wanted.append(message)
            else:
                message.resolve()
        if not wanted:
            return
        attempt = self.under_way or await self._open(wanted)
        if attempt is None:
            return
        idle = frozenset(each for each in _devices_of(wanted) - attempt.barred if not self.task.is_busy(each, self))
        await self._apply([_Message(CheckedIn(idle, _labelled_of(wanted) & idle))], answers=wanted)

    async def _open(self, messages: Sequence[_Message]) -> Attempt | None:
        """Return a new attempt; None, with the messages answered, where the ledger or the disk refuses it.

        None is opened for devices that are counted already: a task whose sums add up waits for others.
        """
        (number, attempt), side, task = self.task.next_attempt(), self.side, self.task.record
        deadline = self._clock.now() + side.plan.task.deadlines.selecting_s
        callers = _devices_of(messages)
        try:
            if callers and callers == await side.ledger.counted(callers, number):
                for message in messages:
                    message.resolve()
                return None
            barred = await side.ledger.ask(number, attempt, task.model_id) | self.task.kept_out(side)
            opened = await self._stores.thread.settle(
                self._stores.store.open_attempt,
                task,
                round_number=number,
                attempt=attempt,
                deadline=deadline,
                role=side.role,
            )
        except (BudgetExceededError, CorruptDataError) as error:  # a spent budget, or a ledger that does not verify
            await self.task.pause(error.message)
            for message in messages:
                message.resolve()
            return None
        except MienError as error:
            for message in messages:
                message.refuse(error)
            return None
        self.task.newest = opened.round, opened.attempt
        begun = self._begin(opened, RoundState(Stage.SELECTING, deadline), barred)
        self.task.on_change(True)
        return begun

    def _begin(self, record: RoundRecord, state: RoundState, barred: frozenset[DeviceId] = frozenset()) -> Attempt:
        self.attempt = attempt = Attempt(self, self.task.sides[record.role], record, state, barred)
        self._stores.traces.stage(self.task.record.name, record, state.stage)
        return attempt

    # What happens to the attempt

    async def _apply(self, messages: Sequence[_Message], *, answers: Sequence[_Message] = ()) -> None:
        """Advance the current attempt by a batch of events: fold, commit, then answer and carry out the effects."""
        attempt = self.attempt
        if attempt is None:
            for message in messages:
                message.refuse(LateError("that round is over; nothing is lost, check in again"))
            return
        before = state = attempt.state
        accepted, effects, now = [*answers], list[Effect](), self._clock.now()
        change = RoundChange(attempt.record, state)
        for message in messages:
            try:
                state, more = await self._advance(attempt, state, message, now)
            except MienError as error:
                message.refuse(error)
                continue
            accepted.append(message)
            effects.extend(more)
            change = _noted(change, message)
        change = self._change(attempt, change, state, messages)
        is_kept = change.sum_opening is not None or change.messages or _is_worth_keeping(before, state)
        if is_kept and not await self._commit(attempt, change, accepted):
            await self._restore(attempt)  # the protocol had accepted what is not on disk, or ended a stage that goes on
            return
        self._go_on_from(attempt, state, accepted, effects)

    async def _advance(
        self, attempt: Attempt, state: RoundState, message: _Message, now: float
    ) -> tuple[RoundState, tuple[Effect, ...]]:
        if message.attempt is not None and message.attempt is not attempt:
            raise LateError("that attempt of the round is over; nothing is lost, check in again")
        return await attempt.advance(state, message.event, message.step, now)

    async def _restore(self, attempt: Attempt) -> None:
        """Make the protocol's side of the current attempt again; the attempt is aborted where that fails."""
        try:
            await attempt.restore()
        except MienError as error:
            _LOG.error("cannot go on with a masked round", task=self.task.record.name, reason=error.message)
            self.tell(SumFailed(f"after a restart, {error.message}"))

    def _change(
        self, attempt: Attempt, change: RoundChange, state: RoundState, messages: Sequence[_Message]
    ) -> RoundChange:
        """Return all that has to be committed for the attempt's step to `state`."""
        before = attempt.state
        steps = {d: step for d, step in state.participants.items() if before.participants.get(d) is not step}
        change = replace(change, state=state, steps=steps, sum_opening=attempt.sum_opening(state))
        if before.stage is Stage.SELECTING and state.stage is Stage.TRAINING:
            change = replace(change, record=self.task.based_on_newest(change.record))
        if before.stage.is_over or not state.stage.is_over:
            return change
        closed = next((m.closed for m in messages if m.closed is not None), None)
        if state.stage is Stage.CLOSED and closed is not None:
            return self.task.closing(attempt, change, closed)
        if any(isinstance(m.event, Cancelled) for m in messages):
            return change
        return self.task.aborting(attempt, change, state.reason)

    async def _commit(self, attempt: Attempt, change: RoundChange, accepted: Sequence[_Message]) -> bool:
        """Commit a transition; what the disk refused is told to those who wait, and the rest is tried again."""
        try:
            change = replace(change, logged=await attempt.entries(change))
            attempt.record = await self._stores.thread.settle(self._stores.store.save_round, change)
        except BudgetExceededError as error:
            await self._abort_unopened(attempt, change, accepted, error.message)
            return False
        except MienError as error:
            self._try_again(accepted, error)
            return False
        self._pauses.reset()
        self.has_committed = True
        if change.candidate is not None and change.candidate.state is CandidateState.WAITING:
            self.task.await_verdict(True)
        if change.task is not None:
            self.task.record = change.task
            closed = next((m.closed for m in accepted if m.closed is not None), None)
            if closed is not None:
                await self.task.tidy(self.task.closer.committed(closed))
        return True

    async def _abort_unopened(
        self, attempt: Attempt, change: RoundChange, accepted: Sequence[_Message], reason: str
    ) -> None:
        """Abort an attempt whose sum the ledger refuses, before anybody can open it."""
        _LOG.warning("the privacy ledger refuses a sum", task=self.task.record.name, reason=reason)
        state, effects = advance(attempt.rules, attempt.state, SumFailed(reason), self._clock.now())
        aborted = self.task.aborting(attempt, RoundChange(change.record, state), reason)
        if await self._commit(attempt, aborted, accepted):
            self._go_on_from(attempt, state, accepted, effects)

    def _try_again(self, accepted: Sequence[_Message], error: MienError) -> None:
        """Refuse those who wait, and hand over again in a moment what nobody waits for."""
        _LOG.error("transition refused by the disk", task=self.task.record.name, reason=error.message)
        pause_s = self._pauses.next_s()
        self._not_before = self._clock.now() + pause_s
        for message in accepted:
            message.refuse(error)
            if message.answer is None and not isinstance(message.event, TimePassed | CheckedIn):
                asyncio.get_running_loop().call_later(pause_s, self._inbox.put_nowait, message)

    def _go_on_from(
        self, attempt: Attempt, state: RoundState, accepted: Sequence[_Message], effects: Sequence[Effect]
    ) -> None:
        """Go on from what is committed: answer those who wait, carry the effects out, and tell followers."""
        attempt.state = state
        for message in accepted:
            if isinstance(message.event, Left):
                self.task.note_left(message.event.device_id, message.event.error_code)
            message.resolve()
        if effects:
            if any(isinstance(effect, SumWanted) for effect in effects):
                self._start_closing(attempt)
            if state.stage.is_over:
                attempt.masked = None
                self._stores.spool.remove_round(attempt.record.id)
            attempt.changed.beat()
            self._tell_stage(attempt)
        self.task.on_change(bool(effects))

    def _tell_stage(self, attempt: Attempt) -> None:
        name, record, state = self.task.record.name, attempt.record, attempt.state
        self._stores.traces.stage(name, record, state.stage)
        _LOG.info(
            "round",
            task=name,
            round=record.round,
            attempt=record.attempt,
            duty=str(record.role),
            stage=str(state.stage),
            reports=record.num_reports,
            reason=state.reason,
        )

    # Closing

    def _start_closing(self, attempt: Attempt) -> None:
        """Have the attempt's sum taken, unless that is being done."""
        earlier = self._closing
        if earlier is not None and not earlier.done() and self._closing_of is attempt:
            return
        closing = self._close(attempt, attempt.state.devices(*COUNTED), earlier)
        self._closing, self._closing_of = asyncio.create_task(closing, name="closing"), attempt
        self._closing.add_done_callback(self._closing_ended)

    async def _close(
        self, attempt: Attempt, device_ids: Sequence[DeviceId], earlier: asyncio.Task[None] | None = None
    ) -> None:
        """Take the sum and the server's step, lay down the blobs, then ask for the commit.

        What an earlier attempt, given up since, still reads or writes is waited for.
        """
        if earlier is not None:
            await asyncio.wait({earlier})
        task, record = self.task, attempt.record
        give_up, pauses = self._clock.now() + task.settings.close_retry_s, Backoff(_RETRY_S)
        while True:
            try:
                async with task.stepping():
                    if not self._is_closing(attempt):
                        return
                    closed = await task.closer.close(task.record, record, device_ids, attempt.masked)
            except (StorageError, UnreachableError) as error:
                if self._clock.now() >= give_up or task.record.state.is_over:
                    self.tell(SumFailed(error.message))
                    return
                _LOG.error("cannot close the round yet", task=task.record.name, reason=error.message)
                await asyncio.sleep(pauses.next_s())
            except MienError as error:
                self.tell(SumFailed(error.message))
                return
            else:
                self._inbox.put_nowait(_Message(Summed(), attempt, closed=closed))
                return

    def _is_closing(self, attempt: Attempt | None) -> bool:
        """Return whether a sum is still wanted: its attempt may have been given up while it waited for its turn."""
        return attempt is not None and attempt is self.attempt and attempt.state.stage is Stage.CLOSING

    def _closing_ended(self, ended: asyncio.Task[None]) -> None:
        """A fault of the program itself must not leave a round that never ends."""
        if not ended.cancelled() and (error := ended.exception()) is not None:
            _LOG.error("closing failed", task=self.task.record.name, exc_info=error)
            self.tell(SumFailed(f"internal error while closing: {type(error).__name__}; see the log"))


def _devices_of(messages: Sequence[_Message]) -> frozenset[DeviceId]:
    """Return the devices that check in."""
    events = (message.event for message in messages)
    return frozenset[DeviceId]().union(*(event.device_ids for event in events if isinstance(event, CheckedIn)))


def _labelled_of(messages: Sequence[_Message]) -> frozenset[DeviceId]:
    """Return those of the devices that check in that say they are labelled."""
    events = (message.event for message in messages)
    return frozenset[DeviceId]().union(*(event.labelled for event in events if isinstance(event, CheckedIn)))


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
    nobody = frozenset[DeviceId]()
    kept, after = (replace(each, candidates={}, labelled=nobody, line=()) for each in (before, state))
    return kept != after
