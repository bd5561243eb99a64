"""One run: a system trained under one seed, and its figures on both domains."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, KMeans

from mien.evaluation import (
    all_pairs,
    cmc,
    kfold_accuracy,
    pair_scores,
    search,
)
from mien.evaluation.protocols.folders import sample_pairs
from mien.layout import Vector
from mien.methods.base import Embeddings, ServerState
from mien.methods.clustering import (
    Partition,
    bcubed_scores,
    c_finch,
    finch,
    normalised_mutual_information,
    pairwise_scores,
    pure_distance,
    side_by_side,
)
from mien.methods.fedfr_uda import LABELS as KEPT_LABELS
from mien.methods.fedfr_uda import FedFrUdaOptions
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec, to_mapping
from simulation.centralised import systems
from simulation.centralised.systems import Faces, Head, Trainer
from simulation.engines.engine import Cohort, RoundRecord, run_task
from simulation.faces.workbench import TRAINABLE, Workbench, error_rates
from simulation.papers.fedfr_uda.faces import Domains, divide, faces_of, open_domains
from simulation.runs.experiment import Job

GRID: Final = tuple(round(0.3 + 0.05 * i, 2) for i in range(19))
"""Distances and radii that are tried on validation people: 0.3 to 1.2 between unit vectors."""

MIN_SAMPLES: Final = 3
FOLDS: Final = 10
GALLERY: Final = 2
FMRS: Final = {"tar_1e-1": 1e-1, "tar_1e-2": 1e-2, "tar_1e-3": 1e-3}

STAGES_2_AND_3: Final = (
    "system",
    "clients",
    "local_steps",
    "max_levels",
    "distance",
    "purity",
    "in_condition",
    "radius",
    "level",
    "domain_constraint",
    "constraint_steps",
)
"""Settings in which rows differ that start from one and the same model of the source."""

Clusterer = Callable[[Embeddings, int], Partition]
"""Returns pseudo labels of embeddings, given how many people they truly show (which K-means alone looks at)."""


@dataclass(frozen=True)
class Scene:
    """Parts shared by all systems of one benchmark and seed: the people and the source's model."""

    bench: Workbench = field(repr=False)
    settings: Mapping[str, Any]
    seed: int
    domains: Domains
    source: Faces = field(repr=False)
    target: Faces = field(repr=False)
    pretrained: Vector = field(repr=False)
    labelled: Workbench = field(repr=False)
    """The source where a distance is chosen: as it is, or in the target's condition; neither needs a target's label."""

    @property
    def trainer(self) -> Trainer:
        """Trainer of pooled systems from the source's model."""
        return _trainer(self.bench, self.settings, self.settings["steps"], self.seed)


def measure(job: Job) -> Mapping[str, Any]:
    """Return the figures of one run: both domains, the clustering where there is one, and curves over rounds."""
    settings = dict(job.settings)
    scene = open_scene(job, settings)
    system = settings["system"]
    if system in POOLED:
        return figures(scene, POOLED[system](scene))
    theta, found = fine_tuned(scene) if system == "fine_tune" else federated(scene, system)
    return {**found, **figures(scene, theta)}


def open_scene(job: Job, settings: Mapping[str, Any]) -> Scene:
    """Return the scene of a run, stage 1 of the paper included; kept for the next run of its benchmark and seed."""
    shared = {name: value for name, value in settings.items() if name not in STAGES_2_AND_3}
    pretrained = _pretrained(job.faces, json.dumps(shared, sort_keys=True), job.seed)
    bench = _bench(job.faces, settings)
    domains = divide(bench.people, dict(settings), job.seed)
    if settings["tuning"]:  # the people whom clusterings' parameters are chosen on
        domains = replace(domains, target_test=domains.validation)
    source, target = (faces_of(bench, who, settings["max_images"]) for who in (domains.source, domains.target))
    seen = settings.get("in_condition") and settings.get("condition", "")
    labelled = open_domains(job.faces, tuple(settings["source"]), seen) if seen else bench
    return Scene(bench, settings, job.seed, domains, source, target, pretrained, labelled)


def _bench(faces: Path | None, settings: Mapping[str, Any]) -> Workbench:
    return open_domains(faces, (*settings["source"], settings["target"]), settings.get("condition", ""))


