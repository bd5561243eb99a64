"""The demo's figures: verification of held-out people by model, and the cost on the released model's own people."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.evaluation import (
    Comparisons,
    all_pairs,
    bootstrap_by_identity,
    det_curve,
    equal_error_rate,
    kfold_accuracy,
    normalise,
)
from mien.evaluation.protocols.folders import PairSample, sample_pairs
from mien.layout import Vector
from mien.methods.base import Runtime, never_stop
from mien.specs import FaceInputSpec
from simulation.faces.datasets import LabelledCrops, find_people, read_people
from simulation.faces.models import Model
from simulation.pages.demo_page import ModelResult, OwnPopulation

OWN_PAIRS: Final = 300
OWN_FOLDS: Final = 10
OWN_SEED: Final = 0
REPLICATES: Final = 300


@dataclass(frozen=True)
class OwnSample:
    """A fixed sample of pairs of the released model's own population (LFW), ready to be scored by any model.

    `pairs` number the rows of `faces`; pairs of which an image gave no face are not in it.
    """

    faces: LabelledCrops = field(repr=False)
    pairs: PairSample = field(repr=False)

    @classmethod
    def read(cls, lfw_images: Path, spec: FaceInputSpec, should_stop: Callable[[], bool] = never_stop) -> OwnSample:
        """Return the sample: 150 mated and 150 non-mated pairs, the same on every machine; FTE is counted.

        Raises UndefinedMetricError if the folder holds too few pairs; see also `find_people` and `read_people`.
        """
        files = [path for each in find_people(lfw_images).values() for path in each]
        keys = [_key(path) for path in files]
        wanted = draw_pairs(keys, [path.parent.name for path in files])
        used = [files[i] for i in wanted.used]  # as in `files`: person by person
        people = {name: list(paths) for name, paths in itertools.groupby(used, lambda path: path.parent.name)}
        faces = read_people(people, FacePipeline(spec, policy=None, choice=ChoiceRule.CENTRE), should_stop)
        lost = {failure.name for failure in faces.failures}
        row_of = {key: row for row, key in enumerate(key for key in map(_key, used) if key not in lost)}
        first, second = ([keys[i] for i in side] for side in (wanted.first, wanted.second))
        kept = [i for i in range(wanted.mated.size) if first[i] in row_of and second[i] in row_of]
        return cls(
            faces,
            PairSample(
                np.array([row_of[first[i]] for i in kept], np.int64),
                np.array([row_of[second[i]] for i in kept], np.int64),
                wanted.mated[kept],
                wanted.subjects[kept],
                wanted.seed,
            ),
        )


def draw_pairs(keys: Sequence[str], names: Sequence[str]) -> PairSample:
    """Return mated pairs, and as many pairs of strangers among these pairs' pictures: half as many pictures to read.

    `keys` name the pictures, `names` who is on each. Raises UndefinedMetricError for too few of either.
    """
    half = OWN_PAIRS // 2
    mated = sample_pairs(keys, names, num_mated=half, num_non_mated=0, seed=OWN_SEED)
    used = mated.used
    strangers = sample_pairs(
        [keys[i] for i in used], [names[i] for i in used], num_mated=0, num_non_mated=half, seed=OWN_SEED
    )
    first = np.concatenate([mated.first, used[strangers.first]])
    second = np.concatenate([mated.second, used[strangers.second]])
    numbers = np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
    subjects = np.stack([numbers[first], numbers[second]], axis=1)
    return PairSample(first, second, np.arange(first.size) < half, subjects, OWN_SEED)


def _key(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def comparisons_of(runtime: Runtime, theta: Vector, faces: LabelledCrops) -> Comparisons:
    """Return all mated and non-mated comparisons among a labelled set under one model."""
    return all_pairs(runtime.embed(theta, faces.crops), faces.labels, keep_subjects=True)


def equal_error(comparisons: Comparisons) -> float:
    """Return the equal error rate of a set of comparisons."""
    return equal_error_rate(det_curve(comparisons)).value


def model_result(name: str, model: Model, comparisons: Comparisons, num_fte: int, *, seed: int) -> ModelResult:
    """Return a model's comparisons with the interval of its EER over identities."""
    interval = bootstrap_by_identity(
        comparisons,
        lambda curve: equal_error_rate(curve).value,
        rng=np.random.default_rng(seed),
        num_replicates=REPLICATES,
    )
    return ModelResult(name, model.model_id, comparisons, num_fte, interval)


def own_population(sample: OwnSample, runtime: Runtime, before: Model, after: Model) -> OwnPopulation:
    """Return accuracy before and after on the fixed sample, each fold at the threshold that is best on the others.

    Thresholds are fitted again for each model, as they are whenever one is released: scores move when a model does.
    """
    accuracies = []
    for model in (before, after):
        unit = normalise(runtime.embed(model.theta, sample.faces.crops))
        cosines = (unit[sample.pairs.first] * unit[sample.pairs.second]).sum(axis=1)
        accuracies.append(kfold_accuracy(2 - 2 * cosines, sample.pairs.mated, _folds(sample.pairs.mated)).mean)
    num_mated = int(sample.pairs.mated.sum())
    return OwnPopulation(
        dataset="LFW",
        protocol=f"{OWN_PAIRS} fixed pairs in {OWN_FOLDS} folds, threshold from the other folds, for each model",
        accuracy_before=accuracies[0],
        accuracy_after=accuracies[1],
        num_mated=num_mated,
        num_non_mated=sample.pairs.mated.size - num_mated,
        num_fte=len(sample.faces.failures),
        terms="research, non-commercial use",
    )


def _folds(mated: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return each pair's fold: mated and non-mated pairs are dealt out in turn, so that every fold has both."""
    folds = np.empty(mated.size, np.int64)
    for kind in (True, False):
        places = np.flatnonzero(mated == kind)
        folds[places] = np.arange(places.size) % OWN_FOLDS
    return folds
