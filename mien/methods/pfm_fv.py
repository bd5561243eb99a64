"""Federated face recognition between silos: partially federated momentum (PFM) and federated validation (FV).

Source: Bai, Wu, Shen, Li, Zhou, "Federated Face Recognition" (2021), Algorithms 1 and 2. Each trainer holds many
identities and keeps its classifier; the server averages backbones by weights w that validators' scores improve.

FV needs the weighted mean of the trainers' models under T weightings, and nothing else of them: a contribution holds
T times the update, each times this trainer's weight in that candidate. A trainer derives these weights itself, from a
secret that it keeps, the task and what became of w, so that a server can neither choose nor foresee them. The next
model is a mixture of two candidates, so it needs no further sum. Decision record 0013 says where one round here differs
from the paper's asynchronous search, 0121 why the draws are secret.
Legend: T candidates, P elements of the trained part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.evaluation import Comparisons, det_curve, point_at_fmr
from mien.evaluation.kfold import kfold_accuracy
from mien.layout import ParameterPart, Vector
from mien.methods.averaging import moved, output, update_addends, update_lanes
from mien.methods.base import (
    DeviceInput,
    DeviceOutput,
    Method,
    Preset,
    Property,
    Requirements,
    Runtime,
    ServerState,
    StepRule,
    Validation,
    ValidationFaces,
    ValidationInput,
)
from mien.methods.check_reply import told, told_or_zeros
from mien.methods.local_loss import VELOCITY, LocalLoss, Loss, own_classes
from mien.methods.proxies import CLASSES
from mien.methods.weightings import check_weightings, simplex_draw
from mien.records import positive, within
from mien.specs import LocalSpec, ServerSpec, TaskSpec, from_mapping

MOMENTUM: Final = "momentum"
ROUND: Final = "round"
SEED: Final = "seed"
HISTORY: Final = "history"
DRAWN_FROM: Final = "weighting_secret"
"""What a trainer's draws follow from beside the task, byte by byte: it keeps the first that it was given."""
STATISTICS: Final = "percent_statistics"
"""A validator's moving mean and variance. Those of scores in fractions had another name, and are begun anew."""
PERCENT: Final = 100.0
TIE: Final = 1e-6
"""Sums of scores that differ by no more than this share are equal: masked ones are rounded by chance."""
MOST_DRAWN: Final = 64.0
"""No draw is larger: the largest is 64 ln 2."""


@dataclass(frozen=True)
class PfmFvOptions(LocalLoss):
    """`momentum` and `validation` choose the system; the others are the paper's hyper-parameters.

    momentum "partially_federated" is PFM with `beta`; "local" is FedAvg, whose trainers have momentum of their own.
    validation "local_norm" (eq 8), "moving_norm" (eq 9-11) and "no_norm" search `candidates` T weightings a round, the
    current one among them, and mix the best in by `mixing` phi; "off" keeps the first weighting, images or `uniform`.
    A validator's score is its k-fold accuracy, or its TAR at `score_fmr`, in percent: in fractions `epsilon` would be
    larger than any variance of scores, and no norm would change a winner. `lr_drop_rounds` name the rounds after which
    the rate is a tenth.
    """

    loss: Loss = "arcface"
    scale: Annotated[float, positive(1e4)] = 64.0
    class_start: Literal["mean_feature", "random"] = "random"
    momentum: Literal["partially_federated", "local"] = "partially_federated"
    beta: float = 0.9
    validation: Literal["local_norm", "moving_norm", "no_norm", "off"] = "local_norm"
    candidates: Annotated[int, within(2, 64)] = 3
    mixing: float = 0.01
    epsilon: float = 0.001
    moving: float = 0.01
    first_weighting: Literal["images", "uniform"] = "images"
    score: Literal["accuracy", "tar"] = "accuracy"
    score_fmr: float = 0.01
    lr_drop_rounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "mixing", "moving"):
            if not 0 <= getattr(self, name) <= 1 or (name == "beta" and self.beta == 1):
                raise ConfigError(f"options.{name} is {getattr(self, name)}; it must lie in [0, 1), mixing up to 1")
        if not 0 < self.epsilon <= 1e3 or not 0 < self.score_fmr < 1:
            raise ConfigError("options.epsilon must be positive, options.score_fmr lie between 0 and 1")
        if list(self.lr_drop_rounds) != sorted({*self.lr_drop_rounds}) or min(self.lr_drop_rounds, default=1) < 1:
            raise ConfigError("options.lr_drop_rounds must be rounds from 1 in rising order")

    @property
    def validates(self) -> bool:
        """True if validators take part."""
        return self.validation != "off"


