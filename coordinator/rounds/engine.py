"""All running tasks: routes devices to them, keeps each of them running, and survives being stopped at any instant."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from coordinator.rounds.attempt import Attempt
from coordinator.rounds.closing import Stores
from coordinator.rounds.cohort import Cohort
from coordinator.rounds.ledger_io import TaskLedger
from coordinator.rounds.masked import MAX_STEP_BYTES
from coordinator.rounds.pacer import Pacer
from coordinator.rounds.pulse import Pulse, in_thread
from coordinator.rounds.task import Task, TaskSettings
from coordinator.store import audit
from mien.contribution import Arrays
from mien.errors import (
    BY_CODE,
    ConfigError,
    DrainingError,
    LateError,
    MienError,
    NotFoundError,
    StorageError,
    UnavailableError,
    UnreachableError,
    ViolationError,
)
from mien.format import gathered
from mien.protocol.canonical import task_from_json, task_to_json
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundId, RoundNumber, TaskId
from mien.protocol.rounds import Role, RoundRef, Stage, Wait
from mien.rounds.machine import (
    COUNTED,
    REPORTED,
    STEP_STAGES,
    CheckedIn,
    Left,
    RoundState,
    Step,
    Stepped,
    Trained,
    Withdrew,
    lacking,
)
from mien.rounds.pacing import ACTIVE_S, Pace, gathering_pause_s, wanted_per_s
from mien.rounds.plan import TaskPlan, plan_task
from mien.rounds.records import RoundRecord, StepRecord, TaskRecord, TaskState
from mien.rounds.releases import check_comparable, place
from mien.secagg.keys import VerifyLeaf
from mien.secagg.planner import fewest_hidden
from mien.shell.backoff import Backoff
from mien.shell.clock import Clock, to_ms
from mien.shell.keys import SYSTEM_RANDOM, secret_hex
from mien.specs import TaskSpec

_LOG: Final = structlog.get_logger()
_UNDER_WAY: Final = (Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK, Stage.CLOSING)
"""Stages of a sum: short, and every device of the cohort is awake for them."""

_IDLE: Final = "idle"
_RECOUNT_S: Final = 0.5
"""So long after a check-in those who watch tasks are told how many devices could be theirs."""


@dataclass(frozen=True)
class Caller:
    """A device as its certificate names it, and what it said about itself."""

    device_id: DeviceId
    population: PopulationId
    backbones: tuple[str, ...] = ()
    min_cohort: int = 0
    role: Role = Role.TRAIN
    methods: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    labelled: bool = False
    used_up_models: frozenset[ModelId] = frozenset()
    used_up_day: bool = False

    @property
    def check_in(self) -> CheckedIn:
        """The device's offer, as a round hears it."""
        offered = frozenset({self.device_id})
        return CheckedIn(offered, offered if self.labelled else frozenset())

    def fewest(self, plan: TaskPlan) -> int:
        """Return the fewest devices of a sum of the task that the device's owner agreed to."""
        return plan.requirements.fewest(self.min_cohort)

    def agrees_to_sums_of(self, plan: TaskPlan) -> bool:
        """Return whether the task's smallest sum hides the device among as many as its owner wants."""
        return fewest_hidden(plan.task) >= self.fewest(plan)

    def has_room_for(self, plan: TaskPlan, model_id: ModelId) -> bool:
        """Return whether the owner's limits, as the device said them, leave room for a sum of the task over a model.

        A device that says nothing is taken to have room: it leaves the round where it has none.
        """
        if not plan.is_limited:
            return True
        return not (self.used_up_day or (plan.method.trains and model_id in self.used_up_models))

    def can_do(self, plan: TaskPlan) -> bool:
        """Return whether the device's program has what a task takes; one that says nothing is taken to."""
        return self.can_train(plan) and (not self.methods or plan.task.method in self.methods)

    def can_train(self, plan: TaskPlan) -> bool:
        """Return whether the device can do a task's work on its model; one that names an engine has named all it can.

        Work that minimises nothing takes the model's backbone, and no graph that trains.
        """
        if not (self.backbones or self.engines):
            return True
        return plan.spec.backbone in self.backbones and self._has_graphs(plan)

    def _has_graphs(self, plan: TaskPlan) -> bool:
        """Return whether a device that trains with graphs has those of a task; who trains nothing needs none."""
        if not self.parts or self.role is not Role.TRAIN or not plan.method.is_minimised:
            return True
        wanted, there = plan.requirements.objective, self.parts.get(plan.part.sha256)
        return there is not None and (not wanted or wanted in there)


@dataclass(frozen=True)
class Assigned:
    """A selected device's assignment."""

    name: RoundRef
    plan: TaskPlan
    task_json: bytes = field(repr=False)
    model_id: ModelId
    reply: Arrays = field(repr=False)
    stage: Stage
    deadline: float
    role: Role


STAYS_OUT: Final = Wait(3600.0, "this device asked to be left out of rounds")
"""The answer to a device whose owner does not let it take part."""


@dataclass(eq=False)
class _Held:
    """A check-in that is being held; `stays_out` once its device has asked to be left out."""

    caller: Caller
    offered: Cohort | None = None
    stays_out: bool = False
    fitting: Collection[Cohort] = ()


