"""FedFR's Algorithm 1 (supplement of Liu et al. 2022) replayed in plain numpy float64, written from the paper's text.

The recogniser is a linear map A of twelve colour means, f(x) = A x. Losses are those of `_reference_losses`, which are
written image by image, and every gradient is a central difference of the total loss: nothing is shared with `mien`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.methods.base import Crops
from mien.methods.fedfr import hard_negatives
from mien.methods.personal import personal_model
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from tests.golden import _reference_losses as paper
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

Array = NDArray[np.float64]
Tensors = dict[str, Array]

ALPHA = (1.0, 5.0, 10.0)
S, M, TAU, LAMBDA, T = 30.0, 0.4, 0.5, 0.7, 3.0
THRESHOLD, LR, DECAY, EPOCHS, ROUNDS = 0.9, 0.002, 5e-4, 2, 2
PEOPLE = {"ada": (1, 2), "bo": (3, 4, 5), "cy": (6,)}  # seeds of made-up identities
IMAGES = {"ada": 2, "bo": 2, "cy": 3}
PUBLIC = np.concatenate([made_up_crops(2, seed=seed) for seed in (11, 12, 13, 14)])
PUBLIC_LABELS = np.repeat(np.arange(4), 2)
CROPS = {name: np.concatenate([made_up_crops(IMAGES[name], seed=s) for s in seeds]) for name, seeds in PEOPLE.items()}
LABELS = {name: np.repeat(np.arange(len(seeds)), IMAGES[name]) for name, seeds in PEOPLE.items()}


def pooled(crops: Crops) -> Array:
    """Return the mean of each colour in each quarter, colours outermost as in the network: (N, 12)."""
    scaled = (crops.astype(np.float64) - 127.5) / 128
    places = [(c, 56 * i, 56 * j) for c in range(3) for i in (0, 1) for j in (0, 1)]
    return np.array([[image[y : y + 56, x : x + 56, c].mean() for c, y, x in places] for image in scaled])


def class_means(features: Array, labels: NDArray[np.int64]) -> Array:
    """Return the normalised mean of each identity's normalised features."""
    each = [np.mean([paper.unit(f) for f in features[labels == k]], axis=0) for k in range(labels.max() + 1)]
    return np.array([paper.unit(mean) for mean in each])


def select(a: Array, own: Array, public: Array) -> list[int]:
    """Return the hard negatives: public images with a cosine above the threshold to any own image."""
    return [
        j for j, y in enumerate(public) if any(float(paper.unit(a @ x) @ paper.unit(a @ y)) > THRESHOLD for x in own)
    ]


def total_loss(now: Tensors, x: Array, classes: list[int], a_global: Array, a_previous: Array | None) -> float:
    """Return line 19: alpha_1 L_cos + alpha_2 L_con + alpha_3 L_BCE."""
    num_local = len(now["w"])
    f = x @ now["a"].T
    loss = ALPHA[0] * paper.cosface_loss(f, np.concatenate([now["w"], now["phi"]]), classes, S, M)
    if a_previous is not None:
        loss += ALPHA[1] * paper.model_contrastive(f, x @ a_global.T, x @ a_previous.T, TAU)
    own = [y if y < num_local else -1 for y in classes]
    branch = (now["pi"], now["pi_bias"], now["omega"], now["b"])
    return loss + ALPHA[2] * paper.dfc_loss(f, *branch, own, lam=LAMBDA, s=S, m=M, t=T)


def client_training(now: Tensors, name: str, a_previous: Array | None) -> Tensors:
    """Return lines 13-27 for one client: `now` holds Theta and Phi as received, W, Pi and Omega as kept."""
    own, public, a_global = pooled(CROPS[name]), pooled(PUBLIC), now["a"]
    chosen = select(a_global, own, public)
    x = np.concatenate([own, public[chosen]])
    classes = [*LABELS[name].tolist(), *(len(now["w"]) + int(PUBLIC_LABELS[j]) for j in chosen)]
    for _ in range(EPOCHS):
        gradients = {}
        for key in now:

            def along(value: Array, key: str = key, at: Tensors = now) -> float:
                return total_loss({**at, key: value}, x, classes, a_global, a_previous)

            gradients[key] = paper.numeric_gradient(along, now[key])
        gradients["a"] = gradients["a"] + DECAY * now["a"]
        now = {key: value - LR * gradients[key] for key, value in now.items()}
    return now


