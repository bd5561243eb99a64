"""What the vector files hold, made by the very code that phones of Python run, from fixed keys and seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from device_sdk.rounds.disclosure import told_apart
from device_sdk.rounds.participate import local_seed
from device_sdk.runtimes.schedule import batches
from device_sdk.storage.sealing import SecretKey, bind, seal
from mien.contribution import Total
from mien.dp.mechanisms import RandomBytes, _Poisson, _sample, skellam_share
from mien.layout import ParameterEntry, ParameterLayout, Vector, model_id
from mien.methods import METHODS
from mien.methods.base import Crops, DeviceInput, Runtime, shared_words
from mien.methods.statistics import ODDS, frozen
from mien.models import bundles
from mien.models.bundles import BundleFile
from mien.models.known_models import FACE_INPUTS
from mien.models.unmeasured import SUBJECTS, never_measured
from mien.protocol.attestation import attestation_challenge
from mien.protocol.canonical import model_to_json, task_sha256, task_to_json
from mien.protocol.invite import Invite
from mien.protocol.rounds import RoundRef
from mien.protocol.tensors import pack_tensors
from mien.secagg import Addends
from mien.secagg.masks import WordStream
from mien.secagg.noise import protect, with_room_for_noise
from mien.secagg.pipeline import encode
from mien.secagg.planner import RoundIds, largest_group, plan_numbers, plan_round, smallest_sum, statement_sha256
from mien.secagg.vector import VectorLayout
from mien.specs import (
    CohortSpec,
    DpSpec,
    FaceInputSpec,
    GroupRate,
    LocalSpec,
    ModelSpec,
    MustInclude,
    PrivacySpec,
    TaskSpec,
    to_mapping,
)
from tests.golden.client._admissions_vectors import admissions
from tests.golden.client._clusters_vectors import clusters
from tests.golden.client._evaluation_vectors import evaluation as evaluation_vectors
from tests.golden.client._methods_vectors import methods as methods_vectors
from tests.golden.client._personal_vectors import personal
from tests.golden.client._revocations_vectors import revocations
from tests.golden.client._search_vectors import search as search_vectors
from tests.golden.client._sums_vectors import sums
from tests.golden.client._transparency_vectors import transparency
from tests.golden.client._vision_vectors import vision

Json = dict[str, Any]

LAYOUT = ParameterLayout(
    (
        ParameterEntry("stem.0.weight", (2, 3, 1, 1)),
        ParameterEntry("stem.0.bias", (2,)),
        ParameterEntry("mix.weight", (4, 2)),
        ParameterEntry("embedding.weight", (3, 4)),
        ParameterEntry("embedding.bias", (3,)),
    )
)
THETA = (np.arange(LAYOUT.size) / 8 - 1).astype(np.float32)


def known(label: str, size: int = 32) -> bytes:
    """Return bytes that follow from a label: SHAKE-256."""
    return hashlib.shake_256(label.encode()).digest(size)


# draws.json


def draws() -> Json:
    return {
        "seeds": [_drawn(seed) for seed in (0, 1, 20260101, 2**32 - 1)],
        "choices": [
            _choice(n, size, seed)
            for n, size, seed in ((5, 4, 0), (6, 1, 1), (9, 4, 2**32 - 1), (1000, 64, 7), (3, 3, 2), (12_000, 260, 5))
        ],
        "schedules": [
            _schedule(local, num_crops, seed)
            for local, num_crops, seed in (
                (LocalSpec(), 5, 1),
                (LocalSpec(batch_size=2, epochs=3, lr_drop_epoch=2), 5, 2),
                (LocalSpec(batch_size=3, steps=7, flip=False), 4, 3),
                (LocalSpec(batch_size=100, epochs=2), 3, 4),
            )
        ],
    }


def _drawn(seed: int) -> Json:
    """A permutation leaves half a word behind, which numbers in between do not touch."""
    rng = np.random.default_rng(seed)
    return {
        "seed": seed,
        "permutation_of_5": rng.permutation(5).tolist(),
        "random": rng.random(3).tolist(),
        "permutation_of_1": rng.permutation(1).tolist(),
        "permutation_of_33": rng.permutation(33).tolist(),
        "random_after": rng.random(2).tolist(),
        "permutation_of_1000": rng.permutation(np.arange(1000)).tolist(),
        "every_1000th_normal_of_40000": rng.standard_normal(40_000)[::1000].tolist(),
        "permutation_of_6_by_another_word": np.random.default_rng([seed, 1]).permutation(6).tolist(),
    }


def _choice(n: int, size: int, seed: int) -> Json:
    """Return which are drawn; in which order does not matter to who adds them up."""
    drawn = np.random.default_rng(seed).choice(np.arange(n), size, replace=False)
    return {"n": n, "size": size, "seed": seed, "chosen": sorted(drawn.tolist())}


def _schedule(local: LocalSpec, num_crops: int, seed: int) -> Json:
    drawn = batches(local, num_crops, np.random.default_rng(seed))
    return {
        "local": _plain(local),
        "num_crops": num_crops,
        "seed": seed,
        "batches": [
            {"indices": batch.indices.tolist(), "mirrored": batch.flipped.tolist(), "rate": batch.rate}
            for batch in drawn
        ],
    }


def _plain(record: Any) -> Json:
    return to_mapping(record)


# layouts.json


GROUP_MODEL: Final = "a" * 64
GROUPS: Final = (
    (("age", "0-12", "exceeds", GROUP_MODEL), ("age", "13–17", "measured", GROUP_MODEL)),
    (
        ("age", "10-12", "measured", GROUP_MODEL),
        ("Age", "60+", "too_small", GROUP_MODEL),
        ("age", "65-", "measured", "b" * 64),
    ),
    (("sex", "FEMALE", "measured", GROUP_MODEL), ("Fitzpatrick", "V", "exceeds", GROUP_MODEL)),
    (("relation", "Twins", "measured", GROUP_MODEL), ("COVERED", "by a mask", "exceeds", GROUP_MODEL)),
    (("workmen", "kinds of napkin", "measured", GROUP_MODEL), ("elders", "Indian", "measured", GROUP_MODEL)),
)
"""Groups by attribute, name, verdict and model, as a phone may be told of them."""


def _by_groups(spec: ModelSpec, groups: Sequence[tuple[str, str, str, str]]) -> Json:
    rates = tuple(
        GroupRate(attribute, name, cast(Any, verdict), 1e-3, 0.4, 30, 9, 400, "faces", model, "2026-01-01")
        for attribute, name, verdict, model in groups
    )
    own = [rate for rate in rates if rate.model_id == GROUP_MODEL]
    return {
        "spec_json": model_to_json(replace(spec, groups=rates or None), LAYOUT).decode(),
        "measured": [f"{each.attribute} {each.group}" for each in own if each.verdict != "too_small"],
        "above": [f"{each.attribute} {each.group}" for each in own if each.verdict == "exceeds"],
        "never": never_measured(own),
    }


def layouts() -> Json:
    spec = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=3), "made up", "none", ("mix.*", "embedding.*"))
    parts = []
    for patterns in (("*",), ("mix.*", "embedding.*"), ("*.bias",), ("st?m.[0-9].*",), ("[!s]*",)):
        part = LAYOUT.part(patterns)
        contribution = METHODS["fedavg"].contribution_layout(TaskSpec("any"), part, 3)
        parts.append(
            {
                "patterns": list(patterns),
                "names": list(part.names),
                "values": part.gather(THETA).tobytes().hex(),
                "contribution_sha256": contribution.sha256,
                "contribution_size": contribution.size,
            }
        )
    by_groups = [_by_groups(spec, groups) for groups in ((), *GROUPS)]
    return {
        "spec_json": model_to_json(spec, LAYOUT).decode(),
        "subjects": list(SUBJECTS),
        "group_model_id": GROUP_MODEL,
        "by_groups": by_groups,
        "layout_sha256": LAYOUT.sha256,
        "theta": THETA.tobytes().hex(),
        "model_id": model_id(LAYOUT.sha256, THETA),
        "parts": parts,
        "refused_patterns": ["mixx.*", "Mix.*"],
        "face_inputs": {name: to_mapping(face) for name, face in FACE_INPUTS.items()},
        "statements": [
            {
                "method": method,
                "public_shard": shard,
                "told": told.hex(),
                "sha256": statement_sha256(method, spec, shard, told).hex(),
            }
            for method, shard, told in (("fedavg", "", b""), ("fedface", "5" * 64, b""), ("fedface", "", known("told")))
        ],
        "inputs": [
            _input(spec) for spec in (FaceInputSpec(), FaceInputSpec(width=96, colour="BGR", mean=0, scale=255))
        ],
    }


def _input(spec: FaceInputSpec) -> Json:
    y, x, c = np.meshgrid(np.arange(spec.height), np.arange(spec.width), np.arange(3), indexing="ij")
    crop = ((7 * y + 3 * x + 50 * c) % 256).astype(np.uint8)
    return {
        "spec": _plain(spec),
        "crop": "(7 y + 3 x + 50 c) mod 256",
        "sha256": hashlib.sha256(spec.network_input(crop[None]).tobytes()).hexdigest(),
        "mirrored_sha256": hashlib.sha256(spec.network_input(crop[None, :, ::-1]).tobytes()).hexdigest(),
    }


# tasks.json

TASK = TaskSpec(
    "demo",
    method="fedavg",
    cohort=CohortSpec(size=6, min_reports=4),
    local=LocalSpec(lr=0.05, batch_size=2),
    privacy=PrivacySpec(min_cohort=4, max_weight=32),
    seed=7,
)
SKELLAM = DpSpec("skellam", 1.5, 8.0, 1e-6, max_participations=2, min_separation=3, dishonest_share=0.2)
ADAPTIVE = DpSpec("central_gaussian", 1.1, 8.0, 1e-5, max_participations=3, target_quantile=0.5)
REFUSED: Mapping[str, TaskSpec] = {
    "plain sums": replace(TASK, privacy=replace(TASK.privacy, secure_aggregation="off")),
    "a server that keeps to the rules": replace(
        TASK, privacy=replace(TASK.privacy, secure_aggregation="honest_but_curious")
    ),
    "class embeddings in clear": replace(
        TASK, method="fedface", privacy=replace(TASK.privacy, reveals=("class_embeddings",))
    ),
    "smaller sums than agreed to": replace(TASK, privacy=replace(TASK.privacy, min_cohort=3)),
    "a method that is not there": replace(TASK, method="fedaws"),
    "differential privacy by coins that nobody sees": replace(
        TASK,
        trainable=("mix.*",),
        privacy=replace(
            TASK.privacy,
            max_weight=1,
            dp=DpSpec("central_gaussian", 1.0, 8.0, 1e-5, max_participations=3, accounting="poisson"),
        ),
    ),
    "BatchNorm in training": replace(TASK, local=replace(TASK.local, batch_norm="train")),
}


def noisy(dp: DpSpec, **privacy: Any) -> TaskSpec:
    """Return the task under differential privacy."""
    return replace(TASK, trainable=("mix.*",), privacy=replace(TASK.privacy, max_weight=1, dp=dp, **privacy))


def tasks() -> Json:
    grouped = replace(
        TASK, cohort=CohortSpec(size=20, min_reports=12, over_selection=1.3), privacy=replace(TASK.privacy, groups=3)
    )
    packed = replace(TASK, privacy=replace(TASK.privacy, ring_bits=24, coordinate_clip=0.3, l2_clip=3.3))
    adapted = replace(TASK, method="fedfr_uda", cohort=CohortSpec(size=8, min_reports=6, must_include=MustInclude()))
    taken = (TASK, grouped, packed, replace(TASK, method="fedface"), adapted, *NOISY)
    ref = RoundRef("task-1", 3, 2)
    return {
        "agreed_min_cohort": 4,
        "tasks": [_task(each, ref) for each in taken],
        "refused": [{"why": why, "json": task_to_json(task).decode()} for why, task in REFUSED.items()],
    }


def _task(task: TaskSpec, ref: RoundRef) -> Json:
    numbers = with_room_for_noise(
        plan_numbers(
            largest_group(task),
            l2_clip=task.privacy.l2_clip,
            coordinate_clip=task.privacy.coordinate_clip,
            max_weight=task.privacy.max_weight,
            ring_bits=task.privacy.ring_bits,
        ),
        task.privacy.dp,
        largest_group(task),
    )
    return {
        "json": task_to_json(task).decode(),
        "sha256": task_sha256(task),
        "smallest_sum": smallest_sum(task),
        "largest_sum": largest_group(task),
        "sources": task.cohort.min_labelled,
        "numbers": _plain(numbers),
        "round": {"task_id": ref.task_id, "round": ref.round, "attempt": ref.attempt},
        "device": "ab" * 16,
        "local_seed": local_seed("ab" * 16, task, ref),
    }


NOISY = (noisy(SKELLAM), noisy(replace(SKELLAM, noise_multiplier=40.0), l2_clip=30.0), noisy(ADAPTIVE))


# statistics.json

ADAPTED = ParameterLayout(
    (
        ParameterEntry("mix.weight", (5, 2)),
        ParameterEntry("adapter.weight", (5, 5)),
        ParameterEntry("adapter.bias", (5,)),
    )
)
GATED = ParameterLayout(
    (
        ParameterEntry("mix.weight", (5, 2)),
        ParameterEntry("population.weight", (5, 5)),
        ParameterEntry("population.bias", (5,)),
        ParameterEntry("population.level", (1,)),
        ParameterEntry("adapter.weight", (5, 5)),
        ParameterEntry("adapter.bias", (5,)),
        ParameterEntry("adapter.gate_weight", (1, 5)),
        ParameterEntry("adapter.gate_bias", (1,)),
        ParameterEntry("adapter.level", (1,)),
    )
)
SUMMED = replace(
    TASK,
    method="statistics",
    trainable=("adapter.*",),
    options={"min_people": 3, "longest": 2.0},
    privacy=PrivacySpec(min_cohort=4, max_weight=1, reveals=("class_moment",)),
)


def summed(privacy: Mapping[str, Any] | None = None, **options: Any) -> TaskSpec:
    """Return the task with other promises and options."""
    return replace(SUMMED, options={**SUMMED.options, **options}, privacy=replace(SUMMED.privacy, **(privacy or {})))


PRIVATE = summed({"reveals": (), "l2_clip": 1.0, "dp": replace(SKELLAM, max_participations=1)})
UNSUMMED: Mapping[str, TaskSpec] = {
    "a sum that is not said to be shown": summed({"reveals": ()}),
    "plain sums": summed({"secure_aggregation": "off"}),
    "sums of groups": replace(
        SUMMED, cohort=CohortSpec(size=12, min_reports=8), privacy=replace(SUMMED.privacy, groups=2)
    ),
    "several sums of one phone": summed({"reveals": (), "dp": SKELLAM}),
    "statistics that would be clipped": summed({"l2_clip": 2.4}),
    "coordinates that would be clipped": summed({"coordinate_clip": 0.9}),
    "too few people for any use": summed(min_people=10**6),
    "a form that is not there": summed(form="wcnn"),
    "a shrinkage beyond 1": summed(shrinkage=1.5),
    "no rank": summed(rank=0),
    "two people at least": summed(min_people=2),
    "nobody of a phone": summed(max_people=0),
    "too many of a phone": summed(max_people=65),
    "features of no length": summed(longest=0.0),
    "scatter of no length": summed(within_clip=0.0),
    "noise in units of another clip": replace(PRIVATE, privacy=replace(PRIVATE.privacy, l2_clip=2.0)),
    "a clip that moves": replace(PRIVATE, privacy=replace(PRIVATE.privacy, dp=replace(ADAPTIVE, max_participations=1))),
    "a mixture of one cohort": replace(summed(mixture=True), rounds=1),
    "a mixture whose first cohort is all there is": replace(summed(mixture=True, min_people=30), rounds=2),
    "an option that is not there": summed(centred=True),
}


class _Network:
    """A network that makes the same features of any pictures."""

    def __init__(self, features_ND: NDArray[np.float32]) -> None:
        self._features_ND = features_ND

    def features(self, _theta: Vector, _crops: Crops) -> NDArray[np.float32]:
        return self._features_ND


def statistics() -> Json:
    spec = ModelSpec("tiny", ADAPTED.sha256, FaceInputSpec(dim=5), "made up", "none", ("adapter.*",))
    lanes = METHODS["statistics"].contribution_layout(SUMMED, ADAPTED.part(("adapter.*",)), 5)
    return {
        "spec_json": model_to_json(spec, ADAPTED).decode(),
        "contribution_sha256": lanes.sha256,
        "contribution_size": lanes.size,
        "phones": [
            phone(what, task, labels, scale)
            for what, task, labels, scale in (
                ("one picture", SUMMED, (0,), 0.7),
                ("one person", SUMMED, (0, 0, 0), 0.7),
                ("three people, one of whom has one picture", summed(max_people=3), (0, 1, 1, 2, 2, 2, 0), 0.7),
                ("features of which some are cut", SUMMED, (0, 0, 0, 1, 1, 1), 0.8),
                ("pictures so far apart that the scatter is cut", summed(longest=1.4), (0, 0), 0.8),
                ("more people than are counted", summed(max_people=2), (0, 0, 1, 1, 2, 2, 3, 4, 4), 0.7),
                ("differential privacy", PRIVATE, (0, 0, 1), 0.7),
                (
                    "differential privacy of all lanes",
                    replace(PRIVATE, options={**PRIVATE.options, "form": "plda"}),
                    (0, 0, 1),
                    0.7,
                ),
                (
                    "differential privacy of means",
                    replace(PRIVATE, options={**PRIVATE.options, "form": "centre"}),
                    (0, 0, 1),
                    0.7,
                ),
                ("scatter in another unit", summed(within_clip=0.6), (0, 0, 1), 0.7),
            )
        ],
        "too_long": phone("", summed(longest=0.5), (), 0.7) | {"labels": [0, 0, 1]},
        "refused": [{"why": why, "json": task_to_json(task).decode()} for why, task in UNSUMMED.items()],
        "gated": gated(),
    }


def gated() -> Json:
    """Return a model with a gate, as phones get it and as they sum statistics of it, and what one embeds with it."""
    part, theta = GATED.part(("adapter.*",)), np.random.default_rng(61).standard_normal(GATED.size).astype(np.float32)
    spec = ModelSpec("tiny", GATED.sha256, FaceInputSpec(dim=11), "made up", "none", ("adapter.*",))
    lanes = METHODS["statistics"].contribution_layout(SUMMED, part, 11)
    embedded_ND = (0.3 * np.random.default_rng(62).standard_normal((3, 11))).astype(np.float32)
    inp = DeviceInput(SUMMED, part, 11, theta, np.zeros((3, 1, 1, 3), np.uint8), np.array((0, 0, 1)), seed=5)
    network = cast(Runtime, _Network(embedded_ND))
    sent = METHODS["statistics"].device_round(inp, network)
    mixture = replace(summed(mixture=True), rounds=2)
    told = [np.array((*(scale * np.linspace(-2, 3, 5)), 0.5 * scale), np.float32) for scale in (1, 1e4)]
    weighed = [
        METHODS["statistics"].device_round(replace(inp, task=mixture, reply={ODDS: odds}), network) for odds in told
    ]
    return {
        "spec_json": model_to_json(spec, GATED).decode(),
        "json": task_to_json(SUMMED).decode(),
        "contribution_sha256": lanes.sha256,
        "theta": theta.tobytes().hex(),
        "frozen": frozen(part, theta).tobytes().hex(),
        "embedded": embedded_ND.tobytes().hex(),
        "labels": [0, 0, 1],
        "seed": 5,
        "contribution": sent.contribution.to_bytes().hex(),
        "without_second_moments": task_to_json(PRIVATE).decode(),
        "mixtures": [
            {
                "json": task_to_json(mixture).decode(),
                "odds": odds.tobytes().hex(),
                "contribution": each.contribution.to_bytes().hex(),
            }
            for odds, each in zip(told, weighed, strict=True)
        ],
    }


def phone(what: str, task: TaskSpec, labels: Sequence[int], scale: float, seed: int = 5) -> Json:
    """Return the contribution of a phone whose network makes these features; none where nobody is numbered."""
    features_ND = (scale * np.random.default_rng(len(what)).standard_normal((len(labels) or 3, 5))).astype(np.float32)
    said = {
        "what": what,
        "json": task_to_json(task).decode(),
        "features": features_ND.tobytes().hex(),
        "labels": list(labels),
        "seed": seed,
    }
    if not labels:
        return said
    inp = DeviceInput(
        task=task,
        part=ADAPTED.part(("adapter.*",)),
        dim=5,
        theta=np.zeros(ADAPTED.size, np.float32),
        crops=np.zeros((len(labels), 1, 1, 3), np.uint8),
        labels=np.array(labels),
        seed=seed,
    )
    sent = METHODS["statistics"].device_round(inp, cast(Runtime, _Network(features_ND)))
    return said | {"contribution": sent.contribution.to_bytes().hex()}


# everybody.json

OPENING = replace(
    TASK,
    method="fedface",
    rounds=2,
    trainable=("mix.*",),
    options={"everybody": {"scale": 8.0}},
    privacy=replace(TASK.privacy, reveals=("class_moment",)),
)
UNOPENED: Mapping[str, TaskSpec] = {
    "sums that are not said to be shown": replace(
        OPENING, options={"private_form": "everybody"}, privacy=replace(OPENING.privacy, reveals=())
    ),
    "plain sums": replace(OPENING, privacy=replace(OPENING.privacy, secure_aggregation="off")),
    "sums of groups": replace(
        OPENING, cohort=CohortSpec(size=12, min_reports=8), privacy=replace(OPENING.privacy, groups=2)
    ),
    "moments that nobody would use": replace(OPENING, rounds=1),
    "a scale that cannot be": replace(OPENING, options={"everybody": {"scale": 0.0}}),
    "a margin that cannot be": replace(OPENING, options={"everybody": {"margin": 1.0}}),
    "steps against the moment": replace(OPENING, options={"private_form": "everybody", "moment": {"every": 1}}),
    "steps away from public people": replace(
        OPENING, options={"private_form": "everybody", "public_step": {"lr": 1.0}}
    ),
}


def everybody() -> Json:
    """Return what a round against everybody sends, and what its server tells, as the keys are bound to it."""
    part, fedface = LAYOUT.part(OPENING.trainable), METHODS["fedface"]
    lanes, shared = fedface.contribution_layout(OPENING, part, 3), fedface.requirements(OPENING).shared_reply
    begun = fedface.server_start(OPENING, part, THETA)
    vector = (np.arange(lanes.summed_size) / 16 + 1).astype(np.float64)
    opened = fedface.server_step(OPENING, part, begun, Total(lanes, vector, 4), {})
    return {
        "json": task_to_json(OPENING).decode(),
        "contribution_sha256": lanes.sha256,
        "contribution_size": lanes.size,
        "told_apart": [[least, *told_apart(least)] for least in (3, 4, 63, 64, 1000, 5000)],
        "told": [
            {"reply": pack_tensors(reply).hex(), "words": shared_words(reply, shared).hex()}
            for reply in (fedface.reply(state, "phone") for state in (begun, opened))
        ],
        "refused_replies": {
            "an array of another name": pack_tensors({"other": np.ones(1, np.float32)}).hex(),
            "a number that is not finite": pack_tensors({"moment": np.array([np.nan], np.float32)}).hex(),
            "nothing": pack_tensors({"moment": np.zeros(0, np.float32)}).hex(),
            "a matrix": pack_tensors({"moment": np.ones((2, 3), np.float32)}).hex(),
            "other numbers": pack_tensors({"moment": np.ones(3, np.int64)}).hex(),
        },
        "refused": [{"why": why, "json": task_to_json(task).decode()} for why, task in UNOPENED.items()],
    }


# evaluation.json


def evaluation() -> Json:
    return evaluation_vectors(LAYOUT)


# methods.json


def methods() -> Json:
    return methods_vectors(LAYOUT, THETA)


# noise.json


def stream(seed: bytes, begin: bytes = b"") -> RandomBytes:
    """Return chance that begins with some bytes and goes on with the words of a seed, as masks have them."""
    words, left = WordStream(seed), [begin]

    def take(size: int) -> bytes:
        from_begin, left[0] = left[0][:size], left[0][size:]
        return from_begin + words.take((size - len(from_begin)) // 4).tobytes()

    return take


def noise() -> Json:
    return {
        "shares": [
            _share(size, sigma, num_honest, bytes(begin))
            for size, sigma, num_honest, begin in (
                (40, 0.5, 3, 0),
                (200, 2.0, 1, 0),
                (200, 30.0, 4, 8),  # a first word of zeros goes on in another one
                (100, 1e5, 7, 0),
                (20, 3e7, 2, 0),
            )
        ],
        "decided_in_decimals": [
            {
                "mean": mean,
                "doubt": 0.05,
                "seed": known("decimals").hex(),
                "drawn": (_sample(50, _Poisson(mean), stream(known("decimals")), 0.05) + _Poisson(mean).mode).tolist(),
            }
            for mean in (0.3, 9.5, 4321.25)
        ],
        "protected": [_protected(task, tells) for task, tells in ((NOISY[0], False), (NOISY[2], True))],
    }


def _share(size: int, sigma: float, num_honest: int, begin: bytes) -> Json:
    seed = known(f"noise {sigma}")
    drawn = skellam_share(size, sigma, num_honest, stream(seed, begin))
    return {
        "size": size,
        "sigma": sigma,
        "num_honest": num_honest,
        "begin": begin.hex(),
        "seed": seed.hex(),
        "drawn": drawn.tolist(),
    }


def _protected(task: TaskSpec, tells: bool) -> Json:
    """Return the vector that a device would mask, its noise in it."""
    layout = METHODS["fedavg"].contribution_layout(task, LAYOUT.part(("mix.*",)), 3)
    spec = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=3), "made up", "none", ("mix.*",))
    ids = RoundIds.of(task, "task-1", 3, 2, spec, model_id(LAYOUT.sha256, THETA))
    config = plan_round(task, layout, ids)
    update = (np.arange(config.size) / 16 - 0.2).astype(np.float32)
    said = protect(Addends(1, update, (0.5, 0.25)), config, task.privacy.dp, stream(known("protected")))
    assert said.tells_clip is tells
    words = encode(
        said, VectorLayout(config.size, config.num_metrics), config.numbers, b"binding", WordStream(known("rounding"))
    )
    return {
        "task_json": task_to_json(task).decode(),
        "config": config.to_bytes().hex(),
        "update": update.tobytes().hex(),
        "metrics": [0.5, 0.25],
        "seed": known("protected").hex(),
        "rounding_seed": known("rounding").hex(),
        "binding": b"binding".hex(),
        "vector": words.tobytes().hex(),
    }


# sealed.json


def sealed() -> Json:
    key, nonce, plain = known("key"), known("nonce", 12), b"a record"
    context = bind("mien/client/1", "gallery", "person-000001", 7)
    good = seal(SecretKey(key), plain, context, random_bytes=lambda _: nonce)
    moved = seal(
        SecretKey(key), plain, bind("mien/client/1", "gallery", "person-000002", 7), random_bytes=lambda _: nonce
    )
    other = seal(SecretKey(known("other")), plain, context, random_bytes=lambda _: nonce)
    refused: Iterable[tuple[str, bytes]] = (
        ("another record's", moved),
        ("another key's", other),
        ("one bit changed", bytes([*good[:-1], good[-1] ^ 1])),
        ("cut off", good[:20]),
        ("empty", b""),
    )
    return {
        "key": key.hex(),
        "context_parts": ["mien/client/1", "gallery", "person-000001", "7"],
        "context": context.hex(),
        "plain": plain.hex(),
        "sealed": good.hex(),
        "refused": [{"why": why, "sealed": data.hex()} for why, data in refused],
    }


# invites.json


def invites() -> Json:
    good = Invite("phones.example:7000", "ab" * 32, "cd" * 32, "T" * 32)
    url = good.to_url()
    bad = {
        "another scheme": url.replace("mien:", "http:"),
        "another place": url.replace("//join", "//leave"),
        "cut off": url[:-20],
        "no token": url[: url.index("&t=")],
        "a fingerprint in capitals": url.replace("ab" * 32, "AB" * 32),
        "a token twice": url + "&t=" + "U" * 32,
        "no port": url.replace("%3A7000", ""),
        "nothing": "",
    }
    return {
        "good": [
            {
                "url": f" {each.to_url()}\n",
                "registrar": each.registrar_address,
                "registrar_ca_sha256": each.registrar_ca_sha256,
                "coordinator_ca_sha256": each.coordinator_ca_sha256,
                "token": each.token,
                "code": each.code(),
                "attestation_challenge": attestation_challenge(each.token, each.registrar_ca_sha256).hex(),
            }
            for each in (
                good,
                replace(good, registrar_address="[::1]:7000"),
                replace(good, registrar_ca_sha256="cd" * 32, coordinator_ca_sha256="ab" * 32),
                replace(good, registrar_ca_sha256="07" * 32),  # a code that begins with 0
            )
        ],
        "refused": [{"why": why, "url": text} for why, text in bad.items()],
    }


# bundles.json


def releases() -> Json:
    key, stranger = (Ed25519PrivateKey.from_private_bytes(known(label)) for label in ("release key", "another"))
    spec = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=3), "made up", "none", ("mix.*",))
    spec_json = model_to_json(spec, LAYOUT)
    theta = THETA.tobytes()
    file = BundleFile(bundles.THETA, hashlib.sha256(theta).hexdigest(), len(theta))
    graph = BundleFile("embed.onnx", known("graph").hex(), 7)
    listed = BundleFile(bundles.GRAPHS, known("graphs").hex(), 9)
    identity = model_id(LAYOUT.sha256, THETA)

    def manifest(sequence: int, *fallbacks: str, min_sdk: str = "0.1.0") -> bytes:
        made = bundles.manifest_of(
            spec_json, identity, (file, graph, listed), sequence=sequence, fallbacks=fallbacks, min_sdk=min_sdk
        )
        return made.to_json()

    first = manifest(1)
    second = manifest(2, bundles.hash_of(first))
    third = manifest(3)
    newer = manifest(4, min_sdk="9.0.0")
    return {
        "release_key": bundles.name_of(key),
        "spec_json": spec_json.decode(),
        "model_id": identity,
        "theta": {"sha256": file.sha256, "size_bytes": file.size_bytes},
        "manifests": {
            name: {"json": data.decode(), "signature": bundles.sign(key, data).hex(), "sha256": bundles.hash_of(data)}
            for name, data in (("first", first), ("second", second), ("third", third), ("newer", newer))
        },
        "by_another_key": bundles.sign(stranger, first).hex(),
    }


def search() -> Json:
    spec = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=3), "made up", "none", ("mix.*",))
    return search_vectors(spec, LAYOUT)


FILES: Mapping[str, Callable[[], Json]] = {
    "draws.json": draws,
    "layouts.json": layouts,
    "tasks.json": tasks,
    "statistics.json": statistics,
    "everybody.json": everybody,
    "evaluation.json": evaluation,
    "methods.json": methods,
    "clusters.json": clusters,
    "personal.json": personal,
    "noise.json": noise,
    "sealed.json": sealed,
    "invites.json": invites,
    "bundles.json": releases,
    "transparency.json": transparency,
    "sums.json": sums,
    "revocations.json": revocations,
    "admissions.json": admissions,
    "vision.json": vision,
    "search.json": search,
}
