"""The figures of the FedFR study: a generic model on people whom nobody trained on, and each client's own model.

Legend: N images, D embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import numpy as np

from mien.errors import UndefinedMetricError
from mien.evaluation import (
    OverClients,
    cmc,
    det_curve,
    fedfr_pr_at_far,
    fedfr_tpr_at_fpr,
    open_set_at_fpir,
    personalised_search,
    personalised_verification,
    point_at_fmr,
)
from mien.layout import Vector
from mien.methods.personal import PersonalModel
from simulation.faces.workbench import Workbench
from simulation.papers.fedfr.split import Split

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


def personal_figures(split: Split, models: Mapping[str, PersonalModel]) -> dict[str, float]:
    """Return means over clients of the personalised protocols, and the worst client's of the first.

    `tar` and `tpir` are the standard forms, `tpr` and `pr` the exact replica of FedFR's released code. Galleries hold
    the images that were trained on.
    """
    values: dict[str, list[float]] = {}
    for client, numbers in split.places().items():
        for name, value in _one_client(split, models[client], client, numbers).items():
            values.setdefault(name, []).append(value)
    found = {f"personal_{name}": OverClients.of(each).mean for name, each in values.items()}
    found |= {f"personal_{name}_min": OverClients.of(each).minimum for name, each in values.items() if "tar" in name}
    return found


def _one_client(split: Split, model: PersonalModel, client: str, numbers: range) -> dict[str, float]:
    own = split.clients[client]
    tests_ND = model.embed(split.bench.runtime, split.test_crops)
    gallery_ND, gallery_labels = model.embed(split.bench.runtime, own.crops), numbers.start + own.labels
    curve = det_curve(personalised_verification(tests_ND, split.test_labels, set(numbers)))
    searched = personalised_search(tests_ND, split.test_labels, gallery_ND, gallery_labels)
    found = {"rank1": float(cmc(searched, 1)[0])}
    for name, target in TARGETS.items():
        with contextlib.suppress(UndefinedMetricError):
            found[f"tar_{name}"] = point_at_fmr(curve, target).tar
        with contextlib.suppress(UndefinedMetricError):
            found[f"tpir_{name}"] = open_set_at_fpir(searched, target).tpir
        (found[f"tpr_{name}"],) = fedfr_tpr_at_fpr(tests_ND, split.test_labels, set(numbers), [target])
        (found[f"pr_{name}"],) = fedfr_pr_at_far(tests_ND, split.test_labels, gallery_ND, gallery_labels, [target])
    return found
