"""FedFace on a laptop: Tables 1 and 2 and Figure 4, one identity a phone, on pretrained SFace and synthetic faces.

Source: Aggarwal, Zhou, Jain: FedFace (2021). The paper trains a 64-layer CNN, pre-trained on 9,000 people, for 200
rounds with 1,000 phones; here SFace is frozen, and 600 phones of ten images each train a linear adapter behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.evaluation import det_curve, point_at_fmr, rates_at
from mien.layout import Vector
from mien.methods.base import Objective, ServerState, TrainingJob
from mien.methods.spreadout import normalise
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.engine import RoundRecord, run_task
from simulation.engines.runtimes import OncePerRound
from simulation.faces.workbench import TRAINABLE, Workbench, dataset_of, open_workbench
from simulation.runs.study import Claim, Column, Job, Row, Study, Table

TITLE: Final = "FedFace: one identity a phone"
SOURCE: Final = "Aggarwal, Zhou, Jain: FedFace: Collaborative Learning of Face Recognition Model (2021)"
COSFACE: Final = {"scale": 16.0, "margin": 0.2}
TARGET: Final = 0.7
"""`rounds_to_target` counts the rounds until the EER on validation people is this share of the pretrained model's."""

# Learning rates were chosen on validation people under seed 0.
LR: Final = 0.3
"""Of the positive loss, with a server momentum of 0.9."""

PRIVATE_LR: Final = 0.2
SOFTMAX_LR: Final = 0.2
SPREAD_OUT: Final = {"margin": 0.3, "lr": 30.0, "steps": 10, "momentum": 0.9, "reduction": "mean"}
"""The released code's spread-out at 3,000 times its rate: the mean over pairs of 600 phones gives each phone little."""

TRAINED_PART: Final = "a linear adapter of 16,512 parameters behind frozen SFace"

Settings = dict[str, Any]


def study(*, quick: bool, faces: Path | None) -> Study:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    scale = (
        {"phones": 8, "public": 4, "validation": 6, "test": 8, "rounds": 1, "late": 2, "max_people": 30}
        if quick
        else {"phones": 600, "public": 40, "validation": 100, "test": 250, "rounds": 24, "late": 54, "max_people": None}
    )
    sweep = (2, 4) if quick else (4, 8, 16, 64)
    return Study(
        "fedface",
        TITLE,
        measure,
        (_table_1(scale), _table_2(scale), _figure_4(scale, sweep)),
        (*CLAIMS, *_sweep_claims(sweep)),
        SOURCE,
        notes=(
            *(("A toy scale: it shows only that everything runs.",) if quick else ()),
            f"{scale['phones']} phones of one person each train {TRAINED_PART} for {scale['rounds']} rounds of one "
            f"local epoch, all of them in every round; EER and TAR over all pairs of {scale['test']} people whom "
            "nobody trained on.",
            "A linear map that draws all faces together keeps their order for long: a collapse shows first in the "
            "cosines and at a threshold that phones keep, later in the EER.",
        ),
        data_sha256=dataset_of(faces),
    )


COLUMNS: Final = (
    Column("EER", "eer"),
    Column("TAR at FMR 1e-2", "tar_1e-2"),
    Column("FMR at the pretrained model's threshold for 1 %", "fmr_released"),
    Column("mean cosine, mated", "cos_mated", "number", 3),
    Column("mean cosine, non-mated", "cos_non_mated", "number", 3),
)
PAPER_COLUMNS: Final = ("LFW accuracy, %", "IJB-A TAR at FAR 1e-3, %", "IJB-C TAR at FAR 1e-3, %")


def _table_1(scale: Settings) -> Table:
    rows = (
        Row("pretrained", "pretrained model", {**scale, "system": "pretrained"}, ("99.15", "81.43", "84.78")),
        Row("pooled", "pooled fine-tuning", {**scale, "system": "pooled"}, ("99.32", "84.18", "88.76")),
        Row("fixed", "random fixed embeddings", _fixed(scale), ("94.61", "70.13", "69.30")),
        Row("fedavg", "FedAvg, positive loss only", _fedavg(scale), ("68.88", "19.75", "14.04")),
        Row("fedavg_m1", "FedAvg with margin 1: nothing stops the pull", _changed(_fedavg(scale), {"margin": 1.0})),
        Row("fedface", "FedFace as published", _exact(scale), ("99.28", "83.79", "88.21")),
        Row("private", "FedFace, private form (ours)", _private(scale)),
    )
    return Table("Table 1: systems", rows, COLUMNS, PAPER_COLUMNS)


