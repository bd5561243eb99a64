"""Disclosure of what leaves the phone in a round, in plain words, and of what the owner has not agreed to."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mien.errors import ConfigError
from mien.specs import REVEALS, TaskSpec

# The settings of every command hold an `Agreement`; what plans masked sums is loaded where a task is spoken of.
if TYPE_CHECKING:
    from mien.contribution import ContributionLayout
    from mien.methods.base import Method

PLAIN_SUMS: Final = (
    "Sums of this task are not masked: the coordinator sees this phone's update, and with effort may learn something "
    "about the faces that it was trained on."
)
_PROMISES: Final = {
    "malicious_server": (
        "Of this phone alone the coordinator learns nothing but when it took part, also if it breaks the rules: this "
        "phone checks what it is told, and leaves rather than uncover another sum."
    ),
    "honest_but_curious": (
        "Of this phone alone the coordinator learns nothing but when it took part, as long as it keeps to the rules: "
        "one that lies about which phones are left could see this phone's update."
    ),
}
_SHOWS: Final = {
    "class_embeddings": (
        "This task also shows the coordinator the class embedding of each person who trains: a template of their face, "
        "by which they can be recognised elsewhere and a likeness be drawn. The coordinator keeps it encrypted."
    ),
    "local_models": (
        "This task's sums are over so few devices, or so many of them, that the coordinator can work out this phone's "
        "own model from them, and with effort may learn something about the faces that it was trained on."
    ),
    "class_moment": (
        "This task also adds the template of each person who trains, multiplied with itself, to a sum that the "
        "coordinator opens: the sum tells nobody's template, but whether somebody whose face is known took part."
    ),
}
_WEIGHED: Final = (
    "How much each person counts follows from numbers that the coordinator tells all phones of a round. Phones let "
    "nobody count less than a tenth of another: whichever it chooses, {least} phones hide this one at least as well as "
    "{as_many} of which all count alike."
)
_TOLD_APART: Final = (4, 99), (16, 99), (64, 99), (256, 93), (1024, 77), (4096, 65)
"""Phones in an opened sum of moments without noise, and the AUC (in percent) at which a server with other photos of
people tells members of it from others: the worse of two populations and of two kinds of moments, docs/leakage.md. A
cohort is of 5,000 phones at most.
"""

_WEAKER_PROFILES: Final = ("honest_but_curious",)
_LEAST_FLOOR: Final = 2


@dataclass(frozen=True)
class Agreement:
    """Owner's agreement. `min_cohort`: fewest devices whose sum the coordinator may see. `allow_reveal`: what it may
    see of this device alone. `allow_profiles`: weaker forms of secure aggregation that will do. `allow_plain_sums`: the
    coordinator may see this device's updates. `allow_evaluation`: these images also measure models, by sums of scores.
    `max_epsilon`: the most that all sums together may tell, None without limit. `max_sums_per_model`,
    `max_sums_per_day`: into how many sums without phones' own noise the same images go. `min_peer_age_days`: only
    devices that the registrar admitted so long ago count towards `min_cohort`, 0 for all; with `count_attested_peers`
    younger ones too whose hardware attested their key. `outside_methods`: methods of packages other than Mien, by name,
    whose code may train on these images. `person`: whose images train, if not those of everybody who
    agreed.
    """

    min_cohort: int = 16
    allow_reveal: tuple[str, ...] = ()
    allow_profiles: tuple[str, ...] = ()
    allow_plain_sums: bool = False
    allow_evaluation: bool = True
    max_epsilon: float | None = None
    max_sums_per_model: int = 1
    max_sums_per_day: int = 24
    min_peer_age_days: int = 0
    count_attested_peers: bool = False
    outside_methods: tuple[str, ...] = ()
    person: str = ""

    def __post_init__(self) -> None:
        if self.min_cohort < _LEAST_FLOOR:
            raise ConfigError(
                f"participation.min_cohort is {self.min_cohort}; a sum over fewer than 2 devices hides nobody"
            )
        for name, known in (("allow_reveal", REVEALS), ("allow_profiles", _WEAKER_PROFILES)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise ConfigError(f"participation.{name} names {unknown}; known: {list(known)}")
        if self.max_epsilon is not None and not 0 < self.max_epsilon < math.inf:
            raise ConfigError(f"participation.max_epsilon is {self.max_epsilon}; it must be positive")
        for name in ("max_sums_per_model", "max_sums_per_day"):
            if getattr(self, name) < 1:
                raise ConfigError(f"participation.{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.min_peer_age_days <= 3650:
            raise ConfigError(f"participation.min_peer_age_days is {self.min_peer_age_days}; it must be 0 to 3650")


def check_agreed(task: TaskSpec, layout: ContributionLayout, agreement: Agreement) -> None:
    """Raise ConfigError for a task that this device has not agreed to, naming the option that would agree.

    The task's word is checked against the contribution it asks for: lanes in clear need a name in `reveals`.
    """
    _check_sums(task, agreement)
    _check_floor(task, agreement)
    refused = sorted(set(task.privacy.reveals).difference(agreement.allow_reveal))
    if refused:
        raise ConfigError(
            f"task {task.name!r} would show the coordinator this device's {', '.join(refused)}; this device agrees to "
            f"{', '.join(sorted(agreement.allow_reveal)) or 'nothing of the kind'}. "
            + (f"{_told_apart(task)} " if "class_moment" in refused else "")
            + "If that is your wish: "
            + f"`participation.allow_reveal = {json.dumps(refused)}`"
        )
    if layout.revealed and not task.privacy.reveals:
        lanes = ", ".join(lane.name for lane in layout.revealed)
        raise ConfigError(
            f"task {task.name!r} asks for {lanes} in clear without saying so; do not take part, tell the operator"
        )


def _check_floor(task: TaskSpec, agreement: Agreement) -> None:
    """Raise ConfigError where the task's smallest sum hides this device less well than its owner wants."""
    from mien.methods.registry import find_method  # loads every method, which settings alone need not
    from mien.secagg.planner import fewest_hidden

    needed = find_method(task.method).requirements(task)
    smallest = min(task.privacy.min_cohort, fewest_hidden(task))
    if smallest >= needed.fewest(agreement.min_cohort):
        return
    each, would_do = needed.phones_as_one, smallest // needed.phones_as_one
    takes = (
        f", which takes {needed.fewest(agreement.min_cohort)} here: what the coordinator tells may make {each} phones "
        "count as little as one"
        if each > 1
        else ""
    )
    aside = " besides its sources" if task.cohort.min_labelled else ""
    wish = (
        f"If that is your wish: `participation.min_cohort = {would_do}`"
        if would_do >= _LEAST_FLOOR
        else "Tell the operator"
    )
    raise ConfigError(
        f"task {task.name!r} lets the coordinator see sums over {smallest} devices{aside}; this device agrees to "
        f"{agreement.min_cohort} or more{takes}. {wish}"
    )


