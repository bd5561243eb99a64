"""The torch runtime against plain torch code: tails on remembered features, gradients, draws, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import load_theta, theta_of
from mien.errors import ConfigError, LateError, LayoutMismatchError, MissingDependencyError, NonFiniteError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Objective, StepRule, Trained, TrainingJob
from mien.specs import LocalSpec
from tests.tiny import Tiny, made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

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
                own = local.private_lr, local.private_weight_decay or 0.0
                lr, decay = own if name == "w" else (local.lr, local.weight_decay)
                step = gradients[name] + decay * tensor
                velocity[name] = local.momentum * velocity[name] + step if name in velocity else step
                tensor -= lr * velocity[name]
            w.copy_(F.normalize(w, dim=0))
    return theta_of(whole)


@pytest.mark.parametrize("private_weight_decay", [None, 0.5])
def test_a_tail_on_remembered_features_trains_as_the_whole_model_does(private_weight_decay: float | None) -> None:
    tiny = tiny_cnn()
    local = replace(LOCAL, flip=False, batch_size=0, private_weight_decay=private_weight_decay)
    part, objective = tiny.part(), hinge()
    trained = tiny.runtime().train(TrainingJob(tiny.theta, part, CROPS, objective, local, 0))
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
        first = runtime.train(TrainingJob(tiny.theta, part, CROPS, hinge(), LOCAL, seed))
        other = tiny.runtime(cache_bytes=0).train(TrainingJob(tiny.theta, part, CROPS, hinge(), LOCAL, seed))
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
    runtime.train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, 0))
    moved = tiny.part("stem.*").scatter(tiny.theta, tiny.part("stem.*").gather(tiny.theta) * 1.5)
    again = runtime.train(TrainingJob(moved, tiny.part(), CROPS, hinge(), LOCAL, 0))
    fresh = tiny.runtime().train(TrainingJob(moved, tiny.part(), CROPS, hinge(), LOCAL, 0))
    np.testing.assert_array_equal(again.theta, fresh.theta)


def test_the_gradient_is_that_of_the_loss() -> None:
    """One step of size h along -gradient: parameters move by -h times the finite-difference slope."""
    tiny, step = tiny_cnn(), 1e-2
    part = tiny.part("embedding.1.bias")
    local = LocalSpec(lr=step, flip=False)
    runtime = tiny.runtime()
    moved = part.gather(runtime.train(TrainingJob(tiny.theta, part, CROPS, hinge(), local, 0)).theta) - part.gather(
        tiny.theta
    )

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
    trained = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, LOCAL, 0))
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
    trained = runtime.train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, LOCAL, 0))
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
    one = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, LOCAL, 0))
    other = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS[order], moved, LOCAL, 0))
    assert one.loss_before == pytest.approx(other.loss_before, rel=1e-5)
    assert other.loss_after < other.loss_before


def trained_with(seed: int, *, flip: bool = True) -> Trained:
    tiny = tiny_cnn()
    return tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), replace(LOCAL, flip=flip), seed))


def test_losses_may_be_of_some_crops_and_training_is_the_same() -> None:
    """Of two classes each crop's loss is its own: that of crops 0, 2 and 5 is their share of all."""
    tiny, objective = tiny_cnn(), softmax(6, 2)
    job = TrainingJob(tiny.theta, tiny.part(("*",)), CROPS, objective, LOCAL, 7)
    of_all, of_some = (
        TorchRuntime(tiny.spec, tiny.layout, backbone=tiny_cnn().backbone, losses_on=number).train(job)
        for number in (0, 3)
    )
    np.testing.assert_array_equal(of_some.theta, of_all.theta)
    chosen = np.array([0, 2, 5])
    rows = {name: values[chosen] for name, values in objective.per_crop.items()}
    alone = replace(job, crops=CROPS[chosen], objective=replace(objective, per_crop=rows))
    assert of_some.loss_before == pytest.approx(tiny.runtime().train(alone).loss_before, rel=1e-5)
    assert of_some.loss_before != pytest.approx(of_all.loss_before, rel=1e-3)
    with pytest.raises(ConfigError, match="losses_on is -1"):
        TorchRuntime(tiny.spec, tiny.layout, backbone=tiny_cnn().backbone, losses_on=-1)


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
        one, other = (
            tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), local, seed)) for seed in (1, 2)
        )
        assert (np.abs(one.theta - other.theta).max() > 1e-5) == differs


