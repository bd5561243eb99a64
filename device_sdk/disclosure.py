"""What leaves the phone in a round, in plain words, before it leaves; and what the owner has not agreed to."""

from __future__ import annotations

from mien.contribution import ContributionLayout
from mien.errors import ConfigError
from mien.specs import TaskSpec

PLAIN_SUMS = (
    "Sums are not yet masked: the coordinator can see this phone's update, and with effort may learn something about "
    "the faces that it was trained on."
)
_SHOWS = {
    "class_embeddings": (
        "This task also shows the coordinator this person's class embedding: a template of their face, by which they "
        "can be recognised elsewhere and a likeness be drawn. The coordinator keeps it encrypted."
    )
}


def check_agreed(task: TaskSpec, layout: ContributionLayout, *, min_cohort: int, allow_reveal: frozenset[str]) -> None:
    """Raise ConfigError for a task that this device has not agreed to, naming the option that would agree.

    The task's word is checked against the contribution it asks for: lanes in clear need a name in `reveals`.
    """
    if task.privacy.min_cohort < min_cohort:
        raise ConfigError(
            f"task {task.name!r} lets the coordinator see sums over {task.privacy.min_cohort} devices; this device "
            f"agrees to {min_cohort} or more. If that is your wish: --min-cohort {task.privacy.min_cohort}"
        )
    refused = sorted(set(task.privacy.reveals) - allow_reveal)
    if refused:
        raise ConfigError(
            f"task {task.name!r} would show the coordinator this device's {', '.join(refused)}; this device agrees to "
            f"{', '.join(sorted(allow_reveal)) or 'nothing of the kind'}. If that is your wish: "
            + " ".join(f"--allow-reveal {name}" for name in refused)
        )
    if layout.revealed and not task.privacy.reveals:
        lanes = ", ".join(lane.name for lane in layout.revealed)
        raise ConfigError(
            f"task {task.name!r} asks for {lanes} in clear without saying so; do not take part, tell the operator"
        )


def disclosure(task: TaskSpec, layout: ContributionLayout, *, num_images: int, min_cohort: int) -> tuple[str, ...]:
    """Return the sentences to show before a round: what is sent, who sees what, what stays."""
    largest = max(layout.summed, key=lambda lane: lane.size)
    small = [lane.name.replace("_", " ") for lane in layout.summed if lane not in (largest, *layout.summed[:2])]
    weight = min(num_images, task.privacy.max_weight)
    sentences = [
        f"What leaves this phone: {layout.size:,} numbers ({layout.size_bytes / 1e6:.1f} MB): by how much training on "
        f"{num_images} images changed {largest.size:,} parameters of the model, times {weight}; that weight"
        + (f"; and {', '.join(small)}." if small else "."),
        f"It is meant to be seen only as part of a sum over at least {task.cohort.min_reports} devices "
        f"(this device agrees to {min_cohort} or more).",
        PLAIN_SUMS,
    ]
    sentences += [_SHOWS[name] for name in task.privacy.reveals]
    stays = "No photo and no crop leaves it" if task.privacy.reveals else "No photo, no crop and no embedding leaves it"
    return (*sentences, f"{stays}.")