def replay(a: Array) -> tuple[Array, Array, Mapping[str, Tensors]]:
    """Return Theta_g, Phi_g and what each client keeps after the server's lines 1-11."""
    phi = class_means(pooled(PUBLIC) @ a.T, PUBLIC_LABELS)
    kept: dict[str, Tensors] = {}
    num_images = {name: len(crops) for name, crops in CROPS.items()}
    for _ in range(ROUNDS):
        for name, crops in CROPS.items():
            previous = kept[name]["a"] if name in kept else None
            if name not in kept:
                w = class_means(pooled(crops) @ a.T, LABELS[name])
                zeros = {"pi_bias": np.zeros(3), "b": np.zeros(len(w))}
                kept[name] = {"w": w, "pi": np.eye(3), "omega": w.copy(), **zeros}
            kept[name] = client_training({**kept[name], "a": a, "phi": phi}, name, previous)
        total = sum(num_images.values())
        a = sum((num_images[n] * kept[n]["a"] for n in kept), np.zeros_like(a)) / total
        phi = sum((num_images[n] * kept[n]["phi"] for n in kept), np.zeros_like(phi)) / total
    return a, phi, kept


def test_two_rounds_of_algorithm_1() -> None:
    tiny = tiny_linear()
    task = TaskSpec(
        name="golden",
        method="fedfr",
        rounds=ROUNDS,
        cohort=CohortSpec(size=3, min_reports=3),
        local=LocalSpec(lr=LR, epochs=EPOCHS, weight_decay=DECAY, flip=False),
        privacy=PrivacySpec(min_cohort=3),
        options={"preset": "recommended", "public_classes": 4, "hard_negative_threshold": THRESHOLD},
    )
    start = tiny.theta.astype(np.float64).reshape(3, 12)
    chosen = [len(select(start, pooled(crops), pooled(PUBLIC))) for crops in CROPS.values()]
    assert any(0 < num < len(PUBLIC) for num in chosen), "the example must both keep and drop public images"
    expected_a, expected_phi, expected = replay(start)
    part = tiny.part("*")
    run = run_task(
        task,
        part,
        3,
        tiny.theta,
        Cohort(CROPS, public=PublicFaces(PUBLIC, PUBLIC_LABELS), labels=LABELS),
        tiny.runtime(),
    )
    assert np.abs(expected_a - start).max() > 1e-2
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), expected_a, atol=2e-5)
    np.testing.assert_allclose(run.state.arrays["public_proxies"].reshape(4, 3), expected_phi, atol=2e-5)
    for name, kept in expected.items():
        private = run.cohort.private[name]
        for ours, papers in (
            ("local_proxies", "w"),
            ("pi_weight", "pi"),
            ("pi_bias", "pi_bias"),
            ("omega", "omega"),
            ("bias", "b"),
        ):
            np.testing.assert_allclose(private[ours], kept[papers], atol=2e-5, err_msg=f"{name} {ours}")
        x = pooled(CROPS[name])
        personal = np.array([paper.unit(kept["pi"] @ (kept["a"] @ row) + kept["pi_bias"]) for row in x])
        model = personal_model(part, run.state.theta, private)
        np.testing.assert_allclose(model.embed(tiny.runtime(), CROPS[name]), personal, atol=5e-5)


def test_contrast_pulls_in_the_second_round() -> None:
    """Without it the second round's total loss has no term of the previous model: the two must differ."""
    a = tiny_linear().theta.astype(np.float64).reshape(3, 12)
    x = pooled(CROPS["ada"])
    w = class_means(x @ a.T, LABELS["ada"])
    now = {"a": a, "w": w, "phi": w[:0], "pi": np.eye(3), "pi_bias": np.zeros(3), "omega": w, "b": np.zeros(2)}
    without = total_loss(now, x, LABELS["ada"].tolist(), a, None)
    same = total_loss(now, x, LABELS["ada"].tolist(), a, a)
    assert same - without == pytest.approx(ALPHA[1] * np.log(2))
    assert total_loss(now, x, LABELS["ada"].tolist(), a, 0.5 * a + 0.1) != pytest.approx(same)


def test_hard_negatives_by_hand() -> None:
    """Own images at 0 and 90 degrees; public ones at 60, 70, 45, 180 and 225: cosines .5/.87, .34/.94, .71, 0, < 0."""
    own = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    angles = np.radians([60.0, 70.0, 45.0, 180.0, 225.0])
    public = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert hard_negatives(own, public, 0.4).tolist() == [0, 1, 2]
    assert hard_negatives(own, public, 0.75).tolist() == [0, 1]
    assert hard_negatives(own, public, 0.4, most=2).tolist() == [0, 1]
    assert hard_negatives(own, public, 0.4, most=1).tolist() == [1]
    assert hard_negatives(own, public, -1.0).tolist() == [0, 1, 2, 3, 4]
    assert hard_negatives(own[:1], public, 0.4).tolist() == [0, 2]
    assert hard_negatives(own, public, 0.99).tolist() == []
    at_the_threshold = np.array([[0.5, 0.0]], np.float32)
    assert hard_negatives(own, at_the_threshold, 0.5).tolist() == []
