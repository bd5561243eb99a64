"""One running task: its record, the cohorts that write to it in turns, and what is said to it as a whole.

A task that runs one round after another has one cohort at a time; in asynchronous mode several may be in flight. They
live and fall together. Who may do what is decided in `mien.rounds.cohort_rules`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from coordinator.rounds.attempt import Attempt
from coordinator.rounds.closing import Closed, Closer, Offered, Stores
from coordinator.rounds.cohort import Cohort
from coordinator.rounds.ledger_io import TaskLedger
from coordinator.rounds.pulse import Pulse
from coordinator.store import audit
from mien.contribution import Arrays
from mien.errors import BudgetExceededError, LateError, MienError
from mien.methods.base import CANDIDATES, Property, shared_words
from mien.protocol.ids import DeviceId, ModelId, RoundId
from mien.protocol.rounds import Role, Stage
from mien.rounds import verdicts
from mien.rounds.cohort_rules import CohortRules
from mien.rounds.plan import TaskPlan
from mien.rounds.records import CandidateRecord, CandidateState, RoundChange, TaskRecord, TaskState
from mien.rounds.spoilers import Search
from mien.rounds.verdicts import Verdict
from mien.secagg.keys import VerifyLeaf
from mien.shell.clock import Clock

_LOG: Final = structlog.get_logger()
_MAX_NOTED: Final = 100_000
"""Devices that are noted as unable to train a task's model: enough to see that something is wrong."""


@dataclass(frozen=True)
class TaskSettings:
    """An operator's settings of running rounds."""

    max_step_ratio: float = 1.0
    max_aborted: int = 5
    has_gates: bool = False
    releases_by_itself: bool = True
    keep_round_models: int = 1_000_000
    restart_grace_s: float = 30.0
    close_retry_s: float = 300.0
    threads: int = 2


class _OfModel:
    """Devices of which something is noted for as long as a task's newest model is the same."""

    def __init__(self) -> None:
        self._model_id, self._devices = ModelId(""), set[DeviceId]()

    def devices(self, model_id: ModelId) -> set[DeviceId]:
        """Return those of a model, nobody yet where it is another than before."""
        if model_id != self._model_id:
            self._model_id, self._devices = model_id, set()
        return self._devices


class Side:
    """Plan, stores and ledger of one role's attempts; `verify` says whom a leaf certificate of the population names."""

    def __init__(self, task: Task, role: Role, plan: TaskPlan, verify: VerifyLeaf) -> None:
        self._task, self.role, self.plan, self.verify = task, role, plan, verify
        self.stores, self.threads = task.stores, task.settings.threads
        task_id, stores = task.record.task_id, task.stores
        self.ledger = TaskLedger(task_id, plan, stores.store, stores.thread, self._shared_words)

    async def reply_to(self, device_id: DeviceId) -> Arrays:
        """Return the method's reply to a device: a momentum, say, or an answer to what the device revealed earlier.

        Validators are told the candidates.
        """
        closer, record = self._task.closer, self._task.record
        if self.role is Role.VALIDATE:
            return await closer.candidates(record)
        return self.plan.method.reply(await closer.server_state(record), device_id)

    async def _shared_words(self) -> bytes:
        """Return the words that all devices of the open or the next attempt are told alike, and agree on."""
        names = self.plan.requirements.shared_reply if self.role is Role.TRAIN else (CANDIDATES,)
        return shared_words(await self.reply_to(DeviceId("")), names) if names else b""


