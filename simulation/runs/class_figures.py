"""What a figure shows of a trained model beside its error rates, as aggregates: angles between classes, and a map.

Angles are counted over all pairs of clients' classes; a map is two numbers an image, and only of people who do not
exist: neither says what a person's embedding is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from mien.errors import MissingDependencyError
from mien.methods import fedface, fedgc
from mien.methods.base import Embeddings, ServerState
from mien.methods.spreadout import normalise
from simulation.engines.cohort import Cohort
from simulation.runs.experiment import MapKind

ANGLE_EDGES: Final = tuple(float(angle) for angle in range(0, 181, 2))
"""Degrees at which an angle's bin begins and ends."""

MAX_CLASSES: Final = 4000
"""Classes whose pairs are counted: the first by client's name."""

MAP_PEOPLE: Final = 12
"""People whom a map shows: the first of the tests."""


def class_angles(state: ServerState, cohort: Cohort) -> dict[str, Any]:
    """Return how often each angle lies between class embeddings of different clients (FedGC, Figure 3).

    Empty for a method without class embeddings, or for fewer than two clients that have any.
    """
    owners, rows = [], []
    for name, kept in sorted(cohort.private.items()):
        arrays = {**kept, **state.revealed.get(name, {})}
        found = arrays.get(fedface.W, arrays.get(fedgc.W))
        if found is not None:
            rows.append(np.atleast_2d(found))
            owners += [name] * len(rows[-1])
    if len(set(owners)) < 2:
        return {}
    w_CD = normalise(np.concatenate(rows)[:MAX_CLASSES].astype(np.float32))
    owner_C = np.unique(owners[:MAX_CLASSES], return_inverse=True)[1]
    counts = np.zeros(len(ANGLE_EDGES) - 1, np.int64)
    for i in range(len(w_CD) - 1):
        others = w_CD[i + 1 :][owner_C[i + 1 :] != owner_C[i]]
        degrees = np.degrees(np.arccos(np.clip(others @ w_CD[i], -1, 1)))
        counts += np.histogram(degrees, ANGLE_EDGES)[0]
    return {"edges_deg": list(ANGLE_EDGES), "counts": counts.tolist(), "classes": len(w_CD)}


def embedding_map(embeddings: Embeddings, labels: np.ndarray[Any, Any], kind: MapKind) -> Mapping[str, Any]:
    """Return two coordinates and a person's number for each image: by PCA, or by t-SNE.

    Empty for `kind` "none". The caller answers for the faces being nobody's. Raises MissingDependencyError for t-SNE
    without scikit-learn.
    """
    if kind == "none":
        return {}
    emb_ND = embeddings.astype(np.float64)
    flat = _tsne(emb_ND) if kind == "tsne" else _pca(emb_ND)
    points = [[round(float(x), 4), round(float(y), 4)] for x, y in flat]
    return {"kind": kind, "people": labels.tolist(), "points": points}


def _pca(emb_ND: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return coordinates along the two directions of largest variance, each direction's largest part positive."""
    centred = emb_ND - emb_ND.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = directions[:2]
    two = two * np.sign(two[np.arange(len(two)), np.abs(two).argmax(axis=1)])[:, None]
    flat = centred @ two.T
    return flat if flat.shape[1] == 2 else np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def _tsne(emb_ND: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingDependencyError("evaluation.map 'tsne' needs scikit-learn; install mien[simulation]") from error
    perplexity = min(30.0, max(2.0, (len(emb_ND) - 1) / 3))
    flat: np.ndarray[Any, Any] = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(emb_ND)
    return flat
