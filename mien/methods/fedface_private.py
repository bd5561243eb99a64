"""FedFace's private forms, in which no phone shows its class embedding w_i, and the method's entry with all forms.

A task's `privacy.reveals` chooses: with ("class_embeddings",) it is the published Algorithm 1 (`fedface`). Without it
w_i never leaves the phone, and `options.private_form` says how it holds its identity apart from others by itself; unset
it is "everybody" where a task agreed to sums of class moments, ("class_moment",), and "softmax" where it did not.
"softmax" has a softmax over [w_i; public class embeddings] on its own and public images. Decision record 0010 says why
this one, and where its gain comes from. "everybody" has one against all other phones by two summed moments
(`everybody`), and "hinge" keeps the published loss (eq 7) alone. After the local round of the first and the last the
phone takes its own steps: away from public people (`options.public_step`) and against the second moment of the cohort's
class embeddings (`options.moment`), both off by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods import everybody, fedface, moments
from mien.methods.averaging import mean_feature, output, update_addends, update_lanes
from mien.methods.base import (
    Crops,
    DeviceInput,
    DeviceOutput,
    Method,
    Objective,
    Property,
    Requirements,
    Runtime,
    ServerState,
    Trained,
)
from mien.methods.everybody import EverybodySpec
from mien.methods.fedface import W
from mien.methods.proxies import (
    Indices,
    check_published,
    class_means,
    one_hot_rows,
    public_faces,
    reveals_class_embeddings,
)
from mien.methods.spreadout import MomentSpec, SpreadOutSpec, push_away
from mien.specs import TaskSpec, from_mapping

P: Final = "public_embeddings"


@dataclass(frozen=True)
class PublicSpec:
    """Use of public faces in the private form: `identities` nearest to the device's own, `images` of them a batch.

    `scale` s and `margin` m are CosFace's; `weight` is what a public image counts in the loss, an own image counting 1.
    """

    identities: int = 20
    images: int = 20
    weight: float = 1.0
    scale: float = 16.0
    margin: float = 0.2

    def __post_init__(self) -> None:
        if self.identities < 1 or self.images < 0:
            raise ConfigError("options.public needs identities >= 1 and images >= 0")
        if not (0 <= self.weight < math.inf and 0 < self.scale < math.inf and 0 <= self.margin < 1):
            raise ConfigError("options.public needs weight >= 0, scale > 0 and margin in [0, 1)")


@dataclass(frozen=True)
class FedFaceOptions(fedface.PublishedOptions):
    """Options of the published form, then of the private ones.

    `private_form` is what a phone minimises that shows nothing: a softmax with `public` people or against `everybody`,
    or the positive hinge alone. Unset it is against everybody where the task agreed to sums of class moments and takes
    no steps, and with public people else. `public_step` and `moment` are the steps that it takes by itself afterwards.
    """

    private_form: Literal["softmax", "hinge", "everybody"] | None = None
    public: PublicSpec = field(default_factory=PublicSpec)
    everybody: EverybodySpec = field(default_factory=EverybodySpec)
    public_step: SpreadOutSpec | None = None
    moment: MomentSpec = field(default_factory=MomentSpec)


def options_of(task: TaskSpec) -> FedFaceOptions:
    """Return the task's options, its private form named; raises ConfigError naming the wrong field."""
    options = from_mapping(FedFaceOptions, task.options, where="options.")
    if options.private_form is not None:
        return options
    is_agreed = moments.REVEALS in task.privacy.reveals and not options.moment.is_on and options.public_step is None
    return replace(options, private_form="everybody" if is_agreed else "softmax")


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums, and w_i in clear only where the task opted in.

    Raises ConfigError for moments that would show more than the task says.
    """
    options = options_of(task)
    if not reveals_class_embeddings(task):
        if options.private_form == "everybody":
            _check_everybody(options)
            return everybody.contribution_layout(task, part, dim)
        return ContributionLayout((*update_lanes(part), *moments.lanes(task, options.moment, dim)))
    if options.moment.is_on:
        raise ConfigError("options.moment is of no use where class embeddings are shown; set options.moment.every to 0")
    check_published(task)
    return fedface.contribution_layout(part, dim)


def _check_everybody(options: FedFaceOptions) -> None:
    """Raise ConfigError for steps that move a class embedding, which this form makes anew each round."""
    if options.moment.is_on or options.public_step is not None:
        raise ConfigError(
            'options.private_form "everybody" makes class embeddings anew each round, so that options.moment and '
            "options.public_step are of no use: leave them out"
        )


# The device half.


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one device's round in the form that its task chose."""
    options = options_of(inp.task)
    if reveals_class_embeddings(inp.task):
        return fedface.device_round(inp, runtime, options)
    if options.private_form == "everybody":
        return everybody.device_round(inp, runtime, options.everybody)
    if options.private_form == "hinge":
        trained = fedface.positive_step(inp, runtime, options.margin)
        return _output(inp, runtime, options, trained, trained.private[W], {})
    return _softmax_round(inp, runtime, options)


