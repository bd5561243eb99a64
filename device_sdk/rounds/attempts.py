"""Log of private sums on a device: the last attempt that it began, and every sum that it is or may be in.

An encrypted file of its own, beside the gallery: removing people, or the whole gallery, does not undo what left the
device. Each method is one transaction, on stable storage before it returns.

Two sums that differ by one phone tell what that phone sent. So without noise of the phones' own the same pictures go
into few sums over one model, one unless the owner says otherwise, and into few a day, whatever their tasks are called.
Decision 0052 shows why it is enough to count a masked vector whose sum was not opened with this phone's help towards
other rounds, not towards the next attempt of the same one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal

from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.vault import Reader, Record, Vault, VaultKind, Writer
from mien.dp.accountant import Release
from mien.dp.ledger import check_device, may_take_part
from mien.errors import BudgetExceededError, CorruptDataError, ReplayError
from mien.methods import find_method
from mien.protocol.ids import ModelId, PopulationId, RoundNumber
from mien.secagg import AttemptId, Mechanism, RoundConfig
from mien.secagg.config import CONFIG_BYTES
from mien.secagg.noise import release
from mien.shell.clock import Clock, WallClock
from mien.specs import MOST_EPSILON, DpSpec, TaskSpec

KIND: Final = VaultKind(
    label="attempts",
    tables=("begun", "participations"),
    what="the log of private sums",
    repair="restore the whole home folder from one copy, or join again in an empty folder",
)

DAY_S: Final = 86400
MOST_MODELS: Final = 16
"""Models that a check-in says are used up, those of the newest sums: an older one is hardly trained again."""

_NOTE: Final = struct.Struct(">QB32s")
ANY_PICTURES: Final = bytes(32)
"""Pictures of a sum of which an earlier version of this program noted none: they may have been any."""


@dataclass(frozen=True)
class OwnSum:
    """A sum that this device is or may be in, or is about to be: its terms, and what went into it when.

    `pictures` is a hash of the pictures behind this device's part. `is_released` tells whether shares that open the sum
    went out from here, or its round closed. `population` stands beside the bytes, not in them.
    """

    terms: RoundConfig
    pictures: bytes = ANY_PICTURES
    unix_s: int = 0
    is_released: bool = True
    population: PopulationId | None = None

    @property
    def is_noised(self) -> bool:
        """Whether phones themselves add noise that hides one of them; what the coordinator promises to add does not."""
        noise = self.terms.noise
        return noise.mechanism is Mechanism.SKELLAM and noise.target_epsilon <= MOST_EPSILON

    def tried_again_by(self, coming: OwnSum) -> bool:
        """Return whether `coming` is a later attempt of this sum's round, and no shares for this one left here."""
        mine, other = self.terms, coming.terms
        same = (mine.task_id, mine.round) == (other.task_id, other.round) and mine.attempt < other.attempt
        return same and not self.is_released

    def may_hold(self, pictures: bytes) -> bool:
        """Return whether these pictures are, or may be, what went into it."""
        return self.pictures == pictures or ANY_PICTURES in (self.pictures, pictures)

    def to_bytes(self) -> bytes:
        """Return the terms' canonical bytes and a note of fixed size behind them."""
        return self.terms.to_bytes() + _NOTE.pack(self.unix_s, self.is_released, self.pictures)

    @classmethod
    def from_bytes(cls, data: bytes) -> OwnSum:
        """Return the sum in such bytes, or in the terms alone, as earlier versions kept them."""
        terms, note = RoundConfig.from_kept(data[:CONFIG_BYTES]), data[CONFIG_BYTES:]
        if not note:
            return cls(terms)
        if len(note) != _NOTE.size:
            raise CorruptDataError("the note of a private sum is damaged; restore the whole home folder from one copy")
        unix_s, is_released, pictures = _NOTE.unpack(note)
        return cls(terms, pictures, unix_s, bool(is_released))


Budget = Callable[[OwnSum, Sequence[OwnSum]], None]
"""Raises BudgetExceededError unless one more sum is covered; told that, then all sums so far, of any population."""


@dataclass(frozen=True)
class UsedUp:
    """What an owner's limits leave no room for: `models` to train, newest first; `day`, any sum without own noise."""

    models: tuple[ModelId, ...] = ()
    day: bool = False


