"""Per-client metrics of personal models: FedFR's personalised verification and identification.

Liu et al., FedFR (AAAI 2022), section 4. Every client is measured with its own model on all test images; figures are
then summarised over clients, and never by their mean alone, which hides a client for whom training made it worse.
Legend: N test images, G gallery images, D dimensions, L local identities.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.evaluation.identification import SearchResult, search
from mien.evaluation.scores import DEFAULT_BINS, Labels, ScoreHistogram, normalise, pairs_with_histogram
from mien.evaluation.templates import mean_templates

# The released code sorts cosines into bins int((cosine + 1) * 1000): these, and one for a cosine of exactly 1.
_FEDFR_BINS: Final = 2000


@dataclass(frozen=True)
class OverClients:
    """One figure over clients: its mean and its spread."""

    mean: float
    minimum: float
    median: float
    maximum: float
    num_clients: int

    @classmethod
    def of(cls, values: Sequence[float]) -> OverClients:
        """Return the summary; raises UndefinedMetricError without clients, NonFiniteError for NaN or infinity."""
        if not values:
            raise UndefinedMetricError("no client was measured, so there is nothing to summarise")
        if not all(map(math.isfinite, values)):
            raise NonFiniteError("a client's figure is NaN or infinite; measure it again")
        return cls(statistics.fmean(values), min(values), statistics.median(values), max(values), len(values))


def personalised_verification(
    embeddings: ArrayLike, labels: Labels, local: Collection[str] | Collection[int], *, bins: int = DEFAULT_BINS
) -> ScoreHistogram:
    """Return one client's comparisons: its own identities' images against all test images, each pair once.

    `embeddings` (N, D) are all test images under the client's own model, `labels` (N,) their identities, `local` the
    client's. Read rates off `det_curve` of the result. With 100 of 4000 identities and 40 images each these are 78,000
    mated and 631,920,000 non-mated comparisons.
    """
    return pairs_with_histogram(embeddings, labels, _is_local(labels, local), bins=bins)


def personalised_search(
    embeddings: ArrayLike,
    labels: Labels,
    gallery_embeddings: ArrayLike,
    gallery_labels: Labels,
) -> SearchResult:
    """Return one client's open-set search in its own gallery: the standard form, with rank 1 and non-mated probes.

    The gallery holds one template per local identity, the normalised mean of its images (G, D); probes are all test
    images, those of other clients' people being non-mated. Where the gallery images were trained on, say so beside the
    result.
    """
    templates = mean_templates(gallery_embeddings, gallery_labels)
    return search(embeddings, labels, templates.vectors, templates.ids)


def fedfr_tpr_at_fpr(
    embeddings: ArrayLike, labels: Labels, local: Collection[str] | Collection[int], targets: Sequence[float]
) -> tuple[float, ...]:
    """Return TPR at each FPR as FedFR's released code has it: cosines in bins of 0.001, ROC interpolated linearly.

    For comparison with published tables only. Points of the ROC lie at the bins' lower edges; below 1 / non-mated the
    line to (0, 0) is read, so a number comes out where nothing was measured. One deviation: a cosine of exactly 1
    shares the bin below it, where the code gives it a bin of its own.
    """
    histogram = personalised_verification(embeddings, labels, local, bins=_FEDFR_BINS)
    if not histogram.mated.sum() or not histogram.non_mated.sum():
        raise UndefinedMetricError("a client needs mated and non-mated comparisons; add test images")
    fpr = np.append(0.0, histogram.non_mated[::-1].cumsum() / histogram.non_mated.sum())
    tpr = np.append(0.0, histogram.mated[::-1].cumsum() / histogram.mated.sum())
    return tuple(float(np.interp(target, fpr, tpr)) for target in targets)


def fedfr_pr_at_far(
    embeddings: ArrayLike,
    labels: Labels,
    gallery_embeddings: ArrayLike,
    gallery_labels: Labels,
    targets: Sequence[float],
) -> tuple[float, ...]:
    """Return "PR" at each "FAR" as FedFR's released code has it.

    For comparison with published tables only. The gallery row of a local identity is the mean of its normalised
    embeddings, not normalised again. All scores of a probe (N) with another identity's row (L) are flattened; the
    threshold for x is the k-th largest of them, k = ceil(N x), and PR the share of local probes whose own row scores
    above it. So x is per probe, not per comparison, and a probe that is ranked second still counts.
    """
    unit_ND, label_N = normalise(embeddings), np.asarray(labels)
    rows_LD, owner_L = _unnormalised_means(normalise(gallery_embeddings), np.asarray(gallery_labels))
    scores_NL = unit_ND @ rows_LD.T
    own_NL = label_N[:, None] == owner_L[None, :]
    genuine, others = scores_NL[own_NL], np.sort(scores_NL[~own_NL])[::-1]
    if not genuine.size or not others.size:
        raise UndefinedMetricError("a client needs local probes and scores with other identities; add test images")
    rates = []
    for target in targets:
        k = math.ceil(round(label_N.size * target, 9))
        if not 1 <= k <= others.size:
            raise ConfigError(
                f"target {target} asks for rank {k} of {others.size} scores; it must lie above 0 and not above "
                f"{others.size / label_N.size:g}"
            )
        rates.append(float((genuine > others[k - 1]).mean()))
    return tuple(rates)


def _is_local(labels: Labels, local: Collection[str] | Collection[int]) -> NDArray[np.bool_]:
    array = np.asarray(labels)
    wanted = np.asarray(sorted(local))
    missing = [name for name in wanted.tolist() if not (array == name).any()]
    if missing or not wanted.size:
        raise ConfigError(f"{len(missing)} of the client's {wanted.size} identities have no test image; check labels")
    return np.isin(array, wanted)


def _unnormalised_means(
    unit_GD: NDArray[np.float64], label_G: NDArray[np.generic]
) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    if label_G.shape != unit_GD.shape[:1]:
        raise ConfigError("give one label for each gallery embedding")
    owners = np.unique(label_G)
    return np.stack([unit_GD[label_G == owner].mean(axis=0) for owner in owners]), owners
