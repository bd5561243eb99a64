"""Comparison scores: cosines of L2-normalised embeddings, kept apart as mated and non-mated.

Legend: N samples, D dimensions, P pairs, M mated comparisons, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError

Scores = NDArray[np.floating[Any]]
Labels = Sequence[str] | Sequence[int] | NDArray[Any]

MAX_COMPARISONS: Final = 100_000_000
DEFAULT_BINS: Final = 2**20
_BLOCK: Final = 1024
_ROUNDING: Final = 1e-5


@dataclass(frozen=True, eq=False)
class Comparisons:
    """Scores of mated (M,) and non-mated (N,) comparisons, and whom each one compares.

    `mated_subjects` (M,) and `non_mated_subjects` (N, 2) hold identity numbers from one numbering; they are needed only
    for intervals by identity. Either set may be empty here: the metrics refuse it, not the container.
    Raises NonFiniteError for NaN or infinity, ConfigError for shapes that do not belong together.
    """

    mated: Scores = field(repr=False)
    non_mated: Scores = field(repr=False)
    mated_subjects: NDArray[np.int64] | None = field(default=None, repr=False)
    non_mated_subjects: NDArray[np.int64] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mated", _score_array(self.mated, "mated"))
        object.__setattr__(self, "non_mated", _score_array(self.non_mated, "non-mated"))
        if (self.mated_subjects is None) != (self.non_mated_subjects is None):
            raise ConfigError("comparisons name the subjects of only one of the two sets; give both or neither")
        if self.mated_subjects is not None and self.mated_subjects.shape != self.mated.shape:
            raise ConfigError("mated_subjects must hold one identity for each mated score")
        if self.non_mated_subjects is not None and self.non_mated_subjects.shape != (self.num_non_mated, 2):
            raise ConfigError("non_mated_subjects must hold two identities for each non-mated score")

    @property
    def num_mated(self) -> int:
        """Number of mated comparisons."""
        return int(self.mated.size)

    @property
    def num_non_mated(self) -> int:
        """Number of non-mated comparisons."""
        return int(self.non_mated.size)


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """Number of mated and non-mated scores in each of B equal bins of [-1, 1]: an addend.

    Bin b holds the scores s with `edges[b] <= s < edges[b + 1]`; a score of exactly 1 is in the last one. Histograms of
    many devices, or of many blocks of one comparison matrix, sum to the histogram of all of them.
    """

    mated: NDArray[np.int64]
    non_mated: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.mated.ndim != 1 or self.mated.shape != self.non_mated.shape or self.mated.size < 2:
            raise ConfigError("a score histogram needs two equally long rows of at least 2 bins")
        if self.mated.min() < 0 or self.non_mated.min() < 0:
            raise ConfigError("a score histogram holds a negative count; only sums of counts belong in it")

    @classmethod
    def empty(cls, bins: int = DEFAULT_BINS) -> ScoreHistogram:
        """Return the histogram of no scores."""
        return cls(np.zeros(bins, np.int64), np.zeros(bins, np.int64))

    @classmethod
    def of(cls, comparisons: Comparisons, bins: int = DEFAULT_BINS) -> ScoreHistogram:
        """Return the histogram of these comparisons."""
        return cls(_counts(comparisons.mated, bins), _counts(comparisons.non_mated, bins))

    def __add__(self, other: ScoreHistogram) -> ScoreHistogram:
        if self.mated.size != other.mated.size:
            raise ConfigError(
                f"histograms have {self.mated.size} and {other.mated.size} bins; only histograms with equal bins sum"
            )
        return ScoreHistogram(self.mated + other.mated, self.non_mated + other.non_mated)

    @property
    def edges(self) -> NDArray[np.float64]:
        """Bin boundaries, (B + 1,) from -1 to 1."""
        return _edges(self.mated.size)


def normalise(embeddings: ArrayLike) -> NDArray[np.float64]:
    """Return embeddings (N, D) scaled to length 1, in float64.

    Raises NonFiniteError for NaN or infinity and UndefinedMetricError for a zero vector, which has no direction.
    """
    emb_ND = np.asarray(embeddings, dtype=np.float64)
    if emb_ND.ndim != 2 or emb_ND.shape[1] == 0:
        raise ConfigError(f"embeddings have shape {emb_ND.shape}; give one row per sample, (N, D)")
    if not np.isfinite(emb_ND).all():
        raise NonFiniteError("an embedding holds NaN or infinity; check the model and its input before measuring")
    norms_N = np.linalg.norm(emb_ND, axis=1)
    if (norms_N == 0).any():
        raise UndefinedMetricError("an embedding is the zero vector and has no cosine; count it as a failure to enrol")
    return np.asarray(emb_ND / norms_N[:, None], dtype=np.float64)


def pair_scores(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Return the cosine of each row of `first` (P, D) with the same row of `second` (P, D), within [-1, 1]."""
    first_PD, second_PD = normalise(first), normalise(second)
    if first_PD.shape != second_PD.shape:
        raise ConfigError(f"pairs have shapes {first_PD.shape} and {second_PD.shape}; they must be equal")
    scores: NDArray[np.float64] = np.einsum("pd,pd->p", first_PD, second_PD)
    return np.clip(scores, -1.0, 1.0)