def test_mirrored_crops_embed_as_crops_that_were_mirrored_first() -> None:
    tiny = tiny_cnn()
    runtime = tiny.runtime()
    runtime.train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, 0))  # fills the memory with both kinds
    plain, mirrored = runtime.embed(tiny.theta, CROPS), runtime.embed(tiny.theta, CROPS[:, :, ::-1])
    fresh = tiny.runtime(cache_bytes=0)
    np.testing.assert_allclose(plain, fresh.embed(tiny.theta, CROPS), atol=1e-6)
    np.testing.assert_allclose(mirrored, fresh.embed(tiny.theta, CROPS[:, :, ::-1].copy()), atol=1e-6)
    assert np.abs(plain - mirrored).max() > 1e-3


def test_batch_norm_does_not_learn_from_one_persons_images() -> None:
    tiny = tiny_cnn(batch_norm=True)
    buffers = [e.name for e in tiny.layout.entries if e.kind == "buffer"]
    assert buffers
    trained = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part("*"), CROPS, hinge(), LOCAL, 0))
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
            TrainingJob(
                tiny.theta,
                tiny.part(),
                CROPS,
                softmax(6, 3),
                replace(LOCAL, lr=1e3, weight_decay=1e3, epochs=20, momentum=0.9),
                0,
            )
        )


# Each step makes class embeddings a million times as long; cosines do not mind, and the model's part stays as it is.
OVERFLOWING = LocalSpec(lr=0.1, batch_size=0, epochs=7, private_lr=1e3, private_weight_decay=1e3)


def test_private_tensors_that_diverge_are_an_error_and_are_not_kept() -> None:
    tiny, objective = tiny_cnn(), replace(softmax(6, 3), unit_norm=())
    job = TrainingJob(tiny.theta, tiny.part(), CROPS, objective, replace(OVERFLOWING, epochs=6), 0)
    longest = np.abs(tiny.runtime().train(job).private["class_embeddings"]).max()
    assert 1e35 < longest < np.inf, "one step before"
    with pytest.raises(NonFiniteError, match=r"lower local\.lr"):
        tiny.runtime().train(replace(job, local=OVERFLOWING))


def test_parameters_that_are_not_finite_are_refused() -> None:
    tiny = tiny_cnn()
    theta = tiny.theta.copy()
    theta[0] = np.nan
    with pytest.raises(NonFiniteError):
        tiny.runtime().embed(theta, CROPS)


def test_another_models_part_layout_or_objective_is_refused() -> None:
    tiny, other = tiny_cnn(), tiny_cnn(dim=9)
    with pytest.raises(LayoutMismatchError, match="another model"):
        tiny.runtime().train(TrainingJob(tiny.theta, other.part(), CROPS, hinge(), LOCAL, 0))
    with pytest.raises(LayoutMismatchError, match="upgrade"):
        type(tiny.runtime())(tiny.spec, other.layout, backbone=tiny.backbone)
    with pytest.raises(ConfigError, match="unknown to this runtime"):
        tiny.runtime().train(
            TrainingJob(tiny.theta, tiny.part(), CROPS, replace(hinge(), name="positive_hing"), LOCAL, 0)
        )
    with pytest.raises(ConfigError, match="no images"):
        tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS[:0], hinge(), LOCAL, 0))


def test_the_process_keeps_its_own_number_of_threads() -> None:
    tiny = tiny_cnn()
    before = torch.get_num_threads()
    tiny.runtime(threads=before + 1).embed(tiny.theta, CROPS)
    assert torch.get_num_threads() == before


# Step rules, local iterations, pieces of a batch, stopping, BatchNorm.

PLAIN = LocalSpec(lr=0.2, flip=False, private_lr=0.0)


def gradient_at(tiny: Tiny, part: ParameterPart, theta: Vector) -> NDArray[np.float64]:
    """Return the gradient of the hinge over all crops in the part, by plain torch in float64."""
    whole = copy.deepcopy(tiny.backbone)
    load_theta(whole, tiny.layout, theta)
    whole.double()
    trained = {name: p.requires_grad_() for name, p in whole.named_parameters() if name in part.names}
    x = torch.tensor((CROPS.astype(np.float64) - 127.5) / 128).permute(0, 3, 1, 2)
    cos = F.normalize(whole(x)) @ torch.tensor(hinge().private["class_embedding"]).double()
    loss = (0.9 - cos).clamp(min=0).square().mean()
    gradients = torch.autograd.grad(loss, [trained[name] for name in part.names])
    return np.concatenate([gradient.numpy().reshape(-1) for gradient in gradients])