def is_agreed(method: Method, agreement: Agreement) -> bool:
    """True where the owner lets this device take part in tasks of this method at all."""
    return _is_trusted(method, agreement) and _may_measure(method, agreement)


def check_kind(method: Method, task: TaskSpec, agreement: Agreement) -> None:
    """Raise ConfigError for a task of a method in which the owner does not let this device take part, saying why."""
    if not _is_trusted(method, agreement):
        raise ConfigError(
            f"task {task.name!r} trains by {method.name!r}, a method that another package brought; this device agrees "
            f'to Mien\'s own. If that is your wish: `participation.outside_methods = ["{method.name}"]`'
        )
    if not _may_measure(method, agreement):
        raise ConfigError(
            f"task {task.name!r} measures models on the pictures here and sends sums of scores; this device is not to. "
            "If that is your wish: `participation.allow_evaluation = true`"
        )


def _is_trusted(method: Method, agreement: Agreement) -> bool:
    from mien.methods.registry import is_outside  # loads every method, which settings alone need not

    return not is_outside(method) or method.name in agreement.outside_methods


def _may_measure(method: Method, agreement: Agreement) -> bool:
    return method.trains or agreement.allow_evaluation


def _check_sums(task: TaskSpec, agreement: Agreement) -> None:
    """Raise ConfigError where the task protects this device's update less than its owner wants."""
    chosen = task.privacy.secure_aggregation
    if chosen == "off" and not agreement.allow_plain_sums:
        raise ConfigError(
            f"task {task.name!r} takes plain sums: the coordinator would see this phone's own update; this device "
            "agrees to sums under secure aggregation only. If that is your wish: "
            "`participation.allow_plain_sums = true`"
        )
    if chosen == "off" and agreement.max_epsilon is not None:
        raise ConfigError(
            f"task {task.name!r} takes plain sums: this phone's update in clear tells more than any epsilon bounds, "
            f"and participation.max_epsilon is {agreement.max_epsilon:g}; this device stays out of it"
        )
    if chosen not in ("off", "malicious_server") and chosen not in agreement.allow_profiles:
        raise ConfigError(
            f"task {task.name!r} hides this phone's update only from a coordinator that keeps to the rules "
            f"({chosen}); this device agrees to malicious_server only. If that is your wish: "
            f'`participation.allow_profiles = ["{chosen}"]`'
        )


