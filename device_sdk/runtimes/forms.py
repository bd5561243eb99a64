"""Objectives that a phone can train without torch, and the form of each one's graph. Imports no torch.

An `ObjectiveForm` says what an exported loss has as inputs; sizes (batch, classes) and most constants are inputs, so
one graph serves every task of that form. Symbols of sizes: B batch, K classes, L own and G public classes, D embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import Objective

SAMPLE_WEIGHT: Final = "sample_weight"
EXAMPLE_SIZES: Final[Mapping[str, int]] = MappingProxyType({"B": 5, "K": 7, "L": 3, "G": 4})
"""Sizes that a graph is traced with: none is another's, none is 1, and K = L + G where all three are."""

Shapes = tuple[tuple[str, tuple[str | int, ...]], ...]
"""Names of tensors with their shapes, in order; a letter is a symbol."""


@dataclass(frozen=True)
class ObjectiveForm:
    """An objective up to sizes and constants: its tensors, the constants that are inputs, those that are built in.

    `private` tensors are trained and `fixed` ones are not.
    """

    objective: str
    private: Shapes
    per_crop: Shapes = ()
    constants: tuple[str, ...] = ()
    built_in: tuple[tuple[str, float], ...] = ()
    sees_mirroring: bool = False
    fixed: Shapes = ()

    @property
    def name(self) -> str:
        """A name for files: the objective, then what sets this form apart from others of it."""
        return "_".join([self.objective, *_words(self)])


def form_of(objective: Objective) -> ObjectiveForm:
    """Return the form of what is to be trained.

    Raises ConfigError for an objective that no graph can hold, or whose tensors are not those that it needs.
    """
    make = _FORMS.get(objective.name)
    if make is None:
        raise ConfigError(_refusal(objective.name))
    form = make(objective)
    missing = [name for name, _ in form.private if name not in objective.private]
    missing += [name for name, _ in form.fixed if name not in objective.fixed]
    missing += [name for name, _ in form.per_crop if name not in objective.per_crop and name != SAMPLE_WEIGHT]
    missing += [name for name in form.constants if name not in objective.constants]
    extra = sorted(set(objective.private) - {name for name, _ in form.private})
    extra += sorted(set(objective.fixed) - {name for name, _ in form.fixed})
    extra += sorted(set(objective.per_crop) - {name for name, _ in form.per_crop})
    if missing or extra:
        raise ConfigError(
            f"objective {objective.name!r} lacks {missing} and has {extra} that it does not know; use the same version "
            "of mien for task and device"
        )
    return form


def standard_forms(name: str, *, arcface_margin: float = 0.5) -> tuple[ObjectiveForm, ...]:
    """Return every form of an objective that phones meet; raises ConfigError for one that no graph can hold."""
    if name not in _FORMS:
        raise ConfigError(_refusal(name))
    return tuple(dict.fromkeys(form_of(objective) for objective in _examples(name, arcface_margin)))


def exportable() -> tuple[str, ...]:
    """Return the names of all objectives that a graph can hold."""
    return tuple(_FORMS)


def _refusal(name: str) -> str:
    known = ", ".join(_FORMS)
    if name in _POOLED:
        return (
            f"objective {name!r} compares faces of two domains within a batch and is for pooled systems: no graph "
            f"holds it; graphs exist for {known}"
        )
    return f"objective {name!r} is unknown to this exporter; graphs exist for {known}; upgrade mien, or use torch"


def _words(form: ObjectiveForm) -> Iterator[str]:
    private, per_crop = dict(form.private), dict(form.per_crop)
    if form.objective == "positive_hinge" and len(private["class_embedding"]) > 1:
        yield "many"
    if "global_features" in per_crop:
        yield "contrastive"
    if "pi_weight" in private:
        yield "cosface_branch" if "omega_public" in private else "branch"
    for name, value in form.built_in:
        if name == "detach_branch":
            yield "detached" if value else "joint"
        else:
            yield f"{name}{value!r}"


_MANY: Final[Shapes] = (("class_embeddings", ("K", "D")),)
_TARGET: Final[Shapes] = (("target", ("B", "K")),)
_WEIGHT: Final[Shapes] = ((SAMPLE_WEIGHT, ("B",)),)
_MARGIN: Final = ("scale", "margin")


def _positive_hinge(objective: Objective) -> ObjectiveForm:
    several = np.ndim(objective.private.get("class_embedding", np.zeros(1))) > 1
    private: Shapes = (("class_embedding", ("K", "D") if several else ("D",)),)
    return ObjectiveForm("positive_hinge", private, (_TARGET if several else ()) + _WEIGHT, ("margin",))


