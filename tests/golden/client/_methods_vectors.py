"""Lanes, replies and refusals of methods whose device half phones of other languages have too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from mien.contribution import Contribution, ContributionLayout, Total
from mien.layout import ParameterLayout, Vector
from mien.methods import METHODS
from mien.methods.base import shared_words
from mien.methods.pfm_fv import options_of, own_weighting, scaled
from mien.protocol.canonical import task_to_json
from mien.protocol.tensors import pack_tensors
from mien.secagg import Addends
from mien.secagg.config import RoundConfig
from mien.secagg.masks import WordStream
from mien.secagg.pipeline import encode
from mien.secagg.planner import RoundIds, plan_round
from mien.secagg.vector import ContributionMap, VectorLayout
from mien.specs import CohortSpec, DpSpec, FaceInputSpec, LocalSpec, ModelSpec, PrivacySpec, TaskSpec

Json = dict[str, Any]
DIM: Final = 3


def task(
    method: str, privacy: Mapping[str, Any] | None = None, local: LocalSpec | None = None, **options: Any
) -> TaskSpec:
    """Return a task of a method over the small layout's part."""
    return TaskSpec(
        "lanes",
        method=method,
        rounds=2,
        trainable=("mix.*",),
        cohort=CohortSpec(size=8, min_reports=4),
        local=local or LocalSpec(lr=0.05),
        options=options,
        privacy=replace(PrivacySpec(min_cohort=4, max_weight=6), **(privacy or {})),
    )