@functools.lru_cache(maxsize=2)
def _pretrained(faces: Path | None, shared: str, seed: int) -> Vector:
    """Return stage 1: the released model, trained on the source with its labels; after no step it is that model."""
    settings = json.loads(shared)
    bench = _bench(faces, settings)
    if not settings["pretrain_steps"]:
        return bench.theta
    source = faces_of(bench, divide(bench.people, settings, seed).source, settings["max_images"])
    return _trainer(bench, settings, settings["pretrain_steps"], seed).supervised(bench.theta, source)


def _trainer(bench: Workbench, settings: Mapping[str, Any], steps: int, seed: int) -> Trainer:
    head = Head("arcface", settings["scale"], settings["margin"])
    return Trainer(bench.runtime, bench.part, head, _local(settings, steps), seed)


def _local(settings: Mapping[str, Any], steps: int) -> LocalSpec:
    return LocalSpec(
        lr=settings["lr"], steps=steps, batch_size=settings["batch_size"], momentum=settings["momentum"], flip=False
    )


def _options(settings: Mapping[str, Any]) -> FedFrUdaOptions:
    return FedFrUdaOptions(scale=settings["scale"], margin=settings["margin"], domain_constraint=0.0)


# Systems.


def federated(scene: Scene, system: str) -> tuple[Vector, dict[str, Any]]:
    """Return the model after stages 2 and 3, with the clustering's scores and the target's accuracy round by round."""
    settings = scene.settings
    clients = _clients(scene)
    labels, found = _labelled(scene, clients, system)
    crops = {name: faces.crops for name, faces in clients.items()}
    has_source = system not in NO_SOURCE
    if has_source:
        crops["source"] = scene.source.crops
    constraint = settings["domain_constraint"] if system == "dcl" else 0.0
    task = _task(settings, len(crops), constraint, scene.seed)
    curve: list[list[float]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        if record.round < task.rounds:
            ends = (
                _accuracy(scene, state.theta, who) for who in (scene.domains.target_test, scene.domains.source_test)
            )
            curve.append([record.round * settings["local_steps"], *ends])

    # Every clustering's labels take the way of those that a device kept: C-FINCH's are what it would find itself.
    private = {name: {KEPT_LABELS: found.astype(np.float32)} for name, found in labels.items()}
    cohort = Cohort(crops, private, labels={"source": scene.source.labels} if has_source else {})
    bench = scene.bench
    run = run_task(task, bench.part, bench.dim, scene.pretrained, cohort, bench.runtime, after_round=note)
    return run.state.theta, {**found, "curve": curve}


def _labelled(scene: Scene, clients: Mapping[str, Faces], system: str) -> tuple[dict[str, Partition], dict[str, Any]]:
    """Return each target client's labels in a system, and the clustering's scores, as means over clients."""
    clusterer, parameter = chosen_clusterer(scene, system if system in CLUSTERINGS else "c_finch")
    labels = (
        {name: faces.labels for name, faces in clients.items()}
        if system in ("true_labels", "no_source_true")
        else {name: clusterer(_embed(scene, faces), faces.num_identities) for name, faces in clients.items()}
    )
    scores = [_scores(faces.labels, labels[name]) for name, faces in clients.items()]
    return labels, {
        **{name: float(np.mean([each[name] for each in scores])) for name in scores[0]},
        "clusters": float(sum(each["clusters"] for each in scores)),
        "parameter": parameter,
    }


def _task(settings: Mapping[str, Any], size: int, constraint: float, seed: int) -> TaskSpec:
    options = to_mapping(
        replace(
            _options(settings),
            domain_constraint=constraint,
            constraint_steps=settings.get("constraint_steps", 0),
        )
    )
    return TaskSpec(
        name="fedfr-uda",
        method="fedfr_uda",
        rounds=settings["steps"] // settings["local_steps"],
        trainable=TRAINABLE,
        cohort=CohortSpec(size=size, min_reports=size),
        local=_local(settings, settings["local_steps"]),
        privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        options=options,
        seed=seed,
    )


def _clients(scene: Scene) -> dict[str, Faces]:
    """Return the target's people divided evenly over the target clients."""
    groups = np.array_split(np.array(scene.domains.target), scene.settings["clients"])
    return {
        f"target{k}": faces_of(scene.bench, tuple(map(str, who)), scene.settings["max_images"])
        for k, who in enumerate(groups, start=1)
    }


def fine_tuned(scene: Scene) -> tuple[Vector, dict[str, Any]]:
    """Return the model after training in one place on the clusters that clients find, with the clustering's scores.

    Federated rounds have the same clusters, as in the paper's Table 5, where each system adds one part to the last.
    """
    clients = _clients(scene)
    labels, found = _labelled(scene, clients, "c_finch")
    crops = np.concatenate([faces.crops for faces in clients.values()])
    together = side_by_side(list(labels.values()))
    return scene.trainer.supervised(scene.pretrained, Faces(crops, together)), found


def _for_both(scene: Scene) -> Trainer:
    """Return the trainer with batches so large that the source's share of them is what other systems' batches are."""
    num_source, num_target = len(scene.source.crops), len(scene.target.crops)
    size = round(scene.settings["batch_size"] * (num_source + num_target) / num_source)
    return replace(scene.trainer, local=replace(scene.trainer.local, batch_size=size))


POOLED: Final[Mapping[str, Callable[[Scene], Vector]]] = {
    "source_only": lambda scene: scene.pretrained,
    "source_alone": lambda scene: scene.trainer.supervised(scene.bench.theta, scene.source),
    # From the released model: the source's is what it is compared with.
    "target_only": lambda scene: scene.trainer.supervised(scene.bench.theta, scene.target),
    "merge": lambda scene: systems.merge(scene.trainer, scene.pretrained, scene.source, scene.target),
    "dan": lambda scene: systems.dan(
        _for_both(scene),
        scene.pretrained,
        scene.source,
        scene.target.crops,
        trade_off=scene.settings["trade_off"],
    ),
    "dann": lambda scene: systems.dann(
        _for_both(scene), scene.pretrained, scene.source, scene.target.crops, reversal=scene.settings["reversal"]
    ),
}
"""Systems that need all faces in one place, from a scene to a model."""


# Clusterings.

NO_SOURCE: Final = ("no_source", "no_source_true")
"""Federated systems of target clients alone."""

CLUSTERINGS: Final = ("c_finch", "dbscan", "finch", "kmeans", "kmeans_found")
"""Systems that are named after their clustering; all others have C-FINCH's labels, or true ones."""


def chosen_clusterer(scene: Scene, name: str) -> tuple[Clusterer, float]:
    """Return a clustering with the parameter that is best on validation people, and that parameter.

    Best is the highest F-score, on average over groups of as many people as a client holds. Settings may name them
    instead: C-FINCH's `distance` (0.0: none is named) and levels, DBSCAN's `radius`, FINCH's `level`. With `purity`
    C-FINCH has the distance that a task with that setting has. `kmeans_found` is told the number that C-FINCH finds.
    """
    if name == "kmeans":
        return functools.partial(_kmeans, seed=scene.seed), 0.0
    if name == "kmeans_found":
        found, parameter = chosen_clusterer(scene, "c_finch")
        return lambda emb, num: _kmeans(emb, int(found(emb, num).max()) + 1, seed=scene.seed), parameter
    settings = scene.settings
    if name == "c_finch" and settings.get("purity"):
        distance = _pure_distance(scene)
        return lambda emb, _num_people: c_finch(emb, distance, max_levels=settings["max_levels"]), distance
    made: dict[str, tuple[Callable[[Embeddings, float], Partition], tuple[float, ...]]] = {
        "c_finch": (
            functools.partial(c_finch, max_levels=settings.get("max_levels", 0)),
            (settings["distance"],) if settings.get("distance") else GRID,
        ),
        "dbscan": (_dbscan, (settings["radius"],) if "radius" in settings else GRID),
        "finch": (_finch, (settings["level"],) if "level" in settings else (0.0, 1.0, 2.0, 3.0)),
    }
    function, grid = made[name]
    if len(grid) == 1:
        return lambda emb, _num_people: function(emb, grid[0]), grid[0]
    groups = _validation_groups(scene)
    scores = [
        np.mean([pairwise_scores(truth, function(emb, value)).f_score for emb, truth in groups]) for value in grid
    ]
    best = grid[int(np.argmax(scores))]
    return lambda emb, _num_people: function(emb, best), best


def _pure_distance(scene: Scene) -> float:
    """Return the largest distance at which clusters of the source are pure, in groups as large as an average client."""
    settings = scene.settings
    faces = faces_of(scene.labelled, scene.domains.source, settings["max_images"])
    embeddings = scene.labelled.runtime.embed(scene.pretrained, faces.crops)
    images = len(scene.target.crops) // settings["clients"]
    return pure_distance(
        embeddings, faces.labels, settings["purity"], group_images=images, max_levels=settings["max_levels"]
    )


def _validation_groups(scene: Scene) -> list[tuple[Embeddings, NDArray[np.int64]]]:
    """Return embeddings and true labels of validation people, in groups as large as a client's people."""
    people = scene.domains.validation
    size = max(2, min(len(people), len(scene.domains.target) // scene.settings["clients"]))
    starts = range(0, len(people) - size + 1, size)
    groups = [faces_of(scene.bench, people[i : i + size], scene.settings["max_images"]) for i in starts]
    return [(_embed(scene, faces), faces.labels) for faces in groups]


def _kmeans(embeddings: Embeddings, num_people: int, *, seed: int) -> Partition:
    found = KMeans(min(num_people, len(embeddings)), n_init=4, random_state=seed).fit_predict(embeddings)
    return np.asarray(found, np.int64)


def _dbscan(embeddings: Embeddings, radius: float) -> Partition:
    """Return DBSCAN's clusters, each point of noise one of its own."""
    found = np.asarray(DBSCAN(eps=radius, min_samples=MIN_SAMPLES).fit_predict(embeddings), np.int64)
    noise = found < 0
    found[noise] = found.max(initial=-1) + 1 + np.arange(int(noise.sum()))
    return found


def _finch(embeddings: Embeddings, level: float) -> Partition:
    found = finch(embeddings)
    return found.at(min(int(level), len(found.partitions) - 1))


def _scores(truth: NDArray[np.int64], found: Partition) -> dict[str, float]:
    return {
        "f_score": pairwise_scores(truth, found).f_score,
        "bcubed": bcubed_scores(truth, found).f_score,
        "nmi": normalised_mutual_information(truth, found),
        "clusters": float(found.max() + 1),
    }


def _embed(scene: Scene, faces: Faces) -> Embeddings:
    return scene.bench.runtime.embed(scene.pretrained, faces.crops)


# Figures.


def figures(scene: Scene, theta: Vector) -> dict[str, float]:
    """Return accuracy, EER, TAR and rank-1 rate on the test people of both domains."""
    found = {}
    for domain, people in (("target", scene.domains.target_test), ("source", scene.domains.source_test)):
        faces = faces_of(scene.bench, people, scene.settings["max_images"])
        embeddings = scene.bench.runtime.embed(theta, faces.crops)
        for name, value in error_rates(all_pairs(embeddings, faces.labels), FMRS).items():
            found[f"{domain}_{name}"] = value
        found[f"{domain}_accuracy"] = _fold_accuracy(embeddings, faces.labels, scene.settings["pairs"])
        found[f"{domain}_rank1"] = _rank_1(embeddings, faces.labels)
    return found


def _accuracy(scene: Scene, theta: Vector, people: tuple[str, ...]) -> float:
    faces = faces_of(scene.bench, people, scene.settings["max_images"])
    embeddings = scene.bench.runtime.embed(theta, faces.crops)
    return _fold_accuracy(embeddings, faces.labels, scene.settings["pairs"])


def _fold_accuracy(embeddings: Embeddings, labels: NDArray[np.int64], num: int) -> float:
    """Return ten-fold accuracy over as many mated as non-mated pairs, the same ones for every system and seed."""
    keys = [f"{label}/{i}" for i, label in enumerate(labels.tolist())]
    pairs = sample_pairs(keys, list(map(str, labels.tolist())), num_mated=num, num_non_mated=num, seed=0)
    distances = 2.0 - 2.0 * pair_scores(embeddings[pairs.first], embeddings[pairs.second])
    folds = np.arange(2 * num, dtype=np.int64) % FOLDS
    return kfold_accuracy(distances, pairs.mated, folds).mean


def _rank_1(embeddings: Embeddings, labels: NDArray[np.int64]) -> float:
    """Return the closed-set rank-1 rate with the first two images of each person enrolled, all others as queries."""
    starts = np.searchsorted(labels, labels)
    enrolled = np.arange(len(labels)) - starts < GALLERY
    found = search(embeddings[~enrolled], labels[~enrolled], embeddings[enrolled], labels[enrolled])
    return float(cmc(found, 1)[0])
