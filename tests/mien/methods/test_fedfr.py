"""FedFR: presets as face-recognition facts have them, what each option changes, what leaves and what stays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.contribution import Total
from mien.errors import ConfigError, CorruptDataError, NotFoundError
from mien.methods import find_method
from mien.methods.base import DeviceInput, DeviceOutput
from mien.methods.fedfr import (
    FEDFR,
    PRESETS,
    FedFrOptions,
    contribution_layout,
    device_round,
    local_schedule,
    options_of,
    reply,
    server_start,
    server_step,
    training_set,
)
from mien.methods.personal import DistillationSpec, distil, fine_tune, personal_model
from mien.protocol.ids import AttemptNumber, RoundNumber
from mien.secagg.emulation import EmulatedSum
from mien.secagg.planner import RoundIds, plan_round
from mien.secagg.vector import ContributionMap
from mien.specs import CohortSpec, DpSpec, LocalSpec, PrivacySpec, TaskSpec, to_mapping
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
PART = TINY.part()
PUBLIC = np.concatenate([made_up_crops(3, seed=100 + k) for k in range(4)])
PUBLIC_LABELS = np.repeat(np.array([7, 3, 12, 5]), 3)
OWN = np.concatenate([made_up_crops(3, seed=k) for k in range(2)])
LABELS = np.repeat(np.arange(2), 3)
TASK = TaskSpec(
    name="fedfr",
    method="fedfr",
    cohort=CohortSpec(size=3, min_reports=3),
    local=LocalSpec(lr=0.01, epochs=2, batch_size=4, momentum=0.9),
    privacy=PrivacySpec(min_cohort=3),
    options={"public_classes": 4, "hard_negative_threshold": -1.0},
)


def input_of(task: TaskSpec = TASK, **changes: Any) -> DeviceInput:
    inp = DeviceInput(
        task=task,
        part=PART,
        dim=8,
        theta=TINY.theta,
        crops=OWN,
        labels=LABELS,
        public_crops=PUBLIC,
        public_labels=PUBLIC_LABELS,
        seed=5,
    )
    return replace(inp, **changes)


def with_options(**options: object) -> TaskSpec:
    return replace(TASK, options={**TASK.options, **options})


def lane(output: DeviceOutput, name: str) -> np.ndarray:
    layout = output.contribution.layout
    return output.contribution.vector[layout.slices[name]]


# The facts of the paper and of its released code.


def test_presets_hold_what_the_paper_and_its_code_say() -> None:
    common = {
        "alpha": (1.0, 5.0, 10.0),
        "scale": 30.0,
        "margin": 0.4,
        "branch_scale": 30.0,
        "branch_margin": 0.4,
        "temperature": 0.5,
        "balance": 0.7,
        "exponent": 3.0,
        "hard_negative_threshold": 0.4,
        "branch": "binary",
        "detach_branch": False,
    }
    local = {"lr": 0.001, "weight_decay": 5e-4, "momentum": 0.9, "epochs": 4, "private_lr": None}
    table: dict[str, dict[str, Any]] = {
        "released_code": {
            "rounds": 20,
            "local_init": "random",
            "aggregate_public_head": False,
            "max_negatives": 0,
            "weight": "with_negatives",
            "first_contrast": "random",
            "first_epochs": 10,
            "lr_drop": 0.75,
        },
        "paper": {
            "rounds": 30,
            "local_init": "mean_feature",
            "aggregate_public_head": True,
            "max_negatives": 0,
            "weight": "local",
            "first_contrast": "global",
            "first_epochs": 0,
            "lr_drop": 0.0,
        },
        "recommended": {
            "rounds": 30,
            "local_init": "mean_feature",
            "aggregate_public_head": True,
            "max_negatives": 256,
            "weight": "local",
            "first_contrast": "skip",
            "first_epochs": 0,
            "lr_drop": 0.0,
        },
    }
    assert list(table) == ["released_code", "paper", "recommended"]
    assert set(table) == set(PRESETS)
    for name, facts in table.items():
        preset = PRESETS[name]
        assert preset.rounds == facts.pop("rounds")
        assert {field: getattr(preset.local, field) for field in local} == local
        assert preset.local.private_weight_decay == (None if name == "recommended" else 5e-4)
        assert preset.options == FedFrOptions(preset=name, **common, **facts)  # type: ignore[arg-type]


def test_the_released_code_trains_ten_epochs_first_and_four_at_last() -> None:
    options = PRESETS["released_code"].options
    schedule = [local_schedule(LocalSpec(epochs=4), options, number) for number in range(5)]
    assert [local.epochs for local in schedule] == [10, 8, 6, 4, 4]
    assert [local.lr_drop_epoch for local in schedule] == [7, 6, 4, 3, 3]
    assert local_schedule(LocalSpec(epochs=4), PRESETS["paper"].options, 0) == LocalSpec(epochs=4)


def test_a_task_changes_single_fields_of_its_preset() -> None:
    options = options_of(with_options(preset="released_code", margin=0.2))
    assert options == replace(
        PRESETS["released_code"].options, public_classes=4, margin=0.2, hard_negative_threshold=-1.0
    )
    assert options_of(replace(TASK, options=to_mapping(options))) == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"public_classes": 0}, "public_classes is 0"),
        ({"alpha": [1.0, -1.0, 0.0]}, "alpha"),
        ({"hard_negative_threshold": 1.5}, "hard_negative_threshold is 1.5"),
        ({"branch": "both"}, "allowed: 'binary', 'cosface', 'none'"),
        ({"scale": 0.0}, "scale is 0"),
        ({"lr_drop": 1.0}, "lr_drop is 1"),
        ({"max_negatives": -1}, "must not be negative"),
        ({"preset": "mine"}, "allowed: 'recommended', 'paper', 'released_code'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(with_options(**options))


def test_a_clip_that_would_cut_the_first_round_is_refused_where_it_is_for_everything() -> None:
    """Sixteen vectors of length 1 have norm 4."""
    dp = DpSpec("central_gaussian", noise_multiplier=1.0, epsilon=9.0, delta=1e-5, max_participations=1)
    task = replace(with_options(public_classes=16), trainable=("x",))
    noised = PrivacySpec(min_cohort=3, max_weight=1, l2_clip=4.0, dp=dp)
    with pytest.raises(ConfigError, match=r"privacy\.l2_clip is 4.*norm 4"):
        options_of(replace(task, privacy=noised))
    options_of(replace(task, privacy=replace(noised, l2_clip=4.1)))
    options_of(replace(task, privacy=noised, options={**task.options, "aggregate_public_head": False}))
    options_of(replace(task, privacy=PrivacySpec(min_cohort=3, l2_clip=4.0)))


def test_a_thousand_public_identities_fit_under_the_default_clip() -> None:
    """Their proxies have a clip of their own; the model's update keeps the task's, and the sum is checked for both."""
    task = replace(with_options(public_classes=1000), privacy=PrivacySpec(min_cohort=3))
    layout = FEDFR.contribution_layout(task, PART, 4)
    config = plan_round(task, layout, RoundIds(bytes(16), RoundNumber(1), AttemptNumber(1), bytes(32), bytes(32)))
    assert config.numbers.l2_clip == pytest.approx(math.hypot(10.0, 2 * math.sqrt(1000)))
    phi = np.zeros((1000, 4), np.float32)
    phi[:, 0] = 1.0
    lanes = {
        "count": np.ones(1),
        "weight": np.ones(1),
        "loss_before": np.ones(1),
        "loss_after": np.ones(1),
        "delta": np.full(PART.size, 28 / math.sqrt(PART.size)),
        "delta_public": phi.reshape(-1),
    }
    mapping, total = ContributionMap(layout), EmulatedSum(config)
    random = np.random.default_rng(0).bytes
    for _ in range(3):
        contribution = layout.pack({name: np.asarray(each, np.float32) for name, each in lanes.items()})
        total.add(mapping.addends(contribution), DpSpec(), random)
    summed = mapping.total(total.open(0.0))
    np.testing.assert_allclose(summed.mean("delta_public").reshape(1000, 4), phi, atol=1e-3)
    assert np.linalg.norm(summed.mean("delta")) == pytest.approx(10.0, rel=1e-3)


# What leaves the phone, and what stays.


def test_only_sums_leave() -> None:
    layout = contribution_layout(TASK, PART, 8)
    assert layout.revealed == ()
    assert [(each.name, each.size) for each in layout.summed[-2:]] == [("delta", PART.size), ("delta_public", 4 * 8)]
    fixed = contribution_layout(with_options(aggregate_public_head=False), PART, 8)
    assert [each.name for each in fixed.summed] == ["count", "weight", "loss_before", "loss_after", "delta"]


def test_what_stays_is_the_branch_the_proxies_and_the_local_model() -> None:
    output = device_round(input_of(), TINY.runtime())
    shapes = {name: values.shape for name, values in output.private.items()}
    assert shapes == {
        "local_proxies": (2, 8),
        "pi_weight": (8, 8),
        "pi_bias": (8,),
        "omega": (2, 8),
        "bias": (2,),
        "previous_part": (PART.size,),
        "participations": (1,),
    }
    moved = output.private["previous_part"] - PART.gather(TINY.theta)
    np.testing.assert_allclose(lane(output, "delta"), 6 * moved, atol=1e-5)
    assert output.metrics["num_negatives"] == output.metrics["num_public"] == 12


def test_the_server_learns_where_public_proxies_start_and_then_how_they_move() -> None:
    """Eq 4: Phi is the weighted mean of the devices' Phi, in the first round and in the second."""
    runtime = TINY.runtime()
    inputs = [input_of(), input_of(crops=OWN[:4], labels=LABELS[:4], seed=6)]
    state = server_start(TASK, PART, TINY.theta)
    assert reply(state, "any") == {}
    expected = np.zeros((4, 8))
    for _ in range(2):
        answer = reply(state, "any")
        outputs = [device_round(replace(inp, theta=state.theta, reply=answer), runtime) for inp in inputs]
        total = Total.empty(contribution_layout(TASK, PART, 8))
        mean = np.zeros((4, 8))
        for output in outputs:
            weight = lane(output, "weight")[0]
            mean += (lane(output, "delta_public").reshape(4, 8) + weight * expected) / 10
            total = total.plus(output.contribution)
        state = server_step(TASK, PART, state, total, {})
        expected = mean
        np.testing.assert_allclose(reply(state, "any")["public_proxies"].reshape(4, 8), expected, atol=1e-6)
    # They start at unit length as mean features; a server that forgot the start would be near zero.
    assert np.linalg.norm(expected, axis=1).min() > 0.5


