"""Federated evaluation: phones measure a model on their own pictures, and histograms of scores are all that is summed.

No paper's: what is summed and what it says are in `mien.evaluation.fleet`. With `reference` each phone measures that
model too, on the same pictures, so that the difference is an addend of its own. The server's step leaves the model as
it is. Decision record 0029.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError, NonFiniteError
from mien.evaluation.fleet import FleetFigures, addends, check_sums, figures, lanes, norm_bound, phone_comparisons
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, DeviceInput, DeviceOutput, Method, Property, Requirements, Runtime, ServerState
from mien.protocol.ids import ModelId
from mien.records import check_limits, to_mapping, within
from mien.specs import PrivacySpec, TaskSpec, from_mapping

PROTOCOL: Final = ("fleet", "1")
SUMS: Final = "sums"
_MODEL_ID: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EvaluationOptions:
    """`threshold` decides with the task's model, `reference_threshold` with the `reference`, another model's id.

    Both should be those that phones verify with. Only phones in the first `share` of the roll-out of the task's model
    are asked. Scores are counted in `bins` of [-1, 1]; `public_images` of the model's public faces are compared with,
    drawn by the task's seed; 0: all.
    """

    threshold: float
    reference: str = ""
    reference_threshold: float | None = None
    share: float = 1.0
    bins: Annotated[int, within(20, 4000)] = 400
    public_images: int = 256

    def __post_init__(self) -> None:
        for name in ("threshold", "reference_threshold"):
            value = getattr(self, name)
            if value is not None and not -1 <= value <= 1:
                raise ConfigError(f"options.{name} is {value}; it must be a cosine between -1 and 1")
        if self.reference and not _MODEL_ID.fullmatch(self.reference):
            raise ConfigError("options.reference is not the id of a model: 64 hex digits; model list --json shows ids")
        if bool(self.reference) != (self.reference_threshold is not None):
            raise ConfigError("options.reference and options.reference_threshold go together; give both or neither")
        if not 0 < self.share <= 1:
            raise ConfigError(f"options.share is {self.share}; it must lie above 0 and not above 1")
        check_limits(self, "options.")
        if not 0 <= self.public_images <= 100_000:
            raise ConfigError(f"options.public_images is {self.public_images}; it must lie between 0 (all) and 100000")

    @property
    def is_paired(self) -> bool:
        """True if phones compare two models."""
        return bool(self.reference)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The model's threshold, then the reference's if there is one."""
        return (self.threshold,) if self.reference_threshold is None else (self.threshold, self.reference_threshold)


def privacy_of(*, min_cohort: int, is_paired: bool, bins: int = 400) -> PrivacySpec:
    """Return the terms under which histograms are summed: no phone weighs more than another, and none is clipped."""
    bound = norm_bound(bins, is_paired=is_paired)
    return PrivacySpec(min_cohort=min_cohort, max_weight=1, coordinate_clip=1.0, l2_clip=bound)