@dataclass(frozen=True)
class SumLimits:
    """Most sums without noise of the phones' own: over one model with the same pictures, None without limit, and in 24
    hours.
    """

    per_model: int | None = 1
    per_day: int = 24

    def check(self, coming: OwnSum, earlier: Sequence[OwnSum]) -> None:
        """Raise BudgetExceededError for a sum more than the limits let this device's pictures into."""
        if coming.is_noised:
            return
        alike = [sum_ for sum_ in earlier if _differ_by_others(sum_, coming)]
        if self.per_model is not None and len(alike) >= self.per_model:
            raise BudgetExceededError(
                f"the same pictures are or may be in {len(alike)} {'sum' if len(alike) == 1 else 'sums'} over model "
                f"{coming.terms.model_sha256.hex()[:12]} already, and the difference of two can tell one phone's part; "
                "this phone waits for another model (participation.max_sums_per_model)"
            )
        today = sums_today([sum_ for sum_ in earlier if not sum_.tried_again_by(coming)], coming.unix_s)
        if today >= self.per_day:
            raise BudgetExceededError(
                f"this phone's pictures went into {today} sums in the last 24 hours, and the most is {self.per_day} "
                "(participation.max_sums_per_day); it waits"
            )

    def used_up(self, sums: Sequence[OwnSum], pictures: Callable[[], Collection[bytes]], now_unix_s: int) -> UsedUp:
        """Return what has no room for one more sum, whichever of `pictures` goes into it; asked for these if need be.

        Of `sums` those alone count that are known to be opened: what is not may be tried again, with this device.
        """
        opened = [sum_ for sum_ in sums if sum_.is_released and not sum_.is_noised]
        by_model = dict[bytes, list[OwnSum]]()
        for sum_ in opened:
            by_model.setdefault(sum_.terms.model_sha256, []).append(sum_)
        newest = sorted(by_model.items(), key=lambda each: (-max(sum_.unix_s for sum_ in each[1]), each[0]))
        full = [
            (model, there) for model, there in newest if self.per_model is not None and len(there) >= self.per_model
        ]
        mine = frozenset(pictures()) if full else frozenset()
        models = [
            ModelId(model.hex())
            for model, there in full
            if mine and all(sum(sum_.may_hold(each) for sum_ in there) >= (self.per_model or 0) for each in mine)
        ]
        return UsedUp(tuple(models[:MOST_MODELS]), sums_today(opened, now_unix_s) >= self.per_day)


def _differ_by_others(one: OwnSum, coming: OwnSum) -> bool:
    """Return whether the difference of two sums would leave this device's part out, and so tell of the others'."""
    if one.is_noised or one.terms.model_sha256 != coming.terms.model_sha256 or one.tried_again_by(coming):
        return False
    return one.may_hold(coming.pictures)


def used_up(sums: Sequence[OwnSum], per_model: int) -> str | None:
    """Return the model of the newest sum where that has had these pictures as often as the owner lets it, else None."""
    newest = max(sums, key=lambda sum_: sum_.unix_s, default=None)
    if newest is None or sum(_differ_by_others(sum_, newest) for sum_ in sums) < per_model:
        return None
    return newest.terms.model_sha256.hex()


def sums_today(sums: Sequence[OwnSum], now_unix_s: int) -> int:
    """Return the number of sums without noise of the phones' own that may have been opened in the last 24 hours.

    Attempts of one round of which no shares left here are one sum. A clock that was wrong counts for a day at most.
    """
    recent = [sum_ for sum_ in sums if not sum_.is_noised and abs(now_unix_s - sum_.unix_s) < DAY_S]
    released = [sum_ for sum_ in recent if sum_.is_released]
    return len(released) + len({(s.terms.task_id, s.terms.round) for s in recent if not s.is_released})


class Progress(IntEnum):
    """Progress of the last attempt of a task."""

    BEGUN = 0
    MASKED = 1
    UNMASKED = 2


