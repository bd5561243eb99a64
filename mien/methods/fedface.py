"""FedFace: one identity a phone; class embeddings start at the mean feature and are spread out.

Source: Aggarwal, Zhou, Jain, "FedFace: Collaborative Learning of Face Recognition Model" (2021), Algorithm 1. It has
two forms, chosen by the task's `privacy.reveals`:

- empty (the default): w_i never leaves the phone. The phone holds its identity apart from public ones by itself, with a
  softmax over [w_i; public class embeddings] on its own and public images. Decision record 0010 says why this
  one, and where its gain comes from. `options.private_form = "hinge"` keeps the published loss (eq 7) instead. After
  the local round the phone takes its own steps: away from public people (`options.public_step`) and against the
  second moment of the cohort's class embeddings (`options.moment`), both off by default.
- ("class_embeddings",), as published: the phone minimises the positive loss (eq 7) and shows the server w_i, from which
  a face can be told; the server spreads all class embeddings out (eq 9) and answers with the phone's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods import moments
from mien.methods.averaging import apply_mean_update, mean_feature, update_addends, update_lanes
from mien.methods.averaging import server_start as averaging_start
from mien.methods.base import (
    DeviceInput,
    DeviceOutput,
    Method,
    Objective,
    Runtime,
    ServerState,
    Trained,
    counted_together,
)
from mien.methods.check_reply import told
from mien.methods.spreadout import PAPER, RELEASED_CODE, MomentSpec, SpreadOutSpec, normalise, push_away, spread_out
from mien.specs import TaskSpec, from_mapping

W: Final = "class_embedding"
P: Final = "public_embeddings"


@dataclass(frozen=True)
class PublicSpec:
    """How the private form uses public faces: `identities` nearest to the device's own, `images` of them a batch.

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
class FedFaceOptions:
    """`margin` m of the positive hinge (eq 7); `spread_out` of the exact form (eq 9); the rest is the private form's.

    `preset` takes the exact form's spread-out from the paper or from its released code instead. `private_form` is what
    a phone minimises that shows nothing: a softmax with `public` people, or the positive hinge alone. `public_step` and
    `moment` are the steps that it takes by itself afterwards.
    """

    margin: float = 0.9
    preset: Literal["own", "paper", "released_code"] = "own"
    spread_out: SpreadOutSpec = field(default_factory=SpreadOutSpec)
    private_form: Literal["softmax", "hinge"] = "softmax"
    public: PublicSpec = field(default_factory=PublicSpec)
    public_step: SpreadOutSpec | None = None
    moment: MomentSpec = field(default_factory=MomentSpec)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and -1.0 < self.margin <= 1.0):
            raise ConfigError(f"options.margin is {self.margin}; it is a cosine and must lie in (-1, 1]")

    @property
    def server_spread_out(self) -> SpreadOutSpec:
        """What the server does with the class embeddings that it was shown."""
        return {"own": self.spread_out, "paper": PAPER, "released_code": RELEASED_CODE}[self.preset]


def options_of(task: TaskSpec) -> FedFaceOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(FedFaceOptions, task.options, where="options.")


