"""The devices' side of the account, kept apart from the coordinator's, and the comparison of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from coordinator.rounds.states import read_theta
from coordinator.store import account
from coordinator.store.blobs import BlobStore
from coordinator.store.store import Store
from coordinator.store.tables import PRIVACY_EVENTS
from mien.errors import MienError
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import AttemptNumber, DeviceId, RoundNumber, TaskId
from mien.protocol.rounds import Stage
from mien.rounds.machine import COUNTED
from mien.rounds.records import RoundRecord
from mien.specs import TaskSpec
from simulation.testing import THETA, contribution
from tests.integration.test_rounds import expected_theta


class Attempt(NamedTuple):
    """One attempt of one round of a task."""

    task_id: TaskId
    round: RoundNumber
    attempt: AttemptNumber


def true_contribution(task: TaskSpec, device_id: DeviceId, attempt: Attempt) -> bytes:
    """Return what a device has to say in an attempt: it follows from nothing else, so it can be made again."""
    return contribution(task, int(device_id[:8], 16), attempt.round, attempt.attempt)


@dataclass
class Ledger:
    """What devices were told: which uploads were acknowledged, and how their rounds ended."""

    acknowledged: dict[Attempt, set[DeviceId]] = field(default_factory=dict)
    endings: dict[tuple[Attempt, DeviceId], str] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)

    def acknowledge(self, attempt: Attempt, device_id: DeviceId) -> None:
        """Note that the coordinator said: your contribution counts."""
        self.acknowledged.setdefault(attempt, set()).add(device_id)

    def ended(self, attempt: Attempt, device_id: DeviceId, ending: str) -> None:
        """Note how a device was told that its round ended: closed, aborted, or late (it went on without the device)."""
        before = self.endings.setdefault((attempt, device_id), ending)
        if before != ending:
            self.contradictions.append(f"{attempt}: told {before} first and {ending} later")

    def untold(self) -> list[tuple[Attempt, DeviceId]]:
        """Return the acknowledged uploads of whose round's end their device has not heard."""
        everybody = ((attempt, device) for attempt, devices in self.acknowledged.items() for device in sorted(devices))
        return [each for each in everybody if each not in self.endings]

    @property
    def num_acknowledged(self) -> int:
        """How many uploads were acknowledged."""
        return sum(map(len, self.acknowledged.values()))


@dataclass
class _Progress:
    """How far a task's history was checked."""

    task: TaskSpec
    theta: Any
    model_ids: list[str]
    checked: set[int] = field(default_factory=set)


