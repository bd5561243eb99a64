"""Taking part in training: one round as numbered steps, each of which may be repeated after a crash.

What a round must not lose or half-change is settled as follows. A device's private state (such as its class embedding)
and its contribution are stored together, encrypted, before the device reports that it trained. A restart sends those
very bytes. The private state replaces the old one only when the coordinator has said that the round closed with this
device's contribution in its sum; a round that aborts, goes on without the device or is unknown leaves it as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Protocol

from device_sdk.client import Assignment, CoordinatorClient, Progress, RoundRef, Stage, StageEvent, Wait
from device_sdk.clock import Clock
from device_sdk.disclosure import check_agreed, disclosure
from device_sdk.gallery import Gallery, Pending, Person, consent_ended
from device_sdk.models import Model, ModelStore
from device_sdk.recogniser import fit_crops
from mien.contribution import ContributionLayout
from mien.errors import (
    ConfigError,
    CorruptDataError,
    LateError,
    LayoutMismatchError,
    MienError,
    ModelMismatchError,
    NonFiniteError,
    NotFoundError,
    ReplayError,
    UnavailableError,
)
from mien.layout import ParameterPart
from mien.methods import METHODS
from mien.methods.base import DeviceInput, DeviceOutput, Method, Runtime
from mien.records import from_mapping
from mien.specs import TaskSpec
from mien.wire.tensors import unpack_tensors

MAX_PAUSE_S: Final = 3600.0
FAILED_PAUSE_S: Final = 60.0


class Conditions(Protocol):
    """Whether the phone may work now."""

    def unmet(self) -> tuple[str, ...]:
        """Return what is missing ("charging"), nothing when the phone may work."""
        ...


@dataclass(frozen=True)
class StatedConditions:
    """Conditions as options state them, for machines that have no battery to ask."""

    idle: bool = True
    charging: bool = True
    unmetered: bool = True

    def unmet(self) -> tuple[str, ...]:
        """Return the names of the conditions that do not hold."""
        return tuple(name for name in ("idle", "charging", "unmetered") if not getattr(self, name))


@dataclass(frozen=True)
class Agreement:
    """What the owner agreed to: see `device_sdk.config.ParticipationConfig`."""

    min_cohort: int = 16
    allow_reveal: frozenset[str] = frozenset()
    person: str = ""


@dataclass(frozen=True)
class Event:
    """Something that the owner may want to see: a stable `kind`, a sentence, and the facts behind it."""

    kind: str
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """How far a download or upload is."""

    what: str
    done_bytes: int
    total_bytes: int


Listener = Callable[[Event | Transfer], None]


def transfer(tell: Listener, what: str) -> Progress:
    """Return a progress callback that tells of a transfer."""
    return lambda done, total: tell(Transfer(what, done, total))


@dataclass(frozen=True)
class Counted:
    """The round closed with this device's contribution in its sum."""

    round: RoundRef
    model_id: str
    num_reports: int


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


RoundOutcome = Counted | NotCounted
Step = RoundOutcome | Wait | NotNow

# What the server or the update itself says against a round that this device can simply leave behind.
_ROUND_IS_OVER: Final = (LateError, NotFoundError, ReplayError)
_UPDATE_IS_BAD: Final = (LayoutMismatchError, CorruptDataError, NonFiniteError)


@dataclass(frozen=True)
class Plan:
    """An assignment with all that follows from it on this device."""

    assignment: Assignment
    person: Person
    method: Method
    model: Model
    part: ParameterPart
    layout: ContributionLayout


