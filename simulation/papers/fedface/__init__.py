"""FedFace on a laptop: Tables 1 and 2 and Figure 4, one identity a phone, on pretrained SFace and synthetic faces.

Source: Aggarwal, Zhou, Jain: FedFace (2021). The paper trains a 64-layer CNN, pre-trained on 9,000 people, for 200
rounds with 1,000 phones; here SFace is frozen, and 600 phones of ten images each train a linear adapter behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mien.evaluation import det_curve, point_at_fmr, rates_at
from mien.layout import Vector
from mien.methods.base import ServerState
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.engine import RoundRecord, Run, run_task
from simulation.engines.runtimes import OncePerRound
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench, open_workbench
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
COSFACE: Final = {"scale": 16.0, "margin": 0.2}
SOFTMAX_LR: Final = 0.2
TARGET: Final = 0.7
"""`rounds_to_target` counts the rounds until the EER on validation people is this share of the pretrained model's."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return the figures of one run: verification on test people, and the rounds it took on validation people."""
    settings = job.settings
    bench = open_workbench(job.faces, settings["max_people"])
    phones, public, validation, test = bench.split(
        job.seed, *(settings[name] for name in ("phones", "public", "validation", "test"))
    )
    if settings["system"] == "pretrained":
        return _figures(bench, bench.theta, test)
    if settings["system"] == "pooled":
        local = LocalSpec(lr=SOFTMAX_LR, epochs=settings["rounds"], batch_size=50, momentum=0.9, flip=False)
        return _figures(
            bench,
            bench.trained_centrally(
                phones, "cosface", local, job.seed, scale=COSFACE["scale"], margin=COSFACE["margin"]
            ).theta,
            test,
        )
    target = TARGET * bench.verification(bench.theta, validation)["eer"]
    trace: list[list[float]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        trace.append([record.round, bench.verification(state.theta, validation)["eer"]])

    task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
    held = public if settings.get("held") == "public" else phones
    cohort = bench.cohort(_clients(held, settings.get("clients", len(held))), public)
    runtime = OncePerRound(bench.runtime)
    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, runtime, after_round=note)
    return {
        **_figures(bench, run.state.theta, test),
        "rounds_to_target": next((r for r, eer in trace if eer <= target), task.rounds + 1.0),
        "trace": trace,
        **_losses(run),
    }


def _losses(run: Run) -> dict[str, float]:
    """Return the losses before the first round and after the last; none where no phone trained."""
    losses = {"loss_first": run.records[0].loss_before, "loss_last": run.records[-1].loss_after}
    return {name: loss for name, loss in losses.items() if not math.isnan(loss)}


def _figures(bench: Workbench, theta: Vector, test: tuple[str, ...]) -> dict[str, float]:
    """Return verification on test people, and what a phone sees that keeps the pretrained model's threshold.

    That threshold is the one at FMR 1e-2 on the same comparisons (1e-1 where they are too few for it).
    """
    before = det_curve(bench.comparisons(bench.theta, test))
    target = 1e-2 if before.num_non_mated >= 100 else 1e-1
    threshold = point_at_fmr(before, target).threshold
    kept = rates_at(bench.comparisons(theta, test), threshold)
    return {**bench.verification(theta, test), "fmr_released": kept.fmr, "fnmr_released": kept.fnmr}


def _clients(people: tuple[str, ...], num: int) -> dict[str, tuple[str, ...]]:
    """Return `num` clients of equally many people; a client of one person bears its name."""
    if num == len(people):
        return {name: (name,) for name in people}
    return {f"client-{i:02d}": tuple(people[i::num]) for i in range(num)}