EPOCHS: Final = 26
STEPS_PER_EPOCH: Final = 12_800


def _paper(interval: int) -> Preset[PfmFvOptions]:
    """Return section 4.2 for K = `interval`: 26 epochs of 12,800 steps, rates dropped after epochs 10, 18 and 24."""
    drops = tuple(epoch * STEPS_PER_EPOCH // interval for epoch in (10, 18, 24))
    return Preset(
        rounds=EPOCHS * STEPS_PER_EPOCH // interval,
        local=LocalSpec(lr=0.1, steps=interval, batch_size=256),
        options=PfmFvOptions(lr_drop_rounds=drops),
    )


PRESETS: Final[Mapping[str, Preset[PfmFvOptions]]] = MappingProxyType(
    {f"paper_k{k}": _paper(k) for k in (100, 400, 1600)}
)
"""Batches are 64 images a GPU in the paper, whose parties train on 1 to 8 of them; 256 stands for 4."""


def options_of(task: TaskSpec) -> PfmFvOptions:
    """Return the task's options; raises ConfigError naming the wrong field, here or in how both sides step."""
    if task.local.momentum or task.local.private_momentum is not None or task.local.lr_drop_epoch:
        raise ConfigError(
            "pfm_fv's momentum is options.beta and its rate drops after options.lr_drop_rounds: leave local.momentum, "
            "local.private_momentum and local.lr_drop_epoch alone"
        )
    if task.server != ServerSpec():
        raise ConfigError("pfm_fv's server takes the weighted mean as it is (eq 4); leave [server] alone")
    return from_mapping(PfmFvOptions, task.options, where="options.")


def rate(task: TaskSpec, options: PfmFvOptions, round_number: int) -> float:
    """Return eta_r of round r, counted from 1."""
    return task.local.lr * 0.1 ** sum(drop < round_number for drop in options.lr_drop_rounds)


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums only, the update under T weightings where validators judge them.

    Raises ConfigError where that many sums would show the updates of too few (see `check_weightings`).
    """
    options = options_of(task)
    if not options.validates:
        return ContributionLayout(update_lanes(part))
    check_weightings(task, options.candidates)
    scalars = update_lanes(part)[:-1]
    return ContributionLayout(
        (*scalars, Lane("weightings", options.candidates), Lane("deltas", options.candidates * part.size))
    )


# The trainer's half.


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return a trainer's round: lines 5-12 of Algorithm 1."""
    options = options_of(inp.task)
    local, rule = _how_to_step(inp, options)
    problem = own_classes(inp, runtime, options, rule, keeps_velocity=True)
    trained = runtime.train(inp.job(problem.objective, local=local))
    weighs_alike = options.validates or options.first_weighting == "uniform"  # validators' weightings multiply below
    addends, kept = dict(update_addends(inp, trained, num_images=1 if weighs_alike else None)), problem.kept(trained)
    if options.validates:
        secret = kept_secret(inp)
        own_T = own_weighting(inp.task, inp.device, inp.reply.get(HISTORY), len(inp.crops), secret)
        weighting_T = scaled(inp.task, own_T)
        addends["weightings"] = weighting_T.astype(np.float32)
        addends["deltas"] = np.outer(weighting_T, addends.pop("delta").astype(np.float64)).astype(np.float32)
        kept = {**kept, DRAWN_FROM: np.frombuffer(secret, np.uint8).astype(np.float32)} if secret else kept
    return output(contribution_layout(inp.task, inp.part, inp.dim), addends, kept, trained)


def _how_to_step(inp: DeviceInput, options: PfmFvOptions) -> tuple[LocalSpec, StepRule]:
    """Return eq 1-3: classical momentum for the classifier; for the backbone beta M / K in every one of K steps."""
    local = inp.task.local
    number = told(inp.reply, ROUND, (1,))
    lr = rate(inp.task, options, 1 if number is None else int(number[0]))
    private_lr = None if local.private_lr is None else local.private_lr * lr / local.lr
    local = replace(local, lr=lr, private_lr=private_lr, private_momentum=options.beta)
    if options.momentum == "local":
        return replace(local, momentum=options.beta), StepRule()
    momentum = told_or_zeros(inp.reply, MOMENTUM, inp.part.size)
    per_step = options.beta / local.num_steps(len(inp.crops))
    return local, StepRule(offset=(per_step * momentum.astype(np.float64)).astype(np.float32))


def kept_secret(inp: DeviceInput) -> bytes:
    """Return what this trainer's draws follow from: what it kept of its first counted round, before that a new one."""
    kept = inp.private.get(DRAWN_FROM)
    return inp.secret if kept is None else kept.astype(np.uint8).tobytes()


def own_weighting(
    task: TaskSpec, device: str, history: Vector | None, num_images: int, secret: bytes = b""
) -> NDArray[np.float64]:
    """Return this trainer's weights in the T candidates (T,), the current w first, before division by the cohort's.

    Current is what became of w_i0 in the rounds of `history` (R, 3); the others are the draws of round R + 1. A server
    that foresaw them could tell a history that leaves one trainer alone in a combination of the sums: without a
    `secret` whoever knows the task does.
    Raises ConfigError without a name or a history, CorruptDataError for one that no server's steps give.
    """
    options = options_of(task)
    if history is None or not device:
        raise ConfigError("the server told no history of weights; the task needs federated validation's server")
    if (
        history.shape[1:] != (3,)
        or len(history) >= task.rounds
        or not (np.isfinite(history).all() and (history[:, 1:] >= 0).all())
        or not np.isin(history[:, 0], np.arange(options.candidates)).all()
        or not (history[:, 1] == np.where(history[:, 0] == 0, 1, np.float32(1 - options.mixing))).all()
        or history[history[:, 0] == 0, 2].any()
    ):
        raise CorruptDataError(
            "the server told a history of weights that cannot be; leave the round, tell the operator"
        )
    first = float(min(num_images, task.privacy.max_weight)) if options.first_weighting == "images" else 1.0
    seed = _seed(task) + secret
    kept, added = standing(seed, history, device)
    draws = [simplex_draw(seed, len(history), t, device) for t in range(1, options.candidates)]
    return np.array([kept * first + added, *draws])


def scaled(task: TaskSpec, weighting_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights that a masked sum can carry: times a power of two that all trainers share, at most the clip.

    A common factor changes no candidate. Draws always fit; a w that outgrew the factor is cut before it multiplies the
    update, so that the ratio of the two stays what it is.
    """
    clip, room = task.privacy.coordinate_clip, 2.0 * max(task.privacy.max_weight, MOST_DRAWN / 2)
    scaled_T: NDArray[np.float64] = np.minimum(weighting_T * 2.0 ** math.floor(math.log2(clip / room)), clip)
    return scaled_T


# The server's half.


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round: M = 0 (line 1), w as it begins."""
    arrays: dict[str, Vector] = {MOMENTUM: np.zeros(part.size, np.float32)}
    options = options_of(task)
    if options.validates:
        arrays[SEED] = np.frombuffer(_seed(task), np.uint8).astype(np.float32)
        arrays[HISTORY] = np.zeros((0, 3), np.float32)
    return ServerState(theta=theta, arrays=arrays)


def reply(state: ServerState, device: str) -> Arrays:
    """Return the reply to every trainer for round r: r, M of the last round, and what became of w in all rounds."""
    told: dict[str, Vector] = {ROUND: np.array([state.rounds + 1], np.float32), MOMENTUM: state.arrays[MOMENTUM]}
    if HISTORY in state.arrays:
        told[HISTORY] = state.arrays[HISTORY]
    return told


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after lines 14-16 with w as it began; raises ConfigError where validators have to choose."""
    if options_of(task).validates:
        raise ConfigError("federated validation chooses the weights, and this server has no such stage")
    return _move(task, part, state, total.mean("delta"))


def candidates(task: TaskSpec, part: ParameterPart, state: ServerState, total: Total) -> tuple[Vector, ...]:
    """Return the T candidate models w_t^T theta' (eq 7), the one under the current weighting first."""
    start = part.gather(state.theta).astype(np.float64)
    return tuple(
        part.scatter(state.theta, (start + mean_P).astype(np.float32)) for mean_P in _candidate_updates(part, total)
    )


def validated_step(task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, scores: Total) -> ServerState:
    """Return the state after eq 12 and 13, then lines 14-16 of Algorithm 1 with the w that they give."""
    options = options_of(task)
    score_T = scores["scores"]
    # The first of equals: the current weighting stays where none is better.
    best = int(np.argmax(score_T >= score_T.max() - TIE * np.abs(score_T).max()))
    updates_TP = _candidate_updates(part, total)
    weight_T = total["weightings"]
    mixed = (1 - options.mixing) * updates_TP[0] + options.mixing * updates_TP[best]
    after = _move(task, part, state, mixed)
    # w <- (1 - phi) w + phi w_best, both divided by their sums, then multiplied by the sum of the old w: the weights of
    # trainers that were not in this round keep their proportion to the others.
    row = (best, 1 - options.mixing, options.mixing * weight_T[0] / weight_T[best]) if best else (0, 1, 0)
    history = np.concatenate([state.arrays[HISTORY], np.array([row], np.float32)])
    return replace(after, arrays={**after.arrays, HISTORY: history})


def weight_of(state: ServerState, device: str, first: float = 1.0) -> float:
    """Return the weight of a trainer without a secret, `first` being its weight at first; only ratios have meaning."""
    kept, added = standing(state.arrays[SEED].astype(np.uint8).tobytes(), state.arrays[HISTORY], device)
    return kept * first + added


def _candidate_updates(part: ParameterPart, total: Total) -> NDArray[np.float64]:
    """Return the mean updates under each weighting, renormalised over whoever is in the sum: (T, P)."""
    weight_T = total["weightings"]
    if total.num_reports == 0 or not (weight_T > 0).all():
        raise NonFiniteError("a candidate's total weight is not positive; the round is aborted")
    updates_TP: NDArray[np.float64] = total["deltas"].reshape(len(weight_T), part.size) / weight_T[:, None]
    return updates_TP


def _move(task: TaskSpec, part: ParameterPart, state: ServerState, update: NDArray[np.float64]) -> ServerState:
    """Return the state after Theta_r = Theta_(r-1) + update and M_r = (Theta_(r-1) - Theta_r) / eta_r (eq 4 and 6)."""
    eta = rate(task, options_of(task), state.rounds + 1)
    return moved(part, state, update, {**state.arrays, MOMENTUM: -update / eta})


def _seed(task: TaskSpec) -> bytes:
    """Return the public words that all draws of a task follow from, which are part of the task: fixed before it."""
    return hashlib.sha256(f"pfm_fv/{task.name}/{task.seed}".encode()).digest()


def standing(seed: bytes, history: Vector, device: str) -> tuple[float, float]:
    """Return (kept, added) of a trainer's weight w_i = kept w_i0 + added, replayed from the winners of all rounds."""
    kept, added = 1.0, 0.0
    for index, (winner, keep, gain) in enumerate(history.astype(np.float64)):
        if winner:
            kept, added = keep * kept, keep * added + gain * simplex_draw(seed, index, int(winner), device)
    return kept, added


# The validator's half.


def score_layout(task: TaskSpec) -> ContributionLayout:
    """Return the lanes of a validator's contribution: T normalised scores, which are summed over validators (eq 12)."""
    return ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("scores", options_of(task).candidates)))


