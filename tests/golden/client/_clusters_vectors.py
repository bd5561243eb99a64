"""Pseudo labels of made-up embeddings, which phones of other languages find as Python does."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.clustering import Metric, c_finch, calibrated_distance, finch, pure_distance

Json = dict[str, Any]
DIM: Final = 40
METRICS: Final[tuple[Metric, ...]] = ("euclidean", "cosine")
DISTANCES: Final = (0.05, 0.4, 0.7, 0.9, 1.2, 2.0)


def _people(seed: int, num_people: int, num_images: int, spread: float) -> tuple[Vector, list[int]]:
    """Return embeddings around a direction for each person, in no order, and whose they are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((num_people, DIM)) / np.sqrt(DIM)
    labels = rng.permutation(np.repeat(np.arange(num_people), num_images))
    embeddings = centres[labels] + spread * rng.standard_normal((len(labels), DIM)) / np.sqrt(DIM)
    return embeddings.astype(np.float32), labels.tolist()


def _twins() -> tuple[Vector, list[int]]:
    """Return embeddings of which several are the same, so that the lowest of equals decides."""
    embeddings, labels = _people(3, 3, 2, 0.4)
    order = [0, 1, 2, 0, 3, 4, 5, 0, 4]
    return embeddings[order], [labels[i] for i in order]


def _mixed() -> tuple[Vector, list[int]]:
    """Return embeddings of which each is nearest to another person's, so that no distance joins people rightly."""
    embeddings, labels = _people(6, 4, 3, 0.02)
    number = dict.fromkeys(labels, 0)
    mixed = []
    for label in labels:
        mixed.append(number[label])
        number[label] += 1
    return embeddings, mixed


def clusters() -> Json:
    """Return labels by every level and distance, and the distances that labelled people give."""
    sets = {
        "people apart": _people(0, 5, 6, 0.3),
        "people close": _people(1, 9, 4, 0.9),
        "noise": _people(2, 1, 17, 3.0),
        "twins": _twins(),
        "people mixed": _mixed(),
        "two": _people(4, 2, 1, 0.1),
        "one": _people(5, 1, 1, 0.1),
    }
    return {"dim": DIM, "sets": [_found(what, *each) for what, each in sets.items()]}


def _found(what: str, embeddings: Vector, truth: list[int]) -> Json:
    hierarchy = finch(embeddings)
    return {
        "what": what,
        "embeddings": embeddings.tobytes().hex(),
        "truth": truth,
        "levels": [each.tolist() for each in hierarchy.partitions],
        "within": [
            {
                "metric": metric,
                "distance": distance,
                "max_levels": most,
                "labels": c_finch(embeddings, distance, metric=metric, max_levels=most).tolist(),
            }
            for metric in METRICS
            for distance in DISTANCES
            for most in (0, 1)
        ],
        "calibrated": [
            {
                "metric": metric,
                "max_levels": most,
                "distance": calibrated_distance(embeddings, np.array(truth), metric=metric, max_levels=most),
            }
            for metric in METRICS
            for most in (0, 1)
            if len(set(truth)) > 1 and len(set(truth)) < len(truth)
        ],
        "pure": [
            {
                "metric": metric,
                "max_levels": most,
                "purity": purity,
                "group_images": images,
                "distance": _pure(embeddings, truth, purity, images, metric, most),
            }
            for metric in METRICS
            for most in (0, 1)
            for purity in (0.25, 0.9, 1.0)
            for images in (0, 7)
            if len(set(truth)) > 1 and len(set(truth)) < len(truth)
        ],
    }


def _pure(embeddings: Vector, truth: list[int], purity: float, images: int, metric: Metric, most: int) -> float:
    """Return the largest pure distance, 0 where there is none."""
    try:
        return pure_distance(embeddings, np.array(truth), purity, group_images=images, metric=metric, max_levels=most)
    except ConfigError:
        return 0.0
