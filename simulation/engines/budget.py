"""Privacy cost of a simulated task's noise: counted as a coordinator's ledger does, and refused as it would."""

from __future__ import annotations

from dataclasses import dataclass

from mien.contribution import ContributionLayout
from mien.dp.accountant import epsilon_rdp
from mien.errors import BudgetExceededError
from mien.secagg.noise import release
from mien.secagg.planner import plan_round
from mien.specs import TaskSpec
from simulation.engines.sums import NOBODY


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
