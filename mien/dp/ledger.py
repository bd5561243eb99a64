"""The account of a population: every sum that was opened, in a chain that shows tampering, and the refusal of the next.

An event is written when an attempt reaches the unmask stage, before anything is opened: from then on its sum may be
known to somebody, whether the attempt succeeds or not. Sums without noise are events too, of unbounded epsilon. Under
differential privacy nothing else is opened: metrics and weights are not sent, and the count of unclipped updates only
where its noise is part of the same event (adaptive clipping).

A budget, epsilon at a delta, is stated by each task and binds its population for good: an event is refused if it would
exceed any budget that was ever in force. The count is per device: within a task a device is in at most
`max_participations` of the sums, so the dearest that many are charged; tasks add up.

Each event holds the hash of the one before. Changing, dropping, inserting or swapping one is found by `verify`; cutting
off the newest ones is found by comparing `head` with a copy kept elsewhere.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from mien.dp.accountant import Release, epsilon_rdp
from mien.errors import BudgetExceededError, CorruptDataError, ReplayError
from mien.log.chain import GENESIS, link_sha256
from mien.protocol.ids import AttemptNumber, PopulationId, RoundNumber, TaskId
from mien.specs import DpSpec


@dataclass(frozen=True)
class Opening:
    """Opening of a sum: whose it is, under what terms, and (None: no noise) how it is noised."""

    task_id: TaskId
    round: RoundNumber
    attempt: AttemptNumber
    config_sha256: str
    l2_clip: float
    dp: DpSpec
    release: Release | None
    num_survivors: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        """Key of the attempt: task, round, attempt."""
        return self.task_id, self.round, self.attempt


@dataclass(frozen=True)
class Event:
    """One line of the account. Epsilons are at the task's own delta, by Renyi accounting; None is unbounded.

    `noise_multiplier` is the z that the task asked for, `effective_multiplier` the one with the sensitivity that
    rounding makes of S; both are 0 without noise.
    """

    population: PopulationId
    position: int
    task_id: TaskId
    round: RoundNumber
    attempt: AttemptNumber
    config_sha256: str
    mechanism: Literal["none", "central_gaussian", "skellam"]
    noise_multiplier: float
    effective_multiplier: float
    l2_clip: float
    l2_steps: float
    size: int
    num_survivors: int
    max_participations: int
    min_separation: int
    budget_epsilon: float
    delta: float
    epsilon_before: float | None
    epsilon_after: float | None
    previous_sha256: str

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the canonical bytes."""
        return link_sha256("privacy-event", self._canonical)

    @cached_property
    def _canonical(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def key(self) -> tuple[str, int, int]:
        """Key of the attempt: task, round, attempt."""
        return self.task_id, self.round, self.attempt

    @property
    def release(self) -> Release | None:
        """The sum as an accountant sees it, None without noise."""
        if self.mechanism == "none":
            return None
        return Release(self.mechanism, self.effective_multiplier, self.l2_steps, self.size)

    def to_json(self) -> bytes:
        """Return the canonical bytes: JSON with sorted keys and no spaces."""
        return self._canonical

    @classmethod
    def from_json(cls, data: bytes) -> Event:
        """Return the event in its canonical bytes; raises CorruptDataError for any others."""
        try:
            values: dict[str, Any] = json.loads(data)
            event = cls(**values)
            if event.to_json() == data:
                return event
        except (ValueError, TypeError) as error:
            raise CorruptDataError("an event of the privacy ledger is damaged; restore the database") from error
        raise CorruptDataError("an event of the privacy ledger is not in its canonical form; restore the database")


@dataclass(frozen=True)
class Ledger:
    """The events of a population, oldest first; adding one gives a new ledger."""

    population: PopulationId
    events: tuple[Event, ...] = ()

    @property
    def head(self) -> str:
        """The newest event's hash: who keeps a copy of it can tell if events were cut off."""
        return self.events[-1].sha256 if self.events else GENESIS

    @property
    def budgets(self) -> tuple[tuple[float, float], ...]:
        """Every (epsilon, delta) in force, the tightest epsilon of each delta, largest delta first."""
        tightest: dict[float, float] = {}
        for event in self.events:
            if event.mechanism != "none":
                tightest[event.delta] = min(event.budget_epsilon, tightest.get(event.delta, math.inf))
        return tuple((epsilon, delta) for delta, epsilon in sorted(tightest.items(), reverse=True))

    @property
    def is_bounded(self) -> bool:
        """True while every sum so far was noised."""
        return all(event.mechanism != "none" for event in self.events)

    def composition(self, *, of_task: TaskId | None = None) -> list[tuple[Release, int]]:
        """Return the noised releases that one device can have been in at most, of one task or of all."""
        by_task = defaultdict[TaskId, list[Event]](list)
        for event in self.events:
            if of_task in (None, event.task_id):
                by_task[event.task_id].append(event)
        return [charged for events in by_task.values() for charged in _dearest(events)]

    def epsilon(self, delta: float) -> float:
        """Return the most that one device of the population can have lost so far, infinite after an unnoised sum."""
        return epsilon_rdp(self.composition(), delta) if self.is_bounded else math.inf

    def check(self, opening: Opening) -> Event:
        """Return the event that an opening will be; raises BudgetExceededError instead if it must not take place.

        Raises ReplayError for an attempt that was recorded before.
        """
        if any(event.key == opening.key for event in self.events):
            raise ReplayError(
                f"round {opening.round}, attempt {opening.attempt} is in the privacy ledger already; begin another"
            )
        event = self._event(opening)
        after = Ledger(self.population, (*self.events, event))
        if event.release is None:
            if self.budgets:
                raise BudgetExceededError(
                    f"population {self.population} was promised epsilon {self.budgets[0][0]:g}; a sum without noise "
                    "would break that: set privacy.dp, or ask another population"
                )
            return event
        if not self.is_bounded:
            raise BudgetExceededError(
                f"sums of population {self.population} were opened without noise, its epsilon is unbounded; promise "
                "differential privacy to a population that starts with it"
            )
        for budget, delta in after.budgets:
            spent = after.epsilon(delta)
            if spent > budget:
                raise BudgetExceededError(
                    f"round {opening.round} would bring population {self.population} to epsilon {spent:.4g} at delta "
                    f"{delta:g}; its budget is {budget:g}, {self.epsilon(delta):.4g} is spent: the task ends here"
                )
        return replace(event, epsilon_after=after.epsilon(event.delta))

    def plus(self, event: Event) -> Ledger:
        """Return the ledger with one more event; raises CorruptDataError if it does not follow the newest one."""
        longer = Ledger(self.population, (*self.events, event))
        _check_link(longer, len(self.events))
        return longer

    def verify(self) -> None:
        """Raise CorruptDataError that names the first event that does not follow the one before it."""
        for position in range(len(self.events)):
            _check_link(self, position)

    def _event(self, opening: Opening) -> Event:
        """Return an opening as an event whose epsilon afterwards is still open."""
        dp, release = opening.dp, opening.release
        before = self.epsilon(dp.delta) if release is not None else math.inf
        return Event(
            population=self.population,
            position=len(self.events),
            task_id=opening.task_id,
            round=opening.round,
            attempt=opening.attempt,
            config_sha256=opening.config_sha256,
            mechanism="none" if release is None else release.mechanism,
            noise_multiplier=dp.noise_multiplier,
            effective_multiplier=0.0 if release is None else release.noise_multiplier,
            l2_clip=opening.l2_clip,
            l2_steps=0.0 if release is None else release.l2_steps,
            size=0 if release is None else release.size,
            num_survivors=opening.num_survivors,
            max_participations=dp.max_participations,
            min_separation=dp.min_separation,
            budget_epsilon=dp.epsilon,
            delta=dp.delta,
            epsilon_before=before if math.isfinite(before) else None,
            epsilon_after=None,
            previous_sha256=self.head,
        )


def _check_link(ledger: Ledger, position: int) -> None:
    event = ledger.events[position]
    previous = ledger.events[position - 1].sha256 if position else GENESIS
    if (event.population, event.position, event.previous_sha256) != (ledger.population, position, previous):
        raise CorruptDataError(
            f"event {position} of the privacy ledger of population {ledger.population} does not follow the one before "
            "it: the ledger was changed; restore the database, and open no more sums until it verifies"
        )


def _dearest(events: Sequence[Event]) -> list[tuple[Release, int]]:
    """Return the releases of one task that a device can have been in: as many as its caps permit, the dearest ones."""
    noised = [event for event in events if event.mechanism != "none"]
    if not noised:
        return []
    cap = min(noised[0].max_participations, most_apart([event.round for event in noised], noised[0].min_separation))
    # Within a task the clip alone can move, and only under Gaussian noise, whose price is the multiplier's.
    dearest = sorted((event.release for event in noised if event.release is not None), key=_price)[:cap]
    return list(Counter(dearest).items())


def _price(release: Release) -> tuple[float, float]:
    return release.noise_multiplier, release.l2_steps


def most_apart(rounds: Iterable[int], min_separation: int) -> int:
    """Return the most of these sums that one device can be in, whose rounds lie at least `min_separation` apart."""
    number, last = 0, -math.inf
    for round_ in sorted(rounds):
        if round_ - last >= min_separation:
            number, last = number + 1, round_
    return number


# One device


def may_take_part(dp: DpSpec, past_rounds: Sequence[RoundNumber], round_: RoundNumber) -> bool:
    """Return whether a device that was in sums of a task in `past_rounds` may be in one more, in round `round_`."""
    if not dp.is_on:
        return True
    if len(past_rounds) >= dp.max_participations:
        return False
    return all(abs(round_ - past) >= dp.min_separation for past in past_rounds)


def check_device(
    past: Sequence[Release | None], coming: Release | None, *, max_epsilon: float, delta: float = 1e-6
) -> float:
    """Return a device's total loss after one more sum, by its own count.

    Raises BudgetExceededError if that exceeds the owner's limit; a sum without noise (None) always does. `past` is
    every masked update that left the device since the limit was set, whether the attempt succeeded or not: it trusts
    no coordinator's ledger. The figure holds as far as the noise was really added (with central_gaussian that is the
    coordinator's word).
    """
    noised = [(release, 1) for release in (*past, coming) if release is not None]
    epsilon = epsilon_rdp(noised, delta) if len(noised) == len(past) + 1 else math.inf
    if epsilon > max_epsilon:
        told = f"epsilon {epsilon:.4g} at delta {delta:g}" if math.isfinite(epsilon) else "more than any epsilon bounds"
        raise BudgetExceededError(
            f"taking part once more would tell {told}; the owner's limit is {max_epsilon:g}: raise it, or stay out"
        )
    return epsilon