class _CouldBe:
    """Held check-ins, by their devices, that could be one cohort's, and those of them that it was offered."""

    def __init__(self) -> None:
        self._held, self._offered = dict[DeviceId, _Held](), set[_Held]()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: _Held, *, is_offered: bool) -> None:
        """Count a check-in, in place of an older one of its device."""
        older = self._held.get(held.caller.device_id)
        if older is not None and (older is not held or not is_offered):
            self._offered.discard(older)
        self._held[held.caller.device_id] = held
        if is_offered:
            self._offered.add(held)

    def discard(self, held: _Held) -> None:
        """Count a check-in no more; a newer one of the same device still counts."""
        if self._held.get(held.caller.device_id) is held:
            del self._held[held.caller.device_id]
            self._offered.discard(held)

    def num_with(self, num_candidates: int) -> int:
        """Return how many they are with the cohort's candidates, of whom are those that it was offered.

        A candidate may be between two check-ins; what was offered just now is one in a moment.
        """
        return max(num_candidates, len(self._offered)) + len(self._held) - len(self._offered)


@dataclass(frozen=True)
class StageNews:
    """A round's stage, as its devices are told."""

    name: RoundRef
    stage: Stage
    deadline: float
    reason: str
    model_id: ModelId
    num_reports: int
    message: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Gathering:
    """How far a task is with gathering devices for a round: how many of those `wanted` are `there`, since when.

    `lacks_labelled` is how many labelled devices it cannot begin without.
    """

    there: int
    wanted: int
    since_ms: int
    lacks_labelled: int


@dataclass(frozen=True)
class TaskNews:
    """A change of a task, of one of its rounds, of how far it is with gathering devices, or of how many devices called
    that it is not for: those that cannot train its model, those whose owner wants more devices in a sum, those whose
    pictures are in as many sums as may be, and those that the round may not have.
    """

    task: TaskRecord
    round: RoundRecord | None
    num_cannot_train: int = 0
    num_want_larger_sums: int = 0
    num_used_up: int = 0
    num_left_out: int = 0
    gathering: Gathering | None = None


@dataclass(frozen=True)
class TaskNow:
    """One running task: where its round is, how many devices are how far in it, and how much waits to be handled."""

    name: str
    population: PopulationId
    stage: str
    devices: Mapping[str, int]
    queue_length: int


@dataclass(frozen=True)
class EngineSettings:
    """Waiting times of devices, and how rounds run. Devices that nobody needs come back at `check_ins_per_s`.

    `pick_up_s` after an error has stopped a task it is picked up again; later after each further error in a row.
    """

    check_in_hold_s: float = 20.0
    retry_after_s: float = 5.0
    tasks: TaskSettings = field(default_factory=TaskSettings)
    evaluation_sets: tuple[str, ...] = ()
    pick_up_s: float = 5.0
    check_ins_per_s: float = 50.0