def reveals_class_embeddings(task: TaskSpec) -> bool:
    """Return whether the task is in the published form, in which devices show w_i."""
    return "class_embeddings" in task.privacy.reveals


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums, and w_i in clear only where the task opted in.

    Raises ConfigError for moments that would show more than the task says.
    """
    moment = options_of(task).moment
    if not reveals_class_embeddings(task):
        return ContributionLayout((*update_lanes(part), *moments.lanes(task, moment, dim)))
    if moment.is_on:
        raise ConfigError("options.moment is of no use where class embeddings are shown; set options.moment.every to 0")
    return ContributionLayout(update_lanes(part), (Lane(W, dim),))


def needs_public_faces(task: TaskSpec) -> bool:
    """Return whether phones need public people: to tell themselves from, or to step away from."""
    options = options_of(task)
    private_need = options.private_form == "softmax" or options.public_step is not None
    return private_need and not reveals_class_embeddings(task)


def objective_of(task: TaskSpec) -> str:
    """Return what phones minimise: a hinge on the own identity, or CosFace beside public ones."""
    hinge = reveals_class_embeddings(task) or options_of(task).private_form == "hinge"
    return "positive_hinge" if hinge else "cosface"


# The device half.


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one device's round: Algorithm 1, lines 2 and 6-7, or its private form."""
    if reveals_class_embeddings(inp.task):
        return _revealing_round(inp, runtime)
    if options_of(inp.task).private_form == "hinge":
        trained = _positive_step(inp, runtime)
        return _private_output(inp, runtime, trained, trained.private[W], {})
    return _softmax_round(inp, runtime)


def _positive_step(inp: DeviceInput, runtime: Runtime) -> Trained:
    """Line 2 at first participation, then line 6: a step on theta and w_i, which the server may have spread out."""
    answered = told(inp.reply, W, (inp.dim,))
    w = inp.private.get(W) if answered is None else answered
    if w is None:
        w = mean_feature(runtime, inp.theta, inp.crops)
    objective = Objective(
        "positive_hinge", private={W: w}, constants={"margin": options_of(inp.task).margin}, unit_norm=(W,)
    )
    return runtime.train(inp.theta, inp.part, inp.crops, objective, inp.task.local, inp.seed)


def _revealing_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Lines 2 and 6, and line 7 with w_i in clear."""
    trained = _positive_step(inp, runtime)
    addends = {**update_addends(inp, trained), W: trained.private[W]}
    return _output(inp, trained, addends, {W: trained.private[W]})


def _softmax_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Line 2 at first participation, then a softmax over [w_i; nearest public class embeddings]; w_i stays here."""
    public = options_of(inp.task).public
    crops, labels = _public_faces(inp)
    w, p_KD = inp.private.get(W), inp.private.get(P)
    if w is None:
        w = mean_feature(runtime, inp.theta, inp.crops)
    num_identities = int(labels.max()) + 1
    if p_KD is None or p_KD.shape != (num_identities, inp.dim):
        p_KD = _class_means(runtime.embed(inp.theta, crops), labels)
    nearest = np.argsort(-(p_KD @ w), kind="stable")[: public.identities]
    chosen = _draw_images(labels, nearest, public.images, np.random.default_rng(inp.seed))
    objective = _softmax_objective(w, p_KD[nearest], _positions(labels[chosen], nearest), len(inp.crops), public)
    batch = np.concatenate([inp.crops, crops[chosen]])
    trained = runtime.train(inp.theta, inp.part, batch, objective, inp.task.local, inp.seed)
    vectors = trained.private["class_embeddings"]
    p_KD = p_KD.copy()
    p_KD[nearest] = vectors[1:]
    return _private_output(inp, runtime, trained, vectors[0].copy(), {P: p_KD})


def _private_output(inp: DeviceInput, runtime: Runtime, trained: Trained, w: Vector, private: Arrays) -> DeviceOutput:
    """Return what a phone that shows nothing sends, after the steps that it takes on w_i by itself."""
    options = options_of(inp.task)
    # What is summed is w_i as it was trained, which is also what the exact form's server spreads out.
    lane, kept = moments.addends(inp, options.moment, w[None])
    if options.public_step is not None:
        crops, labels = _public_faces(inp)
        w = push_away(w[None], _class_means(runtime.embed(inp.theta, crops), labels), options.public_step)[0]
    w = moments.step(inp, options.moment, w[None])[0]
    return _output(inp, trained, {**update_addends(inp, trained), **lane}, {**private, **kept, W: w})


def _output(inp: DeviceInput, trained: Trained, addends: Arrays, private: Arrays) -> DeviceOutput:
    layout = contribution_layout(inp.task, inp.part, inp.dim)
    metrics = {"loss_before": trained.loss_before, "loss_after": trained.loss_after}
    return DeviceOutput(layout.pack(addends), private, metrics)


