"""The systems that the FedFR study measures: what is trained, and which model each client then uses."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.layout import Vector
from mien.methods import find_method
from mien.methods.base import Crops, DeviceInput, Embeddings, Objective, Trained, TrainingJob, never_stop
from mien.methods.personal import DistillationSpec, PersonalModel, distil, fine_tune, personal_model
from mien.methods.proxies import class_means, one_hot_rows
from mien.methods.spreadout import SpreadOutSpec, spread_out
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.engine import Run, device_seed, run_task
from simulation.papers.fedfr.split import Client, Labels, Settings, Split

SPREAD_OUT: Final = SpreadOutSpec(margin=0.4, lr=0.01, steps=20, momentum=0.9, reduction="mean")
"""Options with which FedFR's authors ran FedFace against their own method."""

SCALE: Final = 30.0
MARGIN: Final = 0.4
"""CosFace's s and m, of the paper and of every system here."""

START: Final = (
    "max_people",
    "clients",
    "max_ids",
    "public",
    "public_images",
    "generic",
    "validation",
    "train_images",
    "validation_images",
    "tuning",
    "ids",
    "pretrain",
    "domains",
    "max_images",
    "test_images",
    "part",
    "alike",
)
"""Settings that decide who plays which part, and what the pretrained model is; the last five not all studies have."""


@dataclass
class Watched:
    """A runtime that counts its steps, keeps each client's trained part, and embeds public crops once a model."""

    runtime: TorchRuntime
    public: Crops = field(repr=False)
    num_clients: int
    num_steps: int = 0
    num_images: int = 0
    parts: list[Vector] = field(default_factory=list, repr=False)
    _seen: tuple[Vector, Embeddings] | None = field(default=None, repr=False)

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings; those of the public crops are remembered for one model."""
        if crops is not self.public:
            return self.runtime.embed(theta, crops)
        if self._seen is None or self._seen[0] is not theta:
            self._seen = (theta, self.runtime.embed(theta, crops))
        return self._seen[1]

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings as the backbone gives them."""
        return self.runtime.features(theta, crops)

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what the runtime makes of it; the last `num_clients` results are kept."""
        trained = self.runtime.train(job, should_stop)
        self.num_steps += trained.num_steps
        self.num_images += len(job.crops)
        self.parts = [*self.parts, trained.values][-self.num_clients :]
        return trained


@dataclass(frozen=True)
class Result:
    """A trained system: the generic model, and each client's.

    `steps` and `images` are what an epoch costs one client, on average over clients and rounds; 0 where no client
    trains.
    """

    theta: Vector = field(repr=False)
    personal: Mapping[str, PersonalModel] = field(repr=False)
    steps: float = 0.0
    images: float = 0.0


def pretrained(split: Split, settings: Settings, seed: int) -> Result:
    """Return SFace after CosFace training on the public people: what every other system starts from."""
    return _one_model(split, _start(split.faces, _chosen(settings, START), seed))


def pooled(split: Split, settings: Settings, seed: int) -> Result:
    """Return what everybody's images in one place give: no privacy, the upper bound."""
    start = pretrained(split, settings, seed).theta
    crops, labels = [split.public.crops], [split.public.labels]
    offset = int(split.public.labels.max()) + 1
    for client in split.clients.values():
        crops.append(client.crops)
        labels.append(offset + client.labels)
        offset += len(client.people)
    local = from_mapping(LocalSpec, settings["local"])
    local = replace(local, epochs=local.epochs * settings["rounds"])
    return _one_model(split, _cosface(split, start, np.concatenate(crops), np.concatenate(labels), local, seed))


def federated(split: Split, settings: Settings, seed: int) -> Result:
    """Return a method of the product after its rounds, in each of which every client takes part.

    Rows that differ only in the model that clients use share one run.
    """
    task = from_mapping(TaskSpec, {**settings["task"], "seed": seed})
    run, runtime = _finished(split.faces, _chosen(settings, (*START, "task")), seed)
    visits = task.rounds * len(split.clients)
    steps, images = runtime.num_steps / (visits * task.local.epochs), runtime.num_images / visits
    models = _clients_models(split, task, run, replace(runtime), settings)
    return Result(run.state.theta, models, steps, images)


@functools.lru_cache(maxsize=6)
def _finished(faces: Path | None, settings_json: str, seed: int) -> tuple[Run, Watched]:
    """Return a task's run and the runtime that watched it, kept for the next rows of a process."""
    settings = json.loads(settings_json)
    split = Split.draw(faces, settings, seed)
    task = from_mapping(TaskSpec, {**settings["task"], "seed": seed})
    start = pretrained(split, settings, seed).theta
    runtime = Watched(split.bench.runtime, split.public.crops, len(split.clients))
    return run_task(task, split.bench.part, split.bench.dim, start, split.cohort, runtime), runtime