def disclosure(
    task: TaskSpec, layout: ContributionLayout, *, num_images: int, min_cohort: int, num_people: int = 1
) -> tuple[str, ...]:
    """Return the sentences to show before a round: what is sent, who sees what, what stays."""
    masked = task.privacy.is_masked
    return (
        _what_leaves(task, layout, num_images, num_people),
        *(_masked_sums(task, min_cohort) if masked else _plain_sums(task, min_cohort)),
        *_noise(task),
        *_shown(task),
        "No photo and no crop leaves it." if task.privacy.reveals else "No photo, no crop and no embedding leaves it.",
    )


def _shown(task: TaskSpec) -> tuple[str, ...]:
    """Return what the task shows besides sums of updates, and how well a sum of moments tells who is in it."""
    told = (_told_apart(task),) if "class_moment" in task.privacy.reveals else ()
    return *(_SHOWS[name] for name in task.privacy.reveals), *told


def told_apart(least: int) -> tuple[int, int]:
    """Return the largest measured sum of moments of no more than `least` phones, and how often members were told apart.

    That is in percent. A smaller sum tells more, so nothing is promised that a larger one would hold.
    """
    return next((each for each in reversed(_TOLD_APART) if each[0] <= least), _TOLD_APART[0])


def _told_apart(task: TaskSpec) -> str:
    """Return what was measured of sums as large as this task's, or as the smallest that it is worth."""
    from mien.methods.registry import find_method
    from mien.secagg.planner import fewest_hidden

    size, percent = told_apart(fewest_hidden(task) // find_method(task.method).requirements(task).phones_as_one)
    return (
        f"In trials on such sums over {size:,} phones, of one person who was in the sum and one who was not, a server "
        f"with other photos of both told which was which {percent} times in 100 (guessing: 50)."
    )


def _what_leaves(task: TaskSpec, layout: ContributionLayout, num_images: int, num_people: int) -> str:
    largest = max(layout.summed, key=lambda lane: lane.size)
    small = [lane.name.replace("_", " ") for lane in layout.summed if lane not in (largest, *layout.summed[:2])]
    weight = min(num_images, task.privacy.max_weight)
    whose = "" if num_people == 1 else f" of {num_people} people"
    masked, told_small = task.privacy.is_masked, bool(small) and not task.privacy.dp.is_on
    which = "all but what is shown in clear" if task.privacy.reveals else "all of it"
    return (
        f"What leaves this phone: {layout.size:,} numbers ({_upload_bytes(task, layout) / 1e6:.1f} MB): by how much "
        f"training on {num_images} images{whose} changed {largest.size:,} parameters of the model, times {weight}; "
        "that weight"
        + (f"; and {', '.join(small)}" if told_small else "")
        + (f"; {which} under masks that are random to whoever sees it alone." if masked else ".")
    )


def judging_disclosure(
    task: TaskSpec, layout: ContributionLayout, *, num_images: int, min_cohort: int, num_people: int
) -> tuple[str, ...]:
    """Return the sentences to show before this device judges candidates; `task` is the validators' own."""
    (scores,) = (lane for lane in layout.summed if lane.size > 1)
    return _of_scores(
        f"What leaves this phone: {scores.size} numbers, one for each candidate model: how well it tells the "
        f"{num_people} people here apart, on {num_images} images of them",
        task,
        min_cohort,
        "No photo, no crop and no embedding leaves it, and nothing is trained on them.",
    )


def measuring_disclosure(
    task: TaskSpec, layout: ContributionLayout, *, num_images: int, min_cohort: int, num_people: int
) -> tuple[str, ...]:
    """Return the sentences to show before this device measures models on its pictures."""
    whose = "" if num_people == 1 else f" of {num_people} people"
    return _of_scores(
        f"What leaves this phone: {layout.size:,} numbers ({_upload_bytes(task, layout) / 1e3:.0f} KB): which share of "
        f"its comparisons gave which score, with {num_images} images{whose} and public faces",
        task,
        min_cohort,
        "No photo, no crop, no embedding and no score of a picture leaves it, and nothing is trained on them.",
    )


def summing_disclosure(
    task: TaskSpec, layout: ContributionLayout, *, num_images: int, min_cohort: int, num_people: int
) -> tuple[str, ...]:
    """Return the sentences to show before this device adds up what its model makes of its pictures, without training.

    Their sums are always under masks: the method refuses others.
    """
    from mien.methods.statistics import requirements
    from mien.secagg.planner import smallest_sum

    least, each = smallest_sum(task), requirements(task).phones_as_one
    weighed = (_WEIGHED.format(least=least, as_many=least // each),) if each > 1 else ()
    whose = "one person" if num_people == 1 else f"{num_people} people"
    return (
        f"What leaves this phone: {layout.size:,} numbers ({_upload_bytes(task, layout) / 1e3:.0f} KB): the mean of "
        f"what the model makes of {num_images} images of {whose}, that mean multiplied with itself, and how far "
        "pictures of one person lie apart, under masks that are random to whoever sees them alone.",
        *weighed,
        *_masked_sums(task, min_cohort),
        *_noise(task),
        *_shown(task),
        "No photo and no crop leaves it, no embedding but in a sum, and nothing is trained on them.",
    )


def _of_scores(leaves: str, task: TaskSpec, min_cohort: int, stays: str) -> tuple[str, ...]:
    if task.privacy.is_masked:
        leaves += ", under masks that are random to whoever sees them alone."
        return leaves, *_masked_sums(task, min_cohort), stays
    return (
        f"{leaves}.",
        f"They are meant to be seen only as part of a sum over at least {task.cohort.min_reports} devices (this device "
        f"agrees to {min_cohort} or more).",
        "Sums of this task are not masked: the coordinator sees this phone's scores, which say how hard its faces are.",
        stays,
    )


def _upload_bytes(task: TaskSpec, layout: ContributionLayout) -> int:
    if not task.privacy.is_masked:
        return layout.size_bytes
    from mien.secagg.quantise import packed_size
    from mien.secagg.vector import ContributionMap

    words = ContributionMap(layout).vector_layout.num_words
    return packed_size(words, task.privacy.ring_bits) + 4 * (layout.size - layout.summed_size)


def _plain_sums(task: TaskSpec, min_cohort: int) -> tuple[str, ...]:
    return (
        f"It is meant to be seen only as part of a sum over at least {task.cohort.min_reports} devices "
        f"(this device agrees to {min_cohort} or more).",
        *_sources(task, task.cohort.min_reports),
        PLAIN_SUMS,
    )


def _sources(task: TaskSpec, least: int) -> tuple[str, ...]:
    """Return a sentence on devices that are in every sum, and may be those of whoever runs the coordinator."""
    fewest = task.cohort.min_labelled
    if not fewest:
        return ()
    return (
        f"Each sum includes {fewest} or more devices with labelled faces, which an operator runs and can leave out of "
        f"account: the others hide among {least - fewest}.",
    )


def _masked_sums(task: TaskSpec, min_cohort: int) -> tuple[str, ...]:
    """Return sentences on what the masks promise, what the sum still tells, and how many phones must stay."""
    from mien.secagg.graph import default_neighbourhood
    from mien.secagg.planner import PROFILES, largest_group, smallest_sum

    least, most = smallest_sum(task), largest_group(task)
    profile = task.privacy.secure_aggregation
    stay = max(least, default_neighbourhood(PROFILES[profile], most).t + 1)
    return (
        f"What the coordinator learns is the sum over at least {least} phones (this device agrees to {min_cohort} or "
        "more), and what that sum tells: the fewer phones, the more of each.",
        *_sources(task, least),
        _PROMISES[profile],
        f"Of {most} phones that begin, {'all' if stay == most else stay} must stay to the end; if fewer do, nothing is "
        "uncovered and the round is tried again.",
    )


def _noise(task: TaskSpec) -> tuple[str, ...]:
    """Return sentences on who adds the noise of differential privacy, and what this phone has to believe."""
    dp = task.privacy.dp
    promise = f"(epsilon {dp.epsilon:g} at delta {dp.delta:g} for all tasks of the population together)"
    return {
        "none": (),
        "central_gaussian": (
            f"The coordinator promises to add noise to the sum before it uses it {promise}; this phone cannot see "
            "whether it does.",
        ),
        "skellam": (f"Each phone adds its share of noise, so that the sum is noisy before anybody sees it {promise}.",),
    }[dp.mechanism]