def _public_faces(inp: DeviceInput) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return public crops with labels 0 ... K - 1."""
    if inp.public_crops is None or inp.public_labels is None or len(inp.public_crops) == 0:
        raise ConfigError(
            "fedface holds identities apart with public faces, and this model's bundle has none: add some with "
            "`model import --public SHARD`, or let devices show their class embeddings with privacy.reveals = "
            '["class_embeddings"]'
        )
    _, labels = np.unique(inp.public_labels, return_inverse=True)
    return inp.public_crops, labels.astype(np.int64)


def _class_means(embeddings: Vector, labels: NDArray[np.int64]) -> Vector:
    """Return the normalised mean embedding of each label: (K, D)."""
    sums = np.zeros((int(labels.max()) + 1, embeddings.shape[1]))
    np.add.at(sums, labels, embeddings)
    return normalise(sums).astype(np.float32)


def _draw_images(
    labels: NDArray[np.int64], identities: NDArray[np.int64], num_images: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return indices of up to `num_images` public images of these identities, drawn without replacement."""
    candidates = np.flatnonzero(np.isin(labels, identities))
    return rng.permutation(candidates)[:num_images]


def _positions(labels: NDArray[np.int64], identities: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each label stands in `identities`."""
    place = {int(identity): position for position, identity in enumerate(identities)}
    return np.array([place[int(label)] for label in labels], np.int64)


def _softmax_objective(
    w: Vector, p_KD: Vector, public_classes: NDArray[np.int64], num_own: int, public: PublicSpec
) -> Objective:
    """Return CosFace over class 0, the device's own, and classes 1 ... K, the public ones; own images come first."""
    classes = np.concatenate([np.zeros(num_own, np.int64), 1 + public_classes])
    weight = np.where(np.arange(len(classes)) < num_own, 1.0, public.weight)
    return Objective(
        "cosface",
        private={"class_embeddings": np.concatenate([w[None], p_KD]).astype(np.float32)},
        per_crop={
            "target": np.eye(1 + len(p_KD), dtype=np.float32)[classes],
            "sample_weight": weight.astype(np.float32),
        },
        constants={"scale": public.scale, "margin": public.margin},
        unit_norm=("class_embeddings",),
    )


# The server half.


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round."""
    start = averaging_start(task, part, theta)
    return replace(start, arrays={**start.arrays, **moments.start(options_of(task).moment)})


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after lines 9 and 10: theta takes its step; where w_i are shown, all of W spreads out."""
    after = apply_mean_update(task, part, state, total)
    options = options_of(task)
    if not reveals_class_embeddings(task):
        return replace(after, arrays={**after.arrays, **moments.after_round(task, options.moment, state, total)})
    everyone = {**state.revealed, **revealed}
    devices = sorted(everyone)
    w_CD = spread_out(np.stack([everyone[device][W] for device in devices]), options.server_spread_out)
    spread: dict[str, Arrays] = {device: {W: w} for device, w in zip(devices, w_CD, strict=True)}
    return replace(after, revealed=spread)


def reply(state: ServerState, device: str) -> Arrays:
    """Return the device's own class embedding as the server spread it out (line 4), or the last sum of moments."""
    return {**moments.reply(state), **state.revealed.get(device, {})}


def why_synchronous(task: TaskSpec) -> str:
    """Return why each round needs the one before it, if it does."""
    return moments.why_synchronous(task, options_of(task).moment)


FEDFACE = Method(
    name="fedface",
    source="Aggarwal, Zhou, Jain: FedFace (2021)",
    options=FedFaceOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    objective=objective_of,
    reply=reply,
    needs_public_faces=needs_public_faces,
    shared_reply=moments.SHARED,
    why_synchronous=why_synchronous,
    why_apart=counted_together,
)
