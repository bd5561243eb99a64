"""The gate between populations: what phones of another population gain, and what the model's own people lose.

Phones hold rendered people, public people are of another rendered domain, and the model's own population are real faces
(research, non-commercial use): CelebA people give its moments, others of them the threshold, others again and LFW's
View 2 are measured. `celeba112` and `lfw` lie beside the folder of faces. SFace is frozen, so features are computed
once, and the model of this study is what comes behind them.

    mien-sim reproduce gate --faces synthetic112
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import Backbone, layout_of, load_theta, theta_of
from mien.backbones.adapter import STAGE
from mien.backbones.gate import POPULATION, GatedAdapter, Population
from mien.errors import ConfigError, NotFoundError
from mien.evaluation import all_pairs, det_curve, point_at_fmr, rates_at
from mien.layout import Vector
from mien.methods.gate import OVERLAP, population_of
from mien.specs import TaskSpec, from_mapping
from simulation.engines.engine import Cohort, run_task
from simulation.faces.datasets import dataset_of, find_people, read_people
from simulation.faces.models import Model
from simulation.faces.workbench import TRAINABLE, Workbench, domain_of, error_rates, open_workbench
from simulation.papers.demo.tune import LfwCrops
from simulation.papers.light import NumberedFeatures, numbers_as_crops
from simulation.papers.spreadout.populations import divide
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
MAX_IMAGES: Final = 10
MAX_TEST_IMAGES: Final = 4
MAX_OWN_IMAGES: Final = 6
FMRS: Final = {"1e-2": 1e-2, "1e-3": 1e-3}

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Faces:
    """Features of everybody (N, D), the rows of each person by name, and LFW whose crops are rows as well."""

    bench: Workbench = field(repr=False)
    features: Vector = field(repr=False)
    rows: Mapping[str, Numbers] = field(repr=False)
    own: tuple[str, ...] = field(repr=False)
    lfw: LfwCrops | None = field(repr=False)

    def of(self, people: Sequence[str], most: int) -> tuple[Numbers, Numbers]:
        """Return the rows of the first pictures of each of these people, with labels 0, 1, ..."""
        each = [self.rows[name][:most] for name in people]
        return np.concatenate(each), np.repeat(np.arange(len(each)), [len(rows) for rows in each])


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale on the shipped people, one of whose domains is the model's own."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification of phones' people and of the model's own, and both false match rates at one threshold."""
    settings = job.settings
    faces = open_faces(job.faces, settings["max_people"], settings["own_domain"])
    division = divide(faces.bench.people, settings, job.seed)
    order = [faces.own[i] for i in np.random.default_rng([job.seed, 16]).permutation(len(faces.own))]
    known, public = order[: settings["own"]], order[settings["own"] :][: settings["own_public"]]
    left = order[settings["own"] + settings["own_public"] :]
    mixed, others = left[: settings["mixed"]], left[settings["mixed"] :]
    model, runtime = behind_features(faces, known if settings["gated"] else ())
    crops = numbers_as_crops(len(faces.features))
    theta = model.theta
    if settings["system"] == "statistics":
        held = {"public": division.public, "phones": division.phones, "both": (*division.phones, *mixed)}
        task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
        cohort = Cohort({name: crops[faces.rows[name][:MAX_IMAGES]] for name in held[settings["held"]]})
        theta = adapted(task, model, cohort, runtime)

    def scores(people: Sequence[str], most: int) -> Any:
        rows, labels = faces.of(people, most)
        return all_pairs(runtime.embed(theta, crops[rows]), labels)

    sides = {"test": scores(division.tests["test"], MAX_TEST_IMAGES), "own": scores(others, MAX_OWN_IMAGES)}
    released = det_curve(scores(public, MAX_OWN_IMAGES))
    found = dict[str, float]()
    for side, comparisons in sides.items():
        rates = error_rates(comparisons, {"tar_1e-3": 1e-3})
        found |= {f"{side}_{name}": value for name, value in rates.items()}
        for word, fmr in FMRS.items():
            if fmr * released.num_non_mated >= 1:
                found[f"{side}_fmr_{word}"] = rates_at(comparisons, point_at_fmr(released, fmr).threshold).fmr
    return found if faces.lfw is None else {**found, **faces.lfw.measure(runtime, theta)}


