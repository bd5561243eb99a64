"""Searches in galleries of many people: how often a stranger is named, at the threshold that follows from the number.

LFW's people are split in two by chance: the tail of non-mated scores is measured on one half as `model evaluate
--keep-thresholds` does, and galleries are drawn from the other. Everybody is enrolled with up to three pictures and
looked for with another one; most people of LFW have one picture alone, with which they are enrolled or are strangers.
Quick: one picture of most people, and fewer of them.

LFW is for research, non-commercial use.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import _common
from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.models.models import KnownModel
from device_sdk.people.recogniser import DEFAULT_MAX_FPIR, point_among
from device_sdk.runtimes import load_runtime
from mien.evaluation.identification import search
from mien.evaluation.scores import rows_of_each
from mien.evaluation.tail import enrolled_against_strangers, tail_of
from mien.protocol.ids import ModelId
from mien.rounds.thresholds import thresholds_of
from mien.specs import Threshold
from simulation.faces.datasets import find_people, read_people
from simulation.faces.models import Model, sface

SIZES: Final = (10, 50, 100, 500, 1000, 2000, 5000)
ENROLLED: Final = 3
DRAWS: Final = 20
STRANGERS: Final = 200
"""Fewer strangers than this tell nothing of a rate of a per cent."""
QUICK_PEOPLE: Final = 2210
QUICK_MEASURED: Final = 1000
QUICK_MATED: Final = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Half:
    """Half of the people: unit embeddings (N, D) of their images and whose they are (N,)."""

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]

    def templates(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """Return everybody's template (I, D), everybody's probe (I, D), and whether that is another picture (I,)."""
        rows = rows_of_each(self.labels)
        enrolled = [self.embeddings[own[:-1][:ENROLLED] if len(own) > 1 else own] for own in rows]
        means = np.stack([own.mean(axis=0) for own in enrolled])
        templates = means / np.linalg.norm(means, axis=1, keepdims=True)
        probes = self.embeddings[[own[-1] for own in rows]]
        return templates.astype(np.float32), probes, np.array([len(own) > 1 for own in rows])


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("identify", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(
        lambda: benchmark(args), only_json=args.json, holds=lambda found: found["fpir_1000"] <= 2 * found["fpir_target"]
    )


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    model = sface()
    halves = read_halves(model, _common.data_root() / "lfw" / "images", quick=args.quick)
    rows = measured(model, *halves, SIZES)
    at_1000 = next(row for row in rows if row["size"] == 1000)
    return {
        "fpir_1000": at_1000["fpir"],
        "fpir_target": DEFAULT_MAX_FPIR,
        "tpir_1000": at_1000["tpir"],
        "fpir_1000_at_the_threshold_of_a_comparison": at_1000["fpir_comparison"],
        "sizes": rows,
        "people_measured": int(halves[0].labels.max()) + 1,
        "people_searched": int(halves[1].labels.max()) + 1,
        "machine": _common.machine(),
        "duration_s": round(time.monotonic() - started, 1),
        "commit": _common.commit(),
        "terms": "LFW: research, non-commercial use",
    }


def read_halves(model: Model, folder: Path, *, quick: bool) -> tuple[Half, Half]:
    """Return the people whose scores are measured, and those who are enrolled and looked for."""
    everybody = find_people(folder)
    order = [sorted(everybody)[index] for index in np.random.default_rng(0).permutation(len(everybody))]
    cut = len(order) // 2
    if quick:
        order, cut = order[:QUICK_PEOPLE], QUICK_MEASURED
    most = {name: 1 if quick and not cut <= at < cut + QUICK_MATED else ENROLLED + 1 for at, name in enumerate(order)}
    pipeline = FacePipeline(model.spec.input, None, ChoiceRule.CENTRE)
    runtime = load_runtime(model.spec, model.layout)
    halves = []
    for names in (order[:cut], order[cut:]):
        faces = read_people({name: everybody[name][: most[name]] for name in names}, pipeline)
        embeddings = runtime.embed(model.theta, faces.crops)
        unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        halves.append(Half(unit.astype(np.float32), np.unique(faces.labels, return_inverse=True)[1]))
    return halves[0], halves[1]


def measured(model: Model, known: Half, others: Half, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return what searches among `others` give at each size, with thresholds from the tail of `known`."""
    scores, _ = enrolled_against_strangers(known.embeddings, known.labels, at_least=0, at_most=ENROLLED)
    model_id, dataset = ModelId(model.model_id), "half of LFW's people"
    record = {"dataset": dataset, "model_id": model_id, "search": dataclasses.asdict(tail_of(scores))}
    found = thresholds_of(record, datetime(2000, 1, 1, tzinfo=UTC))
    comparison = Threshold(float(np.quantile(scores, 1 - 1e-3)), 1e-3, dataset, 0, scores.size, model_id, "2000-01-01")
    spec = dataclasses.replace(model.spec, thresholds=(comparison, *found))
    rows, drawn = [], np.random.default_rng(1)
    for size in sizes:
        at = point_among(KnownModel(model_id, spec), None, size)
        rates = _searched(others, size, (at.value, comparison.value), drawn)
        rows.append(
            {
                "size": size,
                "threshold": round(at.value, 4),
                "is_bound": at.provenance is not None and "bound" in at.provenance.dataset,
                "fpir_bound": at.fpir,
                "too_many": bool(at.too_many),
                **rates,
            }
        )
    return rows


def _searched(
    others: Half, size: int, thresholds: tuple[float, float], drawn: np.random.Generator
) -> dict[str, float | int | str | None]:
    """Return rates over galleries of `size` drawn people; None where too few strangers are left to tell."""
    templates, probes, has_another = others.templates()
    if (left := len(templates) - size) < STRANGERS:
        why = f"{max(0, left)} strangers are left of the {len(templates)} people searched, {STRANGERS} are needed"
        return {"fpir": None, "tpir": None, "fpir_comparison": None, "strangers": 0, "mated": 0, "not_measured": why}
    counts = np.zeros(5, np.int64)
    for _ in range(DRAWS):
        chosen = drawn.permutation(len(templates))
        enrolled, strangers = chosen[:size], chosen[size:]
        mated = enrolled[has_another[enrolled]]
        looked = np.concatenate([mated, strangers])
        result = search(probes[looked], looked, templates[enrolled], enrolled)
        hits = (result.mate_rank == 1) & (result.mate_score >= thresholds[0])
        alarms = [int((result.non_mated_top >= threshold).sum()) for threshold in thresholds]
        counts += [hits.sum(), result.num_mated, *alarms, result.num_non_mated]
    hit, num_mated, alarm, alarm_comparison, num_strangers = counts.tolist()
    return {
        "fpir": round(alarm / num_strangers, 5),
        "tpir": round(hit / num_mated, 4) if num_mated else None,
        "fpir_comparison": round(alarm_comparison / num_strangers, 4),
        "strangers": math.ceil(num_strangers / DRAWS),
        "mated": num_mated,
    }


if __name__ == "__main__":
    main()
