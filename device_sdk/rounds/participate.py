"""Taking part in training: one round as numbered steps, each of which may be repeated after a crash.

What a round must not lose or half-change is settled as follows. A device's private state (such as its class embedding)
and its contribution are stored together, encrypted, before the device reports that it trained. A restart sends those
very bytes. The private state replaces the old one only when the coordinator has said that the round closed with this
device's contribution in its sum; a round that aborts, goes on without the device or is unknown leaves it as it was.

Under secure aggregation (`device_sdk.rounds.masked`) a restart sends the same bytes only until the device has begun to
speak of keys: those live in memory, so a device that was stopped after that leaves the attempt. One whose masked vector
was accepted is in the sum all the same: it follows the round to its end. Where the coordinator went out of reach the
keys wait, and the next call goes on with them while the process lasts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from device_sdk.faces.crops import fit_crops
from device_sdk.faces.source import SourceFaces
from device_sdk.models.abilities import UNSAID, Abilities
from device_sdk.models.models import Model, check_face_input
from device_sdk.people.enrolled import consent_ended
from device_sdk.people.round_terms import Asked, SumTerms
from device_sdk.people.trained import Pending
from device_sdk.rounds.attempts import (
    ANY_PICTURES,
    DAY_S,
    OwnSum,
    SumLimits,
    UsedUp,
    check_in_clear,
    check_promise,
    promised,
)
from device_sdk.rounds.budget import MannerlyRuntime, TrainingBudget
from device_sdk.rounds.conditions import Conditions
from device_sdk.rounds.disclosure import (
    Agreement,
    check_agreed,
    check_kind,
    is_agreed,
)
from device_sdk.rounds.events import Event, Listener, transfer
from device_sdk.rounds.judging import Judged, check_apart, check_can_judge, check_role, judge, stage_of
from device_sdk.rounds.masked import STAGES, MaskedPart, PlainPart, Upload, WaitingKeys
from device_sdk.rounds.ports import RoundModels, SumLog, TrainingGallery
from device_sdk.rounds.round_log import RoundLog
from device_sdk.rounds.training_people import Pool, RoundFaces, pool_of
from device_sdk.rounds.watch import TrainingWatch
from device_sdk.rounds.work import JUDGING, Work, work_of
from device_sdk.server.client import Assignment, CoordinatorClient, StageEvent
from device_sdk.server.offers import Manifest
from mien.contribution import Arrays, ContributionLayout
from mien.errors import (
    AuthError,
    BudgetExceededError,
    CertificateError,
    CohortError,
    ConfigError,
    CorruptDataError,
    InputError,
    LateError,
    LayoutMismatchError,
    MienError,
    ModelMismatchError,
    NonFiniteError,
    NotFoundError,
    ReplayError,
    StorageError,
    UnavailableError,
    UnreachableError,
    ViolationError,
)
from mien.layout import ParameterPart
from mien.methods import METHODS, find_method
from mien.methods.base import (
    DeviceInput,
    DeviceOutput,
    Method,
    Runtime,
    reply_names,
    shared_words,
    why_idle,
)
from mien.protocol.admission import admitted_unix_s
from mien.protocol.ids import DeviceId, ModelId
from mien.protocol.replies import check_reply, longest_reply
from mien.protocol.revocations import RevocationList
from mien.protocol.rounds import Role, RoundRef, Stage, Wait
from mien.protocol.tensors import unpack_tensors
from mien.records import from_mapping
from mien.secagg.keys import RandomBytes
from mien.secagg.planner import RoundIds
from mien.shell.clock import Clock
from mien.shell.keys import secret_bytes
from mien.specs import ModelSpec, TaskSpec

MAX_PAUSE_S: Final = 3600.0
LONGEST_WAIT_S: Final = 86400.0
"""A coordinator spreads a large population over hours; a day later the phone looks again, whatever it was told."""
FAILED_PAUSE_S: Final = 60.0
DEVICE_SECRET_BYTES: Final = 32
ENOUGH_SUMS_PAUSE_S: Final = 60.0
"""After this a phone asks again, whose pictures are in enough sums over the model that it was asked to train."""


def fetch_model(client: CoordinatorClient, models: RoundModels, unverified: Manifest, tell: Listener) -> Model:
    """Return a model, fetching what is not stored yet, and tell of that."""
    text = f"Fetching model {unverified.model_id[:12]} ({models.size_to_fetch(unverified) / 1e6:.1f} MB)."
    tell(Event("fetching", text, {"model_id": unverified.model_id}))
    return models.fetch(client, unverified, progress=transfer(tell, "model"))


@dataclass(frozen=True)
class Counted:
    """The round closed with this device's contribution in its sum.

    `peers` says by which rule peers counted, where the owner asks for an age.
    """

    round: RoundRef
    model_id: ModelId
    num_reports: int
    peers: str = ""


@dataclass(frozen=True)
class NotCounted:
    """The round ended without this device's contribution; nothing is lost. `code` is "aborted" or an error's code."""

    round: RoundRef
    code: str
    reason: str


@dataclass(frozen=True)
class NotNow:
    """The phone may not work now: `unmet` conditions."""

    unmet: tuple[str, ...]


@dataclass(frozen=True)
class Failed:
    """The device left a round for a reason that somebody should see; nothing is lost, and the next task may be better.

    The task asks for what the owner has not agreed to or this program does not know, its update was no good, or the
    other side broke the rules.
    """

    round: RoundRef
    error: MienError


RoundOutcome = Counted | NotCounted
Step = RoundOutcome | Failed | Wait | NotNow

# What is said against a round that this device can simply leave behind.
_ROUND_IS_OVER: Final = (LateError, NotFoundError, ReplayError, CohortError)
# What the server says against this device's part of a round: sending the same again cannot help.
_PART_IS_BAD: Final = (LayoutMismatchError, CorruptDataError, NonFiniteError, ViolationError)


@dataclass(frozen=True)
class Plan:
    """An assignment with all that follows from it on this device; `task` is the assignment's as its own sum sees it.

    `others` are the models that the task names beside the round's.
    """

    assignment: Assignment
    task: TaskSpec
    pool: Pool
    method: Method
    model: Model
    part: ParameterPart
    layout: ContributionLayout
    work: Work
    others: tuple[Model, ...] = ()

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the reply arrays that all devices of the round are told alike."""
        return self.work.shared(self.method, self.task)


