"""Labeled Faces in the Wild: pair lists and ten-fold verification accuracy (View 2).

Huang et al., Labeled Faces in the Wild, UMass Amherst TR 07-49; the list format is its `pairs.txt`. Accuracy is that of
the unrestricted-with-labelled-outside-data setting: a fold's threshold comes from the other folds and no parameter is
fitted to the test pairs. Legend: S samples, D dimensions, P pairs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, CorruptDataError
from mien.evaluation.intervals import Interval, bootstrap_by_identity, student_t
from mien.evaluation.kfold import FoldAccuracy, kfold_accuracy
from mien.evaluation.records import MetricRecord, Provenance
from mien.evaluation.scores import Comparisons, normalise
from mien.evaluation.verification import DetCurve, OperatingPoint, det_curve, point_at_fmr, tar_at_fmrs

PROTOCOL: Final = "lfw-view2-10fold"
VERSION: Final = "1"
FAILED_SCORE: Final = -1.0

_NAME: Final = re.compile(r"[^\s/\\.][^\s/\\]*")


class LfwSample(NamedTuple):
    """One photograph: a person's name and the photograph's number, from 1."""

    name: str
    number: int

    @property
    def path(self) -> str:
        """Relative path in the data set's own folder layout."""
        return f"{self.name}/{self.name}_{self.number:04d}.jpg"


class LfwPair(NamedTuple):
    """Two photographs to compare; mated iff they show the same person."""

    first: LfwSample
    second: LfwSample

    @property
    def mated(self) -> bool:
        """True if both photographs carry one name."""
        return self.first.name == self.second.name


