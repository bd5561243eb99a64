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
from numpy.typing import NDArray

from mien.errors import EmptyFolderError
from mien.layout import Vector
from mien.methods.base import ServerState, ValidationFaces
from mien.methods.pfm_fv import HISTORY, PERCENT, options_of, rate, score, server_start, weight_of
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.centralised.systems import Faces, Head, Trainer
from simulation.engines.base import Cohort, RoundWork
from simulation.engines.engine import RoundRecord, as_engine, rounds, run_task
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench
from simulation.papers.light import open_light_workbench
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
DOMAINS: Final = ("african", "asian", "caucasian")
"""The synthetic set's domains, which stand for the paper's three data sets: one party each, or four."""

BETA: Final = 0.9
"""Momentum of pooled training, as of the parties'."""

MAX_MATED: Final = 400
"""Mated pairs of a validator, with as many others."""

STEPS: Final = 5
"""Steps of a grid search over weightings: shares are fifths."""

_Groups = Mapping[str, Mapping[str, Sequence[str]]]
"""People by their domain and the part that they play."""

DROPS: Final = (10 / 26, 18 / 26, 24 / 26)
"""After these shares of the steps the rate falls to a tenth: epochs 10, 18 and 24 of 26."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification on the test people of one run, and the training loss at its end."""
    return measured(open_light_workbench(job.faces, job.settings["max_people"]), job)


def measured(bench: Workbench, job: Job) -> Mapping[str, Any]:
    """Return what `measure` does, of what a row's system makes of the bench's model.

    With `fold_swap` half of those who validate and test validate, the other half tests, and vice versa, and figures are
    means over both ways: as in the paper, whose validators have half of a benchmark's folds.
    """
    settings = job.settings
    groups = _split(bench, settings, job.seed)
    if not settings.get("fold_swap"):
        return _measured(bench, job, groups, ["validation" if settings["tuning"] else "test"])
    if _validation(settings) == "off":  # one model, judged by either half
        return _measured(bench, job, _halves(groups, 0), ["test", "validators"])
    return _mean([_measured(bench, job, _halves(groups, first), ["test"]) for first in (0, 1)])


def _measured(bench: Workbench, job: Job, groups: _Groups, judges: Sequence[str]) -> Mapping[str, Any]:
    """Return a system's figures, those of verification being means over groups of judges."""
    settings = job.settings
    tests = [{domain: group[judge] for domain, group in groups.items()} for judge in judges]
    if settings["system"] == "pretrained":
        return _verified(bench, bench.theta, tests)
    people = {domain: group["people"] for domain, group in groups.items()}
    cohort = bench.cohort(
        _unequal(people, settings) if "parties" in settings else _parties(people, settings.get("parts", 1))
    )
    cohort = replace(cohort, labels=_mislabelled(cohort.labels, settings.get("wrong_labels", {}), job.seed))
    if settings["system"] == "pooled":
        theta, loss = _pooled(bench, _together(cohort), len(people), settings, job.seed)
        return {**_verified(bench, theta, tests), "loss_last": loss}
    if settings["system"] == "solo":
        alone = [_pooled(bench, Faces(*bench.labelled(held)), 1, settings, job.seed) for held in people.values()]
        return _mean([{**_verified(bench, theta, tests), "loss_last": loss} for theta, loss in alone])
    task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
    if settings.get("reach"):
        of_backbone = task.local.lr * settings["reach"] / reach(task)
        task = replace(task, local=replace(task.local, lr=of_backbone, private_lr=task.local.lr))
    if settings["system"] == "grid":
        after = max(1, round(settings.get("searched_after", 1 / 2) * task.rounds))
        return searched(bench, task, cohort, _validators(bench, groups, job.seed), _everybody(tests[0]), after)
    if _validation(settings) != "off":
        cohort = replace(cohort, validators=_validators(bench, groups, job.seed))
    is_even = task.options.get("first_weighting") == "uniform"
    first = {client: 1 if is_even else len(crops) for client, crops in cohort.crops.items()}
    weights: list[tuple[int, dict[str, float]]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        if HISTORY in state.arrays:
            weights.append((record.round, _shares(state, first)))

    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, bench.runtime, after_round=note)
    return {
        **_verified(bench, run.state.theta, tests),
        **({"weights": weights} if weights else {}),
        **_figures_of_weights(weights, first, run.state),
        "loss_first": run.records[0].loss_before,
        "loss_last": run.records[-1].loss_after,
    }


def _validation(settings: Mapping[str, Any]) -> str:
    """Return how a row's validators choose weights; "off" where it has none."""
    return str(settings.get("task", {}).get("options", {}).get("validation", "off"))


