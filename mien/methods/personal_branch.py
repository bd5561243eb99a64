"""A personal transformation of embeddings, fitted on a phone to the people on it: FedFR's branch on a fixed backbone.

Pi (D, D) with its bias maps an embedding to a personal one; Omega (K, D) with biases holds a one-vs-all classifier for
each of K people. Both learn from a few own embeddings and from public faces, by the binary loss of Decoupled Feature
Customization (Liu et al., FedFR, AAAI 2022, eq 6; `mien.objectives.losses.dfc_loss` is the same in torch). A few
pictures overfit easily, so `judge` says on pictures that were left out whether the transformation helps anybody, and
what threshold it needs. Legend: N own embeddings, M public ones, K people, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, NonFiniteError
from mien.evaluation.intervals import upper_bound

Floats = NDArray[np.float32]
Floats64 = NDArray[np.float64]
Indices = NDArray[np.int64]

MIN_IMAGES: Final = 3
MIN_PUBLIC_PEOPLE: Final = 20
_LEAST_SPREAD: Final = 1e-6
"""Of scores: below this all are the same but for rounding."""


@dataclass(frozen=True)
class BranchSpec:
    """`scale`, `margin`, `exponent` and `balance` are DFC's s', m', t' and lambda.

    `steps` of gradient descent at `lr` with `momentum`; `hold` draws Pi back to the identity: few pictures say little.
    """

    scale: float = 30.0
    margin: float = 0.4
    exponent: float = 3.0
    balance: float = 0.7
    steps: int = 60
    lr: float = 0.5
    momentum: float = 0.9
    hold: float = 0.003

    def __post_init__(self) -> None:
        if min(self.scale, self.exponent, self.lr) <= 0 or self.steps < 1 or not 0 < self.balance < 1:
            raise ConfigError("a branch needs a positive scale, exponent, rate and steps, and a balance within (0, 1)")


@dataclass(frozen=True)
class Branch:
    """Pi (D, D) and its bias (D,): a person's, never to leave the device."""

    weight: Floats = field(repr=False)
    bias: Floats = field(repr=False)

    def __call__(self, unit_ND: Floats) -> Floats:
        """Return personal embeddings (N, D), of length 1, of embeddings of length 1; raises NonFiniteError."""
        personal_ND = unit_ND @ self.weight.T + self.bias
        norms_N1 = np.linalg.norm(personal_ND, axis=1, keepdims=True)
        if not np.isfinite(personal_ND).all() or (norms_N1 < 1e-6).any():
            raise NonFiniteError("the personal model gives embeddings that are not usable; run `personalise` again")
        unit: Floats = (personal_ND / norms_N1).astype(np.float32)
        return unit


def fit(own_ND: Floats, label_N: Indices, public_MD: Floats, spec: BranchSpec) -> Branch:
    """Return the branch after gradient descent from Pi the identity and Omega the people's mean embeddings.

    Embeddings have length 1; `label_N` numbers people from 0. Own and public faces weigh the same together. Raises
    NonFiniteError where descent diverges.
    """
    unit_BD = np.concatenate([own_ND, public_MD]).astype(np.float64)
    num_own, num_people, dim = len(own_ND), int(label_N.max()) + 1, own_ND.shape[1]
    target_BK = np.zeros((len(unit_BD), num_people))
    target_BK[np.arange(num_own), label_N] = 1.0
    weight_B = np.repeat([0.5 / num_own, 0.5 / len(public_MD)], [num_own, len(public_MD)])
    omega_KD = np.stack([own_ND[label_N == k].mean(axis=0) for k in range(num_people)]).astype(np.float64)
    values = [np.eye(dim), np.zeros(dim), omega_KD, np.zeros(num_people)]
    anchors = [np.eye(dim), np.zeros(dim)]
    velocity = [np.zeros_like(value) for value in values]
    for _ in range(spec.steps):
        _, gradients = loss_and_gradients(unit_BD, target_BK, weight_B, values, spec)
        for index, anchor in enumerate(anchors):
            gradients[index] = gradients[index] + spec.hold * (values[index] - anchor)
        for index, gradient in enumerate(gradients):
            velocity[index] = spec.momentum * velocity[index] + gradient
            values[index] = values[index] - spec.lr * velocity[index]
    if not all(np.isfinite(value).all() for value in values):
        raise NonFiniteError("the personal model did not converge; lower its rate")
    return Branch(values[0].astype(np.float32), values[1].astype(np.float32))