@dataclass(frozen=True)
class Participant:
    """A device that takes part in rounds. `runtime_for` gives the runtime that trains a model."""

    client: CoordinatorClient
    gallery: Gallery
    models: ModelStore
    agreement: Agreement
    conditions: Conditions
    runtime_for: Callable[[Model], Runtime]
    tell: Listener = lambda _event: None

    def step(self) -> Step:
        """Take part in one round, or return why not now.

        Raises ConfigError for a task that the owner has not agreed to, UnreachableError when the coordinator stays
        away: then what was trained is kept, and the next call goes on with it.
        """
        # 1. May the phone work now?
        if unmet := self.conditions.unmet():
            return NotNow(unmet)
        # 2. A round that this device trained for before it was stopped comes first.
        if (pending := self.gallery.pending()) is not None:
            self.tell(Event("resumed", f"Going on with {_ref(pending)}, which this phone has trained for."))
            return self._finish(pending)
        # 3. Is there work?
        person = self._person()
        answer = self.client.check_in(())
        if isinstance(answer, Wait):
            return answer
        self.tell(
            Event(
                "assigned",
                f"Chosen for {answer.round} of task {answer.task.name!r} ({answer.task.method}).",
                {"task": answer.task.name, "round": answer.round.round, "attempt": answer.round.attempt},
            )
        )
        return self._take_part(answer, person)

    def _take_part(self, assignment: Assignment, person: Person) -> RoundOutcome:
        ref = assignment.round
        try:
            # 4. Model and public faces, by hash; is the task what the owner agreed to, and what this program knows?
            plan = self._plan(assignment, person)
            # 5. Say what leaves the phone, before anything does.
            floor = self.agreement.min_cohort
            for sentence in disclosure(assignment.task, plan.layout, num_images=person.num_images, min_cohort=floor):
                self.tell(Event("disclosure", sentence))
            if unmet := self.conditions.unmet():
                raise LateError(f"the phone is no longer {' and '.join(unmet)}; it leaves the round")
            # 6. Train.
            output = self._train(plan)
            # 7. Keep what was made, before anyone is told.
            pending = Pending(
                person_id=person.id,
                task_id=ref.task_id,
                round=ref.round,
                attempt=ref.attempt,
                contribution=output.contribution.to_bytes(),
                private=output.private,
            )
            self.gallery.keep_pending(pending)
        except UnavailableError:
            raise
        except MienError as error:
            self._leave(ref, error)
            if isinstance(error, _ROUND_IS_OVER):
                return self._not_counted(ref, error.code, error.message)
            raise
        # 8. Report, wait for the upload stage, upload, wait for the end, forget.
        return self._finish(pending)

    def _plan(self, assignment: Assignment, person: Person) -> Plan:
        task = assignment.task
        method = METHODS.get(task.method)
        if method is None:
            raise ConfigError(f"task {task.name!r} uses method {task.method!r}, unknown to this program; upgrade mien")
        from_mapping(method.options, task.options, where="options.")
        # The floor and the reveals need no model: refuse before megabytes are fetched.
        check_agreed(task, _NOTHING, min_cohort=self.agreement.min_cohort, allow_reveal=self.agreement.allow_reveal)
        model = self._fetch(assignment.model_id)
        part = model.layout.part(task.trainable or model.spec.trainable or ("*",))
        layout = method.contribution_layout(task, part, model.spec.input.dim)
        check_agreed(task, layout, min_cohort=self.agreement.min_cohort, allow_reveal=self.agreement.allow_reveal)
        if layout.sha256 != assignment.contribution_sha256:
            raise LayoutMismatchError(
                f"task {task.name!r} expects a contribution of form {assignment.contribution_sha256[:12]}, this "
                f"program would send {layout.sha256[:12]}; upgrade the older of the two"
            )
        return Plan(assignment, person, method, model, part, layout)

    def _fetch(self, model_id: str) -> Model:
        if self.models.has(model_id):
            return self.models.load(model_id)
        manifest = self.client.manifest(model_id)
        if manifest.model_id != model_id:
            raise ModelMismatchError("the coordinator sent another model than it assigned; tell the operator")
        self.tell(
            Event(
                "fetching",
                f"Fetching model {model_id[:12]} ({self.models.size_to_fetch(manifest) / 1e6:.1f} MB).",
                {"model_id": model_id},
            )
        )
        fetched = self.models.fetch(self.client, manifest, progress=transfer(self.tell, "model"))
        # Every round begins with another model; only the gallery's is needed besides.
        self.models.keep_only([kept for kept in (self.gallery.model_id, model_id) if kept])
        return fetched

    def _train(self, plan: Plan) -> DeviceOutput:
        task, person, spec = plan.assignment.task, plan.person, plan.model.spec.input
        shard = self.models.load_shard(plan.model)
        reply = plan.assignment.reply
        self.tell(Event("training", f"Training on {person.num_images} images."))
        output = plan.method.device_round(
            DeviceInput(
                task=task,
                part=plan.part,
                dim=spec.dim,
                theta=plan.model.theta,
                crops=fit_crops(self.gallery.training_crops(person.name), spec),
                private=self.gallery.private_state(person.id, plan.assignment.round.task_id),
                reply=unpack_tensors(reply, what="the coordinator's reply") if reply else {},
                public_crops=shard.crops if shard else None,
                public_labels=shard.labels if shard else None,
                seed=self._seed(task, plan.assignment.round),
            ),
            self.runtime_for(plan.model),
        )
        if output.contribution.layout.sha256 != plan.layout.sha256:
            raise LayoutMismatchError("training gave a contribution of another form than was announced; upgrade mien")
        self.tell(Event("trained", "Trained.", dict(output.metrics)))
        return output

    def _finish(self, pending: Pending) -> RoundOutcome:
        """Bring a round that this device trained for to its end, from wherever it is."""
        ref = _ref(pending)
        try:
            counts = self.client.upload_accepted(ref)
            if not counts:
                self.client.report_trained(ref)
            with closing(self.client.follow(ref)) as events:
                for event in events:
                    if event.stage is Stage.UPLOAD and not counts:
                        if not self.gallery.is_pending(pending):
                            return self._withdraw(pending, consent_ended())
                        self._upload(ref, pending.contribution)
                        counts = True
                    elif event.stage is Stage.ABORTED:
                        return self._settle_uncounted(pending, "aborted", event.reason)
                    elif event.stage is Stage.CLOSED and counts:
                        return self._settle_counted(pending, event)
        except _ROUND_IS_OVER as error:
            return self._settle_uncounted(pending, error.code, error.message)
        except _UPDATE_IS_BAD:
            # Sending the same again cannot help, and a defect must be seen.
            self.gallery.settle(pending, counted=False)
            raise
        return self._settle_uncounted(pending, LateError.code, "the round closed without this phone's contribution")

    def _upload(self, ref: RoundRef, contribution: bytes) -> None:
        self.tell(Event("uploading", f"Uploading {len(contribution) / 1e6:.1f} MB."))
        self.client.upload(ref, contribution, progress=transfer(self.tell, "update"))
        self.tell(Event("uploaded", "The coordinator has it and counts it."))

    def _settle_counted(self, pending: Pending, event: StageEvent) -> Counted:
        ref = _ref(pending)
        self.gallery.settle(pending, counted=True)
        text = f"{ref} closed with {event.num_reports} contributions, this phone's among them."
        facts = {"round": ref.round, "model_id": event.model_id, "num_reports": event.num_reports}
        self.tell(Event("counted", text[0].upper() + text[1:], facts))
        return Counted(ref, event.model_id, event.num_reports)

    def _withdraw(self, pending: Pending, error: MienError) -> NotCounted:
        """Leave a round whose person changed their mind after training: its update stays here, and is gone already."""
        self._leave(_ref(pending), error)
        return self._not_counted(_ref(pending), error.code, error.message)

    def _settle_uncounted(self, pending: Pending, code: str, reason: str) -> NotCounted:
        self.gallery.settle(pending, counted=False)
        return self._not_counted(_ref(pending), code, reason)

    def _not_counted(self, ref: RoundRef, code: str, reason: str) -> NotCounted:
        text = f"{ref} ended without this phone's contribution ({reason}); nothing is lost."
        self.tell(Event("not_counted", text[0].upper() + text[1:], {"round": ref.round, "code": code}))
        return NotCounted(ref, code, reason)

    def _leave(self, ref: RoundRef, error: MienError) -> None:
        """Tell the coordinator not to wait for this device; if it cannot be told, the round's deadline tells it."""
        try:
            self.client.leave(ref, error)
        except (UnavailableError, *_ROUND_IS_OVER) as unheard:
            self.tell(Event("leave_unheard", f"The coordinator was not told ({unheard.message})."))

    def _person(self) -> Person:
        """Return whose images train; raises ConfigError when nobody agreed, or several did and none is named."""
        if self.agreement.person:
            return self.gallery.person(self.agreement.person)
        agreed = [person for person in self.gallery.people() if person.trains]
        if not agreed:
            raise ConfigError(
                "nobody enrolled has agreed to training; when somebody does, run "
                "`mien-device gallery consent NAME --give`"
            )
        if len(agreed) > 1:
            raise ConfigError(f"{len(agreed)} people agreed to training; name one with --person")
        return agreed[0]

    def _seed(self, task: TaskSpec, ref: RoundRef) -> int:
        """Return the seed of a local round: another one for every device and attempt, the same after a restart."""
        text = f"{self.client.identity.device_id}/{ref.task_id}/{task.seed}/{ref.round}/{ref.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def take_part(
    current: Callable[[], Participant],
    clock: Clock,
    *,
    rounds: int | None,
    idle_s: float | None,
    after_round: Callable[[RoundOutcome], None] = lambda _outcome: None,
) -> Iterator[RoundOutcome]:
    """Yield the outcome of each round, until `rounds` of them counted or there was no work for `idle_s`.

    With neither, it goes on until it is stopped, also after a round whose update was no good. Pauses are the
    coordinator's; unmet conditions are looked at again every half minute and end the loop at once where `rounds` or
    `idle_s` is given. `current` is asked before every step, so that a certificate can be renewed in between.
    """
    counted, since_s = 0, clock.monotonic_s()
    while rounds is None or counted < rounds:
        participant = current()
        try:
            outcome = participant.step()
        except _UPDATE_IS_BAD as error:
            if rounds is not None or idle_s is not None:
                raise
            # A phone that is left to itself must outlive a task that is no good: the next one may be.
            participant.tell(Event("task_failed", f"{error.message} The phone looks again in {FAILED_PAUSE_S:.0f} s."))
            clock.sleep(FAILED_PAUSE_S)
            continue
        if isinstance(outcome, Counted | NotCounted):
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
            if rounds is not None or idle_s is not None:
                return
        else:
            pause_s = min(max(outcome.retry_after_s, 0.2), MAX_PAUSE_S)
            participant.tell(Event("waiting", f"Nothing to do ({outcome.reason}).", {"retry_after_s": pause_s}))
        if idle_s is not None and idle_for_s + pause_s > idle_s:
            return
        clock.sleep(pause_s)


def _ref(pending: Pending) -> RoundRef:
    return RoundRef(pending.task_id, pending.round, pending.attempt)


_NOTHING: Final = ContributionLayout(())