class Auditor:
    """Compares the coordinator's account with the devices', round after round; what does not hold is kept in words."""

    def __init__(self, ledger: Ledger, say: Callable[[str], None] = lambda _text: None) -> None:
        self._ledger, self._say = ledger, say
        self._tasks: dict[TaskId, _Progress] = {}
        self.lost: list[str] = []
        self.wrong: list[str] = []
        self.num_closed: Counter[str] = Counter()
        self.num_aborted: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    def follow(self, store: Store, task_id: TaskId) -> None:
        """Begin to check a task that has just been submitted."""
        record = store.task(task_id)
        self._tasks[task_id] = _Progress(task_from_json(record.task_json), THETA, [record.base_model_id])

    def check(self, store: Store, models: BlobStore) -> list[RoundRecord]:
        """Check every attempt that is over and was not checked before; return those that are open.

        Of a task in asynchronous mode attempts are only counted: in what order their sums were applied is checked at
        the end (`check_end`).
        """
        still_open = []
        for task_id, progress in self._tasks.items():
            for record in store.rounds(task_id):
                if record.id in progress.checked:
                    continue
                if record.stage.is_over:
                    # Before anything is noted: the object store may be away.
                    self._check_round(store, progress, record, self._theta(store, models, record))
                    progress.checked.add(record.id)
                else:
                    still_open.append(record)
        return still_open

    @staticmethod
    def _theta(store: Store, models: BlobStore, record: RoundRecord) -> Any:
        model_id = record.model_id
        return None if model_id is None else read_theta(models, store.model(model_id).theta)

    def _check_round(self, store: Store, progress: _Progress, record: RoundRecord, found: Any) -> None:
        name = progress.task.name
        if record.stage is Stage.ABORTED:
            self.num_aborted[name] += 1
            self.reasons[f"{name}: {record.reason}"] += 1
            return
        self.num_closed[name] += 1
        if progress.task.asynchronous is None:
            self._check_closed(store, progress, record, found)

    def _check_closed(self, store: Store, progress: _Progress, record: RoundRecord, found: Any) -> None:
        """Check one closed round: who is in its sum, on what it stands, and the model that it made."""
        attempt = Attempt(record.task_id, record.round, record.attempt)
        steps = store.participants(record.id)
        members = sorted(device for device, step in steps.items() if step in COUNTED)
        for device in sorted(self._ledger.acknowledged.get(attempt, set()) - set(members)):
            self._accuse(self.lost, f"{attempt}: {device} was acknowledged and is not in the sum ({steps.get(device)})")
        if len(members) != record.num_reports or len(members) < progress.task.cohort.min_reports:
            self._accuse(self.wrong, f"{attempt}: the report says {record.num_reports}, {len(members)} are in the sum")
        is_next = progress.task.asynchronous is not None or record.round == len(progress.model_ids)
        if record.model_id is None or found is None or not is_next:
            self._accuse(self.wrong, f"{attempt} closed after round {len(progress.model_ids) - 1}")
            return
        if not 0 <= record.base_version < len(progress.model_ids):
            self._accuse(self.wrong, f"{attempt} began from model {record.base_version}, which was not there")
            return
        if record.base_model_id != progress.model_ids[record.base_version]:
            self._accuse(self.wrong, f"{attempt} began from another model than it says")
        self._check_sum(progress, attempt, members, found, behind=len(progress.model_ids) - 1 - record.base_version)
        progress.model_ids.append(record.model_id)

    def _check_sum(
        self, progress: _Progress, attempt: Attempt, members: list[DeviceId], found: Any, *, behind: int
    ) -> None:
        """Compare the model with the plain weighted mean of exactly the members' contributions.

        That of a cohort whose base is `behind` models old weighs 1/sqrt(1 + behind).
        """
        task = progress.task
        uploads = [true_contribution(task, device, attempt) for device in members]
        step = (expected_theta(progress.theta, task, uploads) - progress.theta) / np.sqrt(1.0 + behind)
        error = float(np.abs(found - progress.theta - step).max())
        if behind and task.asynchronous is None:
            self._accuse(self.wrong, f"{attempt} is {behind} models behind")
        if not error <= tolerance(task):
            self._accuse(self.wrong, f"{attempt}: the model is off by {error:.3g}")
        progress.theta = found

    def check_end(self, store: Store, models: BlobStore) -> None:
        """Compare the whole account once every task is over: endings, audit log, privacy ledger, blobs."""
        self.check(store, models)
        for task_id, progress in self._tasks.items():
            if progress.task.asynchronous is not None:
                self._check_cohorts(store, models, task_id, progress)
        for attempt, device in self._ledger.untold():
            self._accuse(self.lost, f"{attempt}: {device} never heard how it ended")
        for (attempt, device), ending in self._ledger.endings.items():
            self._check_ending(store, attempt, device, ending)
        for text in self._ledger.contradictions:
            self._accuse(self.wrong, text)
        self._check_logs(store)
        self._check_blobs(store, models)

    def _check_cohorts(self, store: Store, models: BlobStore, task_id: TaskId, progress: _Progress) -> None:
        """Check the closed rounds of a task in asynchronous mode in the order in which the audit log has them."""
        for entry in store.audit(lambda log, db: log.read(db)):
            if entry.action == "round.closed" and entry.subject.startswith(f"{task_id}/"):
                _, number, attempt = entry.subject.split("/")
                record = store.round(task_id, RoundNumber(int(number)), AttemptNumber(int(attempt)))
                assert record is not None
                self._check_closed(store, progress, record, self._theta(store, models, record))

    def _check_ending(self, store: Store, attempt: Attempt, device: DeviceId, ending: str) -> None:
        record = store.round(*attempt)
        if record is None:
            self._accuse(self.lost, f"{attempt} is not in the store, and {device} was told of it")
            return
        counts = store.participants(record.id).get(device) in COUNTED
        was_acknowledged = device in self._ledger.acknowledged.get(attempt, ())
        if ending == "closed" and not (record.stage is Stage.CLOSED and counts):
            self._accuse(self.wrong, f"{attempt}: {device} was told that it counts; {record.stage}")
        if ending == "aborted" and record.stage is not Stage.ABORTED:
            self._accuse(self.wrong, f"{attempt}: {device} was told aborted; {record.stage}")
        if ending == "late" and was_acknowledged and record.stage is Stage.CLOSED:
            self._accuse(self.lost, f"{attempt}: {device} was acknowledged, and told later that it is late")

    def _check_logs(self, store: Store) -> None:
        """The audit log and the privacy ledger hold, and have every end and every opened sum once."""
        store.audit(lambda log, db: log.verify(db))
        entered = Counter(
            (entry.action, entry.subject) for entry in store.audit(lambda log, db: log.read(db)) if "/" in entry.subject
        )
        for task_id, progress in self._tasks.items():
            opened = store.privacy(lambda db, task_id=task_id: _openings(db, task_id))  # type: ignore[misc]
            for record in store.rounds(task_id):
                subject = f"{task_id}/{record.round}/{record.attempt}"
                for stage in (Stage.CLOSED, Stage.ABORTED):
                    if entered[f"round.{stage}", subject] != (record.stage is stage):
                        self._accuse(self.wrong, f"the audit log does not have the end of {subject} once")
                in_ledger = opened[record.round, record.attempt]
                if in_ledger > 1 or (record.stage is Stage.CLOSED and in_ledger != 1):
                    self._accuse(self.wrong, f"the privacy ledger has {subject} {in_ledger} times")
            store.privacy(lambda db, name=progress.task.population: account.load(db, name))  # type: ignore[misc]
            if store.task(task_id).model_id != progress.model_ids[-1]:
                self._accuse(self.wrong, f"the task {progress.task.name} does not stand at its last round's model")

    def _check_blobs(self, store: Store, models: BlobStore) -> None:
        """Every model that the store names can be read, whole."""
        for sha256 in sorted(store.model_blobs()):
            try:
                models.read(sha256)
            except MienError as error:
                self._accuse(self.wrong, error.message)

    def _accuse(self, among: list[str], text: str) -> None:
        among.append(text)
        self._say(text)


def tolerance(task: TaskSpec) -> float:
    """Return how far a model may be from the exact mean: float32, and under masks one step of the rounding."""
    if not task.privacy.is_masked:
        return 2e-6
    steps = 2**31 / (task.cohort.size * task.privacy.max_weight) - 1
    return float(2.0 ** -np.floor(np.log2(steps)) + 1e-6)


def _openings(db: sa.Connection, task_id: str) -> Counter[tuple[int, int]]:
    mine = sa.select(PRIVACY_EVENTS.c.round, PRIVACY_EVENTS.c.attempt).where(PRIVACY_EVENTS.c.task_id == task_id)
    return Counter((row.round, row.attempt) for row in db.execute(mine))
