"""An attack's success at telling people apart: figures of one score matrix, and of the same under wrong names."""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from mien.errors import UndefinedMetricError
from mien.evaluation import Comparisons, det_curve
from mien.evaluation.verification import tar_at_fmr

TARGET_FMR: Final = 0.01
EXCHANGES: Final = 200
Matrix = NDArray[np.float64]
Members = NDArray[np.bool_]


def linkage(scores_SC: Matrix, member_SC: Members, rng: np.random.Generator) -> dict[str, float]:
    """Return how well scores (S things that the server holds, C candidates) find the people behind them.

    `member_SC` says whose data is in what. `auc` is the chance that a candidate who is in it scores above one who is
    not; `tar` the share of those who are, found at an FMR of 1 % (absent below 100 non-mated comparisons); `found` the
    share of them among the best n of n; `chance` what blind guessing finds. `control_auc` is the mean AUC when
    candidates' names are exchanged at random, which must be 0.5 or the measurement is at fault, and `control_auc_95`
    what one exchange in twenty exceeds: an AUC below it is no finding.
    """
    mated, non_mated = scores_SC[member_SC], scores_SC[~member_SC]
    exchanged = exchanged_aucs(scores_SC, member_SC, rng)
    figures = {
        "auc": auc(mated, non_mated),
        "found": found_among_best(scores_SC, member_SC),
        "control_auc": float(exchanged.mean()),
        "control_auc_95": float(np.quantile(exchanged, 0.95)),
        "chance": float(member_SC.mean()),
        "mated": float(member_SC.sum()),
        "non_mated": float((~member_SC).sum()),
    }
    with contextlib.suppress(UndefinedMetricError):  # below 100 non-mated comparisons the table says "not measured"
        figures["tar"] = tar_at_fmr(det_curve(Comparisons(mated, non_mated)), TARGET_FMR)
    return figures


def exchanged_aucs(scores_SC: Matrix, member_SC: Members, rng: np.random.Generator) -> Matrix:
    """Return the AUC under each of EXCHANGES random exchanges of the candidates' names, (EXCHANGES,)."""
    ranks_SC = rankdata(scores_SC).reshape(scores_SC.shape)  # tied scores share their rank
    num_mated = int(member_SC.sum())
    num_non_mated = member_SC.size - num_mated
    orders = [rng.permutation(member_SC.shape[1]) for _ in range(EXCHANGES)]
    sums = np.array([ranks_SC[member_SC[:, order]].sum() for order in orders])
    aucs: Matrix = (sums - num_mated * (num_mated + 1) / 2) / (num_mated * num_non_mated)
    return aucs


def auc(mated: Matrix, non_mated: Matrix) -> float:
    """Return the chance that a mated score exceeds a non-mated one, ties counting half."""
    num = len(mated)
    ranks = rankdata(np.concatenate([mated, non_mated]))
    return float(ranks[:num].sum() - num * (num + 1) / 2) / (num * len(non_mated))


def found_among_best(scores_SC: Matrix, member_SC: Members) -> float:
    """Return the share of members among the n best candidates of their row, n being the row's number of members.

    With one member a row that is the rank-1 identification rate.
    """
    hits = 0
    for scores_C, member_C in zip(scores_SC, member_SC, strict=True):
        best = np.argsort(-scores_C, kind="stable")[: int(member_C.sum())]
        hits += int(member_C[best].sum())
    return hits / int(member_SC.sum())


def cosines(first_ND: Matrix, second_MD: Matrix) -> Matrix:
    """Return the cosine of every row of the first with every row of the second, (N, M); a zero row scores 0."""
    return _unit(first_ND) @ _unit(second_MD).T


def _unit(rows_ND: Matrix) -> Matrix:
    unit: Matrix = rows_ND / np.maximum(np.linalg.norm(rows_ND, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return unit