class Engine:
    """The coordinator's rounds, whoever calls. One per process; methods run on one event loop."""

    def __init__(
        self, stores: Stores, clock: Clock, settings: EngineSettings, vouch: Callable[[PopulationId], VerifyLeaf]
    ) -> None:
        """`vouch` gives the check of leaf certificates of one population's devices."""
        self._vouch = vouch
        self._stores, self._clock, self._settings = stores, clock, settings
        self._tasks: dict[TaskId, Task] = {}
        self._loops: dict[TaskId, asyncio.Task[None]] = {}
        self._arrivals = Pulse()
        self._tasks_changed: dict[TaskId, Pulse] = {}
        self._populations: dict[TaskId, PopulationId] = {}
        self._let_go: set[PopulationId] = set()
        self._pace = Pace(settings.retry_after_s, settings.check_ins_per_s)
        self._pacer = Pacer(self._pace, clock, self._count_devices)
        self.is_draining = False
        self._is_stopping = False
        self._held: set[_Held] = set()
        self._could_be = dict[tuple[Cohort, bool], _CouldBe]()
        self._recount: asyncio.TimerHandle | None = None

    @property
    def waiting_check_ins(self) -> int:
        """Number of check-ins that are being held."""
        return len(self._held)

    # Life

    async def start(self) -> None:
        """Clear away what a crash left half-made, then go on with every task that is not over."""
        await self.clear_away()
        await self.take_over()

    async def clear_away(self, *, is_alone: bool = True) -> None:
        """Erase what nothing refers to: contributions to rounds that are over and, alone with the store, blobs."""
        thread, store = self._stores.thread, self._stores.store
        if is_alone:  # another replica may be about to commit what refers to its newest blobs
            await in_thread(self._stores.models.remove_unfinished)
            await in_thread(self._stores.models.keep_only, await thread.run(store.model_blobs))
            self._stores.states.keep_only(await thread.run(store.state_blobs))
        live = await thread.run(store.live_rounds)
        for round_id in self._stores.spool.rounds() - live:
            self._stores.spool.remove_round(round_id)

    async def take_over(self, population: PopulationId | None = None) -> None:
        """Go on with every task that is not over, of one population or of all, from what is committed."""
        self._let_go.discard(population or PopulationId(""))
        for task in await self._stores.thread.run(self._stores.store.tasks):
            if not task.state.is_over and population in (None, task.population):
                await self._begin(task)
        self._wake()

    async def let_go(self, population: PopulationId) -> None:
        """End a population's tasks here, with which another replica goes on; what is committed stays."""
        self._let_go.add(population)
        task_ids = [task_id for task_id, of in self._populations.items() if of == population]
        tasks = [self._tasks[task_id] for task_id in task_ids if task_id in self._tasks]
        loops = [self._loops.pop(task_id) for task_id in task_ids if task_id in self._loops]
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        for task in tasks:
            self._tasks.pop(task.record.task_id, None)  # its loop may have ended before it began
            await task.abandon()
        self._wake()

    async def _begin(self, task: TaskRecord) -> None:
        """Go on with a task, now or in a moment; one that cannot go on must not keep the others from it."""
        thread, store = self._stores.thread, self._stores.store
        self._populations[task.task_id] = task.population
        try:
            self._keep(task, await self._load(task))
        except (StorageError, UnavailableError) as error:  # what is away now may be there in a moment
            self._log_end(task, error)
            self._keep(task, None)
        except MienError as error:
            failed = task.ended(TaskState.FAILED, error.message, self._clock.now_ms())
            await thread.run(store.save_task, failed, actor=audit.COORDINATOR, action="task.failed")
            self._stores.states.remove(task.state_blobs - await thread.run(store.state_blobs))
            _LOG.error("task cannot go on", task=task.name, reason=error.message)

    def drain(self) -> None:
        """Choose no new cohorts from now on; devices that wait are told to come back, those in a sum go on with it."""
        self.is_draining = True
        self._wake()

    async def finish(self, limit_s: float) -> None:
        """Return once no sum is under way, from the exchange of keys to the new model, or the time is over.

        Devices that train are not waited for: what they do outlasts a restart.
        """
        end = self._clock.now() + limit_s
        while under_way := [task for task in self.tasks_now() if task.stage in _UNDER_WAY]:
            count, left_s = self._arrivals.count, end - self._clock.now()
            if left_s <= 0:
                _LOG.warning("stopping in the middle of a sum; it goes on after the restart", tasks=len(under_way))
                return
            await self._arrivals.after(count, left_s)

    async def stop(self) -> None:
        """End all tasks' loops; what is committed stays. A sum that is being taken is taken again after the restart."""
        self.is_draining = self._is_stopping = True
        self._wake()
        for loop in self._loops.values():
            loop.cancel()
        await asyncio.gather(*self._loops.values(), return_exceptions=True)

    def _wake(self) -> None:
        """Have everybody who waits look again."""
        self._arrivals.beat()
        for pulse in self._tasks_changed.values():
            pulse.beat()
        for task in self._tasks.values():
            _wake_followers(task)

    async def _load(self, record: TaskRecord) -> Task:
        """Return a task that goes on from what is committed of it."""
        model = await self._stores.thread.run(self._stores.store.model, record.base_model_id)
        plan = plan_task(task_from_json(record.task_json), model.spec_json, public_shard=model.shard)
        pulse = self._tasks_changed.setdefault(record.task_id, Pulse())

        def on_change(stage_changed: bool) -> None:
            pulse.beat()
            if stage_changed:
                self._arrivals.beat()

        verify = self._vouch(record.population)
        task = Task(record, plan, self._stores, self._clock, self._settings.tasks, verify, on_change)
        await task.pick_up()  # before anybody can ask for the round that goes on
        self._tasks[record.task_id] = task
        return task

    def _keep(self, record: TaskRecord, task: Task | None) -> None:
        loop = asyncio.create_task(self._kept(record, task), name=f"task {record.task_id}")
        self._loops[record.task_id] = loop

    async def _kept(self, record: TaskRecord, task: Task | None) -> None:
        """Run a task until it is over: what an error has ended, whatever it was, goes on from what is committed.

        `task` is None where it could not begin. Pauses grow with errors in a row; a run that commits something is the
        end of the row.
        """
        pauses = Backoff(self._settings.pick_up_s)
        while True:
            work = self._pick_up(record, pauses.next_s()) if task is None else self._run(task)
            (ended,) = await asyncio.gather(work, return_exceptions=True)
            if isinstance(ended, Exception):
                self._log_end(record, ended)
                if self._is_stopping:
                    return
                if task is not None:
                    await task.abandon()
                    if task.has_committed:
                        pauses.reset()
                task = None
            elif isinstance(ended, Task):
                task = ended
            else:
                return

    async def _run(self, task: Task) -> None:
        task_id = task.record.task_id
        try:
            await task.run()
        finally:
            self._tasks.pop(task_id, None)
            self._tasks_changed[task_id].beat()
            self._arrivals.beat()
            _wake_followers(task)  # who follows its round asks for its successor

    async def _pick_up(self, record: TaskRecord, pause_s: float) -> Task | None:
        """Return a task after a pause, as after a restart of the program; None where it is over."""
        await asyncio.sleep(pause_s)
        record = await self._stores.thread.run(self._stores.store.task, record.task_id)
        if record.state.is_over:
            return None
        task = await self._load(record)
        self._tasks_changed[record.task_id].beat()
        self._arrivals.beat()
        return task

    def _log_end(self, task: TaskRecord, error: Exception) -> None:
        what = "task stopped by an error; it is picked up again"
        if isinstance(error, StorageError | UnavailableError):
            _LOG.error(what, task=task.name, error=error.code, reason=error.message)
        else:
            _LOG.error(what, task=task.name, error=type(error).__name__, exc_info=error)

    # Devices

    async def check_in(self, caller: Caller, *, limit_s: float) -> Assigned | Wait:
        """Return a device's assignment, or after a while that there is none.

        The call is held while a round may still want the device, so that devices neither poll nor arrive in the order
        of their pauses.
        """
        give_up = self._clock.now() + min(self._settings.check_in_hold_s, limit_s)
        held = _Held(caller)
        self._held.add(held)
        self._count_again()
        try:
            while True:
                self._check_here(caller.population)
                count = self._arrivals.count
                try:
                    answer = await self._answer(caller, held)
                except UnreachableError:
                    self._check_here(caller.population)  # the loop of a cohort that was asked just now has ended
                    raise
                if answer is not None:
                    return answer
                left_s = give_up - self._clock.now()
                if left_s <= 0:
                    waiting = await self._waiting(caller, held.offered)
                    return replace(waiting, cannot_train=self._is_passed_over(caller))
                await self._arrivals.after(count, left_s)
        except (asyncio.CancelledError, DrainingError):
            if held.offered is not None:
                held.offered.tell(Withdrew(caller.device_id))
            raise
        finally:
            self._held.discard(held)
            self._note(held, (), None)
            self._count_again()

    def _check_here(self, population: PopulationId) -> None:
        """Raise DrainingError or UnreachableError unless this process goes on with a population's tasks."""
        if self.is_draining:  # not all come back at once, or the new process would be busy with greetings
            pause_s = self._settings.retry_after_s * SYSTEM_RANDOM.uniform(1.0, 3.0)
            raise DrainingError("the coordinator is shutting down; check in again", retry_after_s=pause_s)
        if population in self._let_go:
            raise UnreachableError("another replica runs this task now; check in again", retry_after_s=0.5)

    async def _answer(self, caller: Caller, held: _Held) -> Assigned | Wait | None:
        """Return the answer to a check-in, after it was offered to a cohort; None where it is held on."""
        if (assigned := await self._assigned(caller)) is not None:
            return assigned
        if held.stays_out:
            if held.offered is not None:
                await _withdraw(held.offered, caller.device_id)
            return await self._assigned(caller) or STAYS_OUT
        fitting = self._fitting(caller)
        self._note(held, fitting, held.offered)
        self._note(held, fitting, self._chosen(held, fitting))
        # Also where an earlier call, that has been answered, offered it: what a device says last is what counts.
        for cohort in self._of_population(caller.population):
            if cohort is not held.offered and cohort.side.role is caller.role:
                await _withdraw_candidate(cohort, caller.device_id)
        if held.offered is None:
            return None
        await held.offered.post(caller.check_in, role=caller.role)
        return await self._assigned(caller)

    async def leave_out(self, device_id: DeviceId, population: PopulationId, *, stays_out: bool) -> None:
        """Return once no round that forms from now on chooses a device that stays out, held check-ins included."""
        mine = [held for held in self._held if held.caller.device_id == device_id]
        for held in mine:
            held.stays_out = stays_out
        if not stays_out:
            return
        if mine:
            self._arrivals.beat()
        for cohort in self._of_population(population):
            await _withdraw_candidate(cohort, device_id)

    async def _assigned(self, caller: Caller) -> Assigned | None:
        """Return the assignment that a device holds already, so that a lost answer can be asked for again."""
        for cohort in self._of_population(caller.population):
            attempt = cohort.under_way
            if attempt is None or attempt.record.role is not caller.role or not attempt.may_train(caller.device_id):
                continue
            return Assigned(
                name=attempt.record.ref,
                plan=attempt.plan,
                task_json=cohort.task.record.task_json,
                model_id=attempt.record.base_model_id,
                reply=await attempt.reply_to(caller.device_id),
                stage=attempt.state.stage,
                deadline=attempt.state.deadline,
                role=caller.role,
            )
        return None

    async def reply(self, device_id: DeviceId, name: RoundRef) -> Arrays:
        """Return the method's reply to a device, sent with its assignment; raises LateError once the round went on."""
        attempt, _ = await self.locate(device_id, name)
        if attempt is None or not attempt.may_train(device_id):
            raise LateError("the round went on without this device; nothing is lost, check in again")
        return await attempt.reply_to(device_id)

    def _fitting(self, caller: Caller) -> list[Cohort]:
        """Return the cohorts that look for devices and that this one can work for, and note why others cannot have it.

        Tasks that measure go first, then the oldest.
        """
        fitting = []
        for cohort in sorted(self._of_population(caller.population), key=lambda each: each.side.plan.method.trains):
            side, task = cohort.side, cohort.task
            if side.role is not caller.role:
                continue
            if cohort.is_gathering:
                is_left_out = cohort.leaves_out(caller.device_id)
                task.note(task.left_out, caller.device_id, is_passed_over=is_left_out)
            if cohort.bars(caller.device_id):
                continue
            wants_more = not caller.agrees_to_sums_of(side.plan)
            task.note(task.unwilling, caller.device_id, is_passed_over=wants_more)
            if not wants_more and cohort.wants_devices and _has_share(caller, cohort):
                task.note(task.unable, caller.device_id, is_passed_over=not caller.can_train(side.plan))
                is_used_up = not caller.has_room_for(side.plan, task.record.model_id)
                task.note(task.used_up, caller.device_id, is_passed_over=is_used_up)
            if _is_for(caller, cohort):
                fitting.append(cohort)
        return fitting

    def _chosen(self, held: _Held, fitting: Sequence[Cohort]) -> Cohort | None:
        """Return that of the cohorts which fit a device that it is offered to.

        The oldest task's for which as many devices are there as it needs, labelled ones among them, so that one that
        cannot gather them holds nobody; where there is no such task, the oldest one's. Where a device that was offered
        to none yet is the last one that such a task needs, those that wait for an older one look again.
        """
        for place_in_line, cohort in enumerate(fitting if len(fitting) > 1 else ()):
            spec = cohort.side.plan.task.cohort
            there, labelled = self._num_there(cohort), self._num_there(cohort, labelled=True)
            if there >= spec.min_reports and labelled >= spec.min_labelled:
                is_last = there == spec.min_reports or (held.caller.labelled and labelled == spec.min_labelled)
                if held.offered is None and place_in_line and is_last:
                    self._arrivals.beat()
                return cohort
        return fitting[0] if fitting else None

    def _note(self, held: _Held, fitting: Collection[Cohort], offered: Cohort | None) -> None:
        """Note whose a check-in could be, and to whom it is offered: to count those, nobody looks at all that wait."""
        kinds = (False, True) if held.caller.labelled else (False,)
        for labelled in kinds:
            for cohort in held.fitting:
                if cohort not in fitting:
                    self._could_be[cohort, labelled].discard(held)
                    if not self._could_be[cohort, labelled]:
                        del self._could_be[cohort, labelled]
            for cohort in fitting:
                self._could_be.setdefault((cohort, labelled), _CouldBe()).add(held, is_offered=cohort is offered)
        held.fitting, held.offered = fitting, offered

    def _num_there(self, cohort: Cohort, *, labelled: bool = False) -> int:
        """Return how many devices are candidates of a cohort, or wait for any and may be; of `labelled` ones alone."""
        state = None if cohort.under_way is None else cohort.under_way.state
        num_candidates = 0
        if state is not None and state.stage is Stage.SELECTING:
            num_candidates = len(state.labelled if labelled else state.candidates)
        could_be = self._could_be.get((cohort, labelled))
        return num_candidates if could_be is None else could_be.num_with(num_candidates)

    def _is_passed_over(self, caller: Caller) -> bool:
        """Return whether a task of the population, gathering devices now or not, trains what the caller cannot."""
        sides = [cohort.side for cohort in self._of_population(caller.population)]
        return any(side.role is caller.role and not caller.can_train(side.plan) for side in sides)

    def num_not_for(self, task_id: TaskId) -> tuple[int, int, int, int]:
        """Return how many devices that called a task is not for, as far as this process has heard.

        First those that cannot train its model, then those whose owner wants more devices in a sum, then those whose
        owner's limits leave no room for one more, then those that the round may not have.
        """
        if (task := self._tasks.get(task_id)) is None:
            return 0, 0, 0, 0
        return len(task.unable), len(task.unwilling), len(task.used_up), len(task.left_out)

    def population_of(self, task_id: TaskId) -> PopulationId | None:
        """Return the population of a task that this engine runs, None for any other."""
        task = self._tasks.get(task_id)
        return None if task is None else task.record.population

    def news(self, record: TaskRecord, of_round: RoundRecord | None = None) -> TaskNews:
        """Return a task's news, with what this process has heard of devices that wait for it."""
        task = self._tasks.get(record.task_id)
        cohorts = () if task is None or record.state.is_over else task.cohorts
        gathering = next((found for found in map(self._gathering, cohorts) if found is not None), None)
        return TaskNews(record, of_round, *self.num_not_for(record.task_id), gathering=gathering)

    def _gathering(self, cohort: Cohort) -> Gathering | None:
        """Return how far a cohort is with gathering devices; None while it looks for none.

        Where other tasks look for devices too, those that wait for one of these and could be this one's count here as
        well, as far as it asks so many: it may have the first device that it lacks of them all.
        """
        attempt, spec = cohort.under_way, cohort.side.plan.task.cohort
        if not (cohort.wants_devices if attempt is None else cohort.is_gathering):
            return None
        there, since_ms, lacks = 0, 0, spec.min_labelled
        if attempt is not None:
            there, since_ms = len(attempt.state.candidates), attempt.record.started_ms
            lacks = lacking(attempt.rules, attempt.state, self._clock.now())
        if len(self._gathering_tasks(cohort.task.record.population)) > 1:
            could_be, labelled = self._num_there(cohort), self._num_there(cohort, labelled=True)
            there = max(there, min(could_be, spec.num_selected))
            lacks = min(lacks, max(spec.min_labelled - labelled, 0))
        return Gathering(there, spec.num_selected, since_ms, lacks)

    def _said_of_gathering(self, cohort: Cohort) -> str:
        """Return in words which task gathers devices, and how far it is with that."""
        told = f"a round of {cohort.task.record.name} is gathering devices"
        if (found := self._gathering(cohort)) is None:
            return told
        now_ms = self._clock.now_ms()
        return f"{told}: {gathered(found.there, found.wanted, found.since_ms, now_ms, found.lacks_labelled)}"

    def _gathering_tasks(self, population: PopulationId) -> list[Task]:
        """Return the tasks of a population that look for devices."""
        tasks = [task for task in self._tasks.values() if task.record.population == population]
        return [task for task in tasks if any(cohort.wants_devices for cohort in task.cohorts)]

    def _count_again(self) -> None:
        """Have who watches one of several tasks that gather look again, in a moment, how many devices there are for it.

        Not at each check-in: what they are told is read from the store.
        """
        if self._recount is None:
            self._recount = asyncio.get_running_loop().call_later(_RECOUNT_S, self._tell_watchers)

    def _tell_watchers(self) -> None:
        self._recount = None
        for population in {task.record.population for task in self._tasks.values()}:
            if len(tasks := self._gathering_tasks(population)) > 1:
                for task in tasks:
                    task.on_change(False)

    def _of_population(self, population: PopulationId) -> list[Cohort]:
        """Return the cohorts of a population's tasks, the oldest task's first."""
        tasks = [task for task in self._tasks.values() if task.record.population == population]
        return [cohort for task in tasks for cohort in task.cohorts]

    async def _count_devices(self) -> Mapping[PopulationId, int]:
        since_ms = to_ms(self._clock.now() - ACTIVE_S)
        return await self._stores.thread.run(self._stores.store.devices_since, since_ms)

    def _wanted_per_s(self, population: PopulationId) -> float:
        """Return how many devices a population's tasks have to gather in a second."""
        wanting = [cohort for cohort in self._of_population(population) if cohort.wants_devices]
        return wanted_per_s({each.task.record.task_id: each.side.plan.task for each in wanting}.values())

    async def _waiting(self, caller: Caller, offered: Cohort | None) -> Wait:
        if offered is not None and offered.is_gathering:
            if offered.has_no_place_for(caller.device_id):
                pause_s = await self._pacer.pause_s(caller.population, self._wanted_per_s(caller.population))
                said = self._said_of_gathering(offered)
                return Wait(pause_s, f"{said}; enough phones wait for that, and this one is asked later")
            return Wait(gathering_pause_s(self._pace), self._said_of_gathering(offered))
        pause_s = await self._pacer.pause_s(caller.population, self._wanted_per_s(caller.population))
        wanting = [cohort for cohort in self._of_population(caller.population) if cohort.wants_devices]
        asking = [cohort for cohort in wanting if cohort.side.role is caller.role]
        return Wait(pause_s, _why_not(caller, asking) or "no round needs this device now")

    async def report_trained(self, device_id: DeviceId, name: RoundRef) -> Stage:
        """Return the stage after a device has said that it trained; raises LateError when the round went on."""
        attempt, record = await self.locate(device_id, name)
        if attempt is None:
            return await self._stage_after(REPORTED, device_id, record)
        await attempt.post(Trained(device_id))
        return attempt.state.stage

    async def take_step(self, device_id: DeviceId, name: RoundRef, stage: Stage, message: bytes) -> Stage:
        """Return the stage after a device's message of a stage of secure aggregation was accepted and committed.

        Raises what does not hold (ViolationError, CertificateError, ReplayError), LateError when the round went on.
        """
        attempt, record = await self.locate(device_id, name)
        if attempt is None:
            return await self._stage_after(COUNTED, device_id, record)
        if stage not in STEP_STAGES or len(message) > MAX_STEP_BYTES:
            raise ViolationError(f"there is no step of {len(message)} bytes at stage {stage}; upgrade mien")
        await attempt.post(Stepped(device_id, stage), step=StepRecord(device_id, stage, message))
        return attempt.state.stage

    async def _stage_after(self, steps: frozenset[Step], device_id: DeviceId, record: RoundRecord) -> Stage:
        """Return how a round ended for a device that had come to one of the steps; raises LateError for any other."""
        if await self._stores.thread.run(self._stores.store.participant, record.id, device_id) not in steps:
            raise LateError("that round is over; nothing is lost, check in again")
        return record.stage

    async def leave(self, device_id: DeviceId, name: RoundRef, error_code: str) -> None:
        """Take a device out of a round; a device that is in no round has left already."""
        attempt, _ = await self.locate(device_id, name)
        code = error_code if error_code in BY_CODE else ""
        if attempt is not None:
            with contextlib.suppress(LateError):
                await attempt.post(Left(device_id, code))

    async def follow(self, device_id: DeviceId, name: RoundRef) -> AsyncIterator[StageNews]:
        """Yield where a round is, beginning with now, until it is over; raises LateError once it went on without."""
        attempt, _ = await self.locate(device_id, name)
        last: StageNews | None = None
        while attempt is not None and attempt.is_current:
            count = attempt.changed.count
            news = _news(attempt.record, attempt.state, attempt.message_for(device_id))
            if attempt.step_of(device_id) is Step.LATE and news.stage is not Stage.ABORTED:
                raise LateError("the round went on without this device; nothing is lost, check in again")
            if news != last:
                yield news
                last = news
            if news.stage.is_over:
                return
            if self._is_stopping or (self.is_draining and news.stage not in _UNDER_WAY):
                raise DrainingError("the coordinator is shutting down; follow the round again", retry_after_s=2.0)
            await attempt.changed.after(count)
        record = await self._record(name)
        if not record.stage.is_over:  # an error ended the task's loop, and the round goes on in another one
            raise UnreachableError("the round is being picked up; follow it again", retry_after_s=2.0)
        step = await self._last_step(device_id, record, attempt)
        if record.stage is Stage.CLOSED and step not in COUNTED:
            raise LateError("the round went on without this device; nothing is lost, check in again")
        yield _news(record, RoundState(record.stage, 0.0, reason=record.reason))

    async def locate(self, device_id: DeviceId, name: RoundRef) -> tuple[Attempt | None, RoundRecord]:
        """Return the attempt that a device belongs to, None where it is an old one, and its record.

        Raises NotFoundError unless the device was selected: of other rounds it learns nothing, not even that they are.
        """
        record = await self._record(name)
        attempt = next((each for each in self._attempts(name.task_id) if each.record.id == record.id), None)
        if attempt is not None and attempt.is_current:
            step = attempt.step_of(device_id)
        else:
            attempt = None
            step = await self._stores.thread.run(self._stores.store.participant, record.id, device_id)
        if step is None:
            raise NotFoundError("this device was not selected for that round; check in again")
        return attempt, record if attempt is None else attempt.record

    async def _last_step(self, device_id: DeviceId, record: RoundRecord, attempt: Attempt | None) -> Step | None:
        """Return how far a device came in an attempt that is over: as it is known here, or committed by others."""
        if attempt is not None and attempt.state.stage.is_over:
            return attempt.step_of(device_id)
        return await self._stores.thread.run(self._stores.store.participant, record.id, device_id)

    def _attempts(self, task_id: TaskId) -> list[Attempt]:
        """Return the newest attempts of a running task's cohorts."""
        cohorts = self._tasks[task_id].cohorts if task_id in self._tasks else ()
        return [cohort.attempt for cohort in cohorts if cohort.attempt is not None]

    async def _record(self, name: RoundRef) -> RoundRecord:
        for attempt in self._attempts(name.task_id):
            if attempt.record.ref == name:
                return attempt.record
        record = await self._stores.thread.run(self._stores.store.round, name.task_id, name.round, name.attempt)
        if record is None:
            raise NotFoundError("this device was not selected for that round; check in again")
        return record

    # Gates

    @property
    def changed(self) -> Pulse:
        """Beats whenever a round's stage or a task's state has changed."""
        return self._arrivals

    def checking(self) -> list[Task]:
        """Return the tasks whose candidates wait for the gates."""
        return [task for task in self._tasks.values() if task.record.state is TaskState.CHECKING]

    # Operators

    async def submit(self, task: TaskSpec, *, token: str, actor: str) -> TaskRecord:
        """Return a new running task, or the one that the token made before; raises ConfigError, NotFoundError."""
        model_id = await self._checked_model(task)
        record = TaskRecord(
            task_id=TaskId(secret_hex(8)),
            name=task.name,
            population=PopulationId(task.population),
            task_json=task_to_json(task),
            idempotency_token=token,
            state=TaskState.RUNNING,
            base_model_id=model_id,
            model_id=model_id,
            submitted_by=actor,
            created_ms=to_ms(self._clock.now()),
        )
        return await asyncio.shield(asyncio.create_task(self._submitted(record), name="submission"))

    async def _submitted(self, record: TaskRecord) -> TaskRecord:
        """Return a task that is kept and runs from then on, also if its submitter goes away in between."""
        kept = await self._stores.thread.run(self._stores.store.add_task, record)
        if kept.task_id == record.task_id:
            await self._begin(kept)
            self._arrivals.beat()
        return kept

    async def _checked_model(self, task: TaskSpec) -> ModelId:
        """Return the model that a task begins with, once everything that it names is there and may be used."""
        thread, store = self._stores.thread, self._stores.store
        model_id = ModelId(task.model_id)
        if model_id == "released":
            release = await thread.run(store.released, PopulationId(task.population))
            if release is None:
                raise NotFoundError("no model is released yet; run model import and model release first")
            model_id = release.model_id
        if unknown := [name for name in task.gates.sets if name not in self._settings.evaluation_sets]:
            known = ", ".join(self._settings.evaluation_sets) or "none"
            raise ConfigError(f"gates.sets names {unknown[0]!r}; the coordinator's evaluation sets: {known}")
        model = await thread.run(store.model, model_id)
        if model.removed_ms is not None:
            raise NotFoundError("that model's parameters were given up (keep_round_models); name another one")
        plan = plan_task(task, model.spec_json, public_shard=model.shard)
        for other in [await thread.run(store.model, name) for name in plan.requirements.other_models]:
            check_comparable(model, other)
        # What the population's ledger would refuse is refused now, before phones are asked for anything.
        await TaskLedger(TaskId("0" * 16), plan, store, thread).ask(RoundNumber(1), AttemptNumber(1), model_id)
        return model_id

    async def command(self, task_id: TaskId, state: TaskState, *, actor: str) -> TaskRecord:
        """Return a task after it was paused, resumed or cancelled; again changes nothing, and what is over stays so.

        Raises UnreachableError while an error has stopped the task and it is not picked up yet.
        """
        running, is_heard = self._tasks.get(task_id), False
        if running is not None:
            try:
                await running.command(state, "" if state is TaskState.RUNNING else f"by {actor}", actor)
                is_heard = True
            except LateError:
                _LOG.info("command came after the end", task_id=task_id)
        task = await self._stores.thread.run(self._stores.store.task, task_id)
        if not is_heard and not task.state.is_over:
            raise UnreachableError("the task is being picked up; try again", retry_after_s=5.0)
        return task

    async def watch(self, task_id: TaskId) -> AsyncIterator[TaskNews]:
        """Yield a task's history so far, then each change, until it is over."""
        thread, store = self._stores.thread, self._stores.store
        await thread.run(store.task, task_id)
        pulse = self._tasks_changed.setdefault(task_id, Pulse())
        seen: dict[RoundId, RoundRecord] = {}
        told: TaskNews | None = None
        while True:
            count = pulse.count
            task = await thread.run(store.task, task_id)  # before its rounds, so that these are never older
            since = min((id_ for id_, record in seen.items() if not record.stage.is_over), default=max(seen, default=0))
            for record in await thread.run(store.rounds, task_id, since_id=since):
                if seen.get(record.id) != record:
                    seen[record.id] = record
                    yield self.news(task, record)
            if (news := self.news(task)) != told:
                told = news
                yield news
            if task.state.is_over:
                return
            if self.is_draining:
                raise DrainingError("the coordinator is shutting down; watch again", retry_after_s=2.0)
            await pulse.after(count)

    def tasks_now(self) -> list[TaskNow]:
        """Return where each running task's round is, for monitoring: one for each cohort that it has in flight."""
        found: list[TaskNow] = []
        for task in self._tasks.values():
            cohorts = [_task_now(cohort) for cohort in task.cohorts]
            found += [now for now in cohorts if now.stage != _IDLE] or cohorts[:1]
        return found


