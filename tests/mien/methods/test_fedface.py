"""FedFace's two forms: what the private one asks of the runtime and keeps, what the exact one shows and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.contribution import Contribution, Total
from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods import METHODS
from mien.methods.base import Crops, DeviceInput, Embeddings, Objective, Runtime, Trained, TrainingJob, never_stop
from mien.methods.spreadout import PAPER, RELEASED_CODE, spread_out
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

FEDFACE = METHODS["fedface"]
TINY = tiny_cnn()
PART = TINY.part()
OWN = made_up_crops(3, seed=1)
PUBLIC = np.concatenate([made_up_crops(3, seed=100 + k) for k in range(4)])
LABELS = np.repeat([7, 3, 50, 11], 3)  # any integers, in any order

PRIVATE = TaskSpec(
    name="private",
    cohort=CohortSpec(size=4, min_reports=2),
    local=LocalSpec(lr=0.1, private_lr=0.2),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    options={"public": {"identities": 2, "images": 4, "weight": 0.5}},
)
EXACT = replace(
    PRIVATE,
    name="exact",
    privacy=PrivacySpec(("class_embeddings",), min_cohort=2, secure_aggregation="off"),
    options={},
)


@dataclass
class Watched:
    """A runtime that remembers what it was asked to train."""

    runtime: Runtime
    asked: list[tuple[Crops, Objective]] = field(default_factory=list)
    num_embedded: int = 0

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        self.num_embedded += len(crops)
        return self.runtime.embed(theta, crops)

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        self.asked.append((job.crops, job.objective))
        return self.runtime.train(job, should_stop)


def watched() -> Watched:
    return Watched(TINY.runtime())


def input_of(task: TaskSpec, **changes: Any) -> DeviceInput:
    inp = DeviceInput(
        task=task, part=PART, dim=8, theta=TINY.theta, crops=OWN, public_crops=PUBLIC, public_labels=LABELS, seed=5
    )
    return replace(inp, **changes)


def unit(x: NDArray[Any]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = np.asarray(x, np.float64) / np.linalg.norm(x, axis=-1, keepdims=True)
    return scaled


def embedded(crops: Crops) -> NDArray[np.float64]:
    return TINY.runtime().embed(TINY.theta, crops).astype(np.float64)


# The private form.


def test_the_private_form_trains_a_softmax_over_its_own_and_the_nearest_public_identities() -> None:
    runtime = watched()
    FEDFACE.device_round(input_of(PRIVATE), runtime)
    ((crops, objective),) = runtime.asked
    w = unit(embedded(OWN).mean(axis=0))
    means = {label: unit(embedded(PUBLIC[label == LABELS]).mean(axis=0)) for label in np.unique(LABELS)}
    nearest = sorted(means, key=lambda label: -float(means[label] @ w))[:2]
    np.testing.assert_allclose(
        objective.private["class_embeddings"], [w, means[nearest[0]], means[nearest[1]]], atol=1e-6
    )
    assert objective.name == "cosface"
    assert objective.unit_norm == ("class_embeddings",)
    np.testing.assert_array_equal(crops[:3], OWN)
    assert len(crops) == 3 + 4
    np.testing.assert_array_equal(objective.per_crop["sample_weight"], [1, 1, 1, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(objective.per_crop["target"][:3], [[1, 0, 0]] * 3)
    for crop, target in zip(crops[3:], objective.per_crop["target"][3:], strict=True):
        (place,) = np.flatnonzero((crop == PUBLIC).all(axis=(1, 2, 3)))
        assert nearest[int(target.argmax()) - 1] == LABELS[place]
        assert target.sum() == 1


def test_the_private_form_sends_sums_only_and_keeps_its_class_embedding() -> None:
    output = FEDFACE.device_round(input_of(PRIVATE), TINY.runtime())
    assert output.contribution.revealed() == {}
    assert output.contribution.vector.size == 4 + PART.size
    w = output.private["class_embedding"]
    assert w.shape == (8,)
    assert np.linalg.norm(w) == pytest.approx(1.0, abs=1e-5)
    windows = np.lib.stride_tricks.sliding_window_view(output.contribution.vector, w.size)
    assert not np.isclose(windows, w, atol=1e-6).all(axis=1).any()


def test_the_next_round_goes_on_from_what_was_kept_without_embedding_again() -> None:
    first = FEDFACE.device_round(input_of(PRIVATE), TINY.runtime())
    runtime = watched()
    second = FEDFACE.device_round(input_of(PRIVATE, private=first.private, seed=6), runtime)
    assert runtime.num_embedded == 0
    ((_, objective),) = runtime.asked
    np.testing.assert_array_equal(objective.private["class_embeddings"][0], first.private["class_embedding"])
    kept, trained = first.private["public_embeddings"], second.private["public_embeddings"]
    assert kept.shape == trained.shape == (4, 8)
    assert int((np.abs(kept - trained).max(axis=1) > 0).sum()) == 2  # only the nearest two were in the softmax


def test_another_public_shard_starts_its_embeddings_anew() -> None:
    first = FEDFACE.device_round(input_of(PRIVATE), TINY.runtime())
    fewer = LABELS != 50
    runtime = watched()
    output = FEDFACE.device_round(
        input_of(PRIVATE, private=first.private, public_crops=PUBLIC[fewer], public_labels=LABELS[fewer]), runtime
    )
    assert runtime.num_embedded == 9
    assert output.private["public_embeddings"].shape == (3, 8)


def test_more_public_images_than_there_are_means_all_of_them() -> None:
    task = replace(PRIVATE, options={"public": {"identities": 99, "images": 99}})
    runtime = watched()
    FEDFACE.device_round(input_of(task), runtime)
    ((crops, objective),) = runtime.asked
    assert len(crops) == 3 + 12
    assert objective.private["class_embeddings"].shape == (5, 8)


def test_without_public_images_the_public_embeddings_alone_are_negatives() -> None:
    task = replace(PRIVATE, options={"public": {"identities": 4, "images": 0}})
    runtime = watched()
    FEDFACE.device_round(input_of(task), runtime)
    ((crops, objective),) = runtime.asked
    np.testing.assert_array_equal(crops, OWN)
    np.testing.assert_array_equal(objective.per_crop["target"], [[1, 0, 0, 0, 0]] * 3)


def test_without_public_faces_the_private_form_refuses() -> None:
    for crops, labels in ((None, None), (PUBLIC[:0], LABELS[:0])):
        with pytest.raises(ConfigError, match="public faces"):
            FEDFACE.device_round(input_of(PRIVATE, public_crops=crops, public_labels=labels), TINY.runtime())
    assert FEDFACE.requirements(PRIVATE).public_faces
    assert not FEDFACE.requirements(EXACT).public_faces


@pytest.mark.parametrize("form", ["private", "exact"])
def test_either_form_holds_apart_what_fedavg_lets_collapse(form: str) -> None:
    clients = {name: made_up_crops(4, seed=seed, spread=60) for seed, name in enumerate("abcd", start=30)}
    task = replace(
        PRIVATE if form == "private" else EXACT,
        rounds=25,
        cohort=CohortSpec(size=4, min_reports=4),
        local=LocalSpec(lr=0.05),
        server=ServerSpec(momentum=0.5),
        options={},
    )
    runtime = TINY.runtime()

    def mean_cosine(theta: Vector) -> float:
        means = np.stack([unit(runtime.embed(theta, crops).mean(axis=0)) for crops in clients.values()])
        return float((means @ means.T)[np.triu_indices(4, 1)].mean())

    cohort = Cohort(clients, public=PublicFaces(PUBLIC, LABELS))
    apart = run_task(task, PART, 8, TINY.theta, cohort, runtime)
    collapsed = run_task(replace(task, method="fedavg", privacy=PRIVATE.privacy), PART, 8, TINY.theta, cohort, runtime)
    assert mean_cosine(apart.state.theta) < mean_cosine(TINY.theta)
    assert mean_cosine(apart.state.theta) < mean_cosine(collapsed.state.theta)


# The exact form.


def test_the_exact_form_shows_the_class_embedding_in_clear() -> None:
    output = FEDFACE.device_round(input_of(EXACT), TINY.runtime())
    np.testing.assert_array_equal(output.contribution.revealed()["class_embedding"], output.private["class_embedding"])
    assert [lane.name for lane in FEDFACE.contribution_layout(EXACT, PART, 8).revealed] == ["class_embedding"]


def test_first_participation_starts_at_the_mean_feature_and_later_ones_at_the_servers_answer() -> None:
    runtime = watched()
    FEDFACE.device_round(input_of(EXACT), runtime)
    kept = {"class_embedding": np.eye(8, dtype=np.float32)[0]}
    answered = {"class_embedding": np.eye(8, dtype=np.float32)[1]}
    FEDFACE.device_round(input_of(EXACT, private=kept), runtime)
    FEDFACE.device_round(input_of(EXACT, private=kept, reply=answered), runtime)
    starts = [objective.private["class_embedding"] for _, objective in runtime.asked]
    np.testing.assert_allclose(starts[0], unit(embedded(OWN).mean(axis=0)), atol=1e-6)
    np.testing.assert_array_equal(starts[1:], np.eye(8)[:2])
    assert {objective.name for _, objective in runtime.asked} == {"positive_hinge"}


def revealed_total(**embeddings: list[float]) -> tuple[Total, dict[str, dict[str, Vector]]]:
    layout = FEDFACE.contribution_layout(EXACT, PART, 8)
    lanes = {lane.name: np.zeros(lane.size, np.float32) for lane in (*layout.summed, *layout.revealed)}
    lanes["count"][:] = lanes["weight"][:] = 1.0
    total, revealed = Total.empty(layout), {}
    for device, values in embeddings.items():
        contribution: Contribution = layout.pack({**lanes, "class_embedding": np.array(values, np.float32)})
        total = total.plus(contribution)
        revealed[device] = dict(contribution.revealed())
    return total, revealed


def test_the_server_spreads_out_everybody_and_answers_each_with_its_own() -> None:
    """A device that was in an earlier round only is pushed as well: eq 9 sums over all phones."""
    ada, bo, cy = (np.eye(8)[i] * 0.8 + np.eye(8)[7] * 0.6 for i in range(3))
    start = FEDFACE.server_start(EXACT, PART, TINY.theta)
    first = FEDFACE.server_step(EXACT, PART, start, *revealed_total(ada=list(ada), bo=list(bo)))
    second = FEDFACE.server_step(EXACT, PART, first, *revealed_total(cy=list(cy)))
    kept = [first.revealed[d]["class_embedding"] for d in ("ada", "bo")]
    expected = spread_out(np.stack([*kept, cy]), FEDFACE.options().server_spread_out)
    for device, w in zip(("ada", "bo", "cy"), expected, strict=True):
        np.testing.assert_allclose(FEDFACE.reply(second, device)["class_embedding"], w, atol=1e-6)
    assert FEDFACE.reply(second, "stranger") == {}
    assert FEDFACE.reply(start, "ada") == {}
    assert "array" not in repr(second)


def test_presets_choose_the_spread_out() -> None:
    options = FEDFACE.options
    assert options(preset="paper").server_spread_out == PAPER
    assert options(preset="released_code").server_spread_out == RELEASED_CODE
    assert options().server_spread_out == options().spread_out


@pytest.mark.parametrize(
    ("name", "value"), [("identities", 0), ("images", -1), ("weight", -0.5), ("scale", 0.0), ("margin", 1.0)]
)
def test_public_settings_are_checked(name: str, value: float) -> None:
    task = replace(PRIVATE, options={"public": {name: value}})
    with pytest.raises(ConfigError, match=r"options\.public"):
        FEDFACE.device_round(input_of(task), TINY.runtime())