def test_fixed_public_proxies_start_every_round_anew() -> None:
    task = with_options(aggregate_public_head=False)
    runtime = TINY.runtime()
    first = device_round(input_of(task), runtime)
    start = training_set(input_of(task), runtime).public_proxies
    np.testing.assert_array_equal(first.private["public_proxies_at_start"], start)
    elsewhere = PART.scatter(TINY.theta, PART.gather(TINY.theta) * np.float32(1.5))
    again = training_set(input_of(task, theta=elsewhere, private=first.private), runtime)
    np.testing.assert_array_equal(again.public_proxies, start)


def test_public_images_weigh_only_where_the_task_says_so() -> None:
    assert lane(device_round(input_of(), TINY.runtime()), "weight")[0] == 6
    assert lane(device_round(input_of(with_options(weight="with_negatives")), TINY.runtime()), "weight")[0] == 18


# Identities of one phone.


def test_one_person_needs_no_labels() -> None:
    one = device_round(input_of(labels=None), TINY.runtime())
    assert one.private["local_proxies"].shape == (1, 8)


def test_a_new_identity_joins_and_the_others_keep_what_they_learnt() -> None:
    runtime = TINY.runtime()
    before = device_round(input_of(), runtime).private
    crops = np.concatenate([OWN, made_up_crops(2, seed=9)])
    labels = np.array([*LABELS, 2, 2])
    data = training_set(input_of(crops=crops, labels=labels, private=before), runtime)
    np.testing.assert_array_equal(data.local_proxies[:2], before["local_proxies"])
    assert np.linalg.norm(data.local_proxies[2]) == pytest.approx(1, abs=1e-6)
    after = device_round(input_of(crops=crops, labels=labels, private=before), runtime).private
    assert after["omega"].shape == (3, 8)
    assert after["bias"].shape == (3,)
    assert after["participations"].tolist() == [2]


