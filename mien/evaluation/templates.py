"""Several images into one template: enrolment means and the pooling of IJB-B and IJB-C.

Legend: N images, D dimensions, T templates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.scores import Labels, normalise


@dataclass(frozen=True, eq=False)
class Templates:
    """Unit templates (T, D) and whose or which each one is, (T,), in ascending order of `ids`."""

    ids: NDArray[Any]
    vectors: NDArray[np.float64] = field(repr=False)


def mean_templates(embeddings: ArrayLike, labels: Labels) -> Templates:
    """Return one template per label: the normalised mean of its normalised embeddings (N, D).

    Raises UndefinedMetricError where embeddings cancel out and leave no direction.
    """
    unit_ND = normalise(embeddings)
    ids, owner = _groups(labels, len(unit_ND))
    return Templates(ids, _directions(_sum_by(unit_ND, owner, ids.size)))


def pool_templates(
    embeddings: ArrayLike,
    template_ids: Labels,
    media_ids: Labels,
    *,
    keep_norm: bool = True,
    detector_scores: ArrayLike | None = None,
) -> Templates:
    """Return templates pooled as the IJB protocol's usual evaluation does: mean within a medium, sum over media.

    Images (N, D) of one template that share a medium (frames of one video) are averaged, the media vectors are summed
    without being normalised again, and the template is normalised. `keep_norm=False` normalises every image first;
    `detector_scores` (N,) weight images by detection confidence. Both change results, so reports name them. A template
    in whose images the detector found nothing at all (every score 0) is left out of `ids`: it failed to enrol.

    Raises ConfigError where a label or a score is missing, UndefinedMetricError where vectors cancel out.
    """
    image_ND = np.asarray(embeddings, dtype=np.float64)
    unit_ND = normalise(image_ND)
    if not keep_norm:
        image_ND = unit_ND
    ids, owner = _groups(template_ids, len(image_ND))
    _, medium = _groups(media_ids, len(image_ND))
    found = np.ones(ids.size, dtype=np.bool_)
    if detector_scores is not None:
        weights = np.asarray(detector_scores, dtype=np.float64)
        if weights.shape != (len(image_ND),) or not np.isfinite(weights).all() or (weights < 0).any():
            raise ConfigError("detector_scores must hold one finite weight, not negative, for each image")
        image_ND = image_ND * weights[:, None]
        found = np.bincount(owner, weights=weights, minlength=ids.size) > 0
    pairs, member = np.unique(np.stack([owner, medium], axis=1), axis=0, return_inverse=True)
    member = member.reshape(-1)
    media = _sum_by(image_ND, member, len(pairs)) / np.bincount(member, minlength=len(pairs))[:, None]
    return Templates(ids[found], _directions(_sum_by(media, pairs[:, 0], ids.size)[found]))


def _groups(labels: Labels, expected: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    ids, owner = np.unique(np.asarray(labels), return_inverse=True)
    owner = owner.reshape(-1)
    if owner.size != expected:
        raise ConfigError(f"{expected} embeddings but {owner.size} labels; give one label for each")
    return ids, owner.astype(np.int64)


def _sum_by(vectors: NDArray[np.float64], owner: NDArray[np.int64], num: int) -> NDArray[np.float64]:
    total = np.zeros((num, vectors.shape[1]))
    np.add.at(total, owner, vectors)
    return total


def _directions(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(vectors, axis=1)
    if (norms < 1e-12).any():
        raise UndefinedMetricError("the embeddings of a template cancel out and leave no direction; check its images")
    return np.asarray(vectors / norms[:, None], dtype=np.float64)