def options_of(task: TaskSpec) -> EvaluationOptions:
    """Return the task's options; raises ConfigError for a task whose sums would not be histograms any more."""
    options = from_mapping(EvaluationOptions, task.options, where="options.")
    privacy = task.privacy
    if privacy.dp.is_on:
        raise ConfigError(
            "privacy.dp is on; federated evaluation has no noise: over a cohort small enough for a roll-out it would "
            "hide what is measured. Leave it out; a population with a privacy budget refuses the sum"
        )
    if privacy.groups > 1:
        raise ConfigError("privacy.groups is above 1; federated evaluation is one sum, leave it out")
    needed = norm_bound(options.bins, is_paired=options.is_paired)
    if privacy.is_masked and not (privacy.coordinate_clip >= 1 and privacy.l2_clip >= needed * (1 - 1e-6)):
        raise ConfigError(
            f"privacy.l2_clip is {privacy.l2_clip:g} and privacy.coordinate_clip {privacy.coordinate_clip:g}; "
            f"histograms of {options.bins} bins need {needed:.1f} and 1 or more, or they would be clipped"
        )
    return options


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes: count, weight (always 1), histograms of one model or two, and what goes with them."""
    return _layout(options_of(task))


def _layout(options: EvaluationOptions) -> ContributionLayout:
    return ContributionLayout((Lane("count", 1), Lane("weight", 1), *lanes(options.bins, is_paired=options.is_paired)))


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return a phone's histograms; it keeps nothing. Raises ConfigError without public faces or the other model."""
    options = options_of(inp.task)
    public = _public(inp, options)
    thetas = [inp.theta]
    if options.is_paired:
        if options.reference not in inp.models:
            raise ConfigError("the model to compare with is not here; the phone leaves the round, tell the operator")
        thetas.append(inp.models[options.reference])
    labels = np.zeros(len(inp.crops), np.int64) if inp.labels is None else inp.labels
    compared = [
        phone_comparisons(runtime.embed(theta, inp.crops), labels, runtime.embed(theta, public)) for theta in thetas
    ]
    one = np.ones(1, np.float32)
    told = {"count": one, "weight": one, **addends(compared, options.thresholds, bins=options.bins)}
    return DeviceOutput(_layout(options).pack(told), private={})


def _public(inp: DeviceInput, options: EvaluationOptions) -> Crops:
    """Return the public crops that every phone of the round compares with."""
    if inp.public_crops is None or not len(inp.public_crops):
        raise ConfigError("the model came without public faces to compare with; tell the operator")
    count = len(inp.public_crops)
    if options.public_images in (0, count) or options.public_images > count:
        return inp.public_crops
    chosen = np.random.default_rng(inp.task.seed).choice(count, options.public_images, replace=False)
    drawn: NDArray[np.uint8] = inp.public_crops[np.sort(chosen)]
    return drawn


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round: the model, and nothing measured."""
    return ServerState(theta=theta)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state with the round's sum; the model stays. Raises CorruptDataError for a sum that cannot be."""
    if total.num_reports == 0:
        raise NonFiniteError("nobody's histograms are in the sum; the round is aborted")
    check_sums(_named(total.layout, total.vector), total.num_reports)
    sums = np.concatenate([[total.num_reports], total.vector]).astype(np.float32)
    return ServerState(theta=state.theta, arrays={SUMS: sums}, rounds=state.rounds + 1)


def figures_of(task: TaskSpec, state: ServerState) -> FleetFigures:
    """Return the figures of the last round's sum; raises UndefinedMetricError where too few phones could compare."""
    options, sums = options_of(task), state.arrays[SUMS].astype(np.float64)
    return figures(_named(_layout(options), sums[1:]), round(float(sums[0])), options.thresholds)


def measured(task: TaskSpec, state: ServerState) -> Mapping[str, Any]:
    """Return the record of the last round; raises as `figures_of`."""
    options, found = options_of(task), figures_of(task, state)
    name, version = PROTOCOL
    return {
        "protocol": name,
        "protocol_version": version,
        "dataset": f"fleet of population {task.population}",
        "seed": task.seed,
        "bins": options.bins,
        "share": options.share,
        "eer": found.model.eer,
        "mated": found.num_mated,
        "non_mated": found.num_non_mated,
        "num_phones": found.num_phones,
        "num_mated_phones": found.num_mated_phones,
        **({"reference_model_id": options.reference} if options.is_paired else {}),
        "figures": to_mapping(found),
    }


def _named(layout: ContributionLayout, vector: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    return {name: vector[place] for name, place in layout.slices.items()}


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: public faces, the other model, the phones to ask; raises ConfigError."""
    options = options_of(task)
    others = (ModelId(options.reference),) if options.is_paired else ()
    return Requirements(public_faces=True, other_models=others, share=options.share)


FEDERATED_EVALUATION: Final = Method(
    name="federated_evaluation",
    source="this project: federated evaluation by summed score histograms",
    options=EvaluationOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    requirements=requirements,
    properties=frozenset({Property.SEVERAL_PEOPLE}),
    measured=measured,
)