VALIDATED: Final = replace(
    task("pfm_fv"), cohort=CohortSpec(size=9, min_reports=8), validators=CohortSpec(size=5, min_reports=4)
)
NOISY: Final = {"dp": DpSpec("skellam", 2.0, 8.0, 1e-5, max_participations=3), "max_weight": 1}
TASKS: Final[Mapping[str, TaskSpec]] = {
    "fedfr": task("fedfr", public_classes=4),
    "fedfr with a head of its own": task("fedfr", public_classes=4, aggregate_public_head=False),
    "fedfr as published": task("fedfr", public_classes=4, preset="paper"),
    "fedfr as released": task("fedfr", public_classes=4, preset="released_code"),
    "fedfr under differential privacy": task("fedfr", {**NOISY, "l2_clip": 3.0}, public_classes=4),
    "fedgc": task("fedgc", identities=2),
    "fedgc against everybody": task("fedgc", {"reveals": ("class_moment",)}, identities=2),
    "fedgc against everybody under differential privacy": task(
        "fedgc", {**NOISY, "l2_clip": 3.0}, identities=2, private_form="everybody"
    ),
    "fedpe": task("fedgc", identities=2, correction={"kind": "none"}),
    "scaffold": task("scaffold"),
    "mime": task("mime", loss="softmax"),
    "pfm": task("pfm_fv", validation="off"),
    "pfm with momentum of its own": task("pfm_fv", validation="off", momentum="local", lr_drop_rounds=(1, 5)),
    "pfm with validators": VALIDATED,
    "pfm with validators of another norm": replace(
        VALIDATED, options={"validation": "moving_norm", "candidates": 4, "first_weighting": "uniform", "score": "tar"}
    ),
    "uda": task("fedfr_uda"),
    "uda by a distance that a phone measures": task(
        "fedfr_uda",
        head="softmax",
        target_weight=3,
        constraint_steps=1500,
        clustering={"distance": 0.0, "metric": "cosine", "max_levels": 2, "min_images": 2},
    ),
    "uda of pure clusters": task("fedfr_uda", clustering={"distance": 0.0, "purity": 0.98}),
    "uda by a level": task("fedfr_uda", head="cosface", clustering={"algorithm": "finch", "level": -1}),
}
REFUSED: Final[Mapping[str, TaskSpec]] = {
    "fedfr without public people": task("fedfr"),
    "fedfr that shows something": task("fedfr", {"reveals": ("class_moment",)}, public_classes=4),
    "fedfr with two weights of losses": task("fedfr", public_classes=4, alpha=(1.0, 2.0)),
    "fedfr with a loss of negative weight": task("fedfr", public_classes=4, alpha=(1.0, -2.0, 1.0)),
    "fedfr of no scale": task("fedfr", public_classes=4, scale=0.0),
    "fedfr of a margin of 1": task("fedfr", public_classes=4, margin=1.0),
    "fedfr without a temperature": task("fedfr", public_classes=4, temperature=0.0),
    "fedfr of no balance": task("fedfr", public_classes=4, balance=1.0),
    "fedfr with negatives beyond a cosine": task("fedfr", public_classes=4, hard_negative_threshold=1.5),
    "fedfr with fewer than no negatives": task("fedfr", public_classes=4, max_negatives=-1),
    "fedfr with fewer than no epochs": task("fedfr", public_classes=4, first_epochs=-1),
    "fedfr that drops its rate at the end": task("fedfr", public_classes=4, lr_drop=1.0),
    "fedfr of another preset": task("fedfr", public_classes=4, preset="published"),
    "fedfr of another branch": task("fedfr", public_classes=4, branch="arcface"),
    "fedfr of another contrast": task("fedfr", public_classes=4, first_contrast="none"),
    "fedfr of another start": task("fedfr", public_classes=4, local_init="zeros"),
    "fedfr of another weight": task("fedfr", public_classes=4, weight="images"),
    "fedfr whose proxies would be clipped": task("fedfr", {**NOISY, "l2_clip": 2.0}, public_classes=4),
    "scaffold with momentum": task("scaffold", local=LocalSpec(lr=0.05, momentum=0.9)),
    "scaffold with decay": task("scaffold", local=LocalSpec(lr=0.05, weight_decay=0.1)),
    "scaffold at two rates": task("scaffold", local=LocalSpec(lr=0.05, epochs=3, lr_drop_epoch=1)),
    "scaffold of fewer than no devices": task("scaffold", num_devices=-1),
    "scaffold that shows something": task("scaffold", {"reveals": ("class_moment",)}),
    "mime with momentum": task("mime", local=LocalSpec(lr=0.05, momentum=0.9)),
    "mime of another loss": task("mime", loss="triplet"),
    "mime of no scale": task("mime", scale=0.0),
    "mime of a margin beyond a cosine": task("mime", margin=1.5),
    "mime of another start": task("mime", class_start="zeros"),
    "mime that never forgets": task("mime", beta=1.0),
    "pfm with momentum beside its own": task("pfm_fv", local=LocalSpec(lr=0.05, momentum=0.9), validation="off"),
    "pfm of a beta of 1": task("pfm_fv", validation="off", beta=1.0),
    "pfm of drops that do not rise": task("pfm_fv", validation="off", lr_drop_rounds=(5, 1)),
    "pfm of another momentum": task("pfm_fv", validation="off", momentum="nesterov"),
    "pfm without the validators that choose": replace(VALIDATED, validators=None),
    "pfm with validators of nothing": replace(VALIDATED, options={"validation": "off"}),
    "pfm with fewer left than hide one": replace(VALIDATED, cohort=CohortSpec(size=9, min_reports=6)),
    "pfm that nearly tells single ones": replace(
        VALIDATED, cohort=CohortSpec(size=16, min_reports=12), options={"candidates": 7}
    ),
    "pfm of one candidate": replace(VALIDATED, options={"candidates": 1}),
    "pfm of more than all": replace(VALIDATED, options={"mixing": 1.5}),
    "pfm of no epsilon": replace(VALIDATED, options={"epsilon": 0.0}),
    "pfm of another score": replace(VALIDATED, options={"score": "eer"}),
    "pfm of another norm": replace(VALIDATED, options={"validation": "global_norm"}),
    "pfm of no rate of errors": replace(VALIDATED, options={"score": "tar", "score_fmr": 0.0}),
    "validators of a method that has none": replace(task("scaffold"), validators=CohortSpec(size=5, min_reports=4)),
    "uda of another head": task("fedfr_uda", head="sphereface"),
    "uda of no scale": task("fedfr_uda", scale=0.0),
    "uda of a margin beyond a right angle": task("fedfr_uda", margin=2.0),
    "uda of a negative constraint": task("fedfr_uda", domain_constraint=-1.0),
    "uda of a constraint over too many steps": task("fedfr_uda", constraint_steps=1_000_001),
    "uda whose source weighs nothing": task("fedfr_uda", source_weight=0),
    "uda whose targets weigh nothing": task("fedfr_uda", target_weight=0),
    "uda that shows something": task("fedfr_uda", {"reveals": ("class_moment",)}),
    "uda by another clustering": task("fedfr_uda", clustering={"algorithm": "kmeans"}),
    "uda by another metric": task("fedfr_uda", clustering={"metric": "manhattan"}),
    "uda beyond every distance": task("fedfr_uda", clustering={"distance": 2.5}),
    "uda of a purity at a distance that is named": task("fedfr_uda", clustering={"distance": 0.9, "purity": 0.98}),
    "uda of a purity above 1": task("fedfr_uda", clustering={"distance": 0.0, "purity": 1.5}),
    "uda of a purity by levels": task("fedfr_uda", clustering={"algorithm": "finch", "distance": 0.0, "purity": 0.98}),
    "uda of fewer than no levels": task("fedfr_uda", clustering={"max_levels": -1}),
    "uda of clusters of nothing": task("fedfr_uda", clustering={"min_images": 0}),
    "fedgc for nobody": task("fedgc", identities=0),
    "fedgc of another head": task("fedgc", head={"kind": "sphereface"}),
    "fedgc of no scale": task("fedgc", head={"scale": 0.0}),
    "fedgc of a margin beyond a right angle": task("fedgc", head={"margin": 2.0}),
    "fedgc of another correction": task("fedgc", correction={"kind": "hinge"}),
    "fedgc of negative strength": task("fedgc", correction={"strength": -1.0}),
    "fedgc for pairs beyond a cosine": task("fedgc", correction={"duplicate_cosine": 1.5}),
    "fedgc of vectors that are fixed and corrected": task("fedgc", fixed=True),
    "fedgc of another form": task("fedgc", private_form="nobody"),
    "fedgc of another start": task("fedgc", start="zeros"),
    "fedgc with a number beyond its people": task("fedgc", identities=2, shared=((("a", 2), ("b", 0)),)),
    "fedgc with somebody named twice": task("fedgc", identities=2, shared=((("a", 1), ("a", 1)),)),
    "fedgc of sums that are not said to be shown": task("fedgc", private_form="everybody"),
    "fedgc of plain sums": task(
        "fedgc", {"reveals": ("class_moment",), "secure_aggregation": "off"}, private_form="everybody"
    ),
    "fedgc that corrects nothing by its sums": task(
        "fedgc", {"reveals": ("class_moment",)}, private_form="everybody", correction={"kind": "none"}
    ),
    "fedgc that leaves pairs out of sums": task(
        "fedgc", {"reveals": ("class_moment",)}, correction={"duplicate_cosine": 0.9}
    ),
}


