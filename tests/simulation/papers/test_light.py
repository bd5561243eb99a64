"""The light workbench: embeddings and training of the whole one, bit for bit; numbers in place of crops."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import Objective, TrainingJob
from mien.methods.proxies import class_means, one_hot_rows
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.choice import choose
from simulation.engines.engine import run_task
from simulation.faces.workbench import TRAINABLE, Workbench, open_workbench
from simulation.papers.light import numbers_as_crops, open_light_workbench

LOCAL = LocalSpec(lr=0.05, epochs=2, batch_size=7, momentum=0.9, weight_decay=5e-4, flip=False)


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workbench, Workbench]]:
    """A whole and a light workbench of three shipped people."""
    folder = tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        open_workbench.cache_clear()
        open_light_workbench.cache_clear()
        yield open_workbench(None, 3), open_light_workbench(None, 3)
        open_workbench.cache_clear()
        open_light_workbench.cache_clear()


def test_training_and_embeddings_are_the_whole_workbenchs(benches: tuple[Workbench, Workbench]) -> None:
    whole, light = (_trained(bench) for bench in benches)
    for ours, theirs in zip(whole, light, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(whole[0], whole[-1])  # something was trained
    assert benches[1].theta.size == benches[1].part.size == benches[0].part.size == 128 * 129


def _trained(bench: Workbench) -> tuple[Vector, ...]:
    """Return embeddings before training, the trained part, class embeddings, and embeddings after it."""
    crops, labels = bench.labelled(bench.people)
    before = bench.runtime.embed(bench.theta, crops)
    objective = Objective(
        "cosface",
        private={"class_embeddings": class_means(before, labels, 3)},
        per_crop={"target": one_hot_rows(labels, 3)},
        constants={"scale": 30.0, "margin": 0.4},
    )
    trained = bench.runtime.train(TrainingJob(bench.theta, bench.part, crops, objective, LOCAL, 5))
    return before, trained.values, trained.private["class_embeddings"], bench.runtime.embed(trained.theta, crops)


def test_groups_of_people_are_the_whole_workbenchs(benches: tuple[Workbench, Workbench]) -> None:
    whole, light = benches
    assert whole.people == light.people
    assert whole.split(4, 1, 2) == light.split(4, 1, 2)
    assert whole.dataset_sha256 == light.dataset_sha256
    assert whole.verification(whole.theta, whole.people) == light.verification(light.theta, light.people)


def test_an_engine_that_trains_many_clients_at_once_gives_the_same_model(
    benches: tuple[Workbench, Workbench],
) -> None:
    bench = benches[1]
    task = TaskSpec(
        "light",
        method="fedavg",
        rounds=2,
        trainable=TRAINABLE,
        local=LocalSpec(lr=0.3, flip=False),
        cohort=CohortSpec(size=3, min_reports=3),
        privacy=PrivacySpec(min_cohort=3),
    )
    cohort = bench.cohort({name: (name,) for name in bench.people})
    engines = [choose(name, bench.runtime, task, bench.part).engine for name in ("sequential", "auto")]
    assert [engine.name for engine in engines] == ["sequential", "stacked"]
    one_by_one, at_once = (run_task(task, bench.part, bench.dim, bench.theta, cohort, e).state.theta for e in engines)
    np.testing.assert_allclose(at_once, one_by_one, atol=1e-7)
    assert np.abs(one_by_one - bench.theta).max() > 1e-4


def test_crops_say_their_number() -> None:
    crops = numbers_as_crops(70_000)
    assert crops[0].reshape(3).tolist() == [0, 0, 0]
    assert crops[258].reshape(3).tolist() == [0, 1, 2]
    assert crops[65_536 + 5].reshape(3).tolist() == [1, 0, 5]


def test_mirrored_images_are_refused(benches: tuple[Workbench, Workbench]) -> None:
    bench = benches[1]
    crops, labels = bench.labelled(bench.people)
    objective = Objective(
        "softmax",
        private={"class_embeddings": one_hot_rows(np.arange(3), 128)},
        per_crop={"target": one_hot_rows(labels, 3)},
    )
    with pytest.raises(ConfigError, match=r"local\.flip"):
        bench.runtime.train(TrainingJob(bench.theta, bench.part, crops, objective, LocalSpec(epochs=1, flip=True), 0))
