"""Log of private sums on a device: the last attempt that it began, and every sum that it is or may be in.

An encrypted file of its own, beside the gallery: removing people, or the whole gallery, does not undo what left the
device. Each method is one transaction, on stable storage before it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal

from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.vault import Reader, Record, Vault, VaultKind, Writer
from mien.dp.ledger import Participation, check_device, may_take_part
from mien.errors import BudgetExceededError, ReplayError
from mien.protocol.ids import PopulationId, RoundNumber
from mien.secagg import AttemptId, Mechanism, RoundConfig
from mien.secagg.noise import release
from mien.specs import DpSpec

KIND: Final = VaultKind(
    label="attempts",
    tables=("begun", "participations"),
    what="the log of private sums",
    repair="restore the whole home folder from one copy, or join again in an empty folder",
)

Budget = Callable[[RoundConfig, Sequence[RoundConfig]], None]
"""Raises BudgetExceededError unless one more sum is covered; told its terms, then those of all sums so far."""


class Progress(IntEnum):
    """Progress of the last attempt of a task."""

    BEGUN = 0
    MASKED = 1
    UNMASKED = 2


def promised(dp: DpSpec, max_epsilon: float | None) -> Budget:
    """Return the budget that a task promises this device, and the owner's own limit where there is one.

    A promised epsilon is over all tasks of the population, and the smallest one holds: the noised sums that this device
    was in are composed, whatever their tasks were called. The owner's limit is over every sum that it was in since its
    home was made.
    """

    def check(terms: RoundConfig, earlier: Sequence[RoundConfig]) -> None:
        check_promise(dp, [sum_.round for sum_ in earlier if sum_.task_id == terms.task_id], terms.round)
        if max_epsilon is not None:
            check_device([_participation(sum_) for sum_ in earlier], _participation(terms), max_epsilon=max_epsilon)
        _check_population(terms, earlier)

    return check


def _check_population(terms: RoundConfig, earlier: Sequence[RoundConfig]) -> None:
    """Raise BudgetExceededError for a sum after which a promise that this population's tasks made would not hold.

    A sum without noise keeps no promise: after one was made, none is taken part in any more. The coordinator's ledger
    refuses the same (`mien.dp.ledger`); this is the phone's own count, which a coordinator that lies cannot change.
    """
    noised = [sum_ for sum_ in earlier if sum_.noise.mechanism is not Mechanism.NONE]
    promising = noised if terms.noise.mechanism is Mechanism.NONE else [*noised, terms]
    past, coming = [_participation(sum_) for sum_ in noised], _participation(terms)
    for epsilon, delta in sorted({(sum_.noise.target_epsilon, sum_.noise.delta) for sum_ in promising}):
        try:
            # Terms carry epsilon and delta in float32, and sums of many costs round: neither is a broken promise.
            check_device(past, coming, max_epsilon=epsilon * (1 + 1e-6), delta=delta)
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"the tasks of this phone's population promised epsilon {epsilon:.4g} at delta {delta:.3g} over all "
                f"their sums, and one more after {len(noised)} with noise would break it; it stays out of this one"
            ) from error


def check_promise(dp: DpSpec, past_rounds: Sequence[RoundNumber], round_number: RoundNumber) -> None:
    """Raise BudgetExceededError for a round that would put this device into more sums than the task promises it."""
    if not may_take_part(dp, past_rounds, round_number):
        raise BudgetExceededError(
            f"this phone is in {len(past_rounds)} sums of this task already, which promised it at most "
            f"{dp.max_participations}, {dp.min_separation} rounds apart; it stays out of this one"
        )


def _participation(terms: RoundConfig) -> Participation:
    """Return the privacy accountant's record of a sum under these terms."""
    noise = terms.noise
    if noise.mechanism is Mechanism.NONE:
        return Participation()
    name: Literal["central_gaussian", "skellam"] = (
        "skellam" if noise.mechanism is Mechanism.SKELLAM else "central_gaussian"
    )
    told = DpSpec(name, noise.noise_multiplier, noise.target_epsilon, noise.delta, max_participations=1)
    return Participation.of(release(terms, told))


