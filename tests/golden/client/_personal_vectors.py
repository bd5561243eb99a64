"""Personal models on the released backbone, judged and used or not, of made-up embeddings."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.methods.personal_branch import BranchSpec, judge
from mien.records import to_mapping

Json = dict[str, Any]
Floats = NDArray[np.float32]
DIM: Final = 12


def _pictures(people_KD: NDArray[np.float64], each: int, seed: int, noise: float) -> Floats:
    shown_ND = np.repeat(people_KD, each, axis=0)
    noisy_ND = shown_ND + noise * np.random.default_rng(seed).standard_normal(shown_ND.shape)
    return (noisy_ND / np.linalg.norm(noisy_ND, axis=1, keepdims=True)).astype(np.float32)


def _population(count: int, seed: int) -> NDArray[np.float64]:
    """Return people who have something in common and differ in some dimensions more than in others."""
    spread_D = np.exp(-0.2 * np.arange(DIM))
    return np.eye(DIM)[0] + np.random.default_rng(seed).standard_normal((count, DIM)) * spread_D


def _case(what: str, people: int, images: int, noise: float, *, num_public: int = 24, threshold: float = 0.8) -> Json:
    own_ND = _pictures(_population(people, seed=5), images, 6, noise)
    label_N = np.repeat(np.arange(people), images)
    public_MD = _pictures(_population(num_public, seed=7), 2, 8, noise)
    public_label_M = np.repeat(np.arange(num_public), 2)
    said = {
        "what": what,
        "own": own_ND.tobytes().hex(),
        "labels": label_N.tolist(),
        "public": public_MD.tobytes().hex(),
        "public_labels": public_label_M.tolist(),
        "threshold": threshold,
    }
    try:
        judged = judge(own_ND, label_N, public_MD, public_label_M, threshold, BranchSpec(), 0)
    except ConfigError:
        return said
    return said | {
        "is_better": judged.is_better,
        "gain": judged.gain,
        "gain_error": judged.gain_error,
        "thresholds": [to_mapping(each) for each in judged.thresholds],
        "weight": judged.branch.weight.tobytes().hex(),
        "bias": judged.branch.bias.tobytes().hex(),
    }


def personal() -> Json:
    """Return what becomes of several phones' people; a refused one has no result."""
    return {
        "dim": DIM,
        "phones": [
            _case("one person", 1, 6, 0.15),
            _case("two people", 2, 5, 0.15),
            _case("three people of three pictures each", 3, 3, 0.1),
            _case("pictures that have little in common", 1, 4, 0.9),
            _case("a threshold that few reach", 1, 7, 0.2, threshold=0.97),
            _case("two pictures are too few", 2, 2, 0.15),
            _case("too few public people", 1, 6, 0.15, num_public=19),
        ],
    }
