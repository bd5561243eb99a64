"""Release gates: evidence on a candidate and the released model in, reasons against the candidate out.

Legend: N samples, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from mien.errors import UndefinedMetricError
from mien.evaluation.intervals import bootstrap_difference
from mien.evaluation.scores import Comparisons, normalise
from mien.evaluation.verification import DetCurve, point_at_fmr
from mien.layout import Vector
from mien.specs import GateSpec

MIN_EXPECTED_ERRORS: Final = 30
"""Non-mated errors that a set must be expected to show before a false match rate is called measured on it.

With 30 the relative standard error of the rate is below 1/5 (Doddington's rule of 30 asks for as many: the true rate is
then within 30 % with 90 % confidence, for independent comparisons).
"""


@dataclass(frozen=True)
class Monitors:
    """Signs of collapse on one set: the mean cosine of different people, and how many directions embeddings use."""

    mean_non_mated: float
    effective_rank: float


@dataclass(frozen=True)
class SetEvidence:
    """Figures of one evaluation set for a candidate and its reference, the model that it would replace.

    `problem` says why the candidate has no figures there; without one they are all present. `chance` is the largest
    drop of TAR that a bootstrap by identity puts down to the choice of people, None where nobody asked for it.
    """

    name: str
    num_mated: int
    num_non_mated: int
    reference_tar: float
    reference: Monitors
    candidate_tar: float | None = None
    candidate: Monitors | None = None
    chance: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Evidence:
    """All that gates judge by; `change` is the candidate's distance from the reference, in norms of that one."""

    is_finite: bool
    change: float
    sets: tuple[SetEvidence, ...]


def is_measurable(fmr: float, num_non_mated: int) -> bool:
    """Return whether so many non-mated comparisons can measure a false match rate: 30 or more errors are expected."""
    return fmr * num_non_mated >= MIN_EXPECTED_ERRORS * (1 - 1e-9)  # 0.001 x 30000 counts as 30


def tar_at(curve: DetCurve, fmr: float) -> float:
    """Return the TAR at a false match rate; raises UndefinedMetricError where the set is too small to measure it."""
    if not is_measurable(fmr, curve.num_non_mated):
        raise UndefinedMetricError(
            f"FMR {fmr:g} needs {MIN_EXPECTED_ERRORS / fmr:.0f} non-mated comparisons or more, the set has "
            f"{curve.num_non_mated}; raise gates.fmr or add people"
        )
    return point_at_fmr(curve, fmr).tar


def monitors(embeddings: ArrayLike, comparisons: Comparisons) -> Monitors:
    """Return the monitors of a set's embeddings (N, D) and of all its comparisons."""
    return Monitors(float(np.mean(comparisons.non_mated, dtype=np.float64)), effective_rank(embeddings))


def effective_rank(embeddings: ArrayLike) -> float:
    """Return the effective rank of unit embeddings (N, D): exp of the entropy of their spectrum.

    The spectrum is that of the centred embeddings' covariance, normalised to sum 1; the result lies between 1 and
    min(N - 1, D), and is 0 where all embeddings are the same. Roy and Vetterli, EUSIPCO 2007 (on eigenvalues, which are
    variances, rather than singular values).
    """
    unit_ND = normalise(embeddings)
    variances = np.linalg.svd(unit_ND - unit_ND.mean(axis=0), compute_uv=False) ** 2
    total = float(variances.sum())
    if total < 1e-12 * unit_ND.shape[0]:
        return 0.0
    shares = variances[variances > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def drop_by_chance(reference: Comparisons, candidate: Comparisons, fmr: float, *, rng: np.random.Generator) -> float:
    """Return the largest drop of TAR at an FMR that is no evidence of a worse model, given the owners of the faces.

    Both hold the same comparisons in the same order. Identities are drawn again, the same ones for both models; a drop
    is put down to chance unless the 95 % interval of the difference lies below 0. So the allowance is the distance from
    the measured difference to that interval's upper end.
    """

    def tar(curve: DetCurve) -> float:
        return point_at_fmr(curve, fmr).tar

    difference, interval = bootstrap_difference(reference, candidate, tar, rng=rng, num_replicates=200)
    return max(interval.high - difference, 0.0)


def relative_change(reference: Vector, candidate: Vector) -> float:
    """Return the distance between two models' parameters, in norms of the first."""
    exact = reference.astype(np.float64)
    return float(np.linalg.norm(candidate.astype(np.float64) - exact) / max(float(np.linalg.norm(exact)), 1e-12))


def judge(gates: GateSpec, evidence: Evidence) -> tuple[str, ...]:
    """Return all reasons against releasing the candidate, in words; an empty tuple means that it passes.

    A figure that is not finite is none: whatever compares with it would say that nothing speaks against the candidate.
    """
    if not evidence.is_finite:
        return ("its parameters are not finite",)
    reasons = []
    if not math.isfinite(evidence.change):
        reasons.append("its distance from the released model was not measured: it is not a finite number")
    elif not evidence.change <= gates.max_change:
        reasons.append(
            f"it lies {evidence.change:.3g} norms of the released model away from it "
            f"(gates.max_change {gates.max_change:g})"
        )
    if not evidence.sets:
        reasons.append("no evaluation set was measured")
    for measured in evidence.sets:
        reasons += [f"on {measured.name}, {reason}" for reason in _against(gates, measured)]
    return tuple(reasons)


def _against(gates: GateSpec, measured: SetEvidence) -> Iterator[str]:
    if measured.problem or measured.candidate_tar is None or measured.candidate is None:
        yield measured.problem or "it has no figures"
        return
    if unmeasured := _not_finite(measured):
        yield f"it was not measured: not a finite number ({', '.join(unmeasured)})"
        return
    drop, allowed = measured.reference_tar - measured.candidate_tar, _allowed(gates, measured)
    if not drop <= allowed:
        yield (
            f"its TAR at FMR {gates.fmr:g} is {measured.candidate_tar:.4f}, the released model's "
            f"{measured.reference_tar:.4f}; a drop of {allowed:.4f} is allowed"
        )
    rise = measured.candidate.mean_non_mated - measured.reference.mean_non_mated
    if not rise <= gates.max_cosine_rise:
        yield (
            f"different people have become more alike: their mean cosine is {measured.candidate.mean_non_mated:.3f}, "
            f"the released model's {measured.reference.mean_non_mated:.3f} (gates.max_cosine_rise)"
        )
    rank, least = measured.candidate.effective_rank, gates.min_rank_share * measured.reference.effective_rank
    if not rank >= least:
        yield (
            f"embeddings have collapsed: their effective rank is {rank:.1f}, the released model's "
            f"{measured.reference.effective_rank:.1f} (gates.min_rank_share)"
        )


def _not_finite(measured: SetEvidence) -> list[str]:
    """Return the names of the figures of a set that are there and not finite."""
    figures: list[tuple[str, float | None]] = [
        ("reference_tar", measured.reference_tar),
        ("candidate_tar", measured.candidate_tar),
        ("chance", measured.chance),
    ]
    for whose, found in (("reference", measured.reference), ("candidate", measured.candidate)):
        if found is not None:
            figures += [(f"{whose}.mean_non_mated", found.mean_non_mated)]
            figures += [(f"{whose}.effective_rank", found.effective_rank)]
    return [name for name, figure in figures if figure is not None and not math.isfinite(figure)]


def _allowed(gates: GateSpec, measured: SetEvidence) -> float:
    """Return the drop of TAR that is put up with."""
    if gates.tolerance == "delta":
        return gates.delta
    chance = measured.chance or 0.0
    return chance if gates.tolerance == "interval" else max(gates.delta, chance)