def test_labels_must_fit_the_crops() -> None:
    with pytest.raises(ConfigError, match="number each crop's identity"):
        device_round(input_of(labels=LABELS[:-1]), TINY.runtime())


def test_the_public_shard_must_be_the_tasks() -> None:
    with pytest.raises(ConfigError, match=r"4 identities and options\.public_classes is 5"):
        device_round(input_of(with_options(public_classes=5)), TINY.runtime())
    with pytest.raises(ConfigError, match="fedfr needs public faces"):
        device_round(input_of(public_crops=None, public_labels=None), TINY.runtime())
    with pytest.raises(CorruptDataError, match="'public_proxies' in another form"):
        device_round(input_of(reply={"public_proxies": np.zeros(3, np.float32)}), TINY.runtime())


# What options change.


def test_the_first_round_has_no_contrast_unless_asked_for() -> None:
    runtime = TINY.runtime()
    skipped, towards_global, random = (
        device_round(input_of(with_options(first_contrast=kind)), runtime) for kind in ("skip", "global", "random")
    )
    # f_prev = f_glob is the constant 5 log 2 with no gradient: rounding moves an entry by 1e-5, another f_prev by 7.
    np.testing.assert_allclose(lane(skipped, "delta"), lane(towards_global, "delta"), rtol=0, atol=1e-2)
    difference = towards_global.metrics["loss_before"] - skipped.metrics["loss_before"]
    assert difference == pytest.approx(5 * np.log(2), rel=1e-5)
    assert np.abs(lane(random, "delta") - lane(skipped, "delta")).max() > 1