VALIDATED_TASKS: Final = [each for each in TASKS.values() if each.validators is not None]
HISTORIES: Final[tuple[tuple[str, int, tuple[tuple[int, float], ...], bytes], ...]] = (
    ("phone", 5, (), b""),
    ("phone", 50, ((0, 0.0), (2, 0.0123), (1, 3.5)), bytes(range(112, 144))),
    ("b" * 32, 3, ((1, 1e6),), b"\xff" * 32),
)
"""A device, its images, of each round who won and what was gained, and its secret."""


def _weighting(
    each: TaskSpec, device: str, num_images: int, rounds: tuple[tuple[int, float], ...], secret: bytes
) -> Json:
    each, keeps = replace(each, rounds=4), 1 - options_of(each).mixing
    rows = [(winner, keeps if winner else 1.0, gain) for winner, gain in rounds]
    history = np.array(rows, np.float32).reshape(-1, 3)
    return {
        "json": task_to_json(each).decode(),
        "device": device,
        "num_images": num_images,
        "history": history.tobytes().hex(),
        "secret": secret.hex(),
        "weights": scaled(each, own_weighting(each, device, history, num_images, secret)).tolist(),
    }


def methods(layout: ParameterLayout, theta: Vector) -> Json:
    """Return what phones send and are told in each task, and which they refuse."""
    return {
        "dim": DIM,
        "tasks": [_said(what, each, layout, theta) for what, each in TASKS.items()],
        "weightings": [_weighting(each, *case) for each in VALIDATED_TASKS for case in HISTORIES],
        "refused": [{"why": why, "json": task_to_json(each).decode()} for why, each in REFUSED.items()],
    }


def _said(what: str, each: TaskSpec, layout: ParameterLayout, theta: Vector) -> Json:
    part, method = layout.part(each.trainable), METHODS[each.method]
    lanes, shared = method.contribution_layout(each, part, DIM), method.requirements(each).shared_reply
    begun = method.server_start(each, part, theta)
    vector = (np.arange(lanes.summed_size) / 16 + 1).astype(np.float64)
    total = Total(lanes, vector, 4)
    if method.validation is not None and each.validators is not None:
        scores = Total(method.validation.contribution_layout(each), np.arange(2.0 + options_of(each).candidates), 4)
        opened = method.validation.server_step(each, part, begun, total, scores)
    else:
        opened = method.server_step(each, part, begun, total, {})
    replies = [method.reply(state, "phone") for state in (begun, opened)]
    spec = ModelSpec("tiny", layout.sha256, FaceInputSpec(dim=DIM), "made up", "none", ("mix.*",))
    ids = RoundIds.of(each, "task", 1, 1, spec, "ab" * 32)
    config = plan_round(each, lanes, ids)
    return {
        "what": what,
        "json": task_to_json(each).decode(),
        "contribution_sha256": lanes.sha256,
        "contribution_size": lanes.size,
        "update_size": ContributionMap(lanes).vector_layout.size,
        "l2_clip": config.numbers.l2_clip,
        "told": [{"reply": pack_tensors(told).hex(), "words": shared_words(told, shared).hex()} for told in replies],
        "per_identity": list(method.per_identity),
        "sent": [_sent(lanes, config, scale) for scale in (0.01, 1.0, 100.0)],
    }


def _sent(lanes: ContributionLayout, config: RoundConfig, scale: float) -> Json:
    """Return a contribution, and its vector before any mask, in which what is too long was cut."""
    vector = (scale * np.random.default_rng(7).standard_normal(lanes.summed_size)).astype(np.float32)
    vector[:2] = 1.0, 2.0 if config.numbers.max_weight > 1 else 1.0
    addends: Addends = ContributionMap(lanes).addends(Contribution(lanes, vector))
    coded = encode(
        addends, VectorLayout(config.size, config.num_metrics), config.numbers, bytes(32), WordStream(bytes(32))
    )
    return {
        "contribution": vector.tobytes().hex(),
        "config": config.to_bytes().hex(),
        "vector": coded.tobytes().hex(),
    }
