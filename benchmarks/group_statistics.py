"""What one round of summed statistics does to a group with a high false match rate: its errors before and after.

The group are Indian film actors, who meet several times the rate of the people that the threshold was set on. In each
of three draws half of them are on phones, whose statistics are summed once by the simulation engine, and the other half
is measured; half of CelebA's people set the threshold for FMR 0.1 %, the other half is measured beside. The recogniser
is SFace as released, with an adapter of the sum, or with that behind a gate that leaves CelebA's people as they are.

Both sets are for research, non-commercial use, and `celeba112` was cleaned with another recogniser.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks import _common
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.evaluation import all_pairs, det_curve, point_at_fmr
from mien.evaluation.fairness import GroupErrors, Rate, differential
from mien.layout import Vector
from mien.specs import TaskSpec, from_mapping
from simulation.engines.engine import Cohort, run_task
from simulation.faces.workbench import TRAINABLE, open_workbench
from simulation.papers.fedfr_uda.faces import prepared
from simulation.papers.gate import Faces, behind_features
from simulation.papers.light import numbers_as_crops

TARGET_FMR: Final = 1e-3
GROUP: Final = "bollywood"
OTHERS: Final = "celeba"
SEEDS: Final = (0, 1, 2)
QUICK_SEEDS: Final = (0,)
MAX_IMAGES: Final = 10
SYSTEMS: Final = ("released", "adapter", "gate")
TASK: Final[Mapping[str, Any]] = {
    "name": "group",
    "method": "statistics",
    "rounds": 1,
    "trainable": ["adapter.*"],
    "options": {"form": "wccn", "shrinkage": 0.2, "min_people": 4},
    "cohort": {"size": 16, "min_reports": 3},
    "local": {"flip": False},
    "privacy": {"max_weight": 1, "min_cohort": 3, "reveals": ["class_moment"]},
}


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("group_statistics", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json, holds=lambda found: bool(found["draws"]))


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    faces = read_faces()
    return {
        "draws": [drawn(faces, seed) for seed in (QUICK_SEEDS if args.quick else SEEDS)],
        "target_fmr": TARGET_FMR,
        "task": TASK,
        "machine": _common.machine(),
        "duration_s": round(time.monotonic() - started, 1),
        "commit": _common.commit(),
        "terms": "CelebA and the actors' pictures: research, non-commercial use",
    }


def read_faces() -> Faces:
    """Return the features of the group's people and of the others."""
    bench = open_workbench(prepared(_common.data_root())[0], max_images=MAX_IMAGES)
    rows = {name: np.flatnonzero(bench.labels == i) for i, name in enumerate(bench.people)}
    features = bench.runtime.features(bench.theta, bench.crops)
    return Faces(bench, features, rows, tuple(name for name in rows if name.startswith(OTHERS)), None)


def drawn(faces: Faces, seed: int) -> dict[str, Any]:
    """Return the errors of the group's test people and of the others' by each system, people drawn by `seed`."""
    phones, tests = halves([name for name in faces.rows if name.startswith(GROUP)], seed)
    public, others = halves(list(faces.own), seed)
    found: dict[str, Any] = {"seed": seed, "phones": len(phones), "tests": len(tests), "others": len(others)}
    kept: float | None = None
    for system in SYSTEMS:
        runtime, theta = trained(faces, phones, public if system == "gate" else (), seed, rounds=system != "released")
        crops = numbers_as_crops(len(faces.features))
        rows, labels = faces.of(public, MAX_IMAGES)
        threshold = point_at_fmr(det_curve(all_pairs(runtime.embed(theta, crops[rows]), labels)), TARGET_FMR).threshold
        kept = threshold if kept is None else kept
        rows, labels = faces.of([*tests, *others], MAX_IMAGES)
        embeddings = runtime.embed(theta, crops[rows])
        groups = {"people": {"group": range(len(tests)), "others": range(len(tests), len(tests) + len(others))}}
        none_failed = np.zeros(len(tests) + len(others), np.int64)
        found[system] = {
            name: plain(
                differential(
                    embeddings, labels, groups, threshold=at, target_fmr=TARGET_FMR, num_failed=none_failed, seed=seed
                ).groups
            )
            for name, at in {"threshold_set_anew": threshold, "threshold_as_it_was": kept}.items()
        }
    return found


def trained(
    faces: Faces, phones: Sequence[str], known: Sequence[str], seed: int, *, rounds: bool
) -> tuple[TorchRuntime, Vector]:
    """Return what embeds, behind a gate for the `known` people where there are any, after the phones' round if any."""
    model, runtime = behind_features(faces, known)
    if not rounds:
        return runtime, model.theta
    crops = numbers_as_crops(len(faces.features))
    task = from_mapping(TaskSpec, {**TASK, "seed": seed})
    cohort = Cohort({name: crops[faces.rows[name][:MAX_IMAGES]] for name in phones})
    part = model.layout.part(TRAINABLE)
    return runtime, run_task(task, part, model.spec.input.dim, model.theta, cohort, runtime).state.theta


def halves(people: Sequence[str], seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return people divided in two by chance."""
    order = [people[i] for i in np.random.default_rng([seed, 18]).permutation(len(people))]
    return tuple(order[: len(order) // 2]), tuple(order[len(order) // 2 :])


def plain(groups: Sequence[GroupErrors]) -> dict[str, Any]:
    """Return the false match and non-match rates of groups with counts and intervals (95 %, people drawn again)."""

    def told(rate: Rate | None) -> dict[str, Any] | None:
        if rate is None:
            return None
        interval = None if rate.interval is None else [round(rate.interval.low, 5), round(rate.interval.high, 5)]
        return {"rate": round(rate.value, 5), "errors": rate.num_errors, "of": rate.num_trials, "interval": interval}

    return {each.group: {"fmr": told(each.fmr), "fnmr": told(each.fnmr)} for each in groups}


if __name__ == "__main__":
    main()
