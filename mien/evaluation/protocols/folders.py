"""A fixed sample of pairs from any labelled set, the same on every machine and with every library version.

Order comes from SHA-256 of (seed, key), not from a random generator whose stream a library may change.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.scores import Comparisons, pair_scores

PROTOCOL: Final = "folders-fixed-pairs"
VERSION: Final = "1"

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class PairSample:
    """Pairs of samples by index: `first`, `second` (P,), `mated` (P,), and each pair's identities, (P, 2)."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    mated: NDArray[np.bool_]
    subjects: NDArray[np.int64]
    seed: int

    @property
    def used(self) -> NDArray[np.int64]:
        """Indices of the samples that some pair needs, ascending: only these have to be embedded."""
        return np.unique(np.concatenate([self.first, self.second]))

    def score(self, embeddings: ArrayLike) -> Comparisons:
        """Return the comparisons of these pairs; `embeddings` (N, D) covers all samples, unused rows may be zero."""
        emb_ND = np.asarray(embeddings)
        scores = pair_scores(emb_ND[self.first], emb_ND[self.second])
        return Comparisons(
            scores[self.mated], scores[~self.mated], self.subjects[self.mated, 0], self.subjects[~self.mated]
        )


def sample_pairs(
    keys: Sequence[str], labels: Sequence[str], *, num_mated: int, num_non_mated: int, seed: int
) -> PairSample:
    """Return a fixed sample of mated and non-mated pairs, no pair twice.

    `keys` name the samples (relative paths, each once), `labels` their identities. Mated pairs are spread over the
    identities: each gives one pair before any gives its second. Non-mated pairs use all samples equally often. The
    result depends on keys, labels and seed only, not on their order in the lists.
    Raises UndefinedMetricError if the set has fewer such pairs than asked for.
    """
    if len(keys) != len(labels) or len(set(keys)) != len(keys):
        raise ConfigError("give every sample one label and a key of its own")
    if num_mated < 0 or num_non_mated < 0:
        raise ConfigError("num_mated and num_non_mated count pairs; they cannot be negative")
    order = sorted(range(len(keys)), key=lambda i: _rank(seed, "sample", keys[i]))
    by_label: dict[str, list[int]] = {}
    for i in order:
        by_label.setdefault(labels[i], []).append(i)
    identities = sorted(by_label, key=lambda label: _rank(seed, "identity", label))
    mated = list(itertools.islice(_in_turn([_ring(by_label[label]) for label in identities]), num_mated))
    across = (pair for pair in _ring(order) if labels[pair[0]] != labels[pair[1]])
    non_mated = list(itertools.islice(across, num_non_mated))
    for found, wanted, kind in ((mated, num_mated, "mated"), (non_mated, num_non_mated, "non-mated")):
        if len(found) < wanted:
            raise UndefinedMetricError(f"the set has only {len(found)} {kind} pairs, {wanted} were asked for")
    number = {label: i for i, label in enumerate(sorted(by_label))}
    pairs = np.array(mated + non_mated, dtype=np.int64).reshape(-1, 2)
    subjects = np.array([[number[labels[i]], number[labels[j]]] for i, j in pairs], dtype=np.int64).reshape(-1, 2)
    return PairSample(pairs[:, 0], pairs[:, 1], np.arange(len(pairs)) < num_mated, subjects, seed)


def _rank(seed: int, kind: str, key: str) -> bytes:
    """Return the digest that places `key` in the order of this seed."""
    return hashlib.sha256(f"{seed}\0{kind}\0{key}".encode()).digest()


def _ring(items: Sequence[T]) -> Iterator[tuple[T, T]]:
    """Yield every unordered pair once: neighbours on a ring first, then those two apart, and so on."""
    num = len(items)
    for step in range(1, num // 2 + 1):
        for i in range(num // 2 if 2 * step == num else num):
            yield items[i], items[(i + step) % num]


def _in_turn(sources: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yield one item of each source, then the next of each, until all are empty."""
    waiting = list(sources)
    while waiting:
        still: list[Iterator[T]] = []
        for source in waiting:
            for item in itertools.islice(source, 1):
                yield item
                still.append(source)
        waiting = still
