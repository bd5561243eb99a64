"""PFM and FV on a laptop: local steps, momentum and validation between silos, on pretrained SFace and synthetic faces.

Source: Bai, Wu, Shen, Li, Zhou: Federated Face Recognition (2021), Figures 4 to 6 and Table 1. The paper's parties are
MS1M, Asian-DeepGlint and VGGFace2, on which it trains IR-18 and IR-34 from scratch for 332,800 steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.errors import EmptyFolderError
from mien.layout import Vector
from mien.methods.base import Objective, ServerState, TrainingJob, ValidationFaces
from mien.methods.pfm_fv import HISTORY, weight_of
from mien.methods.proxies import class_means, one_hot_rows
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.engine import RoundRecord, run_task
from simulation.faces.workbench import TRAINABLE, Workbench, dataset_of
from simulation.papers.light import open_light_workbench
from simulation.runs.study import Claim, Column, Job, Row, Study, Table

TITLE: Final = "PFM + FV: momentum and validation between silos"
SOURCE: Final = "Bai, Wu, Shen, Li, Zhou: Federated Face Recognition (2021)"
DOMAINS: Final = ("african", "asian", "caucasian")
"""The synthetic set's domains, which stand for the paper's three data sets: one party each, or four."""

Settings = dict[str, Any]
LR: Final = 0.1
HEAD: Final = {"scale": 64.0, "margin": 0.5}
BETA: Final = 0.9
"""Rate, ArcFace's s and m, and momentum are the paper's; tuning on people for validation chose the same."""

MIXING: Final = 0.1
"""phi; the paper's 0.01 is for thirty times as many rounds."""

MAX_MATED: Final = 400
"""Mated pairs of a validator, with as many others."""

DROPS: Final = (10 / 26, 18 / 26, 24 / 26)
"""After these shares of the steps the rate falls to a tenth: epochs 10, 18 and 24 of 26."""

FULL: Final[Settings] = {
    "people": 150,
    "validators": 40,
    "validation": 40,
    "test": 300,
    "tuning": False,
    "steps": 800,
    "intervals": [8, 32, 80],
    "batch": 64,
    "lr": LR,
    "head": HEAD,
    "max_people": None,
}
QUICK: Final[Settings] = {
    **FULL,
    "people": 8,
    "validators": 3,
    "validation": 2,
    "test": 6,
    "steps": 4,
    "intervals": [1, 2, 4],
    "batch": 8,
    "max_people": None,
}

COLUMNS: Final = (
    Column("EER", "eer"),
    Column("TAR at FMR 1e-2", "tar_1e-2"),
    Column("TAR at FMR 1e-3", "tar_1e-3"),
    Column("training loss at the end", "loss_last", "number", 3),
)


def study(*, quick: bool, faces: Path | None) -> Study:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    scale = QUICK if quick else FULL
    toy = ("A toy scale: it shows only that everything runs.",) if quick else ()
    return Study(
        "pfm_fv",
        TITLE,
        measure,
        (_intervals(scale), _unfinished(scale), _norms(scale), _twelve(scale)),
        CLAIMS,
        SOURCE,
        notes=(
            *toy,
            "SFace is frozen; a linear adapter behind it (16,512 parameters) is trained. Each party holds people of "
            f"one synthetic domain ({scale['people']} of each; four parties share a domain where there are twelve) and "
            f"takes {scale['steps']} steps of ArcFace with momentum {BETA}, K of them a round. Three validators hold "
            f"{scale['validators']} people of one domain each. EER and TAR over all pairs of {scale['test']} people "
            "whom nobody trained or validated on. K is scaled down with the number of steps: the paper's are 100, 400 "
            "and 1,600 of 332,800.",
            *_FOUND,
        ),
        data_sha256=dataset_of(faces),
    )


