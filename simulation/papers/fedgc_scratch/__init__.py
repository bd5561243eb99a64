"""FedGC with a softmax from a network's first layer on: what the correction does where features are learned, not given.

In `simulation.papers.fedgc` a recogniser of others' is frozen, whose embeddings are long, and no correction moves a
softmax over inner products. Here a network of 0.3 million parameters at 28 x 28 pixels begins at random, and all of it
is trained, as the paper's ResNet-34 is. Systems and rows are that study's (`simulation.papers.fedgc.train`).

    mien-sim reproduce fedgc_scratch --faces synthetic112
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.methods.proxies import class_means, normalised
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench, open_small_network
from simulation.papers.fedgc import Made, train
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
LOSSES_ON: Final = 15
"""Pictures of a client that losses are of: no table shows them."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return test people's verification, lengths of features and class embeddings, and how near classes lie."""
    sizes = job.settings["max_people"], job.settings["max_images"]
    bench = open_small_network(job.faces, job.seed, *sizes, losses_on=LOSSES_ON)
    made = train(bench, job)
    return {
        **bench.verification(made.theta, made.test),
        **made.figures,
        **_lengths(bench, made),
        **nearest(bench, made),
    }


def _lengths(bench: Workbench, made: Made) -> dict[str, float]:
    """Return the mean length of a test person's feature, and of a class embedding where there are any."""
    features_ND = bench.runtime.features(made.theta, bench.labelled(made.test)[0])
    of_classes = {} if made.classes is None else {"length_w": float(np.linalg.norm(made.classes, axis=1).mean())}
    return {"length_f": float(np.linalg.norm(features_ND, axis=1).mean()), **of_classes}


def nearest(bench: Workbench, made: Made) -> dict[str, float]:
    """Return the cosine of a trained person's mean embedding to the nearest other one's, on average over people.

    `nearest_own` is that to a person of the same client, `nearest_other` to one of another client (Figures 3c and 3d);
    `class_nearest_own` and `class_nearest_other` are those of class embeddings, where there are any, which are what the
    correction moves, and `class_to_own` is a class embedding's cosine to its person's mean embedding.
    """
    names = [name for held in made.clients.values() for name in held]
    crops, label_N = bench.labelled(names)
    mean_KD = class_means(bench.runtime.embed(made.theta, crops), label_N, len(names)).astype(np.float64)
    client_K = np.repeat(np.arange(len(made.clients)), [len(held) for held in made.clients.values()])
    found = {f"nearest_{whose}": cosine for whose, cosine in _nearest(mean_KD, client_K).items()}
    if made.classes is None:
        return found
    w_KD = normalised(made.classes).astype(np.float64)
    found |= {f"class_nearest_{whose}": cosine for whose, cosine in _nearest(w_KD, client_K).items()}
    return {**found, "class_to_own": float((w_KD * mean_KD).sum(axis=1).mean())}


def _nearest(unit_KD: NDArray[np.float64], client_K: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean over rows of the largest cosine to another one of the same client ("own"), and of an other's."""
    cos_KK = unit_KD @ unit_KD.T
    np.fill_diagonal(cos_KK, -1.0)
    is_own_KK = client_K[:, None] == client_K[None, :]
    return {
        "own": float(np.where(is_own_KK, cos_KK, -1.0).max(axis=1).mean()),
        "other": float(np.where(is_own_KK, -1.0, cos_KK).max(axis=1).mean()),
    }