def score_bound(task: TaskSpec) -> float:
    """Return the largest normalised score: raw ones reach 100, and no deviation counts for less than sqrt(eps)."""
    options = options_of(task)
    return PERCENT if options.validation == "no_norm" else PERCENT / math.sqrt(options.epsilon)


def validate(inp: ValidationInput, runtime: Runtime) -> DeviceOutput:
    """Return a validator's normalised scores of the candidates: lines 7-11 of Algorithm 2."""
    options = options_of(inp.task)
    score_T = np.array([score(options, runtime, theta, inp.faces) for theta in inp.candidates])
    normalised_T, statistics = normalise_scores(options, score_T, inp.private.get(STATISTICS))
    one = np.ones(1, np.float32)
    contribution = score_layout(inp.task).pack({"count": one, "weight": one, "scores": normalised_T.astype(np.float32)})
    return DeviceOutput(contribution, private={} if statistics is None else {STATISTICS: statistics})


def score(options: PfmFvOptions, runtime: Runtime, theta: Vector, faces: ValidationFaces) -> float:
    """Return a model's score on a validator's pairs, in percent: k-fold accuracy, or TAR at an FMR.

    Raises UndefinedMetricError where the pairs cannot give it.
    """
    emb_ND = runtime.embed(theta, faces.crops).astype(np.float64)
    cos_P = (emb_ND[faces.pairs[:, 0]] * emb_ND[faces.pairs[:, 1]]).sum(axis=1)
    if options.score == "accuracy":
        return kfold_accuracy(np.clip(2 - 2 * cos_P, 0, 4), faces.mated, faces.folds).mean * PERCENT
    curve = det_curve(Comparisons(cos_P[faces.mated], cos_P[~faces.mated]))
    return point_at_fmr(curve, options.score_fmr).tar * PERCENT


