"""The figures of the FedFR study: a generic model on people whom nobody trained on, and each client's own model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import numpy as np

from mien.errors import UndefinedMetricError
from mien.evaluation import open_set_at_fpir, personalised_search
from mien.layout import Vector
from mien.methods.personal import PersonalModel
from simulation.faces.workbench import Workbench
from simulation.papers.fedfr.split import Split
from simulation.runs.personal import Enrolled
from simulation.runs.personal import personal_figures as measured_figures

TARGETS: Final = {"1e-1": 1e-1, "1e-2": 1e-2, "1e-3": 1e-3}
NUM_ENROLLED: Final = 5


def generic_figures(bench: Workbench, theta: Vector, people: tuple[str, ...]) -> dict[str, float]:
    """Return 1:1 rates over all pairs of these people, and 1:N rates with every second one enrolled by five images."""
    found = {f"generic_{name}": value for name, value in bench.verification(theta, people).items()}
    crops, labels = bench.labelled(people)
    embeddings = bench.runtime.embed(theta, crops)
    position = np.concatenate([np.arange(count) for count in np.bincount(labels)])
    enrolled = (labels % 2 == 0) & (position < NUM_ENROLLED)
    probes = position >= NUM_ENROLLED
    result = personalised_search(embeddings[probes], labels[probes], embeddings[enrolled], labels[enrolled])
    for name, target in TARGETS.items():
        with contextlib.suppress(UndefinedMetricError):
            found[f"generic_tpir_{name}"] = open_set_at_fpir(result, target).tpir
    return found


def alike_figures(split: Split, theta: Vector) -> dict[str, float]:
    """Return 1:1 rates over all pairs of those who are like clients' people and no client's, where there are any."""
    if not split.alike:
        return {}
    return {f"alike_{name}": value for name, value in split.bench.verification(theta, split.alike).items()}


def personal_figures(split: Split, models: Mapping[str, PersonalModel]) -> dict[str, float]:
    """Return the personalised protocols' figures, as runs have them (`simulation.runs.personal`): `personal_NAME`."""
    clients = {
        name: Enrolled(split.clients[name].crops, numbers.start + split.clients[name].labels)
        for name, numbers in split.places().items()
    }
    found, _ = measured_figures(split.bench.runtime, clients, models, split.test_crops, split.test_labels, TARGETS)
    return {f"personal_{name}": value for name, value in found.items()}