def loss_and_gradients(
    unit_BD: Floats64, target_BK: Floats64, weight_B: Floats64, values: Sequence[Floats64], spec: BranchSpec
) -> tuple[float, list[Floats64]]:
    """Return the binary loss, weighted over the batch, and its gradients in Pi, its bias, Omega and the biases."""
    pi_DD, pi_bias_D, omega_KD, bias_K = values
    personal_BD, omega_norm_K1 = unit_BD @ pi_DD.T + pi_bias_D, np.linalg.norm(omega_KD, axis=1, keepdims=True)
    norm_B1 = np.linalg.norm(personal_BD, axis=1, keepdims=True)
    u_BD, v_KD = personal_BD / norm_B1, omega_KD / omega_norm_K1
    half_BK = np.clip((u_BD @ v_KD.T + 1) / 2, 0.0, None)
    g_BK = 2 * half_BK**spec.exponent - 1
    positive_BK = spec.scale * (g_BK - spec.margin) + bias_K
    negative_BK = spec.scale * (g_BK + spec.margin) + bias_K
    share, rest = spec.balance / spec.scale, (1 - spec.balance) / spec.scale
    cost_BK = target_BK * share * np.logaddexp(0, -positive_BK) + (1 - target_BK) * rest * np.logaddexp(0, negative_BK)
    d_positive_BK = -target_BK * share * _sigmoid(-positive_BK) * weight_B[:, None]
    d_negative_BK = (1 - target_BK) * rest * _sigmoid(negative_BK) * weight_B[:, None]
    d_z_BK = d_positive_BK + d_negative_BK
    d_cos_BK = d_z_BK * spec.scale * spec.exponent * half_BK ** (spec.exponent - 1)
    d_personal_BD = _through_norm(d_cos_BK @ v_KD, u_BD, norm_B1)
    d_omega_KD = _through_norm(d_cos_BK.T @ u_BD, v_KD, omega_norm_K1)
    gradients = [d_personal_BD.T @ unit_BD, d_personal_BD.sum(axis=0), d_omega_KD, d_z_BK.sum(axis=0)]
    return float((weight_B * cost_BK.sum(axis=1)).sum()), gradients


def _through_norm(d_unit: Floats64, unit: Floats64, norm: Floats64) -> Floats64:
    """Return the gradient of rows from that of the rows at length 1."""
    d_rows: Floats64 = (d_unit - (d_unit * unit).sum(axis=1, keepdims=True) * unit) / norm
    return d_rows


def _sigmoid(z: Floats64) -> Floats64:
    sigma: Floats64 = 0.5 * (1 + np.tanh(z / 2))
    return sigma


@dataclass(frozen=True)
class PersonalThreshold:
    """Threshold of one person under a personal branch, with its error rates.

    `value` is carried over from the released threshold: as many standard deviations above the mean of the person's
    non-mated scores, at the upper end of what the choice of public people leaves open. Pictures of `num_false` of
    `num_public` people scored at least that, so that the false match rate lies below `fmr_upper` (95 %; pictures of one
    person are no independent comparisons). `num_missed` of `num_mated` own pictures scored less, and
    `num_missed_released` under the released model at its threshold. Where `is_held_out`, none of these people and
    pictures had a part in the fit; else the figures flatter.
    """

    value: float
    num_false: int
    num_public: int
    fmr_upper: float
    num_missed: int
    num_missed_released: int
    num_mated: int
    is_held_out: bool = True

    def __str__(self) -> str:
        caveat = "" if self.is_held_out else "; it learned from these people and pictures"
        return (
            f"{self.value:.3f}, personal: {self.num_false} of {self.num_public} public people above it (false match "
            f"rate below {self.fmr_upper:.2g}), {self.num_missed} of {self.num_mated} own pictures below it{caveat}"
        )


@dataclass(frozen=True)
class Judgement:
    """A branch with a threshold for each person, and whether it is better than the released model.

    `gain` is by how much more non-mated standard deviations own pictures lie above the threshold, on average, and
    `gain_error` its standard error.
    """

    branch: Branch
    thresholds: tuple[PersonalThreshold, ...]
    gain: float
    gain_error: float

    @property
    def is_better(self) -> bool:
        """True if it misses no more of the pictures that were left out, and gains more than chance explains."""
        missed = sum(each.num_missed - each.num_missed_released for each in self.thresholds)
        return missed <= 0 and self.gain > self.gain_error


