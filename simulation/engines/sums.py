"""Sums of a simulated cohort: exact, or in the ring of secure aggregation with the noise that is promised, at its cost.

A cohort's sum may be made of the sums of its shards (`merge`). In the ring that is the same sum bit for bit, whatever
the shards. The exact sum is float64's: the same shards in the same order repeat it bit for bit, others change it by
float64's rounding. The privacy cost of noise is counted as a coordinator's ledger does, and refused as it would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self

from mien.contribution import Contribution, ContributionLayout, Total
from mien.dp.accountant import epsilon_rdp
from mien.errors import BudgetExceededError, ConfigError
from mien.protocol.ids import AttemptNumber, RoundNumber
from mien.secagg.emulation import EmulatedSum
from mien.secagg.masks import MAX_WORDS, WordStream
from mien.secagg.noise import noise_allowance, noised, release
from mien.secagg.planner import RoundIds, plan_round
from mien.secagg.vector import ContributionMap
from mien.specs import TaskSpec

Sums = Literal["exact", "ring"]
NOBODY: Final = RoundIds(bytes(16), RoundNumber(1), AttemptNumber(1), bytes(32), bytes(32))


class CohortSum(Protocol):
    """A sum that devices' contributions are added to."""

    def add(self, device: str, contribution: Contribution) -> None:
        """Add one device's contribution."""
        ...

    def merge(self, other: Self) -> None:
        """Add the sum over other devices of the same round, which must not overlap and is not used again."""
        ...

    def total(self) -> Total:
        """Return what the server's half is given."""
        ...


class ExactSum:
    """The plain sum in float64, as a coordinator takes it without secure aggregation."""

    def __init__(self, layout: ContributionLayout) -> None:
        self._total = Total.empty(layout)

    @classmethod
    def of(cls, total: Total) -> Self:
        """Return the sum that a total holds already."""
        begun = cls(total.layout)
        begun._total = total
        return begun

    def add(self, device: str, contribution: Contribution) -> None:
        """Add one device's contribution."""
        self._total = self._total.plus(contribution)

    def merge(self, other: Self) -> None:
        """Add the sum over other devices."""
        self._total = self._total.merge(other.total())

    def total(self) -> Total:
        """Return the sum."""
        return self._total


class RingSum:
    """The sum as secure aggregation takes it, clipped, rounded and noised, without keys; chance follows `seed`."""

    def __init__(self, task: TaskSpec, layout: ContributionLayout, seed: str) -> None:
        """Raise ConfigError for a task whose sums are plain, dealt into groups, or clipped adaptively."""
        privacy = task.privacy
        if not privacy.is_masked:
            raise ConfigError("privacy.secure_aggregation is off: simulate this task with exact sums")
        if privacy.groups > 1 or privacy.dp.is_adaptive:
            raise ConfigError("simulated sums have one group and a fixed clip; set privacy.groups and dp accordingly")
        self._map, self._dp, self._seed = ContributionMap(layout), privacy.dp, seed
        self._sum = EmulatedSum(plan_round(task, layout, NOBODY))

    def add(self, device: str, contribution: Contribution) -> None:
        """Add one device's contribution, with its share of the noise."""
        self._sum.add(self._map.addends(contribution), self._dp, self._chance(device))

    def merge(self, other: Self) -> None:
        """Add the sum over other devices, with their shares of the noise."""
        self._sum.merge(other._sum)

    def total(self) -> Total:
        """Return the opened sum, with the coordinator's noise."""
        config = self._sum.config
        opened = self._sum.open(noise_allowance(config, self._dp))
        return self._map.total(noised(opened, config, self._dp, self._chance("coordinator")).opened)

    def _chance(self, who: str) -> Callable[[int], bytes]:
        stream = WordStream(hashlib.sha256(f"{self._seed}/{who}".encode()).digest())
        return lambda size: stream.take((size + 3) // 4).tobytes()[:size]


def cohort_sum(task: TaskSpec, layout: ContributionLayout, sums: Sums, number: int) -> CohortSum:
    """Return the empty sum of round `number`; raises ConfigError for one that no masked round could have either."""
    if layout.summed_size > MAX_WORDS:
        raise ConfigError(
            f"a client's contribution would be {layout.summed_size} numbers, and a sum has at most {MAX_WORDS}; lower "
            "what its size follows from (classes and the like in task.options), or train fewer tensors"
        )
    if sums == "exact":
        return ExactSum(layout)
    return RingSum(task, layout, f"{task.name}/{task.seed}/{number}")


@dataclass(frozen=True)
class EpsilonSpent:
    """Cost of all rounds of a task for one phone at `delta`, by Renyi accounting, and under which noise and clip.

    A coordinator keeps a phone out after `num_sums` sums. A simulation keeps nobody out: `num_rounds` may be more.
    """

    mechanism: str
    noise_multiplier: float
    l2_clip: float
    num_sums: int
    num_rounds: int
    epsilon: float
    delta: float

    def __str__(self) -> str:
        kept = f"; a coordinator keeps a phone out after {self.num_sums} of them, a simulation does not"
        return (
            f"differential privacy: noise of {self.noise_multiplier:g} times the clip {self.l2_clip:g} makes epsilon "
            f"{self.epsilon:.3g} at delta {self.delta:g} of {self.num_rounds} rounds"
            f"{kept if self.num_sums < self.num_rounds else ''}. Losses are withheld, as from a coordinator"
        )


def epsilon_spent(task: TaskSpec, layout: ContributionLayout) -> EpsilonSpent | None:
    """Return the cost of a task's rounds, None for one without noise.

    Raises BudgetExceededError where they cost more than the task's epsilon: its coordinator would end it earlier.
    """
    dp = task.privacy.dp
    once = release(plan_round(task, layout, NOBODY), dp) if dp.is_on else None
    if once is None:
        return None
    apart = max(1, dp.min_separation)
    num_sums = min(-(-task.rounds // apart), dp.max_participations)
    epsilon = epsilon_rdp([(once, num_sums)], dp.delta)
    if epsilon > dp.epsilon:
        last = apart * next(n for n in range(num_sums) if epsilon_rdp([(once, n + 1)], dp.delta) > dp.epsilon)
        raise BudgetExceededError(
            f"{num_sums} noised sums make epsilon {epsilon:.4g} at delta {dp.delta:g}; privacy.dp.epsilon is "
            f"{dp.epsilon:g}, so a coordinator would end this task after round {last}. Raise noise_multiplier or "
            "epsilon, or lower rounds or max_participations"
        )
    return EpsilonSpent(
        dp.mechanism, dp.noise_multiplier, task.privacy.l2_clip, num_sums, task.rounds, epsilon, dp.delta
    )
