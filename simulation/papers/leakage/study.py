"""The study: three rows a seed, of embeddings, updates and summed statistics, and the tables of their records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import build_backbone, load_theta
from mien.backbones.importers import import_model
from mien.errors import ConfigError
from mien.methods.base import Crops
from mien.records import from_mapping, to_mapping
from simulation.papers.leakage.embeddings import measure_moments, measure_revealed
from simulation.papers.leakage.redrawing import Drawer, Judge
from simulation.papers.leakage.scores import Matrix
from simulation.papers.leakage.setting import Setting, Sizes, mean_by_person, read_setting
from simulation.papers.leakage.sums import measure_features
from simulation.papers.leakage.updates import measure_updates
from simulation.runs.experiment import Experiment, Job, Row, Table


def study(sizes: Sizes, *, raw: bool, second: Path | None, data_sha256: str = "") -> Experiment:
    """Return the study; `second` is a second recogniser's file, which judges drawings beside the first."""
    second_sha256 = "" if second is None else hashlib.sha256(second.read_bytes()).hexdigest()
    settings = {"sizes": to_mapping(sizes), "raw": raw, "second": second_sha256[:12]}
    rows = (
        Row("embeddings", "class embeddings", {**settings, "attack": "embeddings"}),
        Row("updates", "updates", {**settings, "attack": "updates"}),
        Row("statistics", "summed statistics", {**settings, "attack": "statistics"}),
    )
    return Experiment(
        name="leakage",
        title="What the server can do with what it holds",
        measure=partial(measure, second=second),
        tables=(Table("Attacks", rows, ()),),
        data_sha256=data_sha256,
    )


def measure(job: Job, second: Path | None = None) -> Mapping[str, Any]:
    """Return one run's figures: numbers only, nothing of a face."""
    sizes = from_mapping(Sizes, job.settings["sizes"])
    setting = read_setting(job.faces, sizes, job.seed, raw=job.settings["raw"])
    attacks: Mapping[str, Callable[[], dict[str, float]]] = {
        "embeddings": lambda: measure_embeddings(setting, sizes, job.seed, second),
        "updates": lambda: measure_updates(setting, sizes, job.seed),
        "statistics": lambda: measure_statistics(setting, sizes, job.seed),
    }
    people = len(setting.public) + len(setting.phones) + len(setting.others)
    return {**attacks[job.settings["attack"]](), "people": float(people), "failed_images": float(setting.num_failed)}


@dataclass(frozen=True)
class _Embedded:
    """Everybody's embeddings, made once.

    `public` are those of public photos (N, D), `public_templates` their means by person; `w` the phones' class
    embeddings; `phone_side` and `gallery` the candidates' templates of photos on either side, the phones' people first.
    """

    public: Matrix = field(repr=False)
    w: Matrix = field(repr=False)
    phone_side: Matrix = field(repr=False)
    gallery: Matrix = field(repr=False)
    public_templates: Matrix = field(repr=False)


def measure_embeddings(setting: Setting, sizes: Sizes, seed: int, second: Path | None) -> dict[str, float]:
    """Return the figures of revealed class embeddings, of second moments and of faces drawn again."""
    rng = np.random.default_rng([seed, 0])
    at = _embed(setting)
    mean_D = at.public_templates.mean(axis=0)
    return {
        **measure_revealed(at.w, at.gallery, mean_D, rng),
        **measure_moments(at.w, at.phone_side, at.gallery, at.public_templates, sizes.moment_cohorts, rng),
        **_measure_drawings(setting, sizes, at, second),
    }


def _embed(setting: Setting) -> _Embedded:
    public_ND = setting.embed([person.gallery for person in setting.public])
    phone_CD = setting.templates(setting.candidates, "phone")
    return _Embedded(
        public=public_ND,
        w=phone_CD[: len(setting.phones)],
        phone_side=phone_CD,
        gallery=setting.templates(setting.candidates, "gallery"),
        public_templates=mean_by_person(public_ND, [len(person.gallery) for person in setting.public]),
    )


def measure_statistics(setting: Setting, sizes: Sizes, seed: int) -> dict[str, float]:
    """Return the figures of attacks on summed statistics, and on sums of class embeddings and of their squares."""

    def features(crops: Crops) -> Matrix:
        return setting.runtime.features(setting.model.theta, crops).astype(np.float64)

    return measure_features(
        [features(person.phone) for person in setting.candidates],
        [features(person.gallery) for person in setting.candidates],
        [features(person.gallery) for person in setting.public],
        len(setting.phones),
        sizes.statistics,
        np.random.default_rng([seed, 2]),
    )


def _measure_drawings(setting: Setting, sizes: Sizes, at: _Embedded, second: Path | None) -> dict[str, float]:
    drawer = Drawer.learn(np.concatenate([person.gallery for person in setting.public]), at.public)
    w_ND = at.w[: sizes.redrawn]
    regressed_NC = drawer.coordinates(w_ND)
    backbone = build_backbone(setting.model.spec.backbone, setting.model.spec.input)
    load_theta(backbone, setting.model.layout, setting.model.theta)
    backbone.eval().requires_grad_(False)
    refined_NC = drawer.refine(backbone, regressed_NC[: sizes.refined], w_ND[: sizes.refined], sizes.refine_steps)
    pictures = {
        "photo": np.stack([person.phone[0] for person in setting.phones[: sizes.redrawn]]),
        "regression": drawer.draw(regressed_NC),
        "refined": drawer.draw(refined_NC),
    }
    judges = {"same": Judge.of(lambda crops: setting.embed([crops]), at.gallery)}
    if second is not None:
        judges["second"] = _second_judge(setting, second)
    return {
        f"{picture}_{judge}_{key}": value
        for picture, crops in pictures.items()
        for judge, judging in judges.items()
        for key, value in judging.verdicts(crops).items()
    }


def _second_judge(setting: Setting, file: Path) -> Judge:
    model = import_model(file.read_bytes(), file.name)
    if model.spec.input.width != setting.model.spec.input.width:
        raise ConfigError(f"{file.name} takes crops of another width; name a recogniser of 112x112 crops")
    runtime = TorchRuntime(model.spec, model.layout)

    def embed(crops: Crops) -> Matrix:
        return runtime.embed(model.theta, crops).astype(np.float64)

    gallery = [person.gallery for person in setting.candidates]
    return Judge.of(embed, mean_by_person(embed(np.concatenate(gallery)), [len(some) for some in gallery]))