def test_a_step_rule_scales_shifts_and_pulls_back() -> None:
    """Three steps by hand: theta <- theta - lr (scale (g + wd theta) + offset + mu (theta - theta_received))."""
    tiny = tiny_cnn()
    part = tiny.part()
    offset = np.random.default_rng(8).normal(0, 0.05, part.size).astype(np.float32)
    objective = replace(hinge(), step_rule=StepRule(gradient_scale=0.5, offset=offset, proximal=0.3))
    local = replace(PLAIN, epochs=3, weight_decay=0.02)
    trained = tiny.runtime().train(TrainingJob(tiny.theta, part, CROPS, objective, local, 0))
    start = part.gather(tiny.theta).astype(np.float64)
    values = start
    for _ in range(3):
        g = gradient_at(tiny, part, part.scatter(tiny.theta, values.astype(np.float32))) + 0.02 * values
        values = values - 0.2 * (0.5 * g + offset + 0.3 * (values - start))
    np.testing.assert_allclose(part.gather(trained.theta), values, atol=3e-6)


def test_a_step_rule_passes_through_momentum_and_leaves_private_tensors_alone() -> None:
    """With the gradient scaled to 0, v <- 0.5 v + offset; the class embedding moves as without any rule."""
    tiny = tiny_cnn()
    part = tiny.part()
    offset = np.full(part.size, 0.01, np.float32)
    local = replace(PLAIN, epochs=3, momentum=0.5)
    objective = replace(hinge(), step_rule=StepRule(gradient_scale=0.0, offset=offset))
    moved = part.gather(tiny.runtime().train(TrainingJob(tiny.theta, part, CROPS, objective, local, 0)).theta)
    expected = part.gather(tiny.theta) - 0.2 * 0.01 * (1 + 1.5 + 1.75)
    np.testing.assert_allclose(moved, expected, atol=1e-6)
    one_step = replace(local, epochs=1, private_lr=0.1)
    with_rule, without = (
        tiny.runtime().train(TrainingJob(tiny.theta, part, CROPS, each, one_step, 0)).private["class_embedding"]
        for each in (objective, hinge())
    )
    np.testing.assert_array_equal(with_rule, without)


def test_an_offset_of_another_part_is_refused() -> None:
    tiny = tiny_cnn()
    objective = replace(hinge(), step_rule=StepRule(offset=np.zeros(3, np.float32)))
    with pytest.raises(LayoutMismatchError, match=r"offset has shape \(3,\)"):
        tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, LOCAL, 0))


def test_private_momentum_is_its_own_and_goes_on_where_it_ended() -> None:
    """Two rounds of two steps that hand their velocity on are one round of four; dropping it is not."""
    tiny = tiny_cnn()
    local = replace(PLAIN, private_lr=0.05, private_momentum=0.9, epochs=2)
    frozen = replace(hinge(), step_rule=StepRule(gradient_scale=0.0), unit_norm=())
    first = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, frozen, local, 0))
    np.testing.assert_array_equal(first.theta, tiny.theta)
    going_on = replace(frozen, private=first.private, velocity=first.velocity)
    second = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, going_on, local, 0))
    whole = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, frozen, replace(local, epochs=4), 0))
    np.testing.assert_allclose(second.private["class_embedding"], whole.private["class_embedding"], atol=1e-6)
    np.testing.assert_allclose(second.velocity["class_embedding"], whole.velocity["class_embedding"], atol=1e-6)
    forgetful = tiny.runtime().train(
        TrainingJob(tiny.theta, tiny.part(), CROPS, replace(going_on, velocity={}), local, 0)
    )
    assert np.abs(forgetful.private["class_embedding"] - whole.private["class_embedding"]).max() > 1e-3


def test_private_tensors_decay_by_a_number_of_their_own() -> None:
    """Where the loss has no gradient, steps of SGD with momentum shrink them by the decay, and by nothing else."""
    tiny = tiny_cnn()
    local = replace(PLAIN, private_lr=0.1, momentum=0.5, weight_decay=0.3, private_weight_decay=0.2, epochs=2)
    far = {"class_embedding": 4 * hinge().private["class_embedding"]}
    still = replace(hinge(), private=far, constants={"margin": -1.0}, unit_norm=())
    trained = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, still, local, 0))
    first = 0.2 * far["class_embedding"]
    once = far["class_embedding"] - 0.1 * first
    twice = once - 0.1 * (0.5 * first + 0.2 * once)
    np.testing.assert_allclose(trained.private["class_embedding"], twice, rtol=1e-6)
    without = tiny.runtime().train(
        TrainingJob(tiny.theta, tiny.part(), CROPS, still, replace(local, private_weight_decay=None), 0)
    )
    np.testing.assert_array_equal(without.private["class_embedding"], far["class_embedding"])


