"""What a task shows to whom, in plain words: printed before a task is submitted and by `privacy report`."""

from __future__ import annotations

from typing import Final

from mien.specs import TaskSpec

UNMASKED: Final = (
    "Sums are not yet masked: this coordinator receives each phone's update and its number of images, and could look "
    "at them one by one. It adds them up, and forgets them when the round has ended."
)

_REVEALED: Final = {
    "class_embeddings": (
        "Each phone also shows its class embedding in clear, after each round: a template of its owner's face. "
        "It is stored encrypted and deleted when the task ends; until then whoever holds this coordinator's keys can "
        "read it."
    ),
}


def disclosures(task: TaskSpec) -> list[str]:
    """Return what the server learns from a task, one sentence or two each, the most telling last."""
    cohort = (
        f"A round's sum covers at least {task.cohort.min_reports} phones; each phone refuses to take part in a sum "
        f"over fewer than its own floor."
    )
    return [cohort, UNMASKED, *(_REVEALED[name] for name in task.privacy.reveals)]
