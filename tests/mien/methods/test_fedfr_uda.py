"""FedFR-UDA's device half: when it clusters, what it keeps, and what it refuses. Formulas are in tests/golden."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.methods.base import ONE_CLASS, DeviceInput, why_idle
from mien.methods.clustering import pure_distance
from mien.methods.fedfr_uda import FEDFR_UDA, ClusteringSpec, cluster, constraint_of, device_round
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
CROPS = np.concatenate([made_up_crops(n, seed=seed, spread=4) for seed, n in ((1, 3), (2, 2), (3, 1))])


def task(**options: object) -> TaskSpec:
    return TaskSpec(
        name="uda",
        method="fedfr_uda",
        cohort=CohortSpec(size=2, min_reports=2),
        local=LocalSpec(lr=0.01, steps=2, flip=False),
        privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        options={"clustering": {"distance": 0.05}, **options},
    )


def device(settings: TaskSpec, labels: NDArray[np.int64] | None = None, **changes: object) -> DeviceInput:
    whole = DeviceInput(task=settings, part=TINY.part(), dim=8, theta=TINY.theta, crops=CROPS, labels=labels)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def test_clusters_once_and_keeps_its_labels_though_the_model_moves() -> None:
    first = device_round(device(task()), TINY.runtime())
    labels = first.private["labels"]
    assert labels.tolist() == [0, 0, 0, 1, 1, 2]
    assert first.private["class_embeddings"].shape == (3, 8)
    other_model = -TINY.theta
    again = device_round(device(task(), private=first.private, theta=other_model), TINY.runtime())
    assert again.private["labels"].tolist() == labels.tolist()
    kept = {**first.private, "labels": np.array([0, 0, 1, 1, 2, 2], np.float32)}
    assert device_round(device(task(), private=kept), TINY.runtime()).private["labels"].tolist() == [0, 0, 1, 1, 2, 2]


def test_clusters_anew_when_its_images_change() -> None:
    first = device_round(device(task()), TINY.runtime())
    fewer = device_round(device(task(), private=first.private, crops=CROPS[:5]), TINY.runtime())
    assert fewer.private["labels"].tolist() == [0, 0, 0, 1, 1]
    assert fewer.private["class_embeddings"].shape == (2, 8)


def test_labels_that_came_from_elsewhere_start_a_head_of_their_own() -> None:
    given = {"labels": np.array([0, 1, 0, 1, 0, 1], np.float32)}
    output = device_round(device(task(), private=given), TINY.runtime())
    assert output.private["class_embeddings"].shape == (2, 8)


def test_nothing_but_the_backbone_and_sums_leaves_a_device() -> None:
    output = device_round(device(task()), TINY.runtime())
    layout = output.contribution.layout
    assert [lane.name for lane in layout.summed] == ["count", "weight", "loss_before", "loss_after", "delta"]
    assert layout.revealed == ()


def test_small_clusters_can_be_left_out_of_training() -> None:
    clustering = {"distance": 0.05, "min_images": 2}
    without = device_round(device(task(clustering=clustering)), TINY.runtime())
    assert without.private["labels"].tolist() == [0, 0, 0, 1, 1, 2]
    # The singleton's own class vector is pushed by nobody's image but as a negative; its image is not in the loss.
    every = device_round(device(task()), TINY.runtime())
    assert without.metrics["loss_before"] != every.metrics["loss_before"]
    one_cluster_only = device_round(device(task(clustering={"distance": 0.05, "min_images": 9})), TINY.runtime())
    assert one_cluster_only.metrics["loss_before"] == every.metrics["loss_before"]  # nobody is left: everybody trains


@pytest.mark.parametrize("head", ["arcface", "cosface", "softmax"])
def test_every_head_trains(head: str) -> None:
    output = device_round(device(task(head=head, scale=8.0, margin=0.1), np.array([0, 0, 0, 1, 1, 2])), TINY.runtime())
    assert output.metrics["loss_after"] < output.metrics["loss_before"]
    assert output.metrics["identities"] == 3


def test_finch_levels() -> None:
    embeddings = TINY.runtime().embed(TINY.theta, CROPS)
    fine = cluster(embeddings, ClusteringSpec("finch"))
    assert cluster(embeddings, ClusteringSpec("finch", level=9)).max() <= fine.max()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"head": "triplet"}, "options.head"),
        ({"scale": 0.0}, "options.scale"),
        ({"margin": 2.0}, "options.margin"),
        ({"domain_constraint": -1.0}, "options.domain_constraint"),
        ({"source_weight": 0}, "options.source_weight"),
        ({"clustering": {"distance": 0.0}}, "options.clustering.distance"),
        ({"clustering": {"purity": 0.98}}, r"options\.clustering\.purity .*distance must be 0"),
        ({"clustering": {"distance": 0.0, "purity": 1.5}}, "options.clustering.purity"),
        ({"clustering": {"algorithm": "finch", "purity": 0.98}}, "options.clustering.purity"),
        ({"clustering": {"min_images": 0}}, "options.clustering.min_images"),
        ({"clustering": {"algorithm": "kmeans"}}, "options.clustering"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        device_round(device(task(**options)), TINY.runtime())


def test_a_target_of_one_cluster_trains_nothing_and_says_so() -> None:
    """A distance that joins everybody leaves nothing to tell apart; the source trains on, and the record warns."""
    settings = task(clustering={"distance": 2.0})
    assert why_idle(device_round(device(settings), TINY.runtime())) == ONE_CLASS
    assert why_idle(device_round(device(task()), TINY.runtime())) == ""
    cohort = Cohort({"source": CROPS, "target": CROPS}, labels={"source": np.array([0, 0, 0, 1, 1, 2])})
    finished = run_task(settings, TINY.part(), 8, TINY.theta, cohort, TINY.runtime())
    assert finished.records[0].warning == f"1 of 2 clients trained nothing, each because {ONE_CLASS}"


def test_the_distance_is_measured_on_public_people() -> None:
    """Under any model: twice as far apart, twice the distance, and the same clusters."""
    settings = task(clustering={"distance": 0.0})
    assert FEDFR_UDA.requirements(settings).public_faces
    assert not FEDFR_UDA.requirements(task()).public_faces
    public = np.concatenate([made_up_crops(3, seed=seed, spread=4) for seed in (21, 22, 23, 24)])
    given = {"public_crops": public, "public_labels": np.repeat(np.array([9, 3, 5, 7]), 3)}
    output = device_round(device(settings, **given), TINY.runtime())
    assert output.private["labels"].tolist() == [0, 0, 0, 1, 1, 2]
    with pytest.raises(ConfigError, match=r"options\.clustering\.distance"):
        device_round(device(settings), TINY.runtime())


def test_the_distance_is_the_largest_at_which_public_people_stay_apart() -> None:
    """In groups of as many pictures as the target has: six here, two public people of three pictures each."""
    public = np.concatenate([made_up_crops(3, seed=seed, spread=4) for seed in (21, 22, 23, 24)])
    labels = np.repeat(np.arange(4), 3)
    given = {"public_crops": public, "public_labels": labels}
    settings = task(clustering={"distance": 0.0, "purity": 0.9})
    assert FEDFR_UDA.requirements(settings).public_faces
    output = device_round(device(settings, **given), TINY.runtime())
    distance = pure_distance(TINY.runtime().embed(TINY.theta, public), labels, 0.9, group_images=len(CROPS))
    named = device_round(device(task(clustering={"distance": distance})), TINY.runtime())
    assert output.private["labels"].tolist() == named.private["labels"].tolist()
    assert 1 < output.private["labels"].max() + 1 < len(CROPS)
    # Whoever is drawn at random looks like nobody in particular.
    mixed = {**given, "public_labels": np.tile(np.arange(4), 3)}
    with pytest.raises(ConfigError, match="at no distance are"):
        device_round(device(task(clustering={"distance": 0.0, "purity": 1.0}), **mixed), TINY.runtime())


def test_the_constraint_holds_a_drift_as_much_in_fewer_steps() -> None:
    """The paper's lambda of 1,500 steps does nothing in 20; scaled to them it keeps as little of a drift."""
    few = dataclasses.replace(task().local, steps=20, lr=0.1)
    kept = {}
    for steps in (0, 1500):
        settings = dataclasses.replace(task(domain_constraint=0.002, constraint_steps=steps), local=few)
        kept[steps] = (1 - few.lr * constraint_of(settings, 6)) ** few.num_steps(6)
    assert kept[0] == pytest.approx(0.996, abs=1e-3)
    assert kept[1500] == pytest.approx((1 - 0.1 * 0.002) ** 1500, abs=2e-3)
    labels = np.array([0, 0, 0, 1, 1, 2])
    drift = {}
    for steps in (0, 1500):
        settings = dataclasses.replace(
            task(domain_constraint=0.5, constraint_steps=steps, scale=8.0), local=dataclasses.replace(few, lr=0.02)
        )
        output = device_round(device(settings, labels), TINY.runtime())
        place = output.contribution.layout.slices["delta"]
        drift[steps] = float(np.linalg.norm(output.contribution.vector[place]))
    assert drift[1500] < 0.9 * drift[0]