@pytest.mark.parametrize("steps", [1, 5])
def test_steps_are_counted_across_epochs(steps: int) -> None:
    """Two batches an epoch: five steps are two epochs and the first batch of a third."""
    tiny = tiny_cnn()
    local = replace(LOCAL, steps=steps, epochs=1)
    trained = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), local, 4))
    assert trained.num_steps == steps
    asked = []

    def stop_after_them() -> bool:
        asked.append(1)
        return len(asked) > steps

    runtime = tiny.runtime()
    with pytest.raises(LateError):
        runtime.train(
            TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), replace(LOCAL, epochs=3), 4), stop_after_them
        )
    np.testing.assert_array_equal(theta_of(tiny.backbone), trained.theta)


def test_training_stops_between_batches_and_leaves_the_runtime_usable() -> None:
    tiny = tiny_cnn()
    runtime = tiny.runtime()
    undisturbed = runtime.train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, 0))
    with pytest.raises(LateError, match="nothing was changed or sent"):
        runtime.train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, 0), lambda: True)
    again = runtime.train(TrainingJob(tiny.theta, tiny.part(), CROPS, hinge(), LOCAL, 0), lambda: False)
    np.testing.assert_array_equal(again.theta, undisturbed.theta)


@pytest.mark.parametrize("objective", [hinge(), softmax(6, 3)], ids=["plain mean", "weighted mean"])
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 4, 100])
def test_pieces_of_a_batch_take_the_whole_batchs_step(objective: Objective, micro_batch: int) -> None:
    tiny, local = tiny_cnn(), replace(LOCAL, lr=0.02, private_lr=0.01)  # rounding grows with the rate
    whole = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, local, 2))
    pieces = tiny.runtime(micro_batch=micro_batch).train(
        TrainingJob(tiny.theta, tiny.part(), CROPS, objective, local, 2)
    )
    assert pieces.num_steps == whole.num_steps
    np.testing.assert_allclose(pieces.theta, whole.theta, atol=1e-6)
    for name, values in whole.private.items():
        np.testing.assert_allclose(pieces.private[name], values, atol=1e-6)


def test_a_piece_without_weight_counts_nothing() -> None:
    tiny = tiny_cnn()
    objective = softmax(6, 3)
    weights = np.array([0, 0, 1, 2, 0, 1], np.float32)
    objective = replace(objective, per_crop={**objective.per_crop, "sample_weight": weights})
    local = replace(LOCAL, batch_size=0)
    whole = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, local, 2))
    pieces = tiny.runtime(micro_batch=1).train(TrainingJob(tiny.theta, tiny.part(), CROPS, objective, local, 2))
    np.testing.assert_allclose(pieces.theta, whole.theta, atol=1e-5)


def test_losses_that_compare_images_are_not_cut_in_pieces() -> None:
    tiny = tiny_cnn()
    with pytest.raises(ConfigError, match="set micro_batch to 0"):
        tiny.runtime(micro_batch=2).train(
            TrainingJob(tiny.theta, tiny.part(), CROPS, replace(hinge(), name="dan"), LOCAL, 0)
        )
    with pytest.raises(ConfigError, match="must not be negative"):
        tiny.runtime(micro_batch=-1)


@pytest.mark.parametrize("names", [("mix.1.running_mean", "mix.1.weight"), ("mix.1.running_mean", "mix.1.running_var")])
def test_learnt_statistics_leave_nothing_behind_for_the_next_call(names: tuple[str, ...]) -> None:
    tiny = tiny_cnn(batch_norm=True)
    theta = tiny.theta.copy()
    theta.flags.writeable = False  # such a vector stays loaded between calls
    runtime = tiny.runtime()
    before = runtime.embed(theta, CROPS)
    runtime.train(TrainingJob(theta, tiny.layout.part(names), CROPS, hinge(), replace(PLAIN, batch_norm="train"), 0))
    np.testing.assert_array_equal(runtime.embed(theta, CROPS), before)