def all_pairs(
    embeddings: ArrayLike,
    labels: Labels,
    *,
    keep_subjects: bool = False,
    max_comparisons: int = MAX_COMPARISONS,
) -> Comparisons:
    """Return the scores of every unordered pair of distinct samples: mated where the labels are equal.

    `embeddings` is (N, D), `labels` has N entries. Scores are float32, in no particular order; no sample meets itself.
    Memory is the result (4 bytes a score, 20 with subjects) and one block of 1024 x 1024. Beyond `max_comparisons`
    pairs it raises ConfigError: use `all_pairs_histogram`, whose memory does not grow.
    """
    unit_ND, label_N = _labelled(embeddings, labels)
    num_all = label_N.size * (label_N.size - 1) // 2
    if num_all > max_comparisons:
        raise ConfigError(
            f"{label_N.size} samples make {num_all} pairs, more than {max_comparisons}; "
            "use all_pairs_histogram or a smaller set"
        )
    sizes = np.bincount(label_N).astype(np.int64)
    num_mated = int((sizes * (sizes - 1) // 2).sum())
    mated, non_mated = np.empty(num_mated, np.float32), np.empty(num_all - num_mated, np.float32)
    mated_ids = np.empty(num_mated if keep_subjects else 0, np.int64)
    non_mated_ids = np.empty((num_all - num_mated if keep_subjects else 0, 2), np.int64)
    m = n = 0
    for block in _blocks(unit_ND, label_N):
        k, j = int(block.same.sum()), int(block.other.sum())
        mated[m : m + k], non_mated[n : n + j] = block.scores[block.same], block.scores[block.other]
        if keep_subjects:
            mated_ids[m : m + k] = block.subjects(block.same)[:, 0]
            non_mated_ids[n : n + j] = block.subjects(block.other)
        m, n = m + k, n + j
    return Comparisons(mated, non_mated, *((mated_ids, non_mated_ids) if keep_subjects else (None, None)))


def all_pairs_histogram(embeddings: ArrayLike, labels: Labels, *, bins: int = DEFAULT_BINS) -> ScoreHistogram:
    """Return the histogram of every unordered pair of distinct samples, in memory that does not grow with the pairs.

    Same comparisons as `all_pairs`; with the default bins a threshold read off it is at most 2e-6 too strict.
    """
    return _histogram(*_labelled(embeddings, labels), None, bins)


def pairs_with_histogram(
    embeddings: ArrayLike, labels: Labels, chosen: NDArray[np.bool_], *, bins: int = DEFAULT_BINS
) -> ScoreHistogram:
    """Return the histogram of every unordered pair of distinct samples of which at least one is `chosen` (N,)."""
    unit_ND, label_N = _labelled(embeddings, labels)
    _check_chosen(chosen, label_N)
    order = np.argsort(~chosen, kind="stable")
    return _histogram(unit_ND[order], label_N[order], int(chosen.sum()), bins)


def all_pairs_among(embeddings: ArrayLike, labels: Labels, chosen: NDArray[np.bool_]) -> Comparisons:
    """Return those of `all_pairs`' scores that compare two `chosen` (N,) samples, to the last bit as they are there."""
    unit_ND, label_N = _labelled(embeddings, labels)
    _check_chosen(chosen, label_N)
    mated, non_mated = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for block in _blocks(unit_ND, label_N):
        both = chosen[block.rows, None] & chosen[None, block.columns]
        mated.append(block.scores[block.same & both])
        non_mated.append(block.scores[block.other & both])
    return Comparisons(np.concatenate(mated), np.concatenate(non_mated))


@dataclass(frozen=True, eq=False)
class ErrorsByPerson:
    """Errors of every comparison of a set at one threshold, by whom they are of: any group of people can sum them up.

    People are numbered as the labels were. `num_samples` (I,) and `num_missed` (I,) count a person's samples and false
    non-matches; `pairs` (P, 2) are the two people, the lower number first, of `num_false_matches` (P,), each pair once.
    """

    num_samples: NDArray[np.int64] = field(repr=False)
    num_missed: NDArray[np.int64] = field(repr=False)
    pairs: NDArray[np.int64] = field(repr=False)
    num_false_matches: NDArray[np.int64] = field(repr=False)


def errors_by_person(
    embeddings: ArrayLike, labels: NDArray[np.int64], threshold: float, *, num_people: int
) -> ErrorsByPerson:
    """Return the errors of all unordered pairs of distinct samples (N,) at a threshold, the scores as in `all_pairs`.

    `labels` (N,) are numbers below `num_people` (I).
    """
    unit_ND, _ = _labelled(embeddings, labels)
    label_N = np.asarray(labels, np.int64)
    if label_N.size and not 0 <= label_N.min() <= label_N.max() < num_people:
        raise ConfigError(f"labels must lie between 0 and {num_people - 1}, the number of the last person")
    exact = np.float64(threshold)  # a plain float would be rounded to the scores' own precision first
    missed_I = np.zeros(num_people, np.int64)
    found = [np.empty(0, np.int64)]
    for block in _blocks(unit_ND, label_N):
        accepted = block.scores >= exact
        np.add.at(missed_I, block.subjects(block.same & ~accepted)[:, 0], 1)
        two = np.sort(block.subjects(block.other & accepted), axis=1)
        found.append(two[:, 0] * num_people + two[:, 1])
    keys_P, counts_P = np.unique(np.concatenate(found), return_counts=True)
    pairs_P2 = np.stack([keys_P // num_people, keys_P % num_people], axis=1)
    return ErrorsByPerson(
        np.bincount(label_N, minlength=num_people).astype(np.int64), missed_I, pairs_P2, counts_P.astype(np.int64)
    )


def _check_chosen(chosen: NDArray[np.bool_], label_N: NDArray[np.int64]) -> None:
    if chosen.shape != label_N.shape or chosen.dtype != np.bool_:
        raise ConfigError("chosen must hold one bool for each sample")


def _histogram(
    unit_ND: NDArray[np.float32], label_N: NDArray[np.int64], num_rows: int | None, bins: int
) -> ScoreHistogram:
    mated, non_mated = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for block in _blocks(unit_ND, label_N, num_rows):
        mated += _counts(block.scores[block.same], bins)
        non_mated += _counts(block.scores[block.other], bins)
    return ScoreHistogram(mated, non_mated)


@dataclass(frozen=True, eq=False)
class _Block:
    """One block of the comparison matrix: scores, and where they are mated (`same`) and non-mated (`other`)."""

    scores: NDArray[np.float32] = field(repr=False)
    same: NDArray[np.bool_]
    other: NDArray[np.bool_]
    row_labels: NDArray[np.int64]
    column_labels: NDArray[np.int64]
    rows: slice
    columns: slice

    def subjects(self, where: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the two identities of each comparison at `where`, (P, 2)."""
        rows, columns = np.nonzero(where)
        return np.stack([self.row_labels[rows], self.column_labels[columns]], axis=1)


def rows_of_each(labels: Labels) -> list[NDArray[np.int64]]:
    """Return the rows of each identity of `labels` (N,), rows in their order, identities in theirs; in O(N log N)."""
    label_N = np.asarray(labels)
    if not label_N.size:
        return []
    order = np.argsort(label_N, kind="stable")
    return np.split(order, np.flatnonzero(label_N[order][1:] != label_N[order][:-1]) + 1)


def _labelled(embeddings: ArrayLike, labels: Labels) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return unit embeddings in float32 and labels numbered from 0."""
    unit_ND = normalise(embeddings).astype(np.float32)
    numbers = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1).astype(np.int64)
    if numbers.size != unit_ND.shape[0]:
        raise ConfigError(f"{unit_ND.shape[0]} embeddings but {numbers.size} labels; give one label for each")
    return unit_ND, numbers


def _blocks(unit_ND: NDArray[np.float32], label_N: NDArray[np.int64], num_rows: int | None = None) -> Iterator[_Block]:
    """Yield the comparison matrix above its diagonal, block by block: every unordered pair once.

    With `num_rows`, only pairs with at least one of the first `num_rows` samples.
    """
    stop = label_N.size if num_rows is None else num_rows
    for top in range(0, stop, _BLOCK):
        for left in range(top, label_N.size, _BLOCK):
            rows, columns = slice(top, min(top + _BLOCK, stop)), slice(left, left + _BLOCK)
            scores = np.clip(unit_ND[rows] @ unit_ND[columns].T, -1.0, 1.0)
            same = label_N[rows, None] == label_N[None, columns]
            other = ~same
            if top == left:
                same, other = np.triu(same, k=1), np.triu(other, k=1)
            yield _Block(scores, same, other, label_N[rows], label_N[columns], rows, columns)


def _score_array(scores: ArrayLike, what: str) -> Scores:
    array = np.asarray(scores)
    if not np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
    if array.ndim != 1:
        raise ConfigError(f"{what} scores have shape {array.shape}; give a flat row of scores")
    if not np.isfinite(array).all():
        raise NonFiniteError(f"a {what} score is NaN or infinite; score failed samples -1 and count them instead")
    return array


def _counts(scores: Scores, bins: int) -> NDArray[np.int64]:
    """Return the number of scores in each of `bins` bins of [-1, 1]."""
    if scores.size and (scores.min() < -1 - _ROUNDING or scores.max() > 1 + _ROUNDING):
        raise ConfigError("a score lies outside [-1, 1]; histograms hold cosines only")
    exact, edges = np.clip(scores.astype(np.float64), -1.0, 1.0), _edges(bins)
    index = np.minimum(((exact + 1.0) * (bins / 2.0)).astype(np.int64), bins - 1)
    # The product rounds: a score next to an edge may have landed on its wrong side.
    index -= exact < edges[index]
    index += (exact >= edges[index + 1]) & (index < bins - 1)
    return np.bincount(index, minlength=bins).astype(np.int64)


def _edges(bins: int) -> NDArray[np.float64]:
    return np.linspace(-1.0, 1.0, bins + 1, dtype=np.float64)