class Task(CohortRules):
    """One task as its cohorts see it. Whoever holds `turn` may change the record, and nobody else.

    `unable` are devices that called and cannot train its model, `unwilling` those whose owner wants larger sums,
    `used_up` those that said of its newest model, or of the day, that their owners' limits leave no room for a sum,
    `left_out` those that ledger or spoiled sums keep out of the round that gathers,
    `known` those that offered to take part, since an attempt was last aborted for another reason than a spoiled sum.
    """

    def __init__(
        self,
        record: TaskRecord,
        plan: TaskPlan,
        stores: Stores,
        clock: Clock,
        settings: TaskSettings,
        verify: VerifyLeaf,
        on_change: Callable[[bool], None],
    ) -> None:
        """`on_change` hears of each change, and whether a stage or the task's state is another."""
        super().__init__(record, plan.task)
        self.plan, self.stores, self.clock, self.settings = plan, stores, clock, settings
        self.on_change = on_change
        self.turn = asyncio.Lock()
        self.closer = Closer(record, plan, stores, clock, settings.max_step_ratio, settings.keep_round_models)
        plans = {Role.TRAIN: plan, **({Role.VALIDATE: plan.validators} if plan.validators is not None else {})}
        self.sides = {role: Side(self, role, each, verify) for role, each in plans.items()}
        count = 1 if plan.task.asynchronous is None else plan.task.asynchronous.max_concurrency
        self.cohorts: tuple[Cohort, ...] = tuple(Cohort(self) for _ in range(count))
        self.unable, self.unwilling = set[DeviceId](), set[DeviceId]()
        self.known = set[DeviceId]()
        self._spent, self._used_up, self._left_out = _OfModel(), _OfModel(), _OfModel()
        self._search = Search()
        self._search_before = RoundId(0), self._search
        self._changed = Pulse()
        self._awaits_verdict = False

    @property
    def side(self) -> Side:
        """The side that the next attempt runs on."""
        return self.sides[Role.TRAIN if self.record.candidates_sha256 is None else Role.VALIDATE]

    @property
    def has_committed(self) -> bool:
        """True if anything was committed since the task was picked up."""
        return any(cohort.has_committed for cohort in self.cohorts)

    # Life

    async def pick_up(self) -> None:
        """Go on where the last run of this program stopped, with every cohort; to be called before `run`."""
        thread, store, task_id = self.stores.thread, self.stores.store, self.record.task_id
        last = await thread.run(store.last_round, task_id)
        self._search = Search(found=await thread.run(store.left_out, task_id))
        if last is not None:
            self.newest = last.round, last.attempt
        if self.is_asynchronous:
            self.await_verdict(await self._candidate(CandidateState.WAITING) is not None)
        records = await thread.run(store.open_rounds, task_id)
        # All are placed before any goes on: who is busy in one is not to be asked by another.
        resumed = [(cohort, await cohort.place(record)) for cohort, record in zip(self.cohorts, records, strict=False)]
        for cohort, attempt in resumed:
            await cohort.go_on(attempt)
        if not resumed:
            await self.cohorts[0].call_validators()

    async def run(self) -> None:
        """Run until the task is over; an error in one cohort ends them all."""
        loops = [asyncio.create_task(each.run(), name=f"cohort {self.record.task_id}") for each in self.cohorts]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)

    async def abandon(self) -> None:
        """Give up sums that are being taken, so that another run of the task can take them."""
        await asyncio.gather(*(cohort.abandon() for cohort in self.cohorts))
        self.closer.give_up()

    async def tidy(self, cleaning: Coroutine[Any, Any, None]) -> None:
        """Clean up after a commit. What bucket or database refuse now is left to the next start; the task goes on."""
        try:
            await cleaning
        except MienError as error:
            _LOG.warning("not cleaned up yet", task=self.record.name, error=error.code, reason=error.message)

    def note(self, devices: set[DeviceId], device_id: DeviceId, *, is_passed_over: bool) -> None:
        """Note among the unable or unwilling whether a caller is one; who watches the task hears of a change."""
        before = len(devices)
        if not is_passed_over:
            devices.discard(device_id)
        elif before < _MAX_NOTED:
            devices.add(device_id)
        if len(devices) != before:
            self.on_change(False)

    # Whom not to ask

    @property
    def used_up(self) -> set[DeviceId]:
        """Devices that said that their owners' limits leave no room for one more sum over its newest model."""
        return self._used_up.devices(self.record.model_id)

    @property
    def left_out(self) -> set[DeviceId]:
        """Devices that called since its model is the newest, and that the round that gathers may not have."""
        return self._left_out.devices(self.record.model_id)

    def kept_out(self, side: Side) -> frozenset[DeviceId]:
        """Return the devices to leave out of the next attempt.

        Who was found to spoil sums, half of those that may have, and who had enough sums over this model already.
        """
        left_out = self._search.left_out(len(self.known), side.plan.task.cohort.num_selected)
        return left_out | self._spent.devices(self.record.model_id)

    def note_left(self, device_id: DeviceId, error_code: str) -> None:
        """Note a device that left because its own count of sums lets it into no more over this model."""
        if error_code == BudgetExceededError.code:
            self._spent.devices(self.record.model_id).add(device_id)

    # What is said to it, which its first cohort carries out in turn with all else

    async def command(self, state: TaskState, reason: str, actor: str) -> None:
        """Pause, resume or cancel the task, and return once that is committed."""
        await self.cohorts[0].post(job=lambda: self._commanded(state, reason, actor))

    async def hear(self, verdict: Verdict) -> None:
        """Take what the gates say of this task's candidate and return once that is committed."""
        await self.cohorts[0].post(job=lambda: self._judged(verdict))

    async def _commanded(self, state: TaskState, reason: str, actor: str) -> str:
        """Commit what a command makes of the task; return why its attempt does not go on, if it does not."""
        if state is TaskState.RUNNING:
            state = verdicts.resumed(await self._candidate(CandidateState.WAITING))
        if self.record.state.is_over or self.record.state is state:
            return ""
        after = replace(self.record, state=state, reason=reason, aborted_in_a_row=0)
        await self._save(after.ended(state, reason, self.clock.now_ms()) if state.is_over else after, actor)
        ends = state.is_over or (state is TaskState.PAUSED and self.cohorts[0].is_gathering)
        return f"task {state} by {actor}" if ends else ""

    async def pause(self, reason: str) -> None:
        """Pause the task with a reason that its operator sees."""
        await self._save(replace(self.record, state=TaskState.PAUSED, reason=reason), audit.COORDINATOR)
        _LOG.warning("task paused", task=self.record.name, reason=reason)
        self.on_change(True)

    async def _save(self, after: TaskRecord, actor: str) -> None:
        save, action = self.stores.store.save_task, f"task.{after.state}"
        await self.stores.thread.settle(save, after, actor=actor, action=action)
        self.record = after

    async def _judged(self, verdict: Verdict) -> str:
        """Commit what the gates' verdict asks for; raises LateError where the task is over meanwhile."""
        if self.record.state.is_over:
            raise LateError(f"the task is {self.record.state}")
        passed = await self._candidate(CandidateState.PASSED)
        decision = verdicts.decide(self.plan.task, self.record, verdict, passed, self.clock.now_ms())
        if not self.settings.releases_by_itself:  # what passed waits for the operator's signature
            decision = replace(decision, release_share=0.0)
        await self.stores.thread.run(self.stores.store.save_verdict, decision, verdict)
        has_gone_back = decision.task.model_id != self.record.model_id
        if decision.candidate is not None:
            self.await_verdict(False)
        self.record = decision.task
        if has_gone_back:
            await self.tidy(self.closer.go_back())
        return ""

    async def _candidate(self, state: CandidateState) -> CandidateRecord | None:
        """Return the newest candidate of whom the gates say so."""
        return await self.stores.thread.run(self.stores.store.candidate, self.record.task_id, state)

    # What an attempt's end makes of it

    def closing(self, attempt: Attempt, change: RoundChange, closed: Closed | Offered) -> RoundChange:
        """Return a change that closes an attempt, with what that makes of the task and its model."""
        change = self._searched(attempt, replace(change, metrics=closed.metrics))
        if isinstance(closed, Offered):
            return replace(change, task=self._after_offer(closed))
        task, candidate = self._after_round(attempt, closed)
        return replace(
            change,
            task=task,
            candidate=candidate,
            model=closed.model,
            next_clip=closed.next_clip,
            evaluations=closed.evaluations,
        )

    def _after_round(self, attempt: Attempt, closed: Closed) -> tuple[TaskRecord, CandidateRecord | None]:
        """Return the task after a round, and the round's model as a candidate where it is due to be one."""
        adds_up, lacks = self.plan.method.adds_up, closed.state.lacks
        rounds_closed = self.record.rounds_closed + 1
        stays = adds_up and rounds_closed < self.plan.task.rounds
        model_id = self.record.model_id if stays else closed.model.model_id
        task = replace(self.record, rounds_closed=rounds_closed, model_id=model_id)
        if task.state.is_over:  # cancelled while the sum was being taken: the model counts, the state does not
            return task, None
        task = replace(
            task,
            aborted_in_a_row=0,
            arrays_sha256=closed.arrays_sha256,
            revealed_sha256=closed.revealed_sha256,
            candidates_sha256=None,
            reason=lacks if adds_up else task.reason,
        )
        spec, now_ms = attempt.plan.task, self.clock.now_ms()
        candidate = verdicts.offered(spec, task, closed.model, has_gates=self.settings.has_gates, now_ms=now_ms)
        return verdicts.after_round(spec, task, candidate, now_ms, lacks), candidate

    def _after_offer(self, offered: Offered) -> TaskRecord:
        """Return the task in the middle of a round: its trainers' part is over, validators are due."""
        if self.record.state.is_over:
            return self.record
        return replace(self.record, aborted_in_a_row=0, candidates_sha256=offered.candidates_sha256)

    def aborting(self, attempt: Attempt, change: RoundChange, reason: str) -> RoundChange:
        """Return a change that aborts an attempt, with what that makes of the task.

        One that left fewer suspects of spoiling sums brings the search on, and counts towards no pause; nor does one
        that only waited for devices which it cannot do without.
        """
        if self.only_waited(attempt, self.clock.now(), keeps_out=bool(attempt.barred)):
            return replace(change, task=self.record)
        before = self._search
        change = self._searched(attempt, change)
        was_opened = attempt.state.stage is Stage.CLOSING
        is_last = was_opened and Property.DETERMINISTIC in attempt.plan.method.properties
        if self._search != before and not is_last:
            return replace(change, task=self.record)
        if self._search == before:
            self.known.clear()  # nobody is left out where there may be too few
        most = 1 if is_last else self.settings.max_aborted
        task = verdicts.after_abort(self.record, reason, role=attempt.record.role, max_aborted=most)
        return replace(change, task=task)

    def _searched(self, attempt: Attempt, change: RoundChange) -> RoundChange:
        """Go on with the search for who spoils sums, by an attempt's sums; return its change with who was found.

        The same attempt again, whose commit the disk refused, goes on from where the search was before it.
        """
        masked, record = attempt.masked, attempt.record
        if masked is None or attempt.state.stage is not Stage.CLOSING:
            return change
        if self._search_before[0] != record.id:
            self._search_before = record.id, self._search
        before = self._search_before[1]
        self._search = before.after(masked.spoiled, masked.sound)
        found = self._search.found - before.found
        if masked.spoiled:
            where = {"task": self.record.name, "round": record.round, "attempt": record.attempt}
            _LOG.warning("spoiled sum", **where, suspects=len(self._search.suspects), found=sorted(found))
        return replace(change, left_out=found)

    # Turns of steps that follow each other

    def has_changed(self) -> None:
        """Have steps that wait for the gates look again."""
        self._changed.beat()

    def await_verdict(self, awaits: bool) -> None:
        """Set whether a candidate waits for the gates: no step is taken then, also while the task is paused."""
        self._awaits_verdict = awaits
        self._changed.beat()

    @property
    def _is_held(self) -> bool:
        """True while the newest model may not be followed."""
        state = self.record.state
        return not state.is_over and (self._awaits_verdict or state is TaskState.CHECKING)

    def is_overtaken(self, closed: Closed | Offered) -> bool:
        """Return whether a step was taken on a model that is not the newest any more, or may not be followed yet."""
        if not self.is_asynchronous or isinstance(closed, Offered):
            return False
        return closed.state.rounds != self.record.rounds_closed + 1 or self._is_held

    @contextlib.asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Hold the turn while a step is taken on the newest model, and begin none while gates judge that.

        Only one step at a time, so that none removes the state that another has just laid down.
        """
        if not self.is_asynchronous:
            yield
            return
        while self._is_held:
            await self._changed.after(self._changed.count)
        async with self.turn:
            yield