async def _withdraw(cohort: Cohort, device_id: DeviceId) -> None:
    """Take a device out of those that a round may choose from."""
    with contextlib.suppress(LateError, UnreachableError):  # there is no such round any more
        await cohort.post(Withdrew(device_id))


async def _withdraw_candidate(cohort: Cohort, device_id: DeviceId) -> None:
    """Take a device out of those that a round may choose from, where it is one of them."""
    if cohort.attempt is not None and device_id in cohort.attempt.state.candidates:
        await _withdraw(cohort, device_id)


def _wake_followers(task: Task) -> None:
    for cohort in task.cohorts:
        if cohort.attempt is not None:
            cohort.attempt.changed.beat()


def _why_not(caller: Caller, cohorts: Sequence[Cohort]) -> str:
    """Return why tasks that want devices of the caller's role are not for this one; nothing where one is."""
    plans = [cohort.side.plan for cohort in cohorts]
    if too_small := [plan for plan in plans if not caller.agrees_to_sums_of(plan)]:
        most = max(too_small, key=lambda plan: fewest_hidden(plan.task))
        aside = " besides its sources" if most.task.cohort.min_labelled else ""
        takes = f", which takes {fewest}" if (fewest := caller.fewest(most)) > caller.min_cohort else ""
        return (
            f"a task here opens sums over {fewest_hidden(most.task)} devices{aside}, and this device's owner agreed to "
            f"{caller.min_cohort} or more{takes}; to take part, lower --min-cohort"
        )
    beyond = next((plan for plan in plans if not caller.can_do(plan)), None)
    if beyond is None:
        if any(cohort.leaves_out(caller.device_id) for cohort in cohorts):
            return (
                "this device is in as many sums of a task here as the task may put it into, or sums with it failed; it "
                "is left out of the next one"
            )
        has_room = [caller.has_room_for(each.side.plan, each.task.record.model_id) for each in cohorts]
        if all(has_room):
            return ""
        return (
            "this device's pictures are in as many sums as its owner lets them, over the model that a task trains here "
            "or of a day; it is asked for the next model, or tomorrow"
        )
    backbone = beyond.spec.backbone
    if caller.can_train(beyond) or not caller.engines:
        what = f"method {beyond.task.method} and backbone {backbone}"
        return f"a task here needs {what}, and this device's program does not have both; upgrade mien on it"
    what = beyond.requirements.objective
    aim = f" with objective {what}" if what and backbone in caller.backbones else ""
    return (
        f"a task here trains {backbone}{aim}, which this device cannot with {', '.join(caller.engines)}: it needs the "
        "graphs of a signed release of that model (mien-device update), or another --runtime"
    )