def judge(
    own_ND: Floats,
    label_N: Indices,
    public_MD: Floats,
    public_label_M: Indices,
    released_threshold: float,
    spec: BranchSpec,
    seed: int,
) -> Judgement:
    """Return the branch fitted to all own embeddings, judged on pictures and public people that were left out of it.

    Half of the public people teach it, the others measure its thresholds. Whether it is better is judged with the
    halves changed over, own pictures left out in up to five turns: a threshold that came out too low by the chance of
    who measured it would look like a gain, and choose itself. Errors as `check_enough`.
    """
    rng = np.random.default_rng(seed)
    check_enough(label_N, public_label_M)
    people = rng.permutation(np.unique(public_label_M))
    is_first_M = np.isin(public_label_M, people[: len(people) // 2])
    first, second = (_Public(public_MD[half_M], public_label_M[half_M]) for half_M in (is_first_M, ~is_first_M))
    rank_N = np.array([(label_N[:i] == label_N[i]).sum() for i in range(len(label_N))])
    turns = min(5, int(np.bincount(label_N).min()))
    scores: list[list[tuple[float, bool, bool]]] = [[] for _ in range(int(label_N.max()) + 1)]
    for turn in range(turns):
        out_N = rank_N % turns == turn
        branch = fit(own_ND[~out_N], label_N[~out_N], second.unit, spec)
        for k, results in enumerate(scores):
            at = _carried(branch, own_ND[~out_N & (label_N == k)], first, released_threshold, rng)
            results.extend(at.left_out(own_ND[out_N & (label_N == k)]))
    branch = fit(own_ND, label_N, first.unit, spec)
    final = [_carried(branch, own_ND[label_N == k], second, released_threshold, rng) for k in range(len(scores))]
    gains = np.array([gain for results in scores for gain, _, _ in results])
    error = float(gains.std(ddof=1) / math.sqrt(len(gains)))
    return Judgement(branch, tuple(map(_threshold, final, scores)), float(gains.mean()), error)


def template(unit_ND: Floats) -> Floats:
    """Return the normalised mean (D,) of one person's embeddings."""
    mean_D = unit_ND.mean(axis=0)
    unit: Floats = (mean_D / np.linalg.norm(mean_D)).astype(np.float32)
    return unit


def check_enough(label_N: Indices, public_label_M: Indices) -> None:
    """Raise ConfigError where a person has fewer than `MIN_IMAGES` pictures, or there are too few public people."""
    if int(np.bincount(label_N).min()) < MIN_IMAGES:
        raise ConfigError(
            f"a personal model needs {MIN_IMAGES} pictures of each person; enrol more with `enroll --add`"
        )
    num_public = len(np.unique(public_label_M))
    if num_public < MIN_PUBLIC_PEOPLE:
        raise ConfigError(
            f"a personal model needs public faces of {MIN_PUBLIC_PEOPLE} people, the released model brings "
            f"{num_public}; ask the operator to release it with more"
        )


@dataclass(frozen=True)
class _Public:
    """Public embeddings (M, D) of some people, and whose each is."""

    unit: Floats = field(repr=False)
    label: Indices = field(repr=False)


@dataclass(frozen=True)
class _Carried:
    """One person's template under both models, with threshold and spread of the non-mated scores under each."""

    branch: Branch
    template: Floats = field(repr=False)
    value: float
    spread: float
    released_value: float
    released_spread: float
    num_false: int
    num_public: int

    def left_out(self, unit_ND: Floats) -> list[tuple[float, bool, bool]]:
        """Return of each picture its gain, whether it is missed, and whether the released model misses it."""
        released_N = unit_ND @ self.template
        personal_N = self.branch(unit_ND) @ self.branch(self.template[None])[0]
        gain_N = (personal_N - self.value) / self.spread - (released_N - self.released_value) / self.released_spread
        missed = zip(gain_N, personal_N < self.value, released_N < self.released_value, strict=True)
        return [(float(gain), bool(own), bool(released)) for gain, own, released in missed]


def _carried(
    branch: Branch, own_ND: Floats, measure: _Public, released_threshold: float, rng: np.random.Generator
) -> _Carried:
    """Return one person's template under both models, with what their non-mated scores make of the threshold."""
    template_D = template(own_ND)
    released_M = measure.unit @ template_D
    personal_M = branch(measure.unit) @ branch(template_D[None])[0]
    value, num_false, num_public = carried_over(released_M, personal_M, measure.label, released_threshold, rng)
    spread, released_spread = float(personal_M.std()), float(released_M.std())
    return _Carried(branch, template_D, value, spread, released_threshold, released_spread, num_false, num_public)


def carried_over(
    released_M: Floats, personal_M: Floats, label_M: Indices, released_threshold: float, rng: np.random.Generator
) -> tuple[float, int, int]:
    """Return the threshold that lies among a person's non-mated scores where the released one lies among theirs.

    With it: how many of how many public people have a picture that scores at least that. Raises ConfigError where all
    score the same.
    """
    if min(float(released_M.std()), float(personal_M.std())) < _LEAST_SPREAD:
        raise ConfigError("the public faces all look alike to this model; ask the operator for other ones")
    people, person_M = np.unique(label_M, return_inverse=True)
    draws = []
    for _ in range(200):
        weight_M = np.bincount(rng.integers(len(people), size=len(people)), minlength=len(people))[person_M]
        (mean_r, spread_r), (mean_p, spread_p) = (_moments(scores, weight_M) for scores in (released_M, personal_M))
        draws.append(mean_p + (released_threshold - mean_r) / spread_r * spread_p)
    # Fewer than one false match is expected at a usual rate: none of the public faces may pass.
    value = min(1.0, max(float(np.quantile(draws, 0.95)), float(np.nextafter(personal_M.max(), np.float32(2)))))
    return value, len(np.unique(person_M[personal_M >= value])), len(people)


def _moments(score_M: Floats, weight_M: NDArray[np.int64]) -> tuple[float, float]:
    mean = float(np.average(score_M, weights=weight_M))
    return mean, max(_LEAST_SPREAD, math.sqrt(float(np.average((score_M - mean) ** 2, weights=weight_M))))


def _threshold(at: _Carried, results: Sequence[tuple[float, bool, bool]]) -> PersonalThreshold:
    return PersonalThreshold(
        at.value,
        at.num_false,
        at.num_public,
        upper_bound(at.num_false, at.num_public),
        sum(missed for _, missed, _ in results),
        sum(missed for _, _, missed in results),
        len(results),
    )