def _arcface(objective: Objective) -> ObjectiveForm:
    # Its cosine and sine are taken once, when the graph is made.
    margin = (("margin", float(objective.constants.get("margin", 0.5))),)
    return ObjectiveForm("arcface", _MANY, _TARGET + _WEIGHT, ("scale",), margin)


def _cosface_distilled(_: Objective) -> ObjectiveForm:
    teacher: Shapes = (("teacher_logits", ("B", 2, "K")),)
    constants = (*_MARGIN, "distillation", "temperature")
    return ObjectiveForm("cosface_distilled", _MANY, _TARGET + _WEIGHT + teacher, constants, sees_mirroring=True)


def _moment_softmax(_: Objective) -> ObjectiveForm:
    moments: Shapes = (("mean", ("D",)), ("covariance", ("D", "D")))
    return ObjectiveForm("moment_softmax", (), _TARGET + _WEIGHT, ("log_others", *_MARGIN), fixed=_MANY + moments)


def _fedfr(objective: Objective) -> ObjectiveForm:
    private: Shapes = (("local_proxies", ("L", "D")), ("public_proxies", ("G", "D")))
    per_crop: Shapes = _TARGET
    constants: tuple[str, ...] = ("alpha_cosface", *_MARGIN)
    built_in: tuple[tuple[str, float], ...] = ()
    contrastive = "global_features" in objective.per_crop
    if contrastive:
        per_crop += (("global_features", ("B", 2, "D")), ("previous_features", ("B", 2, "D")))
        constants += ("alpha_contrastive", "temperature")
    if "pi_weight" in objective.private:
        private += (("pi_weight", ("D", "D")), ("pi_bias", ("D",)), ("omega", ("L", "D")))
        constants += ("alpha_branch", "branch_scale", "branch_margin")
        built_in = (("detach_branch", float(bool(objective.constants.get("detach_branch", 0.0)))),)
        if "omega_public" in objective.private:
            private += (("omega_public", ("G", "D")),)
        else:
            private += (("bias", ("L",)),)
            constants += ("exponent", "balance")
    return ObjectiveForm("fedfr", private, per_crop, constants, built_in, sees_mirroring=contrastive)


_FORMS: Final[Mapping[str, Callable[[Objective], ObjectiveForm]]] = {
    "positive_hinge": _positive_hinge,
    "cosface": lambda _: ObjectiveForm("cosface", _MANY, _TARGET + _WEIGHT, _MARGIN),
    "cosface_distilled": _cosface_distilled,
    "fedfr": _fedfr,
    "arcface": _arcface,
    "softmax": lambda _: ObjectiveForm("softmax", _MANY, _TARGET + _WEIGHT),
    "moment_softmax": _moment_softmax,
}
_POOLED: Final = ("dan", "dann")


def _examples(name: str, arcface_margin: float) -> Iterator[Objective]:
    """Yield one objective of each form, its tensors as small as can be."""
    vectors = np.zeros((2, 2), np.float32)
    constants = dict.fromkeys(
        (*_MARGIN, "log_others", "distillation", "temperature", "alpha_cosface", "alpha_contrastive", "alpha_branch",
         "branch_scale", "branch_margin", "exponent", "balance"), 1.0)  # fmt: skip
    if name == "positive_hinge":
        yield Objective(name, {"class_embedding": vectors[0]}, constants=constants)
        yield Objective(name, {"class_embedding": vectors}, per_crop={"target": vectors}, constants=constants)
    elif name == "moment_softmax":
        fixed = {"class_embeddings": vectors, "mean": vectors[0], "covariance": vectors}
        yield Objective(name, fixed=fixed, per_crop={"target": vectors}, constants=constants)
    elif name == "fedfr":
        yield from _fedfr_examples(vectors, constants)
    else:
        per_crop = {"target": vectors} | ({"teacher_logits": vectors} if name == "cosface_distilled" else {})
        constants["margin"] = arcface_margin
        yield Objective(name, {"class_embeddings": vectors}, per_crop=per_crop, constants=constants)


def _fedfr_examples(vectors: Vector, constants: Mapping[str, float]) -> Iterator[Objective]:
    proxies = {"local_proxies": vectors, "public_proxies": vectors}
    branch = dict.fromkeys(("pi_weight", "pi_bias", "omega", "bias"), vectors)
    no_bias = dict.fromkeys(("pi_weight", "pi_bias", "omega", "omega_public"), vectors)
    features = dict.fromkeys(("global_features", "previous_features"), vectors)
    for extra, contrast in itertools.product(({}, branch, no_bias), ({}, features)):
        for detach in (0.0, 1.0) if extra else (0.0,):
            yield Objective(
                "fedfr",
                {**proxies, **extra},
                per_crop={"target": vectors, **contrast},
                constants={**constants, "detach_branch": detach},
            )