def _is_for(caller: Caller, cohort: Cohort) -> bool:
    """Return whether a device may be offered to a cohort that looks for devices."""
    side = cohort.side
    if side.role is not caller.role or not cohort.wants_devices or cohort.bars(caller.device_id):
        return False
    if not caller.agrees_to_sums_of(side.plan) or not _has_share(caller, cohort):
        return False
    if not caller.has_room_for(side.plan, cohort.task.record.model_id):
        return False
    return caller.can_do(side.plan)


def _has_share(caller: Caller, cohort: Cohort) -> bool:
    """Return whether a device is in the share of them that a task asks."""
    return place(caller.device_id, cohort.task.record.base_model_id) < cohort.side.plan.requirements.share


def _task_now(cohort: Cohort) -> TaskNow:
    task, attempt = cohort.task.record, cohort.under_way
    if attempt is None:
        return TaskNow(task.name, task.population, _IDLE, {}, cohort.queue_length)
    state = attempt.state
    devices = Counter(step.value for step in state.participants.values()) + Counter(waiting=len(state.candidates))
    devices += Counter(waiting_labelled=len(state.labelled & state.candidates.keys()))
    return TaskNow(task.name, task.population, state.stage.value, devices, cohort.queue_length)


def _news(record: RoundRecord, state: RoundState, message: bytes = b"") -> StageNews:
    return StageNews(
        name=record.ref,
        stage=state.stage,
        deadline=state.deadline,
        reason=state.reason,
        model_id=ModelId(record.model_id or "" if state.stage is Stage.CLOSED else ""),
        num_reports=record.num_reports if state.stage is Stage.CLOSED else 0,
        message=message,
    )
