"""The torch runtime against plain torch code: tails on remembered features, gradients, draws, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from mien.backbones import load_theta, theta_of
from mien.errors import ConfigError, LayoutMismatchError, NonFiniteError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Objective, Trained
from mien.specs import LocalSpec
from tests.tiny import Tiny, made_up_crops, tiny_cnn

CROPS = made_up_crops(6, seed=1)
LOCAL = LocalSpec(lr=0.2, epochs=3, batch_size=4, momentum=0.5, weight_decay=0.01, private_lr=0.1)


def hinge(dim: int = 8, *, seed: int = 3) -> Objective:
    """Return the positive hinge around a made-up class embedding."""
    w = np.random.default_rng(seed).standard_normal(dim).astype(np.float32)
    return Objective(
        "positive_hinge",
        private={"class_embedding": w / np.linalg.norm(w)},
        constants={"margin": 0.9},
        unit_norm=("class_embedding",),
    )


def softmax(num_images: int, num_classes: int, dim: int = 8) -> Objective:
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((num_classes, dim)).astype(np.float32)
    labels = np.arange(num_images) % num_classes
    return Objective(
        "cosface",
        private={"class_embeddings": vectors / np.linalg.norm(vectors, axis=1, keepdims=True)},
        per_crop={
            "target": np.eye(num_classes, dtype=np.float32)[labels],
            "sample_weight": np.linspace(0.5, 2.0, num_images).astype(np.float32),
        },
        constants={"scale": 8.0, "margin": 0.2},
        unit_norm=("class_embeddings",),
    )


def by_plain_torch(tiny: Tiny, part: ParameterPart, crops: Crops, objective: Objective, local: LocalSpec) -> Vector:
    """Return theta after whole-model steps on the unmirrored crops in one batch, the frozen part held by hand."""
    whole = copy.deepcopy(tiny.backbone)
    load_theta(whole, tiny.layout, tiny.theta)
    w = torch.tensor(objective.private["class_embedding"], requires_grad=True)
    trained = {name: p.requires_grad_() for name, p in whole.named_parameters() if name in part.names} | {"w": w}
    velocity: dict[str, torch.Tensor] = {}
    x = torch.tensor((crops.astype(np.float32) - 127.5) / 128).permute(0, 3, 1, 2)
    assert local.private_lr is not None
    for _ in range(local.epochs):
        cos = F.normalize(whole(x)) @ F.normalize(w, dim=0)
        loss = (0.9 - cos).clamp(min=0).square().mean()
        gradients = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        with torch.no_grad():
            for name, tensor in trained.items():
                lr, decay = (local.private_lr, 0.0) if name == "w" else (local.lr, local.weight_decay)
                step = gradients[name] + decay * tensor
                velocity[name] = local.momentum * velocity[name] + step if name in velocity else step
                tensor -= lr * velocity[name]
            w.copy_(F.normalize(w, dim=0))
    return theta_of(whole)


def test_a_tail_on_remembered_features_trains_as_the_whole_model_does() -> None:
    tiny, local = tiny_cnn(), replace(LOCAL, flip=False, batch_size=0)
    part, objective = tiny.part(), hinge()
    trained = tiny.runtime().train(tiny.theta, part, CROPS, objective, local, seed=0)
    expected = by_plain_torch(tiny, part, CROPS, objective, local)
    assert np.abs(expected - tiny.theta).max() > 1e-3
    np.testing.assert_allclose(trained.theta, expected, atol=2e-6)
    frozen = tiny.part("stem.*")
    np.testing.assert_array_equal(frozen.gather(trained.theta), frozen.gather(tiny.theta))


@pytest.mark.parametrize("patterns", [("*",), ("mix.*",), ("mix.0.bias", "embedding.1.weight"), ("stem.1.weight",)])
@pytest.mark.parametrize("cache_bytes", [0, 2 * 192, 1 << 20])
def test_remembering_changes_nothing(patterns: tuple[str, ...], cache_bytes: int) -> None:
    """Mirrored images, batches, several epochs: no memory, one of two crops, and one of all give the same numbers."""
    tiny = tiny_cnn()
    part = tiny.part(*patterns)
    runtime = tiny.runtime(cache_bytes=cache_bytes)
    for seed in (1, 2):
        first = runtime.train(tiny.theta, part, CROPS, hinge(), LOCAL, seed)
        other = tiny.runtime(cache_bytes=0).train(tiny.theta, part, CROPS, hinge(), LOCAL, seed)
        np.testing.assert_allclose(first.theta, other.theta, atol=1e-6)
        outside = np.setdiff1d(np.arange(tiny.layout.size), _indices(part))
        np.testing.assert_array_equal(first.theta[outside], tiny.theta[outside])


def _indices(part: ParameterPart) -> NDArray[np.int64]:
    """Return which elements of the whole vector a part holds."""
    numbers = np.arange(part.layout.size)
    return np.concatenate(
        [numbers[part.layout.offsets[e.name] :][: e.size] for e in part.layout.entries if e.name in part.names]
    )


def test_memory_is_not_used_for_another_trunk() -> None:
    tiny = tiny_cnn()
    runtime = tiny.runtime()
    runtime.train(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, 0)
    moved = tiny.part("stem.*").scatter(tiny.theta, tiny.part("stem.*").gather(tiny.theta) * 1.5)
    again = runtime.train(moved, tiny.part(), CROPS, hinge(), LOCAL, 0)
    fresh = tiny.runtime().train(moved, tiny.part(), CROPS, hinge(), LOCAL, 0)
    np.testing.assert_array_equal(again.theta, fresh.theta)


def test_the_gradient_is_that_of_the_loss() -> None:
    """One step of size h along -gradient: parameters move by -h times the finite-difference slope."""
    tiny, step = tiny_cnn(), 1e-2
    part = tiny.part("embedding.1.bias")
    local = LocalSpec(lr=step, flip=False)
    runtime = tiny.runtime()
    moved = part.gather(runtime.train(tiny.theta, part, CROPS, hinge(), local, 0).theta) - part.gather(tiny.theta)

    def loss_at(values: Vector) -> float:
        embeddings = runtime.embed(part.scatter(tiny.theta, values), CROPS).astype(np.float64)
        cos = embeddings @ hinge().private["class_embedding"]
        return float((np.maximum(0, 0.9 - cos) ** 2).mean())

    start = part.gather(tiny.theta)
    for i in range(part.size):
        nudge = np.zeros_like(start)
        nudge[i] = 1e-2
        slope = (loss_at(start + nudge) - loss_at(start - nudge)) / 2e-2
        assert moved[i] == pytest.approx(-step * slope, rel=2e-2, abs=1e-6)


@pytest.mark.parametrize("objective", [hinge(), softmax(6, 3)], ids=["positive_hinge", "cosface"])
def test_training_lowers_the_loss_and_keeps_private_vectors_at_length_1(objective: Objective) -> None:
    tiny = tiny_cnn()
    trained = tiny.runtime().train(tiny.theta, tiny.part(), CROPS, objective, LOCAL, seed=0)
    assert trained.loss_after < trained.loss_before
    assert trained.num_steps == 3 * 2
    (vectors,) = trained.private.values()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, atol=1e-5)
    (before,) = objective.private.values()
    assert np.abs(vectors - before).max() > 1e-3


def test_cosface_loss_by_numpy() -> None:
    """The reported loss is -sum s_i log p_i(target) / sum s_i in float64."""
    tiny, objective = tiny_cnn(), softmax(6, 3)
    runtime = tiny.runtime()
    trained = runtime.train(tiny.theta, tiny.part(), CROPS, objective, LOCAL, seed=0)
    f = runtime.embed(tiny.theta, CROPS).astype(np.float64)
    target, weight = objective.per_crop["target"], objective.per_crop["sample_weight"].astype(np.float64)
    logits = 8.0 * (f @ objective.private["class_embeddings"].T - 0.2 * target)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = -(weight * (log_p * target).sum(1)).sum() / weight.sum()
    assert trained.loss_before == pytest.approx(expected, rel=1e-5)


def test_targets_follow_their_crops_into_batches() -> None:
    """Crops and rows permuted together give the same loss, and training in small batches still fits the labels."""
    tiny, objective = tiny_cnn(), softmax(6, 3)
    order = np.array([3, 0, 5, 1, 4, 2])
    moved = replace(objective, per_crop={name: rows[order] for name, rows in objective.per_crop.items()})
    one = tiny.runtime().train(tiny.theta, tiny.part(), CROPS, objective, LOCAL, seed=0)
    other = tiny.runtime().train(tiny.theta, tiny.part(), CROPS[order], moved, LOCAL, seed=0)
    assert one.loss_before == pytest.approx(other.loss_before, rel=1e-5)
    assert other.loss_after < other.loss_before


def trained_with(seed: int, *, flip: bool = True) -> Trained:
    tiny = tiny_cnn()
    return tiny.runtime().train(tiny.theta, tiny.part(), CROPS, hinge(), replace(LOCAL, flip=flip), seed)


def test_a_seed_fixes_everything_and_another_changes_it() -> None:
    one, same, other = trained_with(7), trained_with(7), trained_with(8)
    np.testing.assert_array_equal(one.theta, same.theta)
    np.testing.assert_array_equal(one.private["class_embedding"], same.private["class_embedding"])
    assert np.abs(one.theta - other.theta).max() > 0


def test_mirroring_is_drawn_and_can_be_turned_off() -> None:
    """In one batch the order of images plays no part, so that only mirroring can tell two seeds apart."""
    tiny = tiny_cnn()
    for flip, differs in ((True, True), (False, False)):
        local = replace(LOCAL, flip=flip, batch_size=0)
        one, other = (tiny.runtime().train(tiny.theta, tiny.part(), CROPS, hinge(), local, seed) for seed in (1, 2))
        assert (np.abs(one.theta - other.theta).max() > 1e-5) == differs


def test_mirrored_crops_embed_as_crops_that_were_mirrored_first() -> None:
    tiny = tiny_cnn()
    runtime = tiny.runtime()
    runtime.train(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, seed=0)  # fills the memory with both kinds
    plain, mirrored = runtime.embed(tiny.theta, CROPS), runtime.embed(tiny.theta, CROPS[:, :, ::-1])
    fresh = tiny.runtime(cache_bytes=0)
    np.testing.assert_allclose(plain, fresh.embed(tiny.theta, CROPS), atol=1e-6)
    np.testing.assert_allclose(mirrored, fresh.embed(tiny.theta, CROPS[:, :, ::-1].copy()), atol=1e-6)
    assert np.abs(plain - mirrored).max() > 1e-3


def test_batch_norm_does_not_learn_from_one_persons_images() -> None:
    tiny = tiny_cnn(batch_norm=True)
    buffers = [e.name for e in tiny.layout.entries if e.kind == "buffer"]
    assert buffers
    trained = tiny.runtime().train(tiny.theta, tiny.part("*"), CROPS, hinge(), LOCAL, seed=0)
    statistics = tiny.layout.part(buffers)
    np.testing.assert_array_equal(statistics.gather(trained.theta), statistics.gather(tiny.theta))
    assert not tiny.backbone.training


def test_embeddings_have_length_1_whatever_their_number() -> None:
    tiny = tiny_cnn()
    runtime = tiny.runtime()
    many = np.concatenate([made_up_crops(5, seed=s) for s in range(9)])  # more than one batch of inference
    embeddings = runtime.embed(tiny.theta, many)
    assert embeddings.shape == (45, 8)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-5)
    assert runtime.embed(tiny.theta, many[:0]).shape == (0, 8)


def test_divergence_is_an_error_and_not_an_update() -> None:
    tiny = tiny_cnn()
    with pytest.raises(NonFiniteError, match=r"lower local\.lr"):
        tiny.runtime().train(
            tiny.theta,
            tiny.part(),
            CROPS,
            softmax(6, 3),
            replace(LOCAL, lr=1e3, weight_decay=1e3, epochs=20, momentum=0.9),
            0,
        )


def test_parameters_that_are_not_finite_are_refused() -> None:
    tiny = tiny_cnn()
    theta = tiny.theta.copy()
    theta[0] = np.nan
    with pytest.raises(NonFiniteError):
        tiny.runtime().embed(theta, CROPS)


def test_another_models_part_layout_or_objective_is_refused() -> None:
    tiny, other = tiny_cnn(), tiny_cnn(dim=9)
    with pytest.raises(LayoutMismatchError, match="another model"):
        tiny.runtime().train(tiny.theta, other.part(), CROPS, hinge(), LOCAL, 0)
    with pytest.raises(LayoutMismatchError, match="upgrade"):
        type(tiny.runtime())(tiny.spec, other.layout, backbone=tiny.backbone)
    with pytest.raises(ConfigError, match="unknown to this runtime"):
        tiny.runtime().train(tiny.theta, tiny.part(), CROPS, replace(hinge(), name="positive_hing"), LOCAL, 0)
    with pytest.raises(ConfigError, match="no images"):
        tiny.runtime().train(tiny.theta, tiny.part(), CROPS[:0], hinge(), LOCAL, 0)


def test_the_process_keeps_its_own_number_of_threads() -> None:
    tiny = tiny_cnn()
    before = torch.get_num_threads()
    tiny.runtime(threads=before + 1).embed(tiny.theta, CROPS)
    assert torch.get_num_threads() == before
