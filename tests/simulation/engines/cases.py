"""One task of every method, and forms of some, on a cohort of ragged phones: what engines must agree on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mien.methods.pfm_fv import validation_faces
from mien.specs import AsynchronousSpec, CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import Engine
from simulation.engines.engine import Cohort, PublicFaces, Run, run_task
from simulation.engines.sums import Sums
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
PART = TINY.part()
DIM = 8
PUBLIC = PublicFaces(np.concatenate([made_up_crops(3, seed=100 + k) for k in range(4)]), np.repeat(np.arange(4), 3))
SIZES = {"a": 1, "b": 3, "c": 7, "d": 4, "e": 3, "f": 4}
"""How many images each phone holds: one has a single image, some as many as others, none is a multiple of a batch."""
ONE = {name: made_up_crops(n, seed=n + ord(name)) for name, n in SIZES.items()}
SEVERAL = {
    name: np.concatenate([made_up_crops(1 + (n + k) // 2, seed=10 * n + k + ord(name)) for k in range(2)])
    for name, n in SIZES.items()
}
LABELS = {name: np.repeat(np.arange(2), [1 + n // 2, 1 + (n + 1) // 2]).astype(np.int64) for name, n in SIZES.items()}
ALIKE = {name: np.concatenate([made_up_crops(3, seed=10 * k + ord(name)) for k in range(2)]) for name in SIZES}
LABELLED = {name: np.repeat(np.arange(2), 3).astype(np.int64) for name in SIZES if name < "d"}
_FACES = np.concatenate([made_up_crops(4, seed=1000 + k, spread=60) for k in range(6)])
VALIDATORS = {"v": validation_faces(_FACES, np.repeat(np.arange(6), 4).astype(np.int64), num_folds=2, seed=3)}
OTHER = "0" * 64

one = Cohort(ONE, public=PUBLIC)
several = Cohort(SEVERAL, public=PUBLIC, labels=LABELS)

TASK = TaskSpec(
    name="engines",
    method="fedavg",
    rounds=2,
    cohort=CohortSpec(size=5, min_reports=4),
    local=LocalSpec(lr=0.1, epochs=2, batch_size=2),
    privacy=PrivacySpec(min_cohort=2, max_weight=5, secure_aggregation="off"),
    options={"margin": 1.0},  # a smaller one is met by the start at the mean feature, and nothing would be trained
    seed=3,
)


@dataclass(frozen=True)
class Case:
    """A task and its phones."""

    task: TaskSpec
    cohort: Cohort = one


def _of(method: str, phones: Cohort = one, **changes: Any) -> Case:
    own = {} if method in ("fedgc", "fedfr", "fedfr_uda", "federated_evaluation") else TASK.options
    return Case(replace(TASK, method=method, **{"options": own, **changes}), phones)


_PLAIN = LocalSpec(lr=0.1, epochs=2)
_REVEALS = replace(TASK.privacy, reveals=("class_embeddings",))
CASES = {
    "fedavg": _of("fedavg"),
    "fedavg, several identities": _of("fedavg", several),
    "fedavg, all images in a batch": _of("fedavg", local=_PLAIN),
    "fedavg, momentum, decay, a drop": _of(
        "fedavg", local=LocalSpec(lr=0.1, epochs=3, momentum=0.9, weight_decay=0.01, lr_drop_epoch=2, private_lr=0.05)
    ),
    "fedavg, cosface with public images": _of(
        "fedavg", options={"loss": "cosface", "cosface": {"public_images": 6, "scale": 4.0}}
    ),
    "fedavg, so many steps": _of("fedavg", local=LocalSpec(lr=0.1, steps=3, batch_size=2)),
    "fedaws": _of("fedaws"),
    "fedface": _of("fedface", options={"public": {"identities": 3, "images": 6, "weight": 0.5, "scale": 4.0}}),
    "fedface, hinge": _of("fedface", options={"private_form": "hinge", "margin": 1.0}),
    "fedface, everybody": _of(
        "fedface",
        options={"private_form": "everybody", "everybody": {"scale": 4.0}},
        privacy=PrivacySpec(min_cohort=3, max_weight=5, reveals=("class_moment",)),
        rounds=3,
    ),
    "fedface, embeddings shown": _of("fedface", privacy=_REVEALS),
    "fedgc": _of("fedgc", several, options={"identities": 2, "start": "mean_feature"}, local=_PLAIN),
    "fedgc, class embeddings that decay": _of(
        "fedgc",
        several,
        options={"identities": 2, "start": "mean_feature", "correction": {"kind": "none"}},
        local=LocalSpec(lr=0.1, epochs=2, momentum=0.5, weight_decay=0.01, private_weight_decay=0.3),
    ),
    "fedgc, everybody": _of(
        "fedgc",
        several,
        options={"identities": 2, "head": {"kind": "cosface", "scale": 4.0}, "correction": {"scale": 2.0}},
        privacy=PrivacySpec(min_cohort=3, max_weight=5, reveals=("class_moment",)),
        rounds=3,
        local=_PLAIN,
    ),
    "fedgc, embeddings shown": _of(
        "fedgc", several, options={"identities": 2, "head": {"kind": "cosface", "scale": 4.0}}, privacy=_REVEALS
    ),
    "fedfr": _of(
        "fedfr",
        replace(several, labels={}),
        options={"public_classes": 4, "hard_negative_threshold": -1.0, "scale": 4.0, "branch_scale": 4.0},
        local=LocalSpec(lr=0.01, epochs=1, momentum=0.9),
    ),
    "fedfr_uda": _of(
        "fedfr_uda",
        Cohort(ALIKE, labels=LABELLED),
        options={"clustering": {"distance": 0.05}, "head": "cosface", "scale": 4.0},
        local=_PLAIN,
    ),
    "fixed_embedding": _of("fixed_embedding", several),
    "fedprox": _of("fedprox", several, options={"mu": 0.5, "loss": "cosface", "scale": 4.0}),
    "mime": _of("mime", several, options={"loss": "softmax"}),
    "pfm_fv": _of(
        "pfm_fv",
        replace(several, validators=VALIDATORS),
        options={"candidates": 3, "loss": "cosface", "scale": 4.0},
        privacy=replace(TASK.privacy, reveals=("local_models",)),
    ),
    "scaffold": _of("scaffold", several),
    "federated_evaluation": _of(
        "federated_evaluation",
        replace(one, models={OTHER: TINY.theta * np.float32(1.01)}),
        options={"threshold": 0.3},
    ),
    "fedavg, asynchronous": _of(
        "fedavg",
        local=_PLAIN,
        cohort=CohortSpec(size=3, min_reports=3),
        asynchronous=AsynchronousSpec(max_concurrency=2),
    ),
}


def run(case: Case, engine: Engine, *, sums: Sums = "exact") -> Run:
    """Return a case's run on an engine."""
    return run_task(case.task, PART, DIM, TINY.theta, case.cohort, engine, sums=sums)