def unlimited(terms: RoundConfig, earlier: Sequence[RoundConfig]) -> None:
    """Permit every sum."""


class Attempts:
    """An open log for one population: the `mien.secagg.AttemptLog` of a device.

    `budget` is asked in `begin`, before anything is remembered or sent.
    """

    def __init__(self, vault: Vault, population: PopulationId, *, budget: Budget = unlimited) -> None:
        self._vault, self._population, self._budget = vault, population, budget

    @classmethod
    def open(cls, path: Path, key_store: KeyStore, population: PopulationId) -> Attempts:
        """Return the log in `path`, empty where there is none; errors as `Vault.open`."""
        return cls(Vault.open(path, key_store, KIND), population)

    def under(self, budget: Budget) -> Attempts:
        """Return the same log, which asks `budget` before it begins an attempt."""
        return Attempts(self._vault, self._population, budget=budget)

    def rotate_key(self) -> None:
        """Seal everything anew under new keys and destroy the old ones; errors as `Vault.rotate_key`."""
        self._vault.rotate_key()

    def close(self) -> None:
        """Close the file."""
        self._vault.close()

    def begin(self, config: RoundConfig) -> None:
        """Remember an attempt, later than every other of its task.

        Raises ReplayError for one that is not, BudgetExceededError where the budget does not cover one more sum.
        """
        attempt = config.attempt_id
        with self._vault.writing() as change:
            last = _last(change, attempt)
            if last is not None and attempt.order <= _terms(last).attempt_id.order:
                raise ReplayError(f"round {attempt.round}, attempt {attempt.attempt} is not new here; check in again")
            self._budget(config, self._participations(change))
            change.delete("begun", tag=_tag(attempt))
            change.insert("begun", bytes([Progress.BEGUN]) + config.to_bytes(), person=0, tag=_tag(attempt))

    def record_masked(self, attempt: AttemptId) -> None:
        """Count one more participation: from here on the server may learn a sum with this device in it."""
        with self._vault.writing() as change:
            begun = self._advance(change, attempt, Progress.MASKED)
            change.insert("participations", begun.content[1:], person=0, tag=self._population)

    def record_unmasked(self, attempt: AttemptId) -> None:
        """Remember that shares go out; raises ReplayError if they did before."""
        with self._vault.writing() as change:
            self._advance(change, attempt, Progress.UNMASKED)

    def has_begun(self, attempt: AttemptId) -> bool:
        """Return whether an attempt, or a later one of its task, was begun: after a restart its keys are gone."""
        with self._vault.reading() as view:
            last = _last(view, attempt)
            return last is not None and attempt.order <= _terms(last).attempt_id.order

    def participations(self) -> tuple[RoundConfig, ...]:
        """Return the terms of every sum of the population that this device is or may be in, oldest first."""
        with self._vault.reading() as view:
            return self._participations(view)

    def _participations(self, view: Reader) -> tuple[RoundConfig, ...]:
        records = view.select("participations", tag=self._population)
        return tuple(RoundConfig.from_bytes(record.content) for record in records)

    def _advance(self, change: Writer, attempt: AttemptId, to: Progress) -> Record:
        """Move the attempt one step on, once; raises ReplayError for any other step."""
        last = _last(change, attempt)
        if last is None or _terms(last).attempt_id != attempt or last.content[0] != to - 1:
            raise ReplayError("this device has gone past this step of the attempt; check in again")
        change.replace(last, bytes([to]) + last.content[1:])
        return last


def _last(view: Reader, attempt: AttemptId) -> Record | None:
    return next(view.select("begun", tag=_tag(attempt)), None)


def _terms(record: Record) -> RoundConfig:
    return RoundConfig.from_bytes(record.content[1:])


def _tag(attempt: AttemptId) -> str:
    return attempt.task_id.hex()
