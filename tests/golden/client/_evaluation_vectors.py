"""Histograms that phones add up in federated evaluation, of made-up embeddings by model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from mien.layout import ParameterLayout, Vector
from mien.methods import METHODS
from mien.methods.base import Crops, DeviceInput, Runtime
from mien.methods.federated_evaluation import privacy_of
from mien.protocol.canonical import task_to_json
from mien.protocol.ids import ModelId
from mien.specs import CohortSpec, DpSpec, TaskSpec

Json = dict[str, Any]

OTHER: Final = ModelId("5c" * 32)
BINS: Final = 25
MEASURED: Final = TaskSpec(
    "measured",
    method="federated_evaluation",
    rounds=1,
    cohort=CohortSpec(size=8, min_reports=4),
    options={"threshold": 0.25, "bins": BINS, "public_images": 5},
    privacy=privacy_of(min_cohort=4, is_paired=False, bins=BINS),
)
PAIRED: Final = replace(
    MEASURED,
    options={**MEASURED.options, "reference": OTHER, "reference_threshold": 0.1},
    privacy=privacy_of(min_cohort=4, is_paired=True, bins=BINS),
)


def measured(privacy: Mapping[str, Any] | None = None, **options: Any) -> TaskSpec:
    """Return the task with other promises and options."""
    return replace(
        MEASURED, options={**MEASURED.options, **options}, privacy=replace(MEASURED.privacy, **(privacy or {}))
    )


UNMEASURED: Mapping[str, TaskSpec] = {
    "a threshold that is no cosine": measured(threshold=1.5),
    "another model without its threshold": measured(reference=OTHER),
    "a threshold without another model": measured(reference_threshold=0.5),
    "another model by no id": measured(reference="newest", reference_threshold=0.5),
    "nobody's share": measured(share=0.0),
    "too few bins": measured(bins=19),
    "too many bins": measured(bins=4001),
    "fewer than no public pictures": measured(public_images=-1),
    "noise": replace(
        MEASURED,
        trainable=("mix.*",),
        privacy=replace(MEASURED.privacy, dp=DpSpec("skellam", 2.0, 8.0, 1e-5, max_participations=3)),
    ),
    "sums of groups": replace(
        MEASURED, cohort=CohortSpec(size=12, min_reports=8), privacy=replace(MEASURED.privacy, groups=2)
    ),
    "histograms that would be clipped": measured({"l2_clip": 7.0}),
    "shares that would be clipped": measured({"coordinate_clip": 0.9}),
    "clips of one model for two": replace(PAIRED, privacy=MEASURED.privacy),
    "an option that is not there": measured(quantiles=True),
}


class _Networks:
    """Two networks, told apart by their parameters, that make of each picture a row of their own."""

    def __init__(self, rows_by_model: Sequence[NDArray[np.float32]]) -> None:
        self._rows = rows_by_model

    def embed(self, theta: Vector, crops: Crops) -> NDArray[np.float32]:
        return self._rows[int(theta[0])][crops[:, 0, 0, 0]]


def evaluation(layout: ParameterLayout) -> Json:
    """Return what phones add, and which tasks they refuse."""
    part = layout.part(("mix.*",))
    lanes = {
        name: METHODS["federated_evaluation"].contribution_layout(task, part, 3)
        for name, task in (("alone", MEASURED), ("paired", PAIRED))
    }
    return {
        "contributions": {name: {"sha256": each.sha256, "size": each.size} for name, each in lanes.items()},
        "phones": [
            _phone(layout, what, task, labels)
            for what, task, labels in (
                ("one picture", MEASURED, (0,)),
                ("one person", MEASURED, (0, 0, 0)),
                ("three people, one of whom has one picture", MEASURED, (0, 1, 1, 2, 2, 2, 0)),
                ("all public pictures", measured(public_images=0), (0, 0)),
                ("an even number of bins", measured({"l2_clip": 10.0}, bins=40), (0, 0, 1, 1)),
                ("two models", PAIRED, (0, 0, 0, 1, 1)),
                ("two models and a threshold that all reach", _at(-1.0), (0, 0)),
            )
        ],
        "refused": [{"why": why, "json": task_to_json(task).decode()} for why, task in UNMEASURED.items()],
    }


def _at(threshold: float) -> TaskSpec:
    return replace(PAIRED, options={**PAIRED.options, "threshold": threshold})


def _phone(layout: ParameterLayout, what: str, task: TaskSpec, labels: Sequence[int]) -> Json:
    """Return a phone's contribution; its last picture, and one of a public person, have no usable embedding."""
    num, num_public = len(labels), 9
    rng = np.random.default_rng(len(what))
    rows_MRD = rng.standard_normal((2, num + num_public, 3)).astype(np.float32) + np.float32(0.7)
    rows_MRD[:, [num - 1, num]] = 0.0
    rows_MRD[:, num + 1] = rows_MRD[:, 0]  # a double of the first picture
    rows_MRD /= np.maximum(np.linalg.norm(rows_MRD, axis=2, keepdims=True), np.float32(1e-6))
    crops = np.zeros((num + num_public, 1, 1, 3), np.uint8)
    crops[:, 0, 0, 0] = np.arange(num + num_public)
    thetas = [np.full(layout.size, model, np.float32) for model in range(2)]
    inp = DeviceInput(
        *(task, layout.part(("mix.*",)), 3, thetas[0], crops[:num], np.array(labels)),
        public_crops=crops[num:],
        public_labels=np.arange(num_public),
        models={OTHER: thetas[1]},
    )
    network = _Networks(rows_MRD)
    sent = METHODS["federated_evaluation"].device_round(inp, cast(Runtime, network))
    models = 2 if "reference" in task.options else 1
    return {
        "what": what,
        "json": task_to_json(task).decode(),
        "labels": list(labels),
        "own": [rows_RD[:num].tobytes().hex() for rows_RD in rows_MRD[:models]],
        "public": [rows_RD[num:].tobytes().hex() for rows_RD in rows_MRD[:models]],
        "contribution": sent.contribution.to_bytes().hex(),
    }