def adapted(task: TaskSpec, model: Model, cohort: Cohort, runtime: TorchRuntime) -> Vector:
    """Return the model after a task's cohorts; as it was where its gate is refused, for the populations overlap."""
    part, dim = model.layout.part(TRAINABLE), model.spec.input.dim
    try:
        return run_task(task, part, dim, model.theta, cohort, runtime).state.theta
    except ConfigError as error:
        if OVERLAP not in error.message:
            raise
        return model.theta


def behind_features(faces: Faces, known: Sequence[str]) -> tuple[Model, TorchRuntime]:
    """Return what comes behind the features as a model: a gate where people of its own are `known`, or an adapter."""
    spec, dim = faces.bench.model.spec, faces.features.shape[1]
    stages: dict[str, nn.Module] = {"features": nn.Identity()}
    adapter = GatedAdapter(dim) if known else nn.Linear(dim, dim)
    nn.init.eye_(adapter.weight)
    nn.init.zeros_(adapter.bias)
    if known:
        stages[POPULATION] = Population(dim)
        spec = replace(spec, input=replace(spec.input, dim=2 * dim + 1))
    stages[STAGE] = adapter
    backbone = Backbone(spec.backbone, spec.input, stages, TRAINABLE)
    layout = layout_of(backbone)
    tensors = layout.unflatten(theta_of(backbone))
    if known:
        rows, labels = faces.of(known, MAX_OWN_IMAGES)
        tensors |= population_of(faces.features[rows], labels)
    model = Model(replace(spec, layout_sha256=layout.sha256), layout, layout.flatten(tensors))
    load_theta(backbone, layout, model.theta)
    with torch.no_grad():
        trunk = backbone.trunk(torch.from_numpy(faces.features), backbone.split_for(layout.part(TRAINABLE).names))
    return model, TorchRuntime(model.spec, layout, backbone=backbone, cache=NumberedFeatures(trunk.numpy()))


@functools.lru_cache(maxsize=1)
def open_faces(folder: Path | None, max_people: int | None, own_domain: str | None) -> Faces:
    """Return everybody's features; the model's own people are of a rendered domain, or real ones beside the folder.

    Raises NotFoundError where the latter are not there.
    """
    bench = open_workbench(folder, max_people)
    rows = {name: np.flatnonzero(bench.labels == i) for i, name in enumerate(bench.people)}
    features = [bench.runtime.features(bench.theta, bench.crops)]
    if own_domain is not None or folder is None:
        own = tuple(name for name in bench.people if domain_of(name) == own_domain)
        return Faces(bench, features[0], rows, own, None)
    for name in ("celeba112", "lfw"):
        if not (folder.parent / name).is_dir():
            raise NotFoundError(f"there is no folder {name} beside {folder.name}, whose people the model was made for")
    pipeline = FacePipeline(bench.model.spec.input, None, ChoiceRule.CENTRE)
    known = {name: files[:MAX_OWN_IMAGES] for name, files in find_people(folder.parent / "celeba112").items()}
    real = read_people(known, FacePipeline(bench.model.spec.input, None, ChoiceRule.CENTRE, aligned=True))
    lfw = LfwCrops.read(folder.parent / "lfw", pipeline)
    count = len(features[0])
    rows |= {f"own {name}": count + np.flatnonzero(real.labels == i) for i, name in enumerate(real.names)}
    features += [bench.runtime.features(bench.theta, crops) for crops in (real.crops, lfw.crops)]
    everybody = np.concatenate(features)
    numbers = numbers_as_crops(len(everybody))[-len(lfw.crops) :]
    own = tuple(name for name in rows if name.startswith("own "))
    return Faces(bench, everybody, rows, own, replace(lfw, crops=numbers))