def test_mirrored_images_are_compared_with_mirrored_features() -> None:
    """A model equal to its previous and the global one has contrast log 2 on mirrored crops too: no gradient at all."""
    task = replace(with_options(branch="none", alpha=[0.0, 1.0, 0.0]), local=LocalSpec(lr=0.5, epochs=3, flip=True))
    private = {"previous_part": PART.gather(TINY.theta)}
    output = device_round(input_of(task, private=private), TINY.runtime())
    assert np.abs(lane(output, "delta")).max() < 1e-6
    assert output.metrics["loss_after"] == pytest.approx(np.log(2), rel=1e-6)


def test_a_detached_branch_leaves_the_backbone_alone() -> None:
    only_branch = {"alpha": [0.0, 0.0, 10.0]}
    detached = device_round(input_of(with_options(**only_branch, detach_branch=True)), TINY.runtime())
    attached = device_round(input_of(with_options(**only_branch)), TINY.runtime())
    assert not lane(detached, "delta").any()
    assert np.abs(detached.private["pi_weight"] - np.eye(8)).max() > 1e-6
    assert np.abs(lane(attached, "delta")).max() > 1e-6


def test_a_branch_with_cosface_has_classifiers_of_public_identities_too() -> None:
    task = replace(with_options(branch="cosface"), local=LocalSpec(lr=1e-4, epochs=5, flip=False))
    output = device_round(input_of(task), TINY.runtime())
    assert output.private["omega_public"].shape == (4, 8)
    assert "bias" not in output.private
    assert output.metrics["loss_after"] < output.metrics["loss_before"]


def test_random_proxies_are_small_and_follow_the_seed() -> None:
    task = with_options(local_init="random")
    one, same, other = (training_set(input_of(task, seed=seed), TINY.runtime()).local_proxies for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0
    assert np.abs(one).max() < 0.1


# Personal models.


def test_a_personal_model_is_the_local_backbone_and_its_branch() -> None:
    runtime = TINY.runtime()
    output = device_round(input_of(), runtime)
    local = PART.scatter(TINY.theta, output.private["previous_part"])
    features = runtime.features(local, OWN)
    np.testing.assert_allclose(
        runtime.embed(local, OWN), features / np.linalg.norm(features, axis=1, keepdims=True), atol=1e-6
    )
    personal = features @ output.private["pi_weight"].T + output.private["pi_bias"]
    personal /= np.linalg.norm(personal, axis=1, keepdims=True)
    model = personal_model(PART, TINY.theta, output.private)
    np.testing.assert_allclose(model.embed(runtime, OWN), personal, atol=1e-6)
    plain = personal_model(PART, TINY.theta, output.private, "local")
    np.testing.assert_allclose(plain.embed(runtime, OWN), runtime.embed(local, OWN), atol=1e-6)
    assert "array" not in repr(model)


def test_a_device_without_a_branch_has_none() -> None:
    with pytest.raises(NotFoundError, match="no personal model yet"):
        personal_model(PART, TINY.theta, {})
    private = device_round(input_of(with_options(branch="none")), TINY.runtime()).private
    with pytest.raises(NotFoundError, match="no personal model yet"):
        personal_model(PART, TINY.theta, private)


def test_adaptations_start_at_the_global_model_and_a_heavy_teacher_holds_it_back() -> None:
    """Towards the teacher the logits' divergence is 0 at the start, so its weight only ever slows the change."""
    runtime = TINY.runtime()
    gentle = replace(TASK, local=LocalSpec(lr=1e-4, epochs=10, flip=False))
    inp = input_of(gentle, private=device_round(input_of(), runtime).private)
    start = PART.gather(inp.theta)

    def moved(theta: np.ndarray) -> float:
        return float(np.linalg.norm(PART.gather(theta) - start))

    tuned = moved(fine_tune(inp, runtime).theta)
    unheld = moved(distil(inp, runtime, DistillationSpec(weight=0.0)).theta)
    held = moved(distil(inp, runtime, DistillationSpec(weight=5.0)).theta)
    assert tuned == pytest.approx(unheld, rel=1e-6)
    assert 0 < held < tuned
    with pytest.raises(ConfigError, match="positive temperature"):
        DistillationSpec(temperature=0.0)


def test_it_is_registered_and_needs_public_faces() -> None:
    assert find_method("fedfr") is FEDFR
    assert FEDFR.requirements(TASK).public_faces
