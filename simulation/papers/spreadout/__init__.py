"""Which private form of spread-out learns as well as the published one: separation, and verification after training.

One identity a phone (FedFace) and a few a client (FedGC); SFace is frozen, a linear adapter of 16,512 parameters behind
it is trained. Public people are of one domain and phones of others, so that the phones' population is shifted as a
whole from everything that a device may know: there public people alone are least help. `choice.py` holds the rule that
picks the default.

    python -m simulation.papers.spreadout --faces synthetic112 --jobs 16
    python -m simulation.papers.spreadout.choice

With real faces, `mix.py` first makes one folder of CelebA, LFW and Bollywood for `--faces`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulation.faces.workbench import TRAINABLE, dataset_of
from simulation.papers.spreadout.populations import Population, population_of
from simulation.papers.spreadout.runs import measure
from simulation.runs.study import Column, Row, Study, Table

NAME: Final = "spreadout"
SOURCE: Final = "Aggarwal, Zhou, Jain: FedFace (2021); Niu, Deng: FedGC (2022); private forms are this project's"
IDS_PER_CLIENT: Final = 4

Settings = dict[str, Any]


def study(*, quick: bool, faces: Path | None) -> Study:
    """Return the study over the population that the folder's names tell; `quick` is a toy scale."""
    population = population_of(faces, quick=quick)
    base = population.settings()
    clients = population.num_phones // IDS_PER_CLIENT
    several = {**base, "ids_per_client": IDS_PER_CLIENT, "cohort": min(base["cohort"] // 2, clients)}
    if quick:
        several = {**several, "ids_per_client": 2, "cohort": 3}
    toy = ("A toy scale: it shows only that everything runs.",) if quick else ()
    return Study(
        NAME,
        f"Private spread-out on {population.title}",
        measure,
        (_verification(base, population), _separation(base), _fedgc(several, population)),
        (),
        SOURCE,
        notes=(
            *toy,
            population.note,
            f"{base['cohort']} phones a round, {base['rounds']} rounds; SFace is frozen, a linear adapter of 16,512 "
            f"parameters is trained. {CONTROL_NOTE}",
        ),
        data_sha256=dataset_of(faces),
    )


CONTROL_NOTE: Final = (
    "The control trains on the public people alone, the phones' pictures at weight 0: what it gains is no merit of the "
    "phones."
)


def _verification(base: Settings, population: Population) -> Table:
    columns = [
        Column("EER", "test_eer"),
        Column("low", "test_eer_low"),
        Column("high", "test_eer_high"),
        Column("TAR at FMR 1e-3", "test_tar_1e-3"),
        Column("mated", "test_mated", "integer"),
        Column("non-mated", "test_non_mated", "integer"),
    ]
    for name, test in population.tests.items():
        if name != "test":
            columns += [Column(f"EER, {test.label}", f"{name}_eer"), Column(f"TAR, {test.label}", f"{name}_tar_1e-3")]
    note = (
        f"EER and TAR on {population.tests['test'].label}, whom nobody trained on; low and high are the mean bounds of "
        "each run's 95 % interval over people."
    )
    return Table("FedFace: verification after training", tuple(_rows(base)), tuple(columns), note=note)


def _separation(base: Settings) -> Table:
    columns = (
        Column("mean cosine", "sep_mean", "number", 3),
        Column("highest cosine", "sep_max", "number", 3),
        Column("pairs above 0.3", "sep_pairs", "integer"),
        Column("cosine to own features", "drift", "number", 3),
        Column("CPU s", "train_cpu_s", "integer"),
    )
    note = (
        "Between the phones' class embeddings as training left them. The last column but one is each phone's class "
        "embedding against the mean feature of its own pictures under the final model."
    )
    return Table("FedFace: separation of class embeddings", tuple(_rows(base))[1:], columns, note=note)


def _fedgc(several: Settings, population: Population) -> Table:
    columns = (
        Column("EER", "test_eer"),
        Column("low", "test_eer_low"),
        Column("high", "test_eer_high"),
        Column("TAR at FMR 1e-3", "test_tar_1e-3"),
        Column(f"EER, {population.tests['old'].label}", "old_eer"),
        Column("mean cosine", "sep_mean", "number", 3),
        Column("highest cosine", "sep_max", "number", 3),
        Column("pairs above 0.3", "sep_pairs", "integer"),
        Column("cosine to own features", "drift", "number", 3),
    )
    note = f"{several['ids_per_client']} identities a client; a softmax over them is CosFace."
    return Table("FedGC: several identities a client", tuple(_fedgc_rows(several)), columns, note=note)


# Rates were chosen on validation people under seed 0.
SPREAD: Final[Settings] = {"margin": 0.3, "lr": 30.0, "steps": 10, "momentum": 0.9, "reduction": "mean"}
PUSH: Final[Settings] = {"margin": 0.3, "lr": 1.0, "steps": 1, "momentum": 0.0, "reduction": "mean"}
PUBLIC: Final[Settings] = {"identities": 20, "images": 20, "scale": 4.0, "margin": 0.2}
SOFTMAX_LR: Final = 0.2
HINGE_LR: Final = 0.3


def _rows(base: Settings) -> list[Row]:
    """Return FedFace's rows. All that minimise the hinge share a rate; all with the softmax share another."""
    moment = {"every": base["every"], "lr": 1.0, "steps": 2}
    hinge = {"private_form": "hinge"}
    noisy = {**moment, "noise": 1.0, "emulate_noise": True}
    return [
        Row("pretrained", "released model", {**base, "system": "pretrained"}),
        Row(
            "exact", "exact: class embeddings shown (as published)", _fedface(base, {"spread_out": SPREAD}, shows=True)
        ),
        Row("public", "softmax with public people (the default so far)", _fedface(base, {"public": PUBLIC})),
        Row("control", "control: public people only", {**_fedface(base, {"public": PUBLIC}), "system": "control"}),
        Row("softmax_moment", "softmax with public people + M", _fedface(base, {"public": PUBLIC, "moment": moment})),
        Row("hinge_public", "step from public people", _fedface(base, {**hinge, "public_step": PUSH})),
        Row("moment", "M", _fedface(base, {**hinge, "moment": moment})),
        Row("moment_public", "M + public people", _fedface(base, {**hinge, "moment": moment, "public_step": PUSH})),
        Row("moment_dp", "M, noise z = 1", _fedface(base, {**hinge, "moment": noisy})),
        Row("none", "no spread-out", _fedface(base, hinge)),
    ]


def _fedgc_rows(several: Settings) -> list[Row]:
    correction = {"strength": 5.0, "scale": 2.0}
    nothing = {"correction": {"kind": "none"}}
    moment = {"moment": {"every": several["every"], "lr": 1.0, "steps": 2}}
    return [
        Row("fedpe", "FedPE: no correction", _gradient_correction(several, nothing)),
        Row(
            "fedgc_exact",
            "FedGC: class embeddings shown (as published)",
            _gradient_correction(several, {"correction": correction}, shows=True),
        ),
        Row("fedgc_public", "correction by public people", _gradient_correction(several, {"correction": correction})),
        Row("fedgc_moment", "correction by M", _gradient_correction(several, {**nothing, **moment})),
        Row("fedgc_both", "by M + public people", _gradient_correction(several, {"correction": correction, **moment})),
    ]


def _fedface(base: Settings, options: Settings, *, shows: bool = False) -> Settings:
    is_hinge = shows or options.get("private_form") == "hinge"
    return _federated(base, "fedface", HINGE_LR if is_hinge else SOFTMAX_LR, options, shows=shows)


def _gradient_correction(several: Settings, options: Settings, *, shows: bool = False) -> Settings:
    """Return FedGC's settings: CosFace at a rate of 0.1, momentum on the clients and none on the server.

    The correction is weaker than the paper's: at 20, class embeddings leave their people's features where a client
    holds four.
    """
    head = {"kind": "cosface", "scale": 16.0, "margin": 0.2}
    common = {"identities": several["ids_per_client"], "start": "mean_feature", "head": head}
    settings = _federated(several, "fedgc", 0.1, {**common, **options}, shows=shows)
    task = settings["task"]
    local = {**task["local"], "batch_size": 20, "epochs": 2, "momentum": 0.9}
    return {**settings, "task": {**task, "local": local, "server": {"momentum": 0.0}}}


def _federated(base: Settings, method: str, lr: float, options: Mapping[str, Any], *, shows: bool) -> Settings:
    reveals = (["class_embeddings"] if shows else []) + (["class_moment"] if "moment" in options else [])
    task = {
        "name": "spreadout",
        "method": method,
        "rounds": base["rounds"],
        "trainable": list(TRAINABLE),
        "cohort": {"size": base["cohort"], "min_reports": base["cohort"]},
        "local": {"lr": lr, "flip": False},
        "server": {"momentum": 0.9},
        "privacy": {"min_cohort": 3, "reveals": reveals},
        "options": dict(options),
    }
    return {**base, "system": "federated", "task": task}
