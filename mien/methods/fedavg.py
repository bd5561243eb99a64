"""FedAvg: the baseline of every paper here; phones train on their own identities, the server averages.

Source: McMahan et al. (2017), with one of two local losses. `positive` is FedFace's (eq 7), of Aggarwal, Zhou, Jain
(2021), Table 1, row "FedAvg": nothing holds identities apart, so features of all phones draw together; `fedface` adds
what does. `cosface` is FedFR's baseline (Liu et al. 2022, Table 1, second row): CosFace over a phone's own identities.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.averaging import HingeOptions, contribution_layout, server_start, server_step, update_output
from mien.methods.base import (
    Crops,
    DeviceInput,
    DeviceOutput,
    Method,
    Objective,
    Property,
    Requirements,
    Runtime,
)
from mien.methods.proxies import Indices, carry_over, class_means, one_hot_rows, own_labels, public_faces
from mien.specs import TaskSpec, from_mapping

OWN: Final = "class_embedding"
PUBLIC: Final = "public_embeddings"


@dataclass(frozen=True)
class CosFaceSpec:
    """CosFace's `scale` s and `margin` m, and how many public images join each round's training (0: none).

    With public images, the classes are the phone's own identities and all public ones.
    """

    scale: float = 30.0
    margin: float = 0.4
    public_images: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.scale <= 1e4 and 0 <= self.margin < 1 and self.public_images >= 0):
            raise ConfigError("options.cosface needs scale in (0, 10000], margin in [0, 1) and public_images >= 0")


@dataclass(frozen=True)
class FedAvgOptions(HingeOptions):
    """`loss` that a phone minimises; `margin` m of the positive hinge max(0, m - w.f(x))^2; `cosface` of the other."""

    loss: Literal["positive", "cosface"] = "positive"
    cosface: CosFaceSpec = field(default_factory=CosFaceSpec)


def options_of(task: TaskSpec) -> FedAvgOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(FedAvgOptions, task.options, where="options.")


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return the update of a device that trains on its own images, and on public ones where the task says so."""
    options, labels = options_of(inp.task), own_labels(inp)
    if options.loss == "positive":
        return train_positive(inp, runtime, labels, own_embeddings(inp, runtime, labels), options.margin)
    return _train_cosface(inp, runtime, options.cosface, labels)


def own_embeddings(inp: DeviceInput, runtime: Runtime, labels: Indices) -> Vector:
    """Return a class embedding for each own identity, (L, D): what the device kept, else the mean feature."""
    kept = inp.private.get(OWN)
    if kept is not None and len(np.atleast_2d(kept)) > labels.max():
        return np.atleast_2d(kept)
    start = class_means(runtime.embed(inp.theta, inp.crops), labels, int(labels.max()) + 1)
    return start if kept is None else carry_over(np.atleast_2d(kept), start)


def train_positive(
    inp: DeviceInput, runtime: Runtime, labels: Indices, own_LD: Vector, margin: float, *, fixed: bool = False
) -> DeviceOutput:
    """Return the update of a device that draws each image and its identity's class embedding together.

    With `fixed` the class embeddings stay as they are.
    """
    one = len(own_LD) == 1
    objective = Objective(
        "positive_hinge",
        private={OWN: own_LD[0] if one else own_LD},
        per_crop={} if one else {"target": one_hot_rows(labels, len(own_LD))},
        constants={"margin": margin},
        unit_norm=() if fixed else (OWN,),
    )
    local = replace(inp.task.local, private_lr=0.0) if fixed else inp.task.local
    trained = runtime.train(inp.job(objective, local=local))
    return update_output(inp, trained, {OWN: trained.private[OWN]})


def _train_cosface(inp: DeviceInput, runtime: Runtime, cosface: CosFaceSpec, labels: Indices) -> DeviceOutput:
    """Return the update of a device that tells its identities apart, from each other and from public ones."""
    own_LD = own_embeddings(inp, runtime, labels)
    crops, classes, proxies_KD = inp.crops, labels, own_LD
    if cosface.public_images:
        public_crops, public_classes, public_GD = _public(inp, runtime, cosface.public_images)
        crops = np.concatenate([crops, public_crops])
        classes = np.concatenate([classes, len(own_LD) + public_classes])
        proxies_KD = np.concatenate([own_LD, public_GD])
    elif len(own_LD) < 2:
        raise ConfigError(
            "this phone holds one identity, and a softmax over one class teaches nothing: use options.loss = "
            '"positive", or public faces with options.cosface.public_images'
        )
    objective = Objective(
        "cosface",
        private={"class_embeddings": proxies_KD},
        per_crop={"target": one_hot_rows(classes, len(proxies_KD))},
        constants={"scale": cosface.scale, "margin": cosface.margin},
    )
    trained = runtime.train(inp.job(objective, crops=crops))
    vectors = trained.private["class_embeddings"]
    private = {OWN: vectors[: len(own_LD)].copy()}
    if cosface.public_images:
        private[PUBLIC] = vectors[len(own_LD) :].copy()
    return update_output(inp, trained, private)


def _public(inp: DeviceInput, runtime: Runtime, num_images: int) -> tuple[Crops, Indices, Vector]:
    """Return up to `num_images` public crops drawn for this round, their classes, and all public class embeddings."""
    crops, labels = public_faces(inp, method="fedavg with options.cosface.public_images")
    kept, num_identities = inp.private.get(PUBLIC), int(labels.max()) + 1
    if kept is None or kept.shape != (num_identities, inp.dim):
        kept = class_means(runtime.embed(inp.theta, crops), labels, num_identities)
    chosen = np.random.default_rng(inp.seed).permutation(len(crops))[:num_images]
    return crops[chosen], labels[chosen], kept


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: public faces where devices train on public images too."""
    options = options_of(task)
    if options.loss == "positive":
        return Requirements(objective="positive_hinge", why_synchronous="")
    return Requirements(options.cosface.public_images > 0, objective="cosface", why_synchronous="")


FEDAVG = Method(
    name="fedavg",
    source="McMahan et al. 2017; FedFace (2021) Table 1; FedFR (2022) Table 1",
    options=FedAvgOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    requirements=requirements,
    properties=frozenset({Property.SUM_ONLY, Property.SEVERAL_PEOPLE}),
    per_identity=(OWN,),
)
