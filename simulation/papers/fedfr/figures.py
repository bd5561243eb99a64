"""The figures of the FedFR study: a generic model on people whom nobody trained on, and each client's own model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import UndefinedMetricError
from mien.evaluation import all_pairs, mean_templates, personalised_search, search
from mien.evaluation.identification import tpir_at_fpir
from mien.layout import Vector
from mien.methods.base import Embeddings
from mien.methods.personal import PersonalModel
from simulation.faces.workbench import Workbench, error_rates
from simulation.papers.fedfr.split import Split
from simulation.runs.personal import Enrolled
from simulation.runs.personal import personal_figures as measured_figures

TARGETS: Final = {"1e-1": 1e-1, "1e-2": 1e-2, "1e-3": 1e-3}
FINER: Final = {**TARGETS, "1e-4": 1e-4}
NUM_ENROLLED: Final = 5
TEMPLATE: Final = 3
"""Pictures of a template: a person of twelve has four."""


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
            found[f"generic_tpir_{name}"] = tpir_at_fpir(result, target)
    return found | template_figures(embeddings, labels)


def template_figures(embeddings: Embeddings, labels: NDArray[np.int64]) -> dict[str, float]:
    """Return rates over templates, as the Janus benchmarks have them: means of several pictures (N, D) of a person.

    Each person's pictures make templates of `TEMPLATE` in their order, and what is left over none. 1:1 compares all
    templates; for 1:N every second person has its first one in the gallery, all other templates of everybody are
    probes, and those of people who are not enrolled are not mated.
    """
    position = np.concatenate([np.arange(count) for count in np.bincount(labels)])
    whole = position < np.bincount(labels)[labels] // TEMPLATE * TEMPLATE
    number = (labels * (position.max() + 1) + position // TEMPLATE)[whole]
    templates = mean_templates(embeddings[whole], number)
    people, order = np.divmod(templates.ids, position.max() + 1)
    found = {
        f"template_{name}": value
        for name, value in error_rates(
            all_pairs(templates.vectors, people), {f"tar_{name}": target for name, target in FINER.items()}
        ).items()
    }
    enrolled = (people % 2 == 0) & (order == 0)
    with contextlib.suppress(UndefinedMetricError):
        result = search(templates.vectors[~enrolled], people[~enrolled], templates.vectors[enrolled], people[enrolled])
        for name, target in TARGETS.items():
            with contextlib.suppress(UndefinedMetricError):
                found[f"template_tpir_{name}"] = tpir_at_fpir(result, target)
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