@contextmanager
def _defects_named() -> Iterator[None]:
    """Raise CorruptDataError for a defect of the computation inside, naming its class alone: its text may hold data.

    What a server tells may have the right form and still be such that arithmetic fails on it; that costs this device a
    round, and must not end the program that takes part in rounds.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise CorruptDataError(
            f"this phone's part of the round failed ({type(error).__name__}) on what the task and its server told; the "
            "phone leaves the round; tell the operator, and upgrade mien if it happens in every round"
        ) from None


def local_seed(device_id: DeviceId, task: TaskSpec, ref: RoundRef) -> int:
    """Return the seed of a local round: another one for every device and attempt, the same after a restart."""
    text = f"{device_id}/{ref.task_id}/{task.seed}/{ref.round}/{ref.attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Participant:
    """A device that takes part in rounds. `runtime_for` gives the runtime that trains a model.

    With a `source` its faces train instead of the gallery's people. `role` is what this device offers: to train, or to
    judge candidates on faces that do not. `budget` is what a round's training may take. `abilities` are what the
    coordinator is told that this device can train. `random_bytes` and `local_seed`
    are where chance comes in: keys, masks and rounding from the one, batches and mirrored images from the other.
    In `waiting` keys of a sum that the network cut off wait for the next step, be it another object's.
    Without a `log` no round is looked up in the log of rounds, and no peer in the list of revoked ones: nobody told
    this device whose signature to ask for.
    """

    client: CoordinatorClient
    gallery: TrainingGallery
    models: RoundModels
    agreement: Agreement
    conditions: Conditions
    runtime_for: Callable[[Model], Runtime]
    attempts: SumLog
    clock: Clock
    tell: Listener = lambda _event: None
    random_bytes: RandomBytes = secret_bytes
    source: SourceFaces | None = None
    local_seed: Callable[[DeviceId, TaskSpec, RoundRef], int] = local_seed
    role: Role = Role.TRAIN
    budget: TrainingBudget = field(default_factory=TrainingBudget)
    abilities: Abilities = UNSAID
    log: RoundLog | None = None
    waiting: WaitingKeys = field(default_factory=WaitingKeys)

    def step(self) -> Step:
        """Take part in one round, or return why not now.

        Raises ConfigError while nobody's images may train, or can judge, UnreachableError when the coordinator stays
        away: then what was trained is kept, and the next call goes on with it.
        """
        # 1. May the phone work now?
        if unmet := self.conditions.unmet():
            return NotNow(unmet)
        # 2. A round that this device trained for before it was stopped comes first.
        if (pending := self.gallery.pending()) is not None:
            self.tell(Event("resumed", f"Going on with {pending.ref}, which this phone has trained for."))
            return self._finish(pending)
        self.waiting.let_go()  # of what is not pending any more
        # 3. Is there work?
        pool = pool_of(self.gallery, self.agreement.person, self.source)
        methods = [name for name, method in METHODS.items() if is_agreed(method, self.agreement)]
        if self.role is Role.VALIDATE:
            check_can_judge((METHODS[name] for name in methods), pool.labels)
        used_up = self._used_up(pool, methods)
        answer = self.client.check_in(
            self.abilities.backbones,
            min_cohort=self.agreement.min_cohort,
            role=self.role,
            methods=methods,
            engines=self.abilities.engines,
            parts=self.abilities.parts,
            labelled=pool.source is not None,
            used_up_models=used_up.models,
            used_up_day=used_up.day,
        )
        if isinstance(answer, Wait):
            return answer
        text = f"Chosen for {answer.round} of task {answer.task.name!r} ({answer.task.method})."
        facts = {"task": answer.task.name, "round": answer.round.round, "attempt": answer.round.attempt}
        self.tell(Event("assigned", text, facts))
        return self._take_part(answer, pool)

    def _take_part(self, assignment: Assignment, pool: Pool) -> RoundOutcome | Failed | Wait:
        ref = assignment.round
        try:
            # 4. Model and public faces, by hash; is the task what the owner agreed to, and what this program knows?
            plan = self._plan(assignment, pool)
            terms = self._terms(plan)
            # 5. Say what leaves the phone, before anything does.
            for sentence in self._disclosure(plan):
                self.tell(Event("disclosure", sentence))
            if unmet := self.conditions.unmet():
                raise LateError(f"the phone is no longer {' and '.join(unmet)}; it leaves the round")
            # 6. Train, or judge what others trained, on a statement that the log holds for all to see.
            faces = plan.pool.faces(self.gallery, ref.task_id, plan.method)
            check_apart(self.role, faces.private, plan.method, faces.roles)
            if terms is not None:
                # Sums of scores and sums of updates have no difference that tells of either.
                pictures = faces.pictures if plan.method.trains else hashlib.sha256(b"scores" + faces.pictures).digest()
                terms = replace(terms, pictures=pictures.hex())
                if (waits := self._waits_for_another_model(terms, ref)) is not None:
                    return waits
            told = self._told(plan)
            if (wait := self._look_up(plan, told)) is not None:
                return wait
            with _defects_named():
                output = self._do(plan, faces, told)
            # 7. Keep what was made, before anyone is told.
            pending = Pending(
                people=faces.people,
                task_id=ref.task_id,
                round=ref.round,
                attempt=ref.attempt,
                contribution=output.contribution.to_bytes(),
                private=output.private,
                terms=None if terms is None else replace(terms, shared=shared_words(told, plan.shared).hex()),
                per_identity=plan.method.per_identity,
                source=faces.source,
                asked=Asked(plan.task, plan.layout),
                role=self.role,
            )
            self.gallery.keep_pending(pending, faces.crops if faces.source else None)
        except UnavailableError:
            raise
        except MienError as error:
            return self._refuse(ref, error)
        # 8. Report, say what each stage asks for, wait for the end, forget.
        return self._finish(pending)

    def _terms(self, plan: Plan) -> SumTerms | None:
        """Return the plan's terms for a private sum; None where the task's sums are plain.

        Raises BudgetExceededError for one sum more than the task promised this device; asked again when the sum begins.
        For a plain one also after a promise that the population's tasks made.
        """
        task = plan.task
        if not task.privacy.is_masked:
            check_in_clear(self.attempts.sums())
            return None
        shard = plan.model.public_shard
        public_shard = "" if shard is None else shard.sha256
        terms = SumTerms(task, plan.model.model_id, plan.model.spec, plan.layout, public_shard=public_shard)
        coming = terms.attempt_id(plan.assignment.round)
        earlier = [sum_.terms.round for sum_ in self.attempts.sums() if sum_.terms.task_id == coming.task_id]
        check_promise(task, earlier, coming.round)
        return terms

    def _look_up(self, plan: Plan, told: Arrays) -> Wait | None:
        """Return None once the log of rounds holds what this device was told of the round, a pause while it may yet.

        Raises TransparencyError where it does not.
        """
        if self.log is None:
            return None
        ref, model, shard = plan.assignment.round, plan.model, plan.model.public_shard
        ids = RoundIds.of(
            *(plan.task, ref.task_id, ref.round, ref.attempt, model.spec, model.model_id),
            public_shard="" if shard is None else shard.sha256,
            shared=shared_words(told, plan.shared),
        )
        found = self.log.check(self.client, ref, ids.entry(plan.task, plan.layout))
        if isinstance(found, Wait):
            return found
        if found:
            self.tell(Event("uncosigned", found))
        return None

    def _waits_for_another_model(self, terms: SumTerms, ref: RoundRef) -> Wait | None:
        """Leave a round whose sum would be one too many for these pictures, before anything is trained for it.

        Nothing is wrong with the task or the phone, so this is no failure; asked again when the sum begins.
        """
        coming = OwnSum(terms.planned(ref), bytes.fromhex(terms.pictures), int(self.clock.now()))
        try:
            self._limits(terms).check(coming, self.attempts.sums())
        except BudgetExceededError as error:
            self._leave(ref, error)
            return Wait(ENOUGH_SUMS_PAUSE_S, error.message)
        return None

    def _used_up(self, pool: Pool, methods: Sequence[str]) -> UsedUp:
        """Return what the owner's limits leave no room for, of rounds of these methods.

        Sums of a device that was in this home before, until its key was lost, are left out: they would tell who it was.
        """
        training = [METHODS[name] for name in methods if METHODS[name].trains]
        limits = SumLimits(self.agreement.max_sums_per_model, self.agreement.max_sums_per_day)
        try:
            joined_unix_s = admitted_unix_s(self.client.identity.certificate)
            sums = [sum_ for sum_ in self.attempts.sums() if sum_.unix_s >= joined_unix_s]
            return limits.used_up(sums, lambda: pool.pictures(self.gallery, training), int(self.clock.now()))
        except (ConfigError, CorruptDataError):
            # Somebody withdrew just now, or the log is damaged: that counts where a round asks for one more sum.
            return UsedUp()

    def _limits(self, terms: SumTerms) -> SumLimits:
        """Return the owner's limits for one more sum; models are measured again and again, by sums of scores."""
        per_model = self.agreement.max_sums_per_model if find_method(terms.task.method).trains else None
        return SumLimits(per_model, self.agreement.max_sums_per_day)

    def _disclosure(self, plan: Plan) -> tuple[str, ...]:
        images, floor, people = plan.pool.num_images, self.agreement.min_cohort, plan.pool.num_people
        return plan.work.disclose(plan.task, plan.layout, num_images=images, min_cohort=floor, num_people=people)

    def _plan(self, assignment: Assignment, pool: Pool) -> Plan:
        check_role(assignment.role, self.role)
        task = assignment.task
        method = METHODS.get(task.method)
        if method is None:
            raise ConfigError(f"task {task.name!r} uses method {task.method!r}, unknown to this program; upgrade mien")
        from_mapping(method.options, task.options, where="options.")
        work = work_of(self.role, method)
        task = work.task(method, task)
        # What the task itself says needs no model: refuse before megabytes are fetched.
        check_agreed(task, _NOTHING, self.agreement)
        check_kind(method, task, self.agreement)
        whole, pool = pool, pool.narrowed(method)
        if pool.num_people < whole.num_people:
            (person,) = pool.people
            agreed = f"{whole.num_people} people agreed to training, and method {method.name} trains on one's pictures"
            self.tell(
                Event(
                    "narrowed", f"{agreed}: on {person.name}'s, enrolled first. `participation.person` names another."
                )
            )
        model, *others = self._models(assignment.model_id, *method.requirements(task).other_models)
        check_face_input(model.spec, self._spec_in_use())
        part = model.layout.part(task.trainable or model.spec.trainable or ("*",))
        layout = work.layout(method, assignment.task, part, model.spec.input.dim)
        check_agreed(task, layout, self.agreement)
        if layout.sha256 != assignment.contribution_sha256:
            raise LayoutMismatchError(
                f"task {task.name!r} expects a contribution of form {assignment.contribution_sha256[:12]}, this "
                f"program would send {layout.sha256[:12]}; upgrade the older of the two"
            )
        return Plan(assignment, task, pool, method, model, part, layout, work, tuple(others))

    def _models(self, *model_ids: ModelId) -> list[Model]:
        """Return the models of a round, the assigned one first, fetching those that are not here."""
        missing = [model_id for model_id in model_ids if not self.models.has(model_id)]
        for model_id in missing:
            self._fetch(model_id)
        if missing:  # every round begins with another model; only the gallery's is needed besides
            self.models.keep_only(self._needed(model_ids))
        found = [self.models.load(model_id) for model_id in model_ids]
        if len({model.layout.sha256 for model in found}) > 1:
            raise LayoutMismatchError("the task names models of different architectures; tell the operator")
        return found

    def _spec_in_use(self) -> ModelSpec | None:
        in_use = self.gallery.model_id
        return None if in_use is None or not self.models.has(in_use) else self.models.known(in_use).spec

    def _needed(self, model_ids: Sequence[ModelId]) -> Iterator[str]:
        """Yield the models of a round, then the gallery's, which is looked up as late as that: it may be going over."""
        yield from model_ids
        if (in_use := self.gallery.model_id) is not None:
            yield in_use

    def _fetch(self, model_id: ModelId) -> None:
        unverified = self.client.manifest(model_id)
        if unverified.model_id != model_id:
            raise ModelMismatchError("the coordinator sent another model than it assigned; tell the operator")
        fetch_model(self.client, self.models, unverified, self.tell)

    def _do(self, plan: Plan, faces: RoundFaces, told: Arrays) -> DeviceOutput:
        """Return the output of the plan's work, telling when it begins and ends."""
        work = plan.work
        self.tell(Event(work.name, f"{work.begins} on {len(faces.crops)} images."))
        output = (self._judge if work is JUDGING else self._run)(plan, faces, told)
        self.tell(Event(work.done, f"{work.done.capitalize()}.", dict(output.metrics)))
        return output

    def _run(self, plan: Plan, faces: RoundFaces, told: Arrays) -> DeviceOutput:
        """Return the output of the method's device half for this device's faces."""
        task, spec, device_id = plan.task, plan.model.spec.input, self.client.identity.device_id
        shard = self.models.load_shard(plan.model)
        # Rows by number are left out where a number is another's now.
        rows = () if faces.is_continued else plan.method.per_identity
        inp = DeviceInput(
            task=task,
            part=plan.part,
            dim=spec.dim,
            theta=plan.model.theta,
            crops=fit_crops(faces.crops, spec),
            labels=faces.labels,
            private=faces.private,
            reply={name: values for name, values in told.items() if name not in rows},
            public_crops=shard.crops if shard else None,
            public_labels=shard.labels if shard else None,
            secret=self.random_bytes(DEVICE_SECRET_BYTES),
            seed=self.local_seed(device_id, task, plan.assignment.round),
            device=device_id,
            models={other.model_id: other.theta for other in plan.others},
        )
        output = self._watched_round(plan, inp)
        if why := why_idle(output):
            self.tell(Event("trained_nothing", f"Training changed nothing on this phone: {why}."))
        if output.contribution.layout.sha256 != plan.layout.sha256:
            raise LayoutMismatchError("training gave a contribution of another form than was announced; upgrade mien")
        return output

    def _judge(self, plan: Plan, faces: RoundFaces, told: Arrays) -> DeviceOutput:
        """Return this device's scores of the candidates that it was told."""
        task, crops = plan.assignment.task, fit_crops(faces.crops, plan.model.spec.input)
        work = Judged(task, plan.part, plan.model.theta, told, crops, faces.labels, faces.private)
        return judge(stage_of(plan.method, task), work, self.runtime_for(plan.model))

    def _told(self, plan: Plan) -> Arrays:
        """Return the server's reply to this device; raises CorruptDataError for one that no method can give."""
        what, assignment = "what the method tells this phone", plan.assignment
        task, dim = assignment.task, plan.model.spec.input.dim
        most = longest_reply(plan.method.contribution_layout(task, plan.part, dim).size)
        unverified, blob = [assignment.unverified_reply], assignment.reply_stream
        if blob is not None:
            self.tell(Event("fetching", f"Fetching {what} ({blob.size_bytes / 1e6:.1f} MB)."))
            progress = transfer(self.tell, "reply")
            unverified.append(
                self.client.download_reply(assignment.round, blob, most_bytes=most, what=what, progress=progress)
            )
        unverified_reply = {
            name: values for each in unverified if each for name, values in unpack_tensors(each, what=what).items()
        }
        return check_reply(unverified_reply, names=reply_names(plan.shared, plan.layout), most_bytes=most)

    def _watched_round(self, plan: Plan, inp: DeviceInput) -> DeviceOutput:
        """Return the output of the method's device half; raises LateError as soon as the round or the owner is past it.

        Raises ConfigError where training would take more than the owner gives.
        """
        ref, budget = plan.assignment.round, self.budget

        def tell_pause(kind: str, text: str) -> None:
            self.tell(Event(kind, text, {"round": ref.round}))

        def tell_progress(done: int, total: int) -> None:
            self.tell(Event("progress", f"Trained {done} of {total} steps.", {"steps_done": done, "steps": total}))

        watch = TrainingWatch(
            self.client, ref, self.conditions, self.clock, max_training_s=budget.max_training_s, tell=tell_pause
        )
        runtime = MannerlyRuntime(
            self.runtime_for(plan.model),
            plan.model.spec.backbone,
            watch,
            self.clock,
            max_memory_mb=budget.max_memory_mb,
            tell=tell_progress,
        )
        try:
            return plan.method.device_round(inp, runtime)
        except LateError as error:
            raise (watch.error or error) from error

    def _finish(self, pending: Pending) -> RoundOutcome | Failed:
        """Bring a round that this device trained for to its end, from wherever it is."""
        ref = pending.ref
        try:
            counts = self.client.upload_accepted(ref)
            held, disagreed = self.waiting.take(ref), None
            is_keyless = held is None and not counts and self._has_begun(pending)
            if not counts and not is_keyless:
                with self._holding(held):
                    disagreed = self._disagreed(pending)
            keys_gone = LateError("this phone was stopped in the middle of the private sum, and its keys are gone")
            if held is None and counts and pending.terms is not None:
                # Its vector is in; that it cannot help to uncover the sum should keep nobody waiting.
                self._leave(ref, keys_gone)
            elif is_keyless:
                return self._refuse(ref, keys_gone, pending)
            elif disagreed is not None:
                if held is not None:
                    held.forget()
                outcome = self._settle_uncounted(pending, disagreed.code, disagreed.message)
                self._leave(ref, disagreed)
                return outcome
            if held is None and not counts:
                self.client.report_trained(ref)
                self.tell(Event("reported", "Waiting until enough other phones have done their part."))
            with closing(self.client.follow(ref)) as events:
                return self._follow(pending, events, held, counts=counts)
        except _ROUND_IS_OVER as error:
            return self._settle_uncounted(pending, error.code, error.message)
        except _PART_IS_BAD as error:
            return self._refuse(ref, error, pending)

    @contextmanager
    def _holding(self, held: MaskedPart | None) -> Iterator[None]:
        """Hold keys for the next call again where a block, which only asks, fails."""
        try:
            yield
        except MienError:
            if held is not None:
                self.waiting.hold(held)
            raise

    def _disagreed(self, pending: Pending) -> InputError | None:
        """Return why the owner, as this program was started now, does not agree to send what it trained; None if so.

        Raises what keeps it from knowing: a disk or key store that fails for a moment has refused nothing.
        """
        try:
            if pending.asked is None:
                raise ConfigError("an earlier version of this program trained for it, under an agreement now unknown")
            check_agreed(pending.asked.task, pending.asked.layout, self.agreement)
            check_kind(find_method(pending.asked.task.method), pending.asked.task, self.agreement)
            if pending.role is not self.role:
                raise ConfigError(f"it was to {pending.role.value}, and this phone is now to {self.role.value} only")
            pool = pool_of(self.gallery, self.agreement.person, self.source)
            source = "" if pool.source is None else pool.source.id
            if source != pending.source or not set(pending.people) <= {person.id for person in pool.people}:
                raise ConfigError("other faces than `participation.person` or `source` now names were used for it")
        except InputError as error:
            return error
        return None

    def _follow(
        self, pending: Pending, events: Iterator[StageEvent], held: MaskedPart | None, *, counts: bool
    ) -> RoundOutcome | Failed:
        """Answer each stage until the round is over; `counts` tells whether the upload was accepted before.

        Errors are the server's; what this device itself finds wrong is an outcome. Where the server is out of reach
        the keys of a sum under way wait for the next call: others wait for what only they can say.
        """
        try:
            # Without its keys a contribution that counts already leaves nothing to say.
            part = held or (PlainPart(b"") if counts else self._part(pending))
        except (CertificateError, CohortError) as error:
            return self._refuse(pending.ref, error, pending)
        with ExitStack() as at_end:
            at_end.callback(part.forget)
            try:
                return self._answer(pending, events, part, counts=counts)
            except UnavailableError:
                if isinstance(part, MaskedPart) and part.is_under_way:
                    self.waiting.hold(part)
                    at_end.pop_all()
                raise

    def _answer(
        self, pending: Pending, events: Iterator[StageEvent], part: PlainPart | MaskedPart, *, counts: bool
    ) -> RoundOutcome | Failed:
        while (event := _heard(events, part, counts=counts)) is not None:
            if event.stage is None:
                continue  # one that a newer server has: nothing to say
            if event.stage is Stage.ABORTED:
                return self._settle_uncounted(pending, "aborted", event.reason)
            if event.stage is Stage.CLOSED and counts:
                return self._settle_counted(pending, event, part.peers)
            if not counts and event.stage in STAGES and not self.gallery.is_pending(pending):
                return self._withdraw(pending, consent_ended())
            try:
                answer = part.answer(event.stage, event.unverified_message)
            except MienError as error:
                return self._refuse(pending.ref, error, pending)
            counts |= self._say(pending.ref, event.stage, answer, counts=counts)
        return self._settle_uncounted(pending, LateError.code, "the round closed without this phone's contribution")

    def _part(self, pending: Pending) -> PlainPart | MaskedPart:
        terms = pending.terms
        if terms is None:
            return PlainPart(pending.contribution)
        return MaskedPart(
            identity=self.client.identity,
            log=self.attempts.under(
                promised(terms.task, self.agreement.max_epsilon, self._limits(terms)),
                bytes.fromhex(terms.pictures) or ANY_PICTURES,
            ),
            min_cohort=self.agreement.min_cohort,
            min_peer_age_s=DAY_S * self.agreement.min_peer_age_days,
            counts_attested=self.agreement.count_attested_peers,
            is_revoked=self._revoked(),
            clock=self.clock,
            random_bytes=self.random_bytes,
            terms=terms,
            ref=pending.ref,
            contribution=pending.contribution,
        )

    def _revoked(self) -> Callable[[int], bool]:
        """Return whom the registrar has revoked, by its list, which the coordinator hands on.

        Raises CertificateError for a list that is not the registrar's, CohortError for an old one.
        """
        if self.log is None:
            return lambda _serial: False
        revoked = RevocationList.parse(self.client.revocations(), self.client.identity.registrar_ca)
        revoked.check_age(self.clock.now())
        return revoked.names

    def _has_begun(self, pending: Pending) -> bool:
        """Return whether this device has sent keys that it no longer has."""
        return pending.terms is not None and self.attempts.has_begun(pending.terms.attempt_id(pending.ref))

    def _say(self, ref: RoundRef, stage: Stage, answer: bytes | Upload | None, *, counts: bool) -> bool:
        """Send a stage's answer, if there is one; returns whether that was the contribution, now accepted."""
        if isinstance(answer, bytes):
            if stage in _TOLD:
                self.tell(Event("sum", _TOLD[stage]))
            self._send_step(ref, stage, answer, counts=counts)
        elif isinstance(answer, Upload) and not counts:
            self._upload(ref, answer)
            return True
        return False

    def _send_step(self, ref: RoundRef, stage: Stage, answer: bytes, *, counts: bool) -> None:
        """Send a message of a private sum. Once the vector is in, being late with one does not take it out again."""
        try:
            self.client.send_step(ref, stage, answer)
        except LateError:
            if not counts:
                raise

    def _upload(self, ref: RoundRef, upload: Upload) -> None:
        self.tell(Event("uploading", f"Uploading {len(upload.data) / 1e6:.1f} MB."))
        progress = transfer(self.tell, "update")
        self.client.upload(ref, upload.data, masked=upload.message, progress=progress)
        self.tell(Event("uploaded", "The coordinator has it and counts it."))

    def _settle_counted(self, pending: Pending, event: StageEvent, peers: str) -> Counted:
        ref = pending.ref
        if pending.terms is not None:
            self.attempts.record_closed(pending.terms.attempt_id(ref))
        self.gallery.settle(pending, counted=True)
        text = f"{ref} closed with {event.num_reports} contributions, this phone's among them."
        facts = {"round": ref.round, "model_id": event.model_id, "num_reports": event.num_reports}
        self.tell(Event("counted", text[0].upper() + text[1:], facts))
        if peers:
            self.tell(Event("peers", peers))
        return Counted(ref, event.model_id, event.num_reports, peers)

    def _withdraw(self, pending: Pending, error: MienError) -> NotCounted:
        """Leave a round whose person changed their mind after training: its update stays here, and is gone already."""
        self._leave(pending.ref, error)
        return self._not_counted(pending.ref, error.code, error.message)

    def _refuse(self, ref: RoundRef, error: MienError, pending: Pending | None = None) -> NotCounted | Failed:
        """Leave a round for an error of this device's own; raises one that no other round would be spared."""
        self._leave(ref, error)
        if pending is not None:
            self.gallery.settle(pending, counted=False)
        if isinstance(error, _ROUND_IS_OVER):
            return self._not_counted(ref, error.code, error.message)
        if isinstance(error, StorageError) or (pending is None and isinstance(error, AuthError)):
            raise error
        return Failed(ref, error)

    def _settle_uncounted(self, pending: Pending, code: str, reason: str) -> NotCounted:
        self.gallery.settle(pending, counted=False)
        return self._not_counted(pending.ref, code, reason)

    def _not_counted(self, ref: RoundRef, code: str, reason: str) -> NotCounted:
        text = f"{ref} ended without this phone's contribution ({reason}); nothing is lost."
        self.tell(Event("not_counted", text[0].upper() + text[1:], {"round": ref.round, "code": code}))
        return NotCounted(ref, code, reason)

    def _leave(self, ref: RoundRef, error: MienError) -> None:
        """Tell the coordinator not to wait for this device; without an answer, it waits until the round's deadline."""
        try:
            self.client.leave(ref, error)
        except (UnavailableError, *_ROUND_IS_OVER) as unheard:
            self.tell(Event("leave_unheard", f"The coordinator was not told ({unheard.message})."))