def promised(task: TaskSpec, max_epsilon: float | None, limits: SumLimits = SumLimits()) -> Budget:
    """Return the budget that a task promises this device, and the owner's own limits.

    A promised epsilon is over all tasks of the population, and the smallest one holds: the noised sums that this device
    was in are composed, whatever their tasks were called. The owner's `max_epsilon` is over every sum that it was in
    since its home was made, `limits` over those that phones added no noise to.
    """

    def check(coming: OwnSum, sums: Sequence[OwnSum]) -> None:
        terms, here = coming.terms, [sum_ for sum_ in sums if sum_.population == coming.population]
        earlier = [sum_.terms for sum_ in here]
        check_promise(task, [sum_.round for sum_ in earlier if sum_.task_id == terms.task_id], terms.round)
        if max_epsilon is not None:
            check_device([_as_release(sum_.terms) for sum_ in sums], _as_release(terms), max_epsilon=max_epsilon)
        _check_population(terms, earlier)
        limits.check(coming, here)

    return check


def _check_population(terms: RoundConfig, earlier: Sequence[RoundConfig]) -> None:
    """Raise BudgetExceededError for a sum after which a promise that this population's tasks made would not hold.

    A sum without noise keeps no promise: after one was made, none is taken part in any more. The coordinator's ledger
    refuses the same (`mien.dp.ledger`); this is the phone's own count, which a coordinator that lies cannot change.
    """
    noised = [sum_ for sum_ in earlier if sum_.noise.mechanism is not Mechanism.NONE]
    promising = noised if terms.noise.mechanism is Mechanism.NONE else [*noised, terms]
    past, coming = [_as_release(sum_) for sum_ in noised], _as_release(terms)
    for epsilon, delta in sorted({(sum_.noise.target_epsilon, sum_.noise.delta) for sum_ in promising}):
        try:
            # Terms carry epsilon and delta in float32, and sums of many costs round: neither is a broken promise.
            check_device(past, coming, max_epsilon=epsilon * (1 + 1e-6), delta=delta)
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"the tasks of this phone's population promised epsilon {epsilon:.4g} at delta {delta:.3g} over all "
                f"their sums, and one more after {len(noised)} with noise would break it; it stays out of this one"
            ) from error


def check_in_clear(sums: Sequence[OwnSum]) -> None:
    """Raise BudgetExceededError for an update without masks after a promise that this population's tasks made.

    It is in no sum that could be counted, and would break the promise all the same.
    """
    noised = [sum_.terms.noise for sum_ in sums if sum_.terms.noise.mechanism is not Mechanism.NONE]
    if noised:
        least = min(noised, key=lambda noise: noise.target_epsilon)
        raise BudgetExceededError(
            f"the tasks of this phone's population promised epsilon {least.target_epsilon:.4g} at delta "
            f"{least.delta:.3g} over all their sums, and an update in clear would break it; it stays out of this round"
        )


def check_promise(task: TaskSpec, past_rounds: Sequence[RoundNumber], round_number: RoundNumber) -> None:
    """Raise BudgetExceededError for a round that would put this device into more sums than the task promises it.

    Where sums of all rounds add up that is one, whether it was opened or not: others may have opened it.
    """
    dp = task.privacy.dp
    if past_rounds and find_method(task.method).adds_up:
        raise BudgetExceededError(
            f"this phone is counted already, in round {past_rounds[0]} of this task, whose sums add up; it stays out "
            "of this one"
        )
    if not may_take_part(dp, past_rounds, round_number):
        raise BudgetExceededError(
            f"this phone is in {len(past_rounds)} sums of this task already, which promised it at most "
            f"{dp.max_participations}, {dp.min_separation} rounds apart; it stays out of this one"
        )


def _as_release(terms: RoundConfig) -> Release | None:
    """Return a sum under these terms as the privacy accountant sees it, None without noise."""
    noise = terms.noise
    if noise.mechanism is Mechanism.NONE:
        return None
    name: Literal["central_gaussian", "skellam"] = (
        "skellam" if noise.mechanism is Mechanism.SKELLAM else "central_gaussian"
    )
    told = DpSpec(name, noise.noise_multiplier, noise.target_epsilon, noise.delta, max_participations=1)
    return release(terms, told)


def unlimited(coming: OwnSum, earlier: Sequence[OwnSum]) -> None:
    """Permit every sum."""