@dataclass(frozen=True)
class PairList:
    """A pair list in file order, with the number of its folds and the SHA-256 of its text."""

    pairs: tuple[LfwPair, ...] = field(repr=False)
    num_folds: int
    sha256: str

    @cached_property
    def samples(self) -> tuple[LfwSample, ...]:
        """Every photograph that some pair needs, once, in order of first use."""
        return tuple(dict.fromkeys(sample for pair in self.pairs for sample in pair))

    @cached_property
    def mated(self) -> NDArray[np.bool_]:
        """True where a pair is mated, (P,)."""
        return np.array([pair.mated for pair in self.pairs])

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        """Fold of each pair, (P,) from 0."""
        return np.repeat(np.arange(self.num_folds), len(self.pairs) // self.num_folds)

    def subset(self, indices: Sequence[int]) -> PairList:
        """Return the pairs at `indices` as a list of one fold; its hash stays that of the whole text."""
        return PairList(tuple(self.pairs[i] for i in indices), 1, self.sha256)


@dataclass(frozen=True, eq=False)
class PairScores:
    """Cosine of each pair (P,), with `FAILED_SCORE` and a flag where a sample of the pair has no template."""

    pairs: PairList
    scores: NDArray[np.float64] = field(repr=False)
    failed: NDArray[np.bool_]
    num_failed_samples: int

    @property
    def distances(self) -> NDArray[np.float64]:
        """Squared Euclidean distance of the unit embeddings, (P,): 2 - 2 cosine, 4 for failed pairs."""
        return 2.0 - 2.0 * self.scores

    def comparisons(self, *, system_level: bool = False) -> Comparisons:
        """Return all pairs pooled, with subjects; without `system_level` failed pairs are dropped."""
        use = np.ones_like(self.failed) if system_level else ~self.failed
        names = {name: i for i, name in enumerate(dict.fromkeys(s.name for s in self.pairs.samples))}
        subjects = np.array([[names[a.name], names[b.name]] for a, b in self.pairs.pairs], dtype=np.int64)
        mated, non_mated = use & self.pairs.mated, use & ~self.pairs.mated
        return Comparisons(self.scores[mated], self.scores[non_mated], subjects[mated, 0], subjects[non_mated])


@dataclass(frozen=True)
class LfwResult:
    """Ten-fold accuracy twice: on pairs that have templates, and on all pairs with failures counted as rejections.

    `num_fte` samples of `num_samples` gave no template; `algorithm` leaves out the pairs that need them, `system`
    scores them -1, so that a failed mated pair is an error and a failed non-mated pair is not.
    """

    algorithm: FoldAccuracy
    system: FoldAccuracy
    scores: PairScores = field(repr=False)
    num_samples: int
    num_fte: int

    def records(self, provenance: Provenance, *, rng: np.random.Generator | None = None) -> tuple[MetricRecord, ...]:
        """Return the accuracies at both levels and the pooled TAR at each FMR that the pairs can resolve.

        Accuracies carry an interval from the folds' standard error; with `rng`, TARs carry one by identity.
        """
        comparisons = self.scores.comparisons()
        points = [p for p in tar_at_fmrs(det_curve(comparisons)) if isinstance(p, OperatingPoint)]
        return (
            self._accuracy("accuracy_algorithm_level", self.algorithm, provenance),
            self._accuracy("accuracy_system_level", self.system, provenance),
            *(self._tar(point, comparisons, provenance, rng) for point in points),
        )

    def _accuracy(self, metric: str, folds: FoldAccuracy, provenance: Provenance) -> MetricRecord:
        reach = student_t(len(folds.accuracies) - 1) * folds.standard_error
        method = f"Student's t, from the standard error over {len(folds.accuracies)} folds"
        return MetricRecord(
            metric=metric,
            value=folds.mean,
            protocol=PROTOCOL,
            protocol_version=VERSION,
            num_mated=folds.num_mated,
            num_non_mated=folds.num_non_mated,
            num_fte=self.num_fte,
            provenance=provenance,
            threshold=1.0 - folds.mean_threshold / 2.0,
            interval=Interval(max(0.0, folds.mean - reach), min(1.0, folds.mean + reach), 0.95, method),
            details={
                "num_folds": len(folds.accuracies),
                "std_population": folds.std_population,
                "standard_error": folds.standard_error,
                "mean_distance_threshold": folds.mean_threshold,
            },
        )

    def _tar(
        self,
        point: OperatingPoint,
        comparisons: Comparisons,
        provenance: Provenance,
        rng: np.random.Generator | None,
    ) -> MetricRecord:
        def tar(curve: DetCurve) -> float:
            return point_at_fmr(curve, point.target_fmr or 1.0).tar

        return MetricRecord(
            metric="tar_at_fmr_pooled",
            value=point.tar,
            protocol=PROTOCOL,
            protocol_version=VERSION,
            num_mated=point.num_mated,
            num_non_mated=point.num_non_mated,
            num_fte=self.num_fte,
            provenance=provenance,
            threshold=point.threshold,
            target_fmr=point.target_fmr,
            interval=bootstrap_by_identity(comparisons, tar, rng=rng) if rng is not None else None,
            details={"achieved_fmr": point.fmr},
        )


def parse_pairs(text: str) -> PairList:
    """Return the pair list in the text of a `pairs.txt`, checked line by line.

    The header is `folds pairs` or `pairs` (one fold), where `pairs` counts the mated lines `name i j` and again the
    non-mated lines `name i other j` that follow them in each fold. Raises CorruptDataError that names the line for
    anything else: a wrong number of fields or lines, a number below 1, a sample paired with itself, a non-mated line of
    one name.
    """
    lines = text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    num_folds, per_kind = _header(lines[0] if lines else "")
    expected = 1 + num_folds * 2 * per_kind
    if len(lines) != expected:
        raise CorruptDataError(
            f"pair list has {len(lines)} lines, its header announces {expected}; fetch the list again"
        )
    pairs = tuple(
        _pair(line, number, mated=(number - 2) % (2 * per_kind) < per_kind) for number, line in enumerate(lines[1:], 2)
    )
    return PairList(pairs, num_folds, hashlib.sha256(text.encode()).hexdigest())


def score_pairs(
    pairs: PairList, samples: Sequence[LfwSample], embeddings: ArrayLike, *, failed: Collection[LfwSample] = ()
) -> PairScores:
    """Return the cosine of every pair.

    `embeddings` (S, D) belong to `samples`; adding the mirrored image's embedding is done before. `failed` names the
    samples of which no template could be made. Raises ConfigError if a sample that a pair needs is neither embedded nor
    declared failed: nothing is dropped in silence.
    """
    emb_SD = normalise(embeddings) if len(samples) else np.zeros((0, 1))
    row = {sample: i for i, sample in enumerate(samples)}
    lost = set(failed)
    if len(row) != len(samples) or len(row) != len(emb_SD):
        raise ConfigError(
            f"{len(samples)} samples ({len(row)} distinct) but {len(emb_SD)} embeddings; give one for each"
        )
    if lost & row.keys():
        raise ConfigError("a sample is both embedded and declared failed; it must be one of them")
    missing = [sample for sample in pairs.samples if sample not in row and sample not in lost]
    if missing:
        raise ConfigError(
            f"{len(missing)} samples are neither embedded nor declared failed, first {missing[0].path}; do one of both"
        )
    index_P2 = np.array([[row.get(a, -1), row.get(b, -1)] for a, b in pairs.pairs], dtype=np.int64).reshape(-1, 2)
    failed_P: NDArray[np.bool_] = np.any(index_P2 < 0, axis=1)
    scores = np.full(len(pairs.pairs), FAILED_SCORE)
    first, second = index_P2[~failed_P].T
    scores[~failed_P] = np.clip(np.einsum("pd,pd->p", emb_SD[first], emb_SD[second]), -1.0, 1.0)
    return PairScores(pairs, scores, failed_P, sum(sample in lost for sample in pairs.samples))


def evaluate(
    pairs: PairList, samples: Sequence[LfwSample], embeddings: ArrayLike, *, failed: Collection[LfwSample] = ()
) -> LfwResult:
    """Return k-fold accuracy over the list's own folds, in file order, at algorithm and at system level.

    Arguments and errors as in `score_pairs`; UndefinedMetricError if failures empty a whole fold.
    """
    scores = score_pairs(pairs, samples, embeddings, failed=failed)
    kept = ~scores.failed
    return LfwResult(
        algorithm=kfold_accuracy(scores.distances[kept], pairs.mated[kept], pairs.folds[kept]),
        system=kfold_accuracy(scores.distances, pairs.mated, pairs.folds),
        scores=scores,
        num_samples=len(pairs.samples),
        num_fte=scores.num_failed_samples,
    )


def _header(line: str) -> tuple[int, int]:
    """Return (folds, lines of each kind per fold)."""
    fields = line.split()
    if len(fields) not in (1, 2) or not all(re.fullmatch(r"[1-9][0-9]{0,6}", field) for field in fields):
        raise CorruptDataError("line 1 of the pair list must be 'folds pairs' or 'pairs', such as '10 300'")
    numbers = [int(field) for field in fields]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, numbers[0])


def _pair(line: str, number: int, *, mated: bool) -> LfwPair:
    fields = line.split()
    if len(fields) != (3 if mated else 4):
        kind = "mated, 'name i j'" if mated else "non-mated, 'name i other j'"
        raise CorruptDataError(f"line {number} of the pair list has {len(fields)} fields; it should be {kind}")
    name, i, other, j = (fields[0], fields[1], fields[0], fields[2]) if mated else fields
    pair = LfwPair(_sample(name, i, number), _sample(other, j, number))
    if pair.first == pair.second:
        raise CorruptDataError(f"line {number} of the pair list compares a photograph with itself")
    if pair.mated != mated:
        raise CorruptDataError(f"line {number} of the pair list names one person twice where two should differ")
    return pair


def _sample(name: str, number: str, line: int) -> LfwSample:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", number):
        raise CorruptDataError(f"line {line} of the pair list: {number!r} is not a photograph's number, from 1")
    if not _NAME.fullmatch(name):
        raise CorruptDataError(f"line {line} of the pair list: {name!r} is not a person's folder name")
    return LfwSample(name, int(number))