_FOUND: Final = (
    "Final training losses are ordered as in the paper's Table 1, error rates are not: a small adapter is limited"
    " by how it carries over to other people, not by how fast it learns, so what fits the parties' own people "
    "more closely (PFM, small K, 12 parties) does worse on others. Where training is unfinished PFM is ahead, as "
    "published. A tenth of the rate gave the same order as the rate of the tables, and so did 4,000 steps at a "
    "hundredth of it with K = 25 and 400 (one seed, people for validation).",
    "FV changes next to nothing: the three domains have equally many people, so no weighting is much better than "
    "the first, and the mixed-in share of another is small.",
)
"""What was found out about claims that do not hold."""


def _intervals(scale: Settings) -> Table:
    low, middle, high = scale["intervals"]
    rows = [
        Row("pretrained", "pretrained model", {**scale, "system": "pretrained"}),
        Row("pooled", "centralised training", {**scale, "system": "pooled"}),
    ]
    for name, interval in (("low", low), ("middle", middle), ("high", high)):
        rows += [
            Row(f"fedavg_{name}", f"FedAvg, K = {interval}", _federated(scale, interval, "local", "off")),
            Row(f"pfm_{name}", f"PFM, K = {interval}", _federated(scale, interval, "partially_federated", "off")),
            Row(
                f"pfm_fv_{name}",
                f"PFM + FV, K = {interval}",
                _federated(scale, interval, "partially_federated", "local_norm"),
            ),
        ]
    note = (
        "The paper shows these as curves: FedAvg falls as K grows, PFM stays near centralised training. At the largest "
        f"K there are {scale['steps'] // high} rounds, and PFM's first has no momentum yet: that row says little of it."
    )
    return Table("Local steps K, 3 parties", tuple(rows), COLUMNS, (), note)


def _unfinished(scale: Settings) -> Table:
    """Return training that is far from its end: the paper's regime, where who optimises faster is ahead."""
    low, middle, _ = scale["intervals"]
    slow = {**scale, "lr": scale["lr"] / 100}
    rows = [Row("slow_pooled", "centralised training", {**slow, "system": "pooled"})]
    for name, interval in (("low", low), ("middle", middle)):
        rows += [
            Row(f"slow_fedavg_{name}", f"FedAvg, K = {interval}", _federated(slow, interval, "local", "off")),
            Row(f"slow_pfm_{name}", f"PFM, K = {interval}", _federated(slow, interval, "partially_federated", "off")),
        ]
    note = "After as many steps at a hundredth of the rate, where neither training loss is near its end."
    return Table(f"Unfinished training: rate {slow['lr']:g}, 3 parties", tuple(rows), COLUMNS, (), note)


def _norms(scale: Settings) -> Table:
    low = scale["intervals"][0]
    rows = (
        Row("pfm_low", "PFM without FV", _federated(scale, low, "partially_federated", "off")),
        Row("no_norm", "PFM + FV, scores as they are", _federated(scale, low, "partially_federated", "no_norm")),
        Row("moving_norm", "PFM + FV, moving norm", _federated(scale, low, "partially_federated", "moving_norm")),
        Row("pfm_fv_low", "PFM + FV, local norm", _federated(scale, low, "partially_federated", "local_norm")),
        Row("fedavg_fv", "FedAvg + FV, local norm", _federated(scale, low, "local", "local_norm")),
    )
    return Table(f"Federated validation, 3 parties, K = {low}", rows, COLUMNS)