class Attempts:
    """An open log for one population: the `mien.secagg.AttemptLog` of a device.

    `budget` is asked in `begin` and again in `record_masked`, before anything is remembered or sent; `pictures` is
    noted with the sum.
    """

    def __init__(
        self,
        vault: Vault,
        population: PopulationId,
        clock: Clock,
        *,
        budget: Budget = unlimited,
        pictures: bytes = ANY_PICTURES,
    ) -> None:
        self._vault, self._population, self._clock = vault, population, clock
        self._budget, self._pictures = budget, pictures

    @classmethod
    def open(cls, path: Path, key_store: KeyStore, population: PopulationId, clock: Clock | None = None) -> Attempts:
        """Return the log in `path`, empty where there is none; errors as `Vault.open`."""
        return cls(Vault.open(path, key_store, KIND), population, clock or WallClock())

    def under(self, budget: Budget, pictures: bytes = ANY_PICTURES) -> Attempts:
        """Return the same log, which asks `budget` before it begins an attempt with these `pictures`."""
        return Attempts(self._vault, self._population, self._clock, budget=budget, pictures=pictures)

    def of(self, population: PopulationId) -> Attempts:
        """Return the same log for another population, or this one."""
        return self if population == self._population else Attempts(self._vault, population, self._clock)

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
            self._budget(self._now(config), _sums(change))
            change.delete("begun", tag=_tag(attempt))
            change.insert("begun", bytes([Progress.BEGUN]) + config.to_bytes(), person=0, tag=_tag(attempt))

    def record_masked(self, attempt: AttemptId) -> None:
        """Count one more participation: from here on the server may learn a sum with this device in it."""
        with self._vault.writing() as change:
            coming = self._now(_terms(self._advance(change, attempt, Progress.MASKED)))
            self._budget(coming, _sums(change))  # other tasks' attempts may have gone further since it began
            change.insert(
                "participations", replace(coming, is_released=False).to_bytes(), person=0, tag=self._population
            )

    def record_unmasked(self, attempt: AttemptId) -> None:
        """Remember that shares go out; raises ReplayError if they did before."""
        with self._vault.writing() as change:
            self._advance(change, attempt, Progress.UNMASKED)
            self._release(change, attempt)

    def record_closed(self, attempt: AttemptId) -> None:
        """Remember that the round closed with this device in the sum: others opened it, and no attempt follows."""
        with self._vault.writing() as change:
            self._release(change, attempt)

    def _release(self, change: Writer, attempt: AttemptId) -> None:
        for record in change.select("participations", tag=self._population):
            sum_ = OwnSum.from_bytes(record.content)
            if sum_.terms.attempt_id == attempt and not sum_.is_released:
                change.replace(record, replace(sum_, is_released=True).to_bytes())

    def has_begun(self, attempt: AttemptId) -> bool:
        """Return whether an attempt, or a later one of its task, was begun: after a restart its keys are gone."""
        with self._vault.reading() as view:
            last = _last(view, attempt)
            return last is not None and attempt.order <= _terms(last).attempt_id.order

    def participations(self) -> tuple[RoundConfig, ...]:
        """Return the terms of every sum of the population that this device is or may be in, oldest first."""
        return tuple(sum_.terms for sum_ in self.sums())

    def sums(self) -> tuple[OwnSum, ...]:
        """Return every sum of the population that this device is or may be in, oldest first."""
        with self._vault.reading() as view:
            return _sums(view, self._population)

    def _now(self, terms: RoundConfig) -> OwnSum:
        return OwnSum(terms, self._pictures, int(self._clock.now()), population=self._population)

    def _advance(self, change: Writer, attempt: AttemptId, to: Progress) -> Record:
        """Move the attempt one step on, once; raises ReplayError for any other step."""
        last = _last(change, attempt)
        if last is None or _terms(last).attempt_id != attempt or last.content[0] != to - 1:
            raise ReplayError("this device has gone past this step of the attempt; check in again")
        change.replace(last, bytes([to]) + last.content[1:])
        return last


def _sums(view: Reader, population: PopulationId | None = None) -> tuple[OwnSum, ...]:
    """Return the sums of a population, of any without one, oldest first."""
    return tuple(
        replace(OwnSum.from_bytes(record.content), population=PopulationId(record.tag))
        for record in view.select("participations", tag=population)
    )


def _last(view: Reader, attempt: AttemptId) -> Record | None:
    return next(view.select("begun", tag=_tag(attempt)), None)


def _terms(record: Record) -> RoundConfig:
    return RoundConfig.from_kept(record.content[1:])


def _tag(attempt: AttemptId) -> str:
    return attempt.task_id.hex()