def _softmax_round(inp: DeviceInput, runtime: Runtime, options: FedFaceOptions) -> DeviceOutput:
    """Line 2 at first participation, then a softmax over [w_i; nearest public class embeddings]; w_i stays here."""
    public, (crops, labels) = options.public, _public_faces(inp)
    w, p_KD = inp.private.get(W), inp.private.get(P)
    if w is None:
        w = mean_feature(runtime, inp.theta, inp.crops)
    num_identities = int(labels.max()) + 1
    if p_KD is None or p_KD.shape != (num_identities, inp.dim):
        p_KD = class_means(runtime.embed(inp.theta, crops), labels, num_identities)
    nearest = np.argsort(-(p_KD @ w), kind="stable")[: public.identities]
    # Up to `images` of theirs, drawn without replacement.
    drawn = np.random.default_rng(inp.seed).permutation(np.flatnonzero(np.isin(labels, nearest)))[: public.images]
    place = np.zeros(num_identities, np.int64)
    place[nearest] = np.arange(len(nearest))
    objective = _softmax_objective(w, p_KD[nearest], place[labels[drawn]], len(inp.crops), public)
    trained = runtime.train(inp.job(objective, crops=np.concatenate([inp.crops, crops[drawn]])))
    vectors = trained.private["class_embeddings"]
    p_KD = p_KD.copy()
    p_KD[nearest] = vectors[1:]
    return _output(inp, runtime, options, trained, vectors[0].copy(), {P: p_KD})


def _softmax_objective(w: Vector, p_KD: Vector, public_classes: Indices, num_own: int, public: PublicSpec) -> Objective:
    """Return CosFace over class 0, the device's own, and classes 1 ... K, the public ones; own images come first."""
    classes = np.concatenate([np.zeros(num_own, np.int64), 1 + public_classes])
    weight = np.where(np.arange(len(classes)) < num_own, 1.0, public.weight)
    return Objective(
        "cosface",
        private={"class_embeddings": np.concatenate([w[None], p_KD]).astype(np.float32)},
        per_crop={"target": one_hot_rows(classes, 1 + len(p_KD)), "sample_weight": weight.astype(np.float32)},
        constants={"scale": public.scale, "margin": public.margin},
        unit_norm=("class_embeddings",),
    )


def _output(
    inp: DeviceInput, runtime: Runtime, options: FedFaceOptions, trained: Trained, w: Vector, private: Arrays
) -> DeviceOutput:
    """Return the output of a phone that shows nothing, after the steps that it takes on w_i by itself."""
    # What is summed is w_i as it was trained, which is also what the published form's server spreads out.
    lane, kept = moments.addends(inp, options.moment, w[None])
    if options.public_step is not None:
        crops, labels = _public_faces(inp)
        public_KD = class_means(runtime.embed(inp.theta, crops), labels, int(labels.max()) + 1)
        w = push_away(w[None], public_KD, options.public_step)[0]
    w = moments.step(inp, options.moment, w[None])[0]
    layout = contribution_layout(inp.task, inp.part, inp.dim)
    return output(layout, {**update_addends(inp, trained), **lane}, {**private, **kept, W: w}, trained)


def _public_faces(inp: DeviceInput) -> tuple[Crops, Indices]:
    otherwise = ', or let devices show their class embeddings with privacy.reveals = ["class_embeddings"]'
    return public_faces(inp, method="fedface", otherwise=otherwise)


# The server half.


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round."""
    if _is_everybody(task):
        return everybody.server_start(task, part, theta)
    return moments.server_start(options_of(task).moment, task, part, theta)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after lines 9 and 10, or after line 9 and the sum of moments where nothing is shown."""
    options = options_of(task)
    if reveals_class_embeddings(task):
        return fedface.server_step(task, part, state, total, revealed, options)
    if _is_everybody(task):
        return everybody.server_step(task, part, state, total)
    return moments.server_step(options.moment, task, part, state, total)


def reply(state: ServerState, device: str) -> Arrays:
    """Return what a device is told: opened sums, and its own class embedding where it showed one."""
    return {**moments.reply(state, device), **everybody.reply(state)}


def _is_everybody(task: TaskSpec) -> bool:
    return options_of(task).private_form == "everybody" and not reveals_class_embeddings(task)


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: public people where phones train against them or step away from them."""
    options, shows = options_of(task), reveals_class_embeddings(task)
    if _is_everybody(task):
        return everybody.REQUIREMENTS
    is_softmax = options.private_form == "softmax" and not shows
    return Requirements(
        public_faces=is_softmax or (options.public_step is not None and not shows),
        objective="cosface" if is_softmax else "positive_hinge",
        shared_reply=moments.SHARED,
        why_synchronous=moments.why_synchronous(task, options.moment),
    )


FEDFACE: Final = Method(
    name="fedface",
    source="Aggarwal, Zhou, Jain: FedFace (2021)",
    options=FedFaceOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    requirements=requirements,
    properties=frozenset({Property.SUM_ONLY, Property.REVEALS}),
)