def _table_2(scale: Settings) -> Table:
    exact, random_start = _exact(scale), _fedaws(scale)
    columns = (*COLUMNS[:2], Column(f"rounds to {TARGET:.0%} of the EER", "rounds_to_target", "number", 1))
    no_push = {"spread_out": {"lr": 0.0, "steps": 1}}
    longer = {**random_start, "task": {**random_start["task"], "rounds": scale["late"]}}
    rows = (
        Row("fedface", f"FedFace as published, {scale['rounds']} rounds", exact, ("99.28", "83.79", "88.21")),
        Row("same_rounds", f"without mean initialisation (FedAwS), {scale['rounds']} rounds", random_start),
        Row(
            "no_mean_init",
            f"without mean initialisation (FedAwS), {scale['late']} rounds",
            longer,
            ("99.28", "83.73", "88.12"),
        ),
        Row("no_spread_out", "without spread-out", _changed(exact, no_push), ("75.90", "34.16", "25.40")),
        Row("neither", "without either", _changed(random_start, no_push)),
        Row("printed", "spread-out with the printed step, λ = 10", _changed(exact, {"preset": "paper"})),
        Row("code", "spread-out of the released code", _changed(exact, {"preset": "released_code"})),
    )
    note = (
        "The paper's two rows with and without mean initialisation took 200 and 450 rounds. The rounds are counted on "
        "validation people; a run that does not reach the mark counts one round more than it had."
    )
    return Table("Table 2: what each part does", rows, columns, PAPER_COLUMNS, note)


def _figure_4(scale: Settings, sweep: Sequence[int]) -> Table:
    phones = scale["phones"]
    rows = (
        Row("pooled", "1 client: all in one place", _sweep(scale, 1)),
        *(Row(f"clients_{n}", f"{n} clients of about {phones // n} people", _sweep(scale, n)) for n in sweep),
        Row("fedavg", f"{phones} clients of one person (positive loss)", _sweep(scale, phones)),
    )
    note = (
        "The paper divides 10,000 people among 1, 4, 8, 16, 64 and 10,000 clients and shows a curve without numbers. "
        "One epoch a round on every client, AM-Softmax; one person a client leaves the positive loss only."
    )
    return Table("Figure 4: FedAvg by number of clients", rows, COLUMNS, (), note)


CLAIMS: Final = (
    Claim("FedAvg collapses: its EER is above the pretrained model's", "fedavg", "pretrained", "eer"),
    Claim("FedAvg draws strangers together: their mean cosine rises", "fedavg", "pretrained", "cos_non_mated"),
    Claim("at the pretrained model's threshold FedAvg accepts more strangers", "fedavg", "pretrained", "fmr_released"),
    Claim("without spread-out it collapses: its EER is above FedFace's", "no_spread_out", "fedface", "eer"),
    Claim("... and above the pretrained model's", "no_spread_out", "pretrained", "eer"),
    Claim("random fixed embeddings fall behind the pretrained model", "fixed", "pretrained", "eer"),
    Claim("FedFace gains over the pretrained model", "pretrained", "fedface", "eer"),
    Claim("FedFace does better than FedAvg", "fedavg", "fedface", "eer"),
    Claim("FedFace does better than random fixed embeddings", "fixed", "fedface", "eer"),
    Claim("pooled fine-tuning is the upper bound", "fedface", "pooled", "eer"),
    Claim("without mean initialisation it needs more rounds", "no_mean_init", "fedface", "rounds_to_target"),
    Claim("without mean initialisation it is behind after as many rounds", "same_rounds", "fedface", "eer"),
    Claim(
        "without mean initialisation it ends as well after more rounds (within 1 point)",
        "no_mean_init",
        "fedface",
        "eer",
        0.01,
    ),
)


def _sweep_claims(sweep: Sequence[int]) -> tuple[Claim, ...]:
    few, many = sweep[0], sweep[-1]
    text = "FedAvg falls as the same people are divided among more clients"
    return (
        Claim(f"{text}: {few} against all in one place", f"clients_{few}", "pooled", "eer"),
        Claim(f"... {many} clients against {few}", f"clients_{many}", f"clients_{few}", "eer"),
        Claim(f"... one person a client against {many} clients", "fedavg", f"clients_{many}", "eer"),
    )


