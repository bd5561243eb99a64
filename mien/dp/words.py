"""A task's differential privacy in plain sentences: the guarantee first, then what it rests on."""

from __future__ import annotations

from mien.specs import TaskSpec


def guarantee(task: TaskSpec) -> list[str]:
    """Return the guarantee of a task and its preconditions, one sentence or two each."""
    dp = task.privacy.dp
    if not dp.is_on:
        return [
            "No differential privacy is promised: a sum, and the model made of it, may tell something of one phone."
        ]
    return [
        f"Whoever sees the models of population {task.population} can tell a phone's update from an empty one no "
        f"better than epsilon {dp.epsilon:g} at delta {dp.delta:g} permits, over all its tasks together. A sum that "
        "would exceed that is not opened. Telling it from any other update is easier, with a larger epsilon: privacy "
        "report gives it too.",
        _noise(task),
        _caps(task),
        "Nothing is claimed for the chance of not being picked: who is in a round is known to the coordinator.",
        _clip(task),
    ]


def _noise(task: TaskSpec) -> str:
    dp = task.privacy.dp
    if dp.mechanism == "central_gaussian":
        return (
            f"The coordinator adds the noise, {dp.noise_multiplier:g} times the clip, after it has opened a sum: it "
            "sees that sum (never one phone's update), and its operator is trusted to add the noise."
        )
    return (
        f"The phones add the noise, {dp.noise_multiplier:g} times the clip in all, each its share before its update "
        f"is masked: nobody sees a sum without it, as long as at most {dp.dishonest_share:.0%} of a cohort leave "
        "theirs out."
    )


def _caps(task: TaskSpec) -> str:
    dp = task.privacy.dp
    apart = f", at least {dp.min_separation} rounds apart" if dp.min_separation > 1 else ""
    return (
        f"A phone is in at most {dp.max_participations} sums of this task{apart}: the coordinator keeps to that, and "
        "each phone counts for itself. An attempt counts from when its sum could be opened, even if it failed."
    )


def _clip(task: TaskSpec) -> str:
    dp, privacy = task.privacy.dp, task.privacy
    if dp.is_adaptive:
        return (
            f"Phones scale their update to an L2 norm that begins at {privacy.l2_clip:g} and follows the "
            f"{dp.target_quantile:.0%} quantile of the norms; the noise of that count is within the same budget. No "
            "weights, losses or metrics are sent."
        )
    return (
        f"Phones scale their update to L2 norm {privacy.l2_clip:g}; no weights, losses, metrics or clip bits are sent. "
        "What rounding adds to the norm is within the budget."
    )