def normalise_scores(
    options: PfmFvOptions, score_T: NDArray[np.float64], statistics: Vector | None
) -> tuple[NDArray[np.float64], Vector | None]:
    """Return S' (T,) and, for the moving norm, the validator's (mu, nu) to keep.

    Local norm (eq 8): S / sqrt(var(S) + epsilon). Moving norm (eq 9-11): S / sqrt(nu + epsilon), where mu and nu follow
    mean and variance at rate gamma; before the first round they are that round's own. Variances divide by T.
    """
    if options.validation == "no_norm":
        return score_T, None
    if options.validation == "local_norm":
        return score_T / math.sqrt(score_T.var() + options.epsilon), None
    if statistics is None:
        mean, variance = float(score_T.mean()), float(score_T.var())
    else:
        mean = (1 - options.moving) * float(statistics[0]) + options.moving * float(score_T.mean())
        spread = float(((score_T - mean) ** 2).mean())
        variance = (1 - options.moving) * float(statistics[1]) + options.moving * spread
    return score_T / math.sqrt(variance + options.epsilon), np.array([mean, variance], np.float32)


MOST_FOLDS: Final = 5


def own_faces(crops: NDArray[np.uint8], labels: NDArray[np.int64]) -> ValidationFaces:
    """Return a validator's pairs in as many folds as its people allow; raises ConfigError for too few of them.

    People count who have two pictures or more; others' pictures stand in pairs of different people.
    """
    num_pictures = np.unique(labels, return_counts=True)[1]
    num_people = int((num_pictures > 1).sum())
    if num_people < 4:
        raise ConfigError(
            f"a validator needs four people or more, with two pictures or more each; here are {num_people} people with "
            f"two pictures or more, among {len(num_pictures)} people with {len(labels)} pictures in all"
        )
    return validation_faces(crops, labels, num_folds=min(MOST_FOLDS, num_people // 2))


def validation_faces(
    crops: NDArray[np.uint8], labels: NDArray[np.int64], *, num_folds: int = 5, max_mated: int = 1000, seed: int = 0
) -> ValidationFaces:
    """Return a validator's pairs of labelled crops: mated ones and as many others, folds without a shared identity.

    People with several pictures are dealt to the folds first, so that none gets too few of them. Raises ConfigError
    for fewer than two identities a fold, or none of a fold with two images.
    """
    rng = np.random.default_rng(seed)
    names, num_pictures = np.unique(labels, return_counts=True)
    dealt = rng.permutation(len(names))
    people = names[dealt[np.argsort(num_pictures[dealt] == 1, kind="stable")]]
    pairs, mated, folds = [], [], []
    for fold in range(num_folds):
        members = np.flatnonzero(np.isin(labels, people[fold::num_folds]))
        members = members[np.argsort(labels[members], kind="stable")]
        # With members in the order of their people, a picture's earlier partners are two runs: others', then its own.
        first_own = np.searchsorted(labels[members], labels[members], side="left").astype(np.int64)
        num_own = np.arange(len(members), dtype=np.int64) - first_own
        count = min(int(num_own.sum()), int(first_own.sum()), max(1, max_mated // num_folds))
        if count == 0:
            raise ConfigError(
                f"fold {fold} of {num_folds} has no mated or no non-mated pair; give validators more people and "
                "images, or fewer folds"
            )
        for start, num_partners, is_mated in ((first_own, num_own, True), (np.zeros_like(num_own), first_own, False)):
            pairs.append(members[_drawn_pairs(rng, start, num_partners, count)])
            mated.append(np.full(count, is_mated))
            folds.append(np.full(count, fold))
    return ValidationFaces(
        crops, np.concatenate(pairs).astype(np.int64), np.concatenate(mated), np.concatenate(folds).astype(np.int64)
    )


def _drawn_pairs(
    rng: np.random.Generator, start: NDArray[np.int64], num_partners: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return `count` different pairs (count, 2) of those of each position p with start[p] ... + num_partners[p] - 1.

    Pairs are drawn by their number among all, which are never written down: 10^5 pictures have 5 x 10^9 of them.
    """
    end = np.cumsum(num_partners)
    drawn = rng.choice(int(end[-1]), count, replace=False)
    second = np.searchsorted(end, drawn, side="right")
    first = start[second] + drawn - (end[second] - num_partners[second])
    return np.stack([first, second], axis=1)


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: momentum and history alike for all, validators where they choose the weights."""
    options = from_mapping(PfmFvOptions, task.options, where="options.")
    return Requirements(
        validators=options.validates,
        objective=options.objective,
        shared_reply=(ROUND, MOMENTUM, HISTORY),
        why_synchronous=(
            "devices step with the server's momentum, and candidates are weightings of one round's updates"
        ),
    )


PFM_FV: Final = Method(
    name="pfm_fv",
    source="Bai et al.: Federated Face Recognition (2021)",
    options=PfmFvOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    validation=Validation(
        contribution_layout=score_layout,
        candidates=candidates,
        validate=validate,
        server_step=validated_step,
        score_bound=score_bound,
        faces=own_faces,
    ),
    requirements=requirements,
    properties=frozenset({Property.SEVERAL_PEOPLE}),
    per_identity=(CLASSES, VELOCITY),
)