def _exact(scale: Settings) -> Settings:
    """Return the settings of FedFace as published: phones show class embeddings, the server spreads them out."""
    return _federated(
        scale,
        method="fedface",
        lr=LR,
        privacy={"reveals": ["class_embeddings"]},
        options={"spread_out": SPREAD_OUT},
    )


def _fedaws(scale: Settings) -> Settings:
    """Return the settings of FedFace whose class embeddings start at random."""
    settings = _exact(scale)
    return {**settings, "task": {**settings["task"], "method": "fedaws"}}


def _fedavg(scale: Settings) -> Settings:
    return _federated(scale, method="fedavg", lr=LR)


def _fixed(scale: Settings) -> Settings:
    """Return the settings of class embeddings that are drawn at random and never trained."""
    return _federated(scale, method="fixed_embedding", lr=LR)


def _sweep(scale: Settings, clients: int) -> Settings:
    """Return the settings of FedAvg with AM-Softmax on the phones' people, divided among so many clients.

    One client is one epoch of pooled training a round; clients of one identity have no softmax and take the positive
    loss.
    """
    if clients == 1:
        return {**scale, "system": "pooled"}
    if clients == scale["phones"]:
        return _fedavg(scale)
    settings = _federated(scale, method="fedavg", lr=SOFTMAX_LR, options={"loss": "cosface", "cosface": COSFACE})
    task = settings["task"]
    task["cohort"] = {"size": clients, "min_reports": clients}
    task["local"] |= {"momentum": 0.9, "batch_size": 50}
    task["server"] = {"momentum": 0.0}
    task["privacy"] |= {"min_cohort": 2, "secure_aggregation": "off"}
    return {**settings, "clients": clients}


def _private(scale: Settings) -> Settings:
    """Return the settings of decision record 0010: softmax over the own person and public ones, on the phone."""
    options = {"public": {"identities": 20, "images": 20, "scale": 4.0, "margin": 0.2}}
    return _federated(scale, method="fedface", lr=PRIVATE_LR, options=options)


def _federated(
    scale: Settings, *, method: str, lr: float, privacy: Settings | None = None, options: Settings | None = None
) -> Settings:
    task = {
        "name": "fedface",
        "method": method,
        "rounds": scale["rounds"],
        "trainable": list(TRAINABLE),
        "cohort": {"size": scale["phones"], "min_reports": scale["phones"]},
        "local": {"lr": lr, "flip": False},
        "server": {"momentum": 0.9},
        "privacy": {"min_cohort": 3, **(privacy or {})},
        "options": options or {},
    }
    return {**scale, "system": "federated", "task": task}


def _changed(settings: Settings, options: Settings) -> Settings:
    return {**settings, "task": {**settings["task"], "options": options}}


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
        return _figures(bench, _pooled(bench, phones, settings["rounds"], job.seed), test)
    target = TARGET * bench.verification(bench.theta, validation)["eer"]
    trace: list[list[float]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        trace.append([record.round, bench.verification(state.theta, validation)["eer"]])

    task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
    cohort = bench.cohort(_clients(phones, settings.get("clients", len(phones))), public)
    runtime = OncePerRound(bench.runtime)
    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, runtime, after_round=note)
    return {
        **_figures(bench, run.state.theta, test),
        "rounds_to_target": next((r for r, eer in trace if eer <= target), task.rounds + 1.0),
        "trace": trace,
        "loss_first": run.records[0].loss_before,
        "loss_last": run.records[-1].loss_after,
    }


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


def _pooled(bench: Workbench, phones: tuple[str, ...], epochs: int, seed: int) -> Vector:
    """Return what CosFace on everybody's images in one place makes of the model: no privacy, the upper bound."""
    crops, labels = bench.labelled(phones)
    embeddings = bench.runtime.embed(bench.theta, crops)
    means = np.stack([embeddings[labels == k].mean(axis=0) for k in range(len(phones))])
    objective = Objective(
        "cosface",
        private={"class_embeddings": normalise(means).astype(np.float32)},
        per_crop={"target": np.eye(len(phones), dtype=np.float32)[labels]},
        constants=COSFACE,
        unit_norm=("class_embeddings",),
    )
    local = LocalSpec(lr=SOFTMAX_LR, epochs=epochs, batch_size=50, momentum=0.9, flip=False)
    return bench.runtime.train(TrainingJob(bench.theta, bench.part, crops, objective, local, seed)).theta