def _mean(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each figure; a list is left out where there are several."""
    if len(each) == 1:
        return dict(each[0])
    numbers = [name for name, value in each[0].items() if not isinstance(value, list)]
    return {name: math.fsum(one[name] for one in each) / len(each) for name in numbers}


def _halves(groups: _Groups, first: int) -> _Groups:
    """Return groups in which a half of those who validate and test validates, the other tests: `first` 0, or 1."""
    judges = {domain: sorted((*group["validators"], *group["test"])) for domain, group in groups.items()}
    return {
        domain: {**group, "validators": judges[domain][first::2], "test": judges[domain][1 - first :: 2]}
        for domain, group in groups.items()
    }


def reach(task: TaskSpec) -> float:
    """Return how far a gradient of one, the same in every step, would carry a backbone in all of a task's rounds.

    That is the sum of rates times what momentum makes of a step. FedAvg's momentum begins anew in every round, PFM's
    grows from round to round (eq 3 and 6), so that both depend on K and on the number of rounds where these are few.
    """
    options, num_steps = options_of(task), task.local.num_steps(0)
    total = moved = 0.0
    for number in range(1, task.rounds + 1):
        federated = options.momentum == "partially_federated"
        moved = num_steps + options.beta * moved if federated else _from_rest(num_steps, options.beta)
        total += rate(task, options, number) * moved
    return total


def _from_rest(num_steps: int, beta: float) -> float:
    """Return how far a gradient of one carries at rate one in so many steps of momentum that begins at zero."""
    return math.fsum((1 - beta**step) / (1 - beta) for step in range(1, num_steps + 1))


def _everybody(tests: Mapping[str, Sequence[str]]) -> list[str]:
    return sorted(itertools.chain(*tests.values()))


def _verified(bench: Workbench, theta: Vector, each: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, float]:
    """Return the mean over groups of test people of verification on all domains', and of the EER among each's."""

    def figures(tests: Mapping[str, Sequence[str]]) -> dict[str, float]:
        own = {f"eer_{domain}": bench.verification(theta, names)["eer"] for domain, names in tests.items()}
        return {**bench.verification(theta, _everybody(tests)), **own}

    return _mean([figures(tests) for tests in each])


def _figures_of_weights(
    weights: Sequence[tuple[int, Mapping[str, float]]], first: Mapping[str, int], state: ServerState
) -> dict[str, float]:
    """Return each party's share after a quarter of the rounds and at the end, and how often a drawn weighting won."""
    total = sum(first.values())
    at_first = {client: num / total for client, num in first.items()}
    early, late = (weights[len(weights) // 4][1], weights[-1][1]) if weights else (at_first, at_first)
    winners = state.arrays[HISTORY][:, 0] if HISTORY in state.arrays else np.zeros(1)
    return {
        **{f"early_{client}": share for client, share in early.items()},
        **{f"share_{client}": share for client, share in late.items()},
        "drawn_won": float((winners > 0).mean()),
    }


def searched(
    bench: Workbench,
    task: TaskSpec,
    cohort: Cohort,
    validators: Mapping[str, ValidationFaces],
    test: Sequence[str],
    after: int,
) -> dict[str, float]:
    """Return what a grid search over weightings finds at a checkpoint after so many rounds (Figure 3).

    The parties' models of that round are mixed by every weighting whose shares are multiples of 1 / `STEPS`. Figures:
    EER on test people under the weighting by images, under the one that validators score highest, and the lowest of
    all, which no validator can beat; the validators' mean scores under the first two, and their spread; what the best
    weighting gains over the one by images; and what it gains that each validator's scores have mean 0 and deviation 1
    before their mean chooses a weighting.
    """
    options = options_of(task)
    work = RoundWork(task, bench.part, bench.dim, server_start(task, bench.part, bench.theta), cohort, (), 1)
    for step in rounds(replace(task, rounds=after), bench.part, bench.dim, work.state, cohort, bench.runtime):
        work = replace(work, state=step.state, cohort=step.cohort, number=step.record.round + 1)
    engine, start = as_engine(bench.runtime), bench.part.gather(work.state.theta).astype(np.float64)
    updates = {name: engine.train(replace(work, devices=(name,))).total.mean("delta") for name in cohort.crops}

    def mixed(shares: Mapping[str, float]) -> Vector:
        moved = start + sum(shares[name] * update for name, update in updates.items())
        return bench.part.scatter(work.state.theta, moved.astype(np.float32))

    def judged(shares: Mapping[str, float]) -> tuple[float, float, list[float]]:
        theta = mixed(shares)
        scores = [score(options, bench.runtime, theta, faces) for faces in validators.values()]
        return float(np.mean(scores)) / PERCENT, bench.verification(theta, test)["eer"], scores

    total = sum(len(crops) for crops in cohort.crops.values())
    by_images = judged({name: len(crops) / total for name, crops in cohort.crops.items()})
    corners = itertools.product(range(STEPS + 1), repeat=len(cohort.crops))
    grid = [
        judged({name: part / STEPS for name, part in zip(cohort.crops, parts, strict=True)})
        for parts in corners
        if sum(parts) == STEPS
    ]
    best = max(grid, key=lambda each: (each[0], -each[1]))
    lowest = min(eer for _, eer, _ in grid)
    scores_WV = np.array([scores for _, _, scores in grid])
    normed_WV = (scores_WV - scores_WV.mean(axis=0)) / np.maximum(scores_WV.std(axis=0), np.finfo(float).tiny)
    return {
        "eer_images": by_images[1],
        "eer_validated": best[1],
        "eer_lowest": lowest,
        "eer_gain": by_images[1] - lowest,
        "norm_gain": best[1] - grid[int(normed_WV.mean(axis=1).argmax())][1],
        "score": by_images[0],
        "score_validated": best[0],
        "score_lowest": min(grid)[0],
    }


def _shares(state: ServerState, first: Mapping[str, int]) -> dict[str, float]:
    """Return each party's share of the weighting that the next round begins with (Figure 6)."""
    each = {client: weight_of(state, client, float(num)) for client, num in first.items()}
    total = sum(each.values())
    return {client: round(weight / total, 6) for client, weight in each.items()}


def _split(bench: Workbench, settings: Mapping[str, Any], seed: int) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return each domain's people for training, validators, tuning and tests, drawn by `seed`.

    A number is of every domain alike, and of all together for tests; a table has each domain's own.
    """
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    domains = settings.get("domains", DOMAINS)
    for number, domain in enumerate(domains):
        sizes = {name: _size(settings[name], domain) for name in ("people", "validators", "validation")}
        if "parties" in settings:
            sizes["people"] = sum(held.get(domain, 0) for held in settings["parties"].values())
        test = settings["test"]
        sizes["test"] = test // len(domains) if isinstance(test, int) else _size(test, domain)
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


def _size(size: int | Mapping[str, int], domain: str) -> int:
    return size if isinstance(size, int) else size[domain]


def _parties(people: Mapping[str, Sequence[str]], parts: int) -> dict[str, tuple[str, ...]]:
    """Return each domain's people divided evenly among `parts` parties."""
    return {f"{domain}-{i}": tuple(held[i::parts]) for domain, held in people.items() for i in range(parts)}


def _unequal(people: Mapping[str, Sequence[str]], settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the people of parties that say how many of each domain they hold; all are given out."""
    left, parties = {domain: list(held) for domain, held in people.items()}, dict[str, tuple[str, ...]]()
    for party, held in settings["parties"].items():
        parties[party] = tuple(left[domain].pop() for domain, num in held.items() for _ in range(num))
    return parties


def _mislabelled(
    labels: Mapping[str, NDArray[np.int64]], shares: Mapping[str, float], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Return labels of which some parties have a share wrong: another of the party's people in the true one's place."""
    found = dict(labels)
    for party, share in shares.items():
        true, rng = labels[party], np.random.default_rng([seed, 9])
        wrong = rng.permutation(len(true))[: round(share * len(true))]
        num = int(true.max()) + 1
        found[party] = true.copy()
        found[party][wrong] = (true[wrong] + rng.integers(1, num, len(wrong))) % num
    return found


def _together(cohort: Cohort) -> Faces:
    """Return all parties' faces in one place, with the labels that they have."""
    starts = itertools.accumulate((int(cohort.labels[name].max()) + 1 for name in cohort.crops), initial=0)
    labels = [cohort.labels[name] + start for name, start in zip(cohort.crops, starts, strict=False)]
    return Faces(np.concatenate(list(cohort.crops.values())), np.concatenate(labels))


def _validators(bench: Workbench, groups: _Groups, seed: int) -> dict[str, ValidationFaces]:
    return {domain: _validation_faces(bench, group["validators"], seed) for domain, group in groups.items()}


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
    bench: Workbench, faces: Faces, num_parties: int, settings: Mapping[str, Any], seed: int
) -> tuple[Vector, float]:
    """Return momentum SGD on these parties' images in one place: as many steps, the parties' batches together.

    The backbone's momentum starts anew when the rate falls.
    """
    head, batch = Head(**{"loss": "arcface", **settings["head"]}), num_parties * settings["batch"]
    theta, kept, loss = bench.theta, dict[str, Vector](), math.nan
    stages, lr = _stages(settings["steps"]), settings["lr"]
    if settings.get("reach"):
        lr = settings["reach"] / math.fsum(_from_rest(steps, BETA) * 0.1**i for i, steps in enumerate(stages))
    for stage, steps in enumerate(stages):
        of_backbone, of_classes = lr * 0.1**stage, settings["lr"] * 0.1**stage
        local = LocalSpec(
            lr=of_backbone, private_lr=of_classes, steps=steps, batch_size=batch, momentum=BETA, flip=False
        )
        trained = Trainer(bench.runtime, bench.part, head, local, seed + stage).trained(theta, faces, kept)
        theta, kept, loss = trained.theta, dict(trained.private), trained.loss_after
    return theta, loss


def _drops(rounds: int) -> list[int]:
    """Return the rounds after which the rate falls to a tenth."""
    return sorted({max(1, round(share * rounds)) for share in DROPS})


def _stages(steps: int) -> list[int]:
    """Return the numbers of steps at each rate."""
    stops = [0, *_drops(steps), steps]
    return [b - a for a, b in itertools.pairwise(stops) if b > a]
