"""A device's own model: FedFR's [Theta_l, Pi_l], and the local adaptations that it is compared with.

A personal model is made on the device from what it keeps, is used there, and never leaves. `fine_tune` and `distil` are
no federated methods: they start where one has ended. Source: Liu et al., FedFR (2022), Tables 2 and 3; Yu, Bagdasaryan,
Shmatikov, "Salvaging Federated Learning by Local Adaptation" (2020).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from mien.contribution import Arrays
from mien.errors import ConfigError, NotFoundError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, DeviceInput, Embeddings, Objective, Runtime, Trained
from mien.methods.fedfr import PREVIOUS, TrainingSet, features_both_ways, options_of, training_set
from mien.methods.proxies import normalised


@runtime_checkable
class FeatureRuntime(Runtime, Protocol):
    """A runtime that also gives embeddings as the backbone makes them, which Pi takes."""

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return embeddings (N, dim) of aligned crops, not normalised."""
        ...


@dataclass(frozen=True)
class PersonalModel:
    """A device's backbone before averaging, and Pi (D, D) with its bias (D,) where the device has trained a branch."""

    theta: Vector = field(repr=False)
    pi_weight: Vector | None = field(default=None, repr=False)
    pi_bias: Vector | None = field(default=None, repr=False)

    def embed(self, runtime: FeatureRuntime, crops: Crops) -> Embeddings:
        """Return personal embeddings (N, D) of aligned crops, at length 1: Pi f(x), or f(x) without a branch."""
        if self.pi_weight is None or self.pi_bias is None:
            return runtime.embed(self.theta, crops)
        return normalised(runtime.features(self.theta, crops) @ self.pi_weight.T + self.pi_bias)


Form = Literal["local", "branch"]


def personal_model(part: ParameterPart, theta: Vector, private: Arrays, form: Form = "branch") -> PersonalModel:
    """Return [Theta_l, Pi_l] of a device from what FedFR left in its private state, or Theta_l alone (Table 3).

    `theta` is any global model: of it only what is not trained is used. Raises NotFoundError for a device that has not
    taken part, or has no branch.
    """
    if PREVIOUS not in private or (form == "branch" and "pi_weight" not in private):
        raise NotFoundError("this device has no personal model yet; take part in a round of a fedfr task first")
    local = part.scatter(theta, private[PREVIOUS])
    if form == "local":
        return PersonalModel(local)
    return PersonalModel(local, private["pi_weight"], private["pi_bias"])


@dataclass(frozen=True)
class DistillationSpec:
    """`weight` of the divergence beside CosFace, and the `temperature` of both softmaxes; FedFR states neither."""

    weight: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.weight < 0 or self.temperature <= 0:
            raise ConfigError("distillation needs a weight that is not negative and a positive temperature")


def fine_tune(inp: DeviceInput, runtime: Runtime) -> PersonalModel:
    """Return the global model after local training with CosFace on own images and hard negatives (Table 2, Fine-tune).

    `inp` is that of a fedfr task after its last round: the final theta and reply, and what this device kept.
    """
    return PersonalModel(_adapt(inp, runtime, training_set(inp, runtime), None).theta)


def distil(inp: DeviceInput, runtime: Runtime, spec: DistillationSpec | None = None) -> PersonalModel:
    """Return the model of `fine_tune` with the local logits also drawn to the global model's (Table 2, KD)."""
    return PersonalModel(_adapt(inp, runtime, training_set(inp, runtime), spec or DistillationSpec()).theta)


def _adapt(inp: DeviceInput, runtime: Runtime, data: TrainingSet, spec: DistillationSpec | None) -> Trained:
    options = options_of(inp.task)
    proxies_KD = np.concatenate([data.local_proxies, data.public_proxies])
    objective = Objective(
        "cosface",
        private={"class_embeddings": proxies_KD},
        per_crop={"target": data.targets},
        constants={"scale": options.scale, "margin": options.margin},
    )
    if spec is not None:
        teacher_B2D = features_both_ways(runtime, inp.theta, data.crops, inp.task.local, data.embeddings)
        teacher_B2K = options.scale * teacher_B2D @ normalised(proxies_KD).T
        objective = replace(
            objective,
            name="cosface_distilled",
            per_crop={**objective.per_crop, "teacher_logits": teacher_B2K.astype(np.float32)},
            constants={**objective.constants, "distillation": spec.weight, "temperature": spec.temperature},
        )
    return runtime.train(inp.job(objective, crops=data.crops))