def _heard(events: Iterator[StageEvent], part: PlainPart | MaskedPart, *, counts: bool) -> StageEvent | None:
    """Return what is told next; None at the end.

    Where this phone's part `counts`, only the coordinator can say what became of it: a round that does not close, for a
    model before it is judged or a database is away, is asked about again later, as one out of reach, without keys. So
    is one that it calls late, which it then says of the upload too.
    """
    try:
        return next(events, None)
    except LateError as error:
        if not counts:
            raise
        part.forget()
        raise UnreachableError(
            "the coordinator takes long to end a round that this phone's part is in; it is asked again later"
        ) from error


@dataclass
class Failures:
    """Failures reported of rounds that a phone left to itself had to leave, and the pause after the next."""

    said: set[tuple[str, str]] = field(default_factory=set)
    in_a_row: int = 0

    def pause_after(self, failed: Failed, tell: Listener) -> float:
        """Report a failure, once for each task, and return the pause: a minute, doubled with every one in a row."""
        pause_s = min(FAILED_PAUSE_S * 2.0**self.in_a_row, MAX_PAUSE_S)
        self.in_a_row = min(self.in_a_row + 1, 32)
        if (failed.round.task_id, failed.error.code) not in self.said:
            self.said.add((failed.round.task_id, failed.error.code))
            text = f"{failed.error.message} The phone stays out of this task's round, and looks for others."
            tell(Event("task_failed", text, {"code": failed.error.code, "task_id": failed.round.task_id}))
        return pause_s

    def end(self) -> None:
        """A round went as it should: the next pause is short again."""
        self.in_a_row = 0


