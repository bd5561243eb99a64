"""A sweep's folder with made-up runs, as mien-sim sweep leaves it, without training anything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from mien.evaluation import Comparisons, all_pairs
from mien.records import to_mapping
from simulation.runs.experiment import Experiment
from simulation.runs.grid import make_sweep, run_name, write_state
from simulation.runs.measuring import measured
from simulation.runs.records import Header, RunFolder
from simulation.runs.spec import parse_data, with_changes

TEXT = """
name = "made-up"
about = "Runs that nobody ran, in the form of runs that somebody did."
paper = "FedFace (2021), Table 1"
[[faces]]
kind = "shipped"
[partition]
clients = 8
test = 20
public = 4
[task]
method = "fedface"
rounds = 6
[evaluation]
every = 2
replicates = 100
[sweep]
seeds = [0, 1, 2]
paper_columns = ["LFW accuracy, %"]
[[sweep.cases]]
name = "published"
label = "FedFace as published, with a label of some length"
paper = ["99.28"]
"task.privacy.reveals" = ["class_embeddings"]
[[sweep.cases]]
name = "private"
label = "FedFace, private form"
[[sweep.cases]]
name = "control"
label = "control: public people alone"
control = "public_only"
"""


def sweep() -> Experiment:
    """Return the settings of the made-up runs."""
    data, table = parse_data(TEXT)
    return make_sweep(data, table)


def write_sweep_folder(out: Path) -> Experiment:
    """Write the folder; every run is finished."""
    made = dataclasses.replace(sweep(), data_sha256="d" * 64)
    (out / "records").mkdir(parents=True)
    write_state(made, out, "mien-sim sweep made_up.toml")
    for row in made.rows:
        for seed in made.seeds:
            spec = with_changes(row.spec, seed=seed)
            run = RunFolder(out / "runs" / run_name(row.name, seed))
            header = Header(spec.name, "a" * 64, "d" * 64, seed, "c0ffee", "mien-sim sweep", "a machine", "2026-01-02")
            run.start(spec, header)
            skill = {"published": 1.2, "private": 1.6, "control": 0.8}[row.name] + seed / 20
            for number in range(1, 7):
                record = {"round": number, "clients": 8, "weight": 80.0, "cpu_s": 0.1, "wall_s": 0.2}
                record |= {"loss_before": 0.5 / number, "loss_after": 0.4 / number}
                run.journal.append(record | ({"eer": 0.3 / (skill * number)} if number % 2 == 0 else {}))
            evaluation = _evaluation(to_mapping(spec), seed, skill)
            run.evaluation.write_text(json.dumps(evaluation))
            metrics = {"eer_before": evaluation["before"]["eer"], "eer": evaluation["after"]["eer"], "cpu_s": 3.0}
            (out / "records" / made.file_of(row, seed)).write_text(json.dumps({"metrics": metrics}))
    return made


def _evaluation(spec: dict[str, Any], seed: int, skill: float) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    settings = sweep().rows[0].spec.evaluation
    angles = np.histogram(rng.normal(80, 8, 400), np.arange(0, 181, 2))[0]
    return {
        "experiment": spec["name"], "method": "fedface", "rounds": 6, "seed": seed, "test_people": 20,
        "partition": {"clients": 8}, "failures": {}, "commit": "c0ffee", "command": "mien-sim sweep made_up.toml",
        "before": {"model_id": "a" * 64, **dataclasses.asdict(measured(_scores(rng, 0.7), settings))},
        "after": {"model_id": "b" * 64, **dataclasses.asdict(measured(_scores(rng, skill), settings))},
        "angles": {"edges_deg": [float(edge) for edge in range(0, 181, 2)], "counts": angles.tolist(), "classes": 8},
        "map": {"kind": "pca", "people": [0, 0, 1, 1, 2], "points": [[0, 1], [0.2, 1], [3, 2], [3, 2.2], [-1, -2]]},
        "run": {"cpu_s": {"rounds": 1.0}, "wall_s": {"rounds": 2.0}, "machine": "a machine", "commit": "c0ffee",
                "data_sha256": "d" * 64},
        "engine": {"name": "sequential", "reason": "as asked for"},
    }  # fmt: skip


def _scores(rng: np.random.Generator, skill: float) -> Comparisons:
    people = np.repeat(np.arange(20), 5)
    emb = skill * rng.standard_normal((20, 16))[people] + rng.standard_normal((100, 16))
    return all_pairs((emb / np.linalg.norm(emb, axis=1, keepdims=True)).astype(np.float32), people, keep_subjects=True)