def _twelve(scale: Settings) -> Table:
    settings = {**scale, "parts": 4, "batch": max(4, scale["batch"] // 4)}
    middle = scale["intervals"][1]
    rows = (
        Row("twelve_fedavg", "FedAvg", _federated(settings, middle, "local", "off")),
        Row("twelve_fedavg_fv", "FedAvg + FV", _federated(settings, middle, "local", "local_norm")),
        Row("twelve_pfm", "PFM", _federated(settings, middle, "partially_federated", "off")),
        Row("twelve_pfm_fv", "PFM + FV", _federated(settings, middle, "partially_federated", "local_norm")),
    )
    return Table(f"12 parties, K = {middle}", rows, COLUMNS, (), "Batches are a quarter of those with three parties.")


CLAIMS: Final = (
    Claim("FedAvg falls as K grows", "fedavg_high", "fedavg_low", "eer"),
    Claim("PFM is near centralised training (within 1 point)", "pfm_low", "pooled", "eer", 0.01),
    Claim("PFM does better than FedAvg at the smallest K", "fedavg_low", "pfm_low", "eer"),
    Claim("the same while training is unfinished", "slow_fedavg_low", "slow_pfm_low", "eer"),
    Claim("PFM does better than FedAvg at the largest K", "fedavg_high", "pfm_high", "eer"),
    Claim("PFM + FV does better than PFM", "pfm_low", "pfm_fv_low", "eer"),
    Claim("PFM + FV is not worse than centralised training", "pooled", "pfm_fv_low", "eer"),
    Claim("FV helps FedAvg too", "fedavg_low", "fedavg_fv", "eer"),
    Claim("local norm does better than no norm", "no_norm", "pfm_fv_low", "eer"),
    Claim("local norm does better than moving norm", "moving_norm", "pfm_fv_low", "eer"),
    Claim("PFM's final training loss is below FedAvg's (smallest K)", "fedavg_low", "pfm_low", "loss_last"),
    Claim("PFM's final training loss is below FedAvg's (middle K)", "fedavg_middle", "pfm_middle", "loss_last"),
    Claim("PFM's final training loss is below FedAvg's (largest K)", "fedavg_high", "pfm_high", "loss_last"),
    Claim("with 12 parties PFM does better than FedAvg", "twelve_fedavg", "twelve_pfm", "eer"),
    Claim("with 12 parties PFM + FV does better than PFM", "twelve_pfm", "twelve_pfm_fv", "eer"),
)


def _federated(scale: Settings, interval: int, momentum: str, validation: str) -> Settings:
    parties = len(DOMAINS) * scale.get("parts", 1)
    privacy: Settings = {"min_cohort": 2, "secure_aggregation": "off", "max_weight": 65535}
    if validation != "off":
        privacy["reveals"] = ["local_models"]  # three weightings of three parties give each one's update away
    options = {
        **scale["head"],
        "loss": "arcface",
        "class_start": "mean_feature",
        "momentum": momentum,
        "beta": BETA,
        "validation": validation,
        "mixing": MIXING,
        "lr_drop_rounds": _drops(scale["steps"] // interval),
    }
    task = {
        "name": "pfm-fv",
        "method": "pfm_fv",
        "rounds": scale["steps"] // interval,
        "trainable": list(TRAINABLE),
        "cohort": {"size": parties, "min_reports": parties},
        "local": {"lr": scale["lr"], "steps": interval, "batch_size": scale["batch"], "flip": False},
        "privacy": privacy,
        "options": options,
    }
    return {**scale, "system": "federated", "task": task}


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification on the test people of one run, and the training loss at its end."""
    settings = job.settings
    bench = open_light_workbench(job.faces, settings["max_people"])
    groups = _split(bench, settings, job.seed)
    judges = "validation" if settings["tuning"] else "test"
    test = sorted(name for group in groups.values() for name in group[judges])
    if settings["system"] == "pretrained":
        return bench.verification(bench.theta, test)
    people = {domain: group["people"] for domain, group in groups.items()}
    if settings["system"] == "pooled":
        theta, loss = _pooled(bench, people, settings, job.seed)
        return {**bench.verification(theta, test), "loss_last": loss}
    task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
    cohort = bench.cohort(_parties(people, settings.get("parts", 1)))
    if task.options["validation"] != "off":
        validators = {
            domain: _validation_faces(bench, group["validators"], job.seed) for domain, group in groups.items()
        }
        cohort = replace(cohort, validators=validators)
    images = {client: len(crops) for client, crops in cohort.crops.items()}
    weights: list[tuple[int, dict[str, float]]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        if HISTORY in state.arrays:
            weights.append((record.round, _shares(state, images)))

    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, bench.runtime, after_round=note)
    return {
        **bench.verification(run.state.theta, test),
        **({"weights": weights} if weights else {}),
        "loss_first": run.records[0].loss_before,
        "loss_last": run.records[-1].loss_after,
    }


def _shares(state: ServerState, images: Mapping[str, int]) -> dict[str, float]:
    """Return each party's share of the weighting that the next round begins with (Figure 6)."""
    each = {client: weight_of(state, client, float(num)) for client, num in images.items()}
    total = sum(each.values())
    return {client: round(weight / total, 6) for client, weight in each.items()}


def _split(bench: Workbench, settings: Mapping[str, Any], seed: int) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return each domain's people for training, validators, tuning and tests, drawn by `seed`."""
    sizes = {name: settings[name] for name in ("people", "validators", "validation")}
    sizes["test"] = settings["test"] // len(DOMAINS)
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for number, domain in enumerate(DOMAINS):
        members = [name for name in bench.people if name.startswith(f"{domain}_")]
        if len(members) < sum(sizes.values()):
            raise EmptyFolderError(
                f"the folder holds {len(members)} people named {domain}_..., this experiment needs "
                f"{sum(sizes.values())}; name a larger one with --faces, or use --quick"
            )
        order = [members[i] for i in np.random.default_rng([seed, 7, number]).permutation(len(members))]
        position, groups[domain] = 0, {}
        for name, size in sizes.items():
            groups[domain][name] = tuple(sorted(order[position : position + size]))
            position += size
    return groups


def _parties(people: Mapping[str, Sequence[str]], parts: int) -> dict[str, tuple[str, ...]]:
    """Return each domain's people divided evenly among `parts` parties."""
    return {f"{domain}-{i}": tuple(held[i::parts]) for domain, held in people.items() for i in range(parts)}


def _validation_faces(bench: Workbench, names: Sequence[str], seed: int) -> ValidationFaces:
    """Return a validator's pairs, as many mated as non-mated ones, in ten folds as the paper's benchmarks have."""
    crops, labels = bench.labelled(names)
    rng = np.random.default_rng([seed, 8])
    first, second = np.triu_indices(len(labels), 1)
    is_mated = labels[first] == labels[second]
    num = min(MAX_MATED, int(is_mated.sum()))
    chosen = np.concatenate([rng.permutation(np.flatnonzero(is_mated == kind))[:num] for kind in (True, False)])
    pairs = np.stack([first[chosen], second[chosen]], axis=1).astype(np.int64)
    folds = np.tile(np.arange(num) % 10, 2).astype(np.int64)
    return ValidationFaces(crops, pairs, is_mated[chosen], folds)


def _pooled(
    bench: Workbench, people: Mapping[str, Sequence[str]], settings: Mapping[str, Any], seed: int
) -> tuple[Vector, float]:
    """Return momentum SGD on everybody's images in one place: as many steps, the parties' batches together.

    The backbone's momentum starts anew when the rate falls.
    """
    crops, labels = bench.labelled([name for held in people.values() for name in held])
    num = int(labels.max()) + 1
    vectors_KD, theta = class_means(bench.runtime.embed(bench.theta, crops), labels, num), bench.theta
    batch, loss = len(DOMAINS) * settings["batch"], math.nan
    for stage, steps in enumerate(_stages(settings["steps"])):
        objective = Objective(
            "arcface",
            private={"class_embeddings": vectors_KD},
            per_crop={"target": one_hot_rows(labels, num)},
            constants=settings["head"],
            unit_norm=("class_embeddings",),
        )
        local = LocalSpec(lr=settings["lr"] * 0.1**stage, steps=steps, batch_size=batch, momentum=BETA, flip=False)
        trained = bench.runtime.train(TrainingJob(theta, bench.part, crops, objective, local, seed + stage))
        theta, vectors_KD, loss = trained.theta, trained.private["class_embeddings"], trained.loss_after
    return theta, loss


def _drops(rounds: int) -> list[int]:
    """Return the rounds after which the rate falls to a tenth."""
    return sorted({max(1, round(share * rounds)) for share in DROPS})


def _stages(steps: int) -> list[int]:
    """Return the numbers of steps at each rate."""
    stops = [0, *_drops(steps), steps]
    return [b - a for a, b in itertools.pairwise(stops) if b > a]