def take_part(
    current: Callable[[], Participant],
    clock: Clock,
    *,
    rounds: int | None,
    idle_s: float | None,
    after_round: Callable[[RoundOutcome], None] = lambda _outcome: None,
    on_wait: Callable[[Wait], bool] = lambda _wait: False,
) -> Iterator[RoundOutcome]:
    """Yield the outcome of each round, until `rounds` of them counted or there was no work for `idle_s`.

    With neither, it goes on until it is stopped, also after a round that it had to leave for a reason to be seen: that
    is said once, and it looks again after a pause that grows. Pauses are otherwise the coordinator's; unmet conditions
    are looked at again every half minute and end the loop at once where `rounds` or `idle_s` is given. `current` is
    asked before every step, so that a certificate can be renewed in between. `on_wait` is told of each check-in without
    work, and says whether it has changed what the next one will say: then that follows at once.
    """
    waits_for_somebody = rounds is not None or idle_s is not None
    counted, since_s, failures = 0, clock.monotonic_s(), Failures()
    while rounds is None or counted < rounds:
        participant = current()
        outcome = participant.step()
        if isinstance(outcome, Failed):
            if waits_for_somebody:
                raise outcome.error
            clock.sleep(failures.pause_after(outcome, participant.tell))
            continue
        if isinstance(outcome, Counted | NotCounted):
            failures.end()
            counted += isinstance(outcome, Counted)
            after_round(outcome)
            yield outcome
            since_s = clock.monotonic_s()
            continue
        idle_for_s = clock.monotonic_s() - since_s
        if isinstance(outcome, NotNow):
            text = f"The phone is not {' and not '.join(outcome.unmet)}: it does not take part now."
            participant.tell(Event("not_now", text, {"unmet": list(outcome.unmet)}))
            pause_s = 30.0
            if waits_for_somebody:
                return
        else:
            pause_s = min(max(outcome.retry_after_s, 0.2), LONGEST_WAIT_S)
            participant.tell(Event("waiting", f"Nothing to do ({outcome.reason}).", {"retry_after_s": pause_s}))
            if on_wait(outcome):
                continue
        if idle_s is not None and idle_for_s + pause_s > idle_s:
            return
        clock.sleep(pause_s)


_NOTHING: Final = ContributionLayout(())
_TOLD: Final = {
    Stage.KEYS: "Agreeing on masks with the other phones of the round.",
    Stage.UNMASK: "Giving out what uncovers the sum, and nothing else.",
}