def test_batch_norm_learns_where_a_task_says_so_and_its_statistics_are_trained() -> None:
    """After one step on one batch: running mean <- 0.9 running mean + 0.1 batch mean of what enters BatchNorm."""
    tiny = tiny_cnn(batch_norm=True)
    names = [f"mix.1.{what}" for what in ("weight", "bias", "running_mean", "running_var")]
    part = tiny.layout.part(names)
    local = replace(PLAIN, batch_norm="train")
    trained = tiny.runtime().train(TrainingJob(tiny.theta, part, CROPS, hinge(), local, 0))
    x = torch.tensor((CROPS.astype(np.float32) - 127.5) / 128).permute(0, 3, 1, 2)
    load_theta(tiny.backbone, tiny.layout, tiny.theta)
    with torch.no_grad():
        entering = tiny.backbone.mix[0](tiny.backbone.stem(x))  # type: ignore[index, operator]
    before, after = (tiny.layout.unflatten(theta)["mix.1.running_mean"] for theta in (tiny.theta, trained.theta))
    np.testing.assert_allclose(after, 0.9 * before + 0.1 * entering.mean((0, 2, 3)).numpy(), atol=1e-6)
    assert not tiny.backbone.mix[1].training  # type: ignore[index, union-attr]


def test_batch_norm_that_cannot_learn_is_refused() -> None:
    tiny = tiny_cnn(batch_norm=True)
    local = replace(PLAIN, batch_norm="train")
    with pytest.raises(ConfigError, match="name them in trainable"):
        tiny.runtime().train(TrainingJob(tiny.theta, tiny.part("embedding.*"), CROPS, hinge(), local, 0))
    with pytest.raises(ConfigError, match="one image"):
        tiny.runtime().train(TrainingJob(tiny.theta, tiny.part("*"), CROPS[:1], hinge(), local, 0))
    with pytest.raises(ConfigError, match="whole batches"):
        tiny.runtime(micro_batch=2).train(TrainingJob(tiny.theta, tiny.part("*"), CROPS, hinge(), local, 0))


def test_a_batch_of_one_left_over_is_left_out_where_batch_norm_learns() -> None:
    tiny = tiny_cnn(batch_norm=True)
    local = replace(PLAIN, batch_norm="train", batch_size=5)
    assert tiny.runtime().train(TrainingJob(tiny.theta, tiny.part("*"), CROPS, hinge(), local, 0)).num_steps == 1


def test_a_machine_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tiny = tiny_cnn()
    with pytest.raises(MissingDependencyError, match="use device 'cpu'"):
        TorchRuntime(tiny.spec, tiny.layout, backbone=tiny.backbone, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_does_the_same_arithmetic() -> None:
    tiny, local = tiny_cnn(), replace(LOCAL, flip=False)
    expected = tiny.runtime().train(TrainingJob(tiny.theta, tiny.part(), CROPS, softmax(6, 3), local, 0))
    other = tiny_cnn()
    runtime = TorchRuntime(other.spec, other.layout, backbone=other.backbone, device="cuda")
    trained = runtime.train(TrainingJob(other.theta, other.part(), CROPS, softmax(6, 3), local, 0))
    np.testing.assert_allclose(trained.theta, expected.theta, atol=1e-4)
    np.testing.assert_allclose(runtime.embed(other.theta, CROPS), tiny.runtime().embed(tiny.theta, CROPS), atol=1e-4)


def test_a_vector_that_stays_loaded_gives_the_same_as_one_that_is_loaded_anew() -> None:
    """A read-only vector is kept loaded between calls; what training changed is put back first."""
    tiny = tiny_cnn()
    theta, part = tiny.theta.copy(), tiny.part()
    fixed = theta.copy()
    fixed.flags.writeable = False
    kept, fresh = tiny.runtime(), tiny.runtime()
    for _ in range(2):
        trained = kept.train(TrainingJob(fixed, part, CROPS, hinge(), LOCAL, 1))
        again = fresh.train(TrainingJob(theta.copy(), part, CROPS, hinge(), LOCAL, 1))
        assert np.array_equal(trained.theta, again.theta)
        assert np.array_equal(kept.embed(fixed, CROPS), fresh.embed(theta.copy(), CROPS))
    assert not np.array_equal(kept.embed(trained.theta, CROPS), kept.embed(fixed, CROPS))
    before = kept.embed(theta, CROPS)
    theta += 0.1
    assert not np.array_equal(kept.embed(theta, CROPS), before), "a vector that can be written to is loaded each time"
