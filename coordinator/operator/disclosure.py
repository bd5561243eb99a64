"""A task's disclosures in plain words: printed before a task is submitted and by `privacy report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien.dp.words import guarantee
from mien.format import several
from mien.secagg.planner import fewest_hidden, smallest_sum
from mien.specs import TaskSpec

if TYPE_CHECKING:
    from mien.methods.base import Method

UNMASKED: Final = (
    "Sums are NOT masked in this task: this coordinator receives each phone's update and its number of images, and "
    "could look at them one by one. It adds them up, and forgets them when the round has ended. Phones take part only "
    "where their owners agreed to plain sums."
)

_MASKED: Final = {
    "malicious_server": (
        "Sums are masked: this coordinator learns the sum of a round's updates and image counts, who took part and "
        "when, and nothing of any single phone, even if it lies to the phones{helpers}."
    ),
    "honest_but_curious": (
        "Sums are masked, under a weaker promise: nothing of any single phone is learned as long as this coordinator "
        "keeps to the protocol. Phones take part only where their owners agreed to that."
    ),
}

_FEW: Final = 16
"""A sum over fewer phones than a phone agrees to by itself tells noticeably of each."""

_REVEALED: Final = {
    "class_embeddings": (
        "Each phone also shows its class embedding in clear, after each round: a template of its owner's face. "
        "It is stored encrypted and deleted when the task ends; until then whoever holds this coordinator's keys can "
        "read it."
    ),
    "local_models": (
        "A round's sums are over so few phones, or so many of them, that each phone's own model can be worked out from "
        "them, and with effort something about the faces that it was trained on."
    ),
    "class_moment": (
        "This coordinator also opens the sum of second moments of phones' class embeddings, or of their people's mean "
        "features: no single template, but it tells whether somebody whose face is known is among thousands of phones."
    ),
}


def work_of(method: str) -> str:
    """Return what phones did once they report, in a task of a method: "trained", or "computed" where no loss is
    minimised. A method that only another installation knows is taken to train.
    """
    known = _method(method)
    return "trained" if known is None or known.is_minimised else "computed"


def disclosures(task: TaskSpec) -> list[str]:
    """Return a task's disclosures to the server, one sentence or two each, the most telling last."""
    privacy = task.privacy
    method = _method(task.method)
    told = [_cohort(task, method), _masked(task) if privacy.is_masked else UNMASKED]
    if privacy.groups > 1:
        told.append(
            f"The cohort is dealt into {several(privacy.groups, 'group')}, and the coordinator sees the sum of each: "
            f"{several(privacy.min_cohort, 'phone')} or more. Of these sums it takes the "
            f"{privacy.group_mean.replace('_', ' ')}."
        )
    if method is not None and method.trains and not method.is_minimised:
        told.append(
            "No phone trains. Each adds the mean of what the model makes of a person's pictures, that mean multiplied "
            "with itself, and how far they lie apart; of these this coordinator learns the sums, and makes the model's "
            "last map of them."
        )
    if method is not None and not method.trains:
        told.append(
            "Nothing is trained. Each phone adds which share of its comparisons gave which score; this coordinator "
            "learns how the scores of all of them together are spread, and of which phones."
        )
    if task.validators is not None:
        told.append(
            f"In each round {several(task.validators.min_reports, 'validator')} or more also download the "
            f"candidates for the next "
            "model and judge them; of their scores this coordinator sees the sum."
        )
    if privacy.dp.is_on:
        told += guarantee(task)
    return [*told, *(_REVEALED[name] for name in privacy.reveals)]


def _method(name: str) -> Method | None:
    """Return a method by its name, None where this program does not know it."""
    from mien.methods import METHODS  # most of a command's start-up time, which those that print nothing do without

    return METHODS.get(name)


def _cohort(task: TaskSpec, method: Method | None) -> str:
    smallest = smallest_sum(task)
    told = (
        f"A round's sum covers at least {several(smallest, 'phone')}; each phone refuses to take part in a sum over "
        "fewer than its own floor."
    )
    if (each := 1 if method is None else method.requirements(task).phones_as_one) > 1:
        told += (
            f" Of this task it asks for {each} times its floor, for what phones are told weighs people: with "
            f"privacy.min_cohort {task.privacy.min_cohort} those take part whose floor is "
            f"{task.privacy.min_cohort // each} or less, and no phone's is below 2."
        )
    if fewest := task.cohort.min_labelled:
        told += (
            f" Each sum includes {fewest} or more devices that say at check-in that they hold labelled faces: a round "
            f"waits for them, and the other phones hide among {fewest_hidden(task)}."
        )
    if smallest >= _FEW:
        return told
    return f"{told} A sum over so few tells much of each: {_FEW} or more hide a phone better."


def _masked(task: TaskSpec) -> str:
    """Return what masks promise, and how many phones may work with the coordinator: of fewer than ten none."""
    one_in_ten = smallest_sum(task) // 10
    helpers = "; up to one phone in ten may help it" if one_in_ten else ", but not if one of these few phones helps it"
    return _MASKED[task.privacy.secure_aggregation].format(helpers=helpers)