def fedface(split: Split, settings: Settings, seed: int) -> Result:
    """Return FedFace with several identities a client, as FedFR's authors ran it for Figure 4.

    Clients with several identities minimise CosFace over them, with one the positive loss; the server sees every class
    embedding in clear and spreads all of them out. No method of the product shows that much.
    """
    part, runtime, local = split.bench.part, split.bench.runtime, from_mapping(LocalSpec, settings["local"])
    theta = pretrained(split, settings, seed).theta
    vectors = {name: _means(split, theta, client) for name, client in split.clients.items()}
    weights = [len(client.crops) for client in split.clients.values()]
    personal = {}
    for number in range(settings["rounds"]):
        parts = []
        for i, (name, client) in enumerate(split.clients.items()):
            drawn = int(np.random.default_rng([seed, number, i]).integers(2**31))
            objective = _fedface_objective(vectors[name], client.labels)
            trained = runtime.train(TrainingJob(theta, part, client.crops, objective, local, drawn))
            vectors[name] = np.atleast_2d(next(iter(trained.private.values())))
            personal[name] = PersonalModel(trained.theta)
            parts.append(part.gather(trained.theta).astype(np.float64))
        theta = part.scatter(theta, np.average(parts, axis=0, weights=weights).astype(np.float32))
        spread = spread_out(np.concatenate(list(vectors.values())), SPREAD_OUT).astype(np.float32)
        stops = np.cumsum([len(rows) for rows in vectors.values()])[:-1]
        vectors = dict(zip(vectors, np.split(spread, stops), strict=True))
    return Result(theta, personal)


SYSTEMS: Final[Mapping[str, Callable[[Split, Settings, int], Result]]] = {
    "pretrained": pretrained,
    "pooled": pooled,
    "federated": federated,
    "fedface": fedface,
}


def _clients_models(
    split: Split, task: TaskSpec, run: Run, runtime: Watched, settings: Settings
) -> Mapping[str, PersonalModel]:
    """Return the model that each client uses: `settings["personal"]`."""
    part, theta, use = split.bench.part, run.state.theta, settings["personal"]
    if use == "global":
        return dict.fromkeys(split.clients, PersonalModel(theta))
    if use == "local":
        return {
            name: PersonalModel(part.scatter(theta, values))
            for name, values in zip(run.records[-1].devices, runtime.parts, strict=True)
        }
    if use == "branch":
        return {name: personal_model(part, theta, run.cohort.private[name]) for name in split.clients}
    spec = DistillationSpec(weight=settings.get("distillation", 1.0))
    ways: Mapping[str, Callable[..., PersonalModel]]
    ways = {"fine_tune": fine_tune, "distil": functools.partial(distil, spec=spec)}
    adapt = ways[use]
    local = replace(task.local, epochs=settings["adapt_epochs"])
    stage_two = replace(task, local=local)
    return {name: adapt(_after(split, stage_two, run, name), runtime) for name in split.clients}


def _after(split: Split, task: TaskSpec, run: Run, name: str) -> DeviceInput:
    """Return what a client has once the task has ended."""
    client = split.clients[name]
    return DeviceInput(
        task=task,
        part=split.bench.part,
        dim=split.bench.dim,
        theta=run.state.theta,
        crops=client.crops,
        labels=client.labels,
        private=run.cohort.private[name],
        reply=find_method(task.method).reply(run.state, name),
        public_crops=split.public.crops,
        public_labels=split.public.labels,
        seed=device_seed(task, name, task.rounds + 1),
    )


@functools.lru_cache(maxsize=2)
def _start(faces: Path | None, settings_json: str, seed: int) -> Vector:
    """Return the pretrained model's parameters, trained once a process."""
    settings = json.loads(settings_json)
    split = Split.draw(faces, settings, seed)
    local = from_mapping(LocalSpec, settings["pretrain"])
    return _cosface(split, split.bench.theta, split.public.crops, split.public.labels, local, seed)


def _chosen(settings: Settings, names: Sequence[str]) -> str:
    return json.dumps({name: settings[name] for name in names if name in settings}, sort_keys=True)


def _means(split: Split, theta: Vector, client: Client) -> Vector:
    return class_means(split.bench.runtime.embed(theta, client.crops), client.labels, len(client.people))


def _fedface_objective(w_KD: Vector, labels: Labels) -> Objective:
    """Return CosFace over a client's identities, or the positive loss of a single one."""
    if len(w_KD) > 1:
        return _cosface_objective(w_KD, labels)
    name = "class_embedding"
    return Objective("positive_hinge", private={name: w_KD[0]}, constants={"margin": 0.9}, unit_norm=(name,))


def _cosface_objective(w_KD: Vector, labels: Labels) -> Objective:
    return Objective(
        "cosface",
        private={"class_embeddings": w_KD},
        per_crop={"target": one_hot_rows(labels, len(w_KD))},
        constants={"scale": SCALE, "margin": MARGIN},
    )


def _cosface(split: Split, theta: Vector, crops: Crops, labels: Labels, local: LocalSpec, seed: int) -> Vector:
    """Return what CosFace over these people makes of a model; proxies start at their mean features."""
    bench = split.bench
    proxies = class_means(bench.runtime.embed(theta, crops), labels, int(labels.max()) + 1)
    return bench.runtime.train(
        TrainingJob(theta, bench.part, crops, _cosface_objective(proxies, labels), local, seed)
    ).theta


def _one_model(split: Split, theta: Vector) -> Result:
    return Result(theta, dict.fromkeys(split.clients, PersonalModel(theta)))
