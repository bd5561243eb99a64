"""FedProx, SCAFFOLD, MimeLite and PFM with FV: options, refusals, and what is kept; their arithmetic is in golden."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from mien.backbones import Backbone, layout_of
from mien.contribution import Total
from mien.errors import ConfigError, CorruptDataError, NonFiniteError, UndefinedMetricError
from mien.layout import Vector
from mien.methods import find_method
from mien.methods.base import (
    Crops,
    DeviceInput,
    Embeddings,
    StepRule,
    Trained,
    TrainingJob,
    ValidationFaces,
    ValidationInput,
    shared_words,
)
from mien.methods.local_loss import LocalLoss, own_classes
from mien.methods.pfm_fv import (
    PRESETS,
    PfmFvOptions,
    options_of,
    own_faces,
    own_weighting,
    rate,
    scaled,
    score,
    validation_faces,
)
from mien.protocol.canonical import model_to_json
from mien.rounds.plan import plan_task
from mien.specs import (
    CohortSpec,
    DpSpec,
    FaceInputSpec,
    LocalSpec,
    ModelSpec,
    PrivacySpec,
    ServerSpec,
    TaskSpec,
    from_mapping,
    to_mapping,
)
from simulation.engines.engine import Cohort, run_task
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
PART = TINY.part()
LABELS = np.repeat(np.arange(2), 3).astype(np.int64)
CROPS = np.concatenate([made_up_crops(3, seed=k) for k in range(2)])
TASK = TaskSpec(
    name="optimisers",
    method="scaffold",
    rounds=2,
    cohort=CohortSpec(size=3, min_reports=3),
    local=LocalSpec(lr=0.1, steps=2),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)
FV_TASK = replace(TASK, method="pfm_fv", privacy=replace(TASK.privacy, reveals=("local_models",)))


class Leap:
    """A runtime whose training ends a given way from where it began."""

    def __init__(self, length: float) -> None:
        self._length = length

    def train(self, job: TrainingJob, should_stop: object = None) -> Trained:
        values = job.part.gather(job.theta) + np.float32(self._length / np.sqrt(job.part.size))
        return Trained(job.part, job.theta, values, dict(job.objective.private), 1.0, 1.0, job.local.steps)

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        return TINY.runtime().embed(theta, crops)


@pytest.mark.parametrize(("length", "is_cut"), [(0.1, False), (1e6, True)])
def test_a_control_variate_is_kept_as_far_as_the_sum_lets_it_out(length: float, is_cut: bool) -> None:
    """Else a round of gradients a million times too large would outweigh the phone's next update, and cancel it."""
    task = replace(TASK, privacy=PrivacySpec(min_cohort=3, l2_clip=1.0, max_weight=1))
    found = find_method("scaffold").device_round(device(task), Leap(length))
    lanes, slices = found.contribution.vector, found.contribution.layout.slices
    sent = np.concatenate([lanes[slices[name]] for name in ("delta", "delta_control")])
    kept = float(np.linalg.norm(found.private["control"]))
    cut = min(1.0, 1.0 / float(np.linalg.norm(sent)))
    assert (cut < 1) is is_cut
    assert kept == pytest.approx(cut * float(np.linalg.norm(lanes[slices["delta_control"]])), rel=1e-4)


def device(task: TaskSpec, **changes: object) -> DeviceInput:
    inp = DeviceInput(task=task, part=PART, dim=8, theta=TINY.theta, crops=CROPS, labels=LABELS, seed=1)
    return replace(inp, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("scaffold", {"local": LocalSpec(momentum=0.9)}, "local.momentum"),
        ("scaffold", {"local": LocalSpec(weight_decay=0.1)}, "local.weight_decay"),
        ("scaffold", {"local": LocalSpec(lr_drop_epoch=1)}, "local.lr_drop_epoch"),
        ("scaffold", {"options": {"num_devices": -1}}, "options.num_devices"),
        ("mime", {"local": LocalSpec(momentum=0.9)}, "options.beta"),
        ("mime", {"server": ServerSpec(momentum=0.9)}, "server.momentum"),
        ("mime", {"options": {"beta": 1.0}}, "options.beta"),
        ("pfm_fv", {"local": LocalSpec(momentum=0.9)}, "options.beta"),
        ("pfm_fv", {"local": LocalSpec(private_momentum=0.9)}, "local.private_momentum"),
        ("pfm_fv", {"server": ServerSpec(lr=0.5)}, "eq 4"),
        ("pfm_fv", {"options": {"beta": 1.0}}, "options.beta"),
        ("pfm_fv", {"options": {"mixing": 1.5}}, "options.mixing"),
        ("pfm_fv", {"options": {"candidates": 1}}, "options.candidates"),
        ("pfm_fv", {"options": {"epsilon": 0.0}}, "options.epsilon"),
        ("pfm_fv", {"options": {"lr_drop_rounds": [4, 2]}}, "options.lr_drop_rounds"),
        ("fedprox", {"options": {"scale": 0.0}}, "options.scale"),
    ],
)
def test_what_a_method_cannot_do_is_refused_when_the_task_is_planned(
    method: str, changes: dict[str, object], message: str
) -> None:
    task = replace(TASK, method=method, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        plan_task(task, model_to_json(TINY.spec, TINY.layout), public_shard=None)


def test_fedprox_refuses_a_strength_below_zero() -> None:
    with pytest.raises(ConfigError, match=r"options\.mu"):
        find_method("fedprox").device_round(device(replace(TASK, options={"mu": -1.0})), TINY.runtime())


def test_the_coordinator_refuses_what_needs_validators_and_takes_pfm_alone() -> None:
    model = model_to_json(TINY.spec, TINY.layout)
    with pytest.raises(ConfigError, match=r'options\.validation = "off"'):
        plan_task(FV_TASK, model, public_shard=None)
    plan = plan_task(replace(FV_TASK, options={"validation": "off"}), model, public_shard=None)
    assert [lane.name for lane in plan.contribution.summed][-1] == "delta"


def test_a_momentum_that_fits_into_no_message_is_planned_all_the_same() -> None:
    """It is streamed to devices: 600 KB here."""
    spec = FaceInputSpec(dim=128)
    backbone = Backbone("wide", spec, {"embedding": nn.Sequential(nn.Flatten(), nn.Linear(3 * 112 * 112, 4))})
    layout = layout_of(backbone)
    model = model_to_json(ModelSpec("wide", layout.sha256, spec, "made up", "none", ("*",)), layout)
    for method in ("scaffold", "mime", "fedprox"):
        plan_task(replace(TASK, method=method), model, public_shard=None)


def test_a_cohort_without_validators_is_refused() -> None:
    cohort = Cohort(dict.fromkeys("abc", CROPS), labels=dict.fromkeys("abc", LABELS))
    with pytest.raises(ConfigError, match="the cohort has none"):
        run_task(FV_TASK, PART, 8, TINY.theta, cohort, TINY.runtime())


def test_a_server_without_the_stage_does_not_guess_weights() -> None:
    method = find_method("pfm_fv")
    state = method.server_start(FV_TASK, PART, TINY.theta)
    empty = Total.empty(method.contribution_layout(FV_TASK, PART, 8))
    with pytest.raises(ConfigError, match="no such stage"):
        method.server_step(FV_TASK, PART, state, empty, {})
    assert method.validation is not None
    with pytest.raises(NonFiniteError, match="aborted"):
        method.validation.candidates(FV_TASK, PART, state, empty)
    with pytest.raises(ConfigError, match="no history"):
        method.device_round(device(FV_TASK), TINY.runtime())


def test_who_drops_out_changes_the_weights_of_the_others_in_proportion() -> None:
    """The sum over two of three trainers, renormalised, is the candidate that the two alone would have made."""
    method = find_method("pfm_fv")
    assert method.validation is not None
    state = method.server_start(FV_TASK, PART, TINY.theta)
    layout, total, updates, weights = method.contribution_layout(FV_TASK, PART, 8), None, [], []
    for seed, name in enumerate(("a", "c")):
        crops = np.concatenate([made_up_crops(3, seed=50 * seed + k) for k in range(2)])
        inp = device(FV_TASK, crops=crops, reply=method.reply(state, name), device=name)
        output = method.device_round(inp, TINY.runtime())
        total = (total or Total.empty(layout)).plus(output.contribution)
        lanes = {lane: output.contribution.vector[layout.slices[lane]] for lane in ("weightings", "deltas")}
        weights.append(lanes["weightings"].astype(np.float64))
        updates.append(lanes["deltas"].reshape(3, -1)[0] / weights[-1][0])
    assert total is not None
    for t, theta in enumerate(method.validation.candidates(FV_TASK, PART, state, total)):
        w = np.array([each[t] for each in weights])
        expected = PART.gather(TINY.theta) + (w / w.sum()) @ np.array(updates)
        np.testing.assert_allclose(PART.gather(theta), expected, atol=1e-6)


def test_a_trainers_weights_are_its_own_and_new_ones_every_round() -> None:
    nothing_yet, one_round = np.zeros((0, 3), np.float32), np.array([[0, 1, 0]], np.float32)
    weights = [own_weighting(FV_TASK, name, past, 5) for past in (nothing_yet, one_round) for name in ("a", "b")]
    assert all(each.shape == (3,) for each in weights)
    np.testing.assert_array_equal([each[0] for each in weights], [5.0] * 4)
    assert len({each[1] for each in weights} | {each[2] for each in weights}) == 8
    other_task = replace(FV_TASK, seed=FV_TASK.seed + 1)
    assert own_weighting(other_task, "a", nothing_yet, 5)[1] != weights[0][1]


def test_a_trainer_keeps_the_secret_of_its_first_counted_round() -> None:
    """Else nothing would stay of what validators found; and a secret that left would be none."""
    reply = find_method("pfm_fv").reply(find_method("pfm_fv").server_start(FV_TASK, PART, TINY.theta), "")
    first, later = bytes(range(200, 232)), b"later" * 6
    outputs = []
    for secret, private in ((first, {}), (later, {}), (b"", {}), (later, None)):
        inp = device(
            FV_TASK, device="a", secret=secret, reply=reply, private=outputs[0].private if private is None else private
        )
        outputs.append(find_method("pfm_fv").device_round(inp, TINY.runtime()))
    mine, others, public, again = (
        output.contribution.vector[output.contribution.layout.slices["weightings"]] for output in outputs
    )
    np.testing.assert_array_equal(mine, again)
    assert len({tuple(each[1:]) for each in (mine, others, public)}) == 3
    assert (
        outputs[0].private["weighting_secret"].tolist()
        == outputs[3].private["weighting_secret"].tolist()
        == list(first)
    )
    assert "weighting_secret" not in outputs[2].private
    assert repr(first) not in repr(device(FV_TASK, secret=first))


@pytest.mark.parametrize("row", [(1, 0.5, 1.0), (1, 1.0, 1.0), (0, 0.99, 0.0), (0, 1.0, 1.0), (1, 0.99, -1.0)])
def test_a_history_that_no_servers_steps_give_is_refused(row: tuple[float, float, float]) -> None:
    with pytest.raises(CorruptDataError, match="cannot be"):
        own_weighting(replace(FV_TASK, rounds=9), "a", np.array([row], np.float32), 5)


def test_a_history_is_no_longer_than_its_task() -> None:
    """Each row is a free number: as many as trainers, and some more, would give one trainer a weight of its own."""
    row = np.array([[1, np.float32(1 - options_of(FV_TASK).mixing), 1.0]], np.float32)
    task = replace(FV_TASK, rounds=4)
    own_weighting(task, "a", np.repeat(row, 3, axis=0), 5)
    with pytest.raises(CorruptDataError, match="cannot be"):
        own_weighting(task, "a", np.repeat(row, 4, axis=0), 5)


def test_a_server_cannot_choose_a_trainers_weights() -> None:
    """All that it tells is the history of winners, the same words for everybody, on which the cohort agrees."""
    method = find_method("pfm_fv")
    state = method.server_start(FV_TASK, PART, TINY.theta)
    alike = method.requirements(FV_TASK).shared_reply
    assert method.reply(state, "a").keys() == method.reply(state, "b").keys() == set(alike)
    told = method.reply(state, "a")
    agreed = shared_words(told, alike)
    assert len(agreed) == 32
    assert shared_words({**told, "other": np.ones(1, np.float32)}, alike) == agreed
    for name in alike:
        changed = {**told, name: np.ones((1, 3), np.float32)}
        assert shared_words(changed, alike) != agreed
    assert shared_words({}, alike) == b""
    for row in ([3, 1, 0], [1, np.nan, 0], [1, 0.5, -1]):
        with pytest.raises(CorruptDataError, match="cannot be"):
            own_weighting(FV_TASK, "a", np.array([row], np.float32), 5)


def test_scaled_weights_fit_a_masked_sum_and_change_no_candidate() -> None:
    weighting = np.array([40.0, 0.01, 44.36])
    np.testing.assert_array_equal(scaled(FV_TASK, weighting), weighting / 128)
    task = replace(FV_TASK, privacy=replace(FV_TASK.privacy, coordinate_clip=0.75, max_weight=1))
    np.testing.assert_array_equal(scaled(task, weighting), weighting / 128)
    assert scaled(task, np.array([1e4]))[0] == 0.75


def test_validators_have_a_sum_of_their_own() -> None:
    stage = find_method("pfm_fv").validation
    assert stage is not None
    task = replace(FV_TASK, validators=CohortSpec(size=5, min_reports=4), options={"candidates": 4, "epsilon": 0.01})
    theirs = stage.validators_task(task)
    assert (theirs.cohort, theirs.validators, theirs.privacy.reveals) == (task.validators, None, ())
    assert (theirs.privacy.max_weight, theirs.privacy.coordinate_clip, theirs.privacy.l2_clip) == (1, 1000.0, 2000.0)
    assert theirs.privacy.min_cohort == task.privacy.min_cohort
    with pytest.raises(ConfigError, match=r"add \[validators\]"):
        stage.validators_task(FV_TASK)
    noisy = DpSpec("central_gaussian", noise_multiplier=1.0, epsilon=1.0, delta=1e-6, max_participations=1)
    privacy = PrivacySpec(min_cohort=3, max_weight=1, dp=noisy)
    with pytest.raises(ConfigError, match="no noise"):
        stage.validators_task(replace(task, trainable=("mix.*",), privacy=privacy))


def test_the_papers_settings() -> None:
    """Section 4.2: 26 epochs of 12,800 steps; K = 400 gives 832 rounds, rates 0.1, 0.01, 0.001, 0.0001."""
    assert [PRESETS[name].rounds for name in ("paper_k100", "paper_k400", "paper_k1600")] == [3328, 832, 208]
    preset = PRESETS["paper_k400"]
    assert (preset.local.steps, preset.options.candidates, preset.options.mixing) == (400, 3, 0.01)
    assert (preset.options.beta, preset.options.epsilon, preset.options.moving) == (0.9, 0.001, 0.01)
    task = replace(TASK, method="pfm_fv", local=preset.local, server=preset.server, options=to_mapping(preset.options))
    assert options_of(task) == preset.options
    rates = [rate(task, preset.options, r) for r in (1, 320, 321, 576, 577, 768, 769, 832)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])


def test_local_momentum_is_the_baselines_and_no_momentum_is_sent() -> None:
    """FedAvg's trainers have classical momentum of their own: by round two M plays no part."""
    task = replace(FV_TASK, options={"validation": "off", "momentum": "local", "loss": "cosface", "scale": 8.0})
    method = find_method("pfm_fv")
    loud = {"momentum": np.ones(PART.size, np.float32), "round": np.ones(1, np.float32)}
    with_it, without = (method.device_round(device(task, reply=reply), TINY.runtime()) for reply in (loud, {}))
    np.testing.assert_array_equal(with_it.contribution.vector, without.contribution.vector)


@pytest.mark.parametrize(("loss", "margin"), [("positive", 0.9), ("cosface", 0.35), ("arcface", 0.5), ("softmax", 0.0)])
def test_every_loss_has_its_usual_margin_and_trains(loss: str, margin: float) -> None:
    options = from_mapping(LocalLoss, {"loss": loss, "scale": 8.0, "class_start": "random"})
    problem = own_classes(device(TASK), TINY.runtime(), options, StepRule())
    assert problem.objective.constants["margin"] == margin
    trained = TINY.runtime().train(
        TrainingJob(TINY.theta, PART, CROPS, problem.objective, replace(TASK.local, steps=20), 0)
    )
    assert trained.loss_after < trained.loss_before
    assert problem.kept(trained)["class_embeddings"].shape == (2, 8)


def test_one_identity_takes_the_positive_loss_only() -> None:
    alone = device(TASK, crops=CROPS[:3], labels=None)
    assert own_classes(alone, TINY.runtime(), LocalLoss(), StepRule()).objective.private["class_embedding"].ndim == 1
    with pytest.raises(ConfigError, match=r'options\.loss = "positive"'):
        own_classes(alone, TINY.runtime(), LocalLoss(loss="cosface"), StepRule())


def test_a_new_identity_joins_those_that_were_kept() -> None:
    kept = np.full((1, 8), 0.5, np.float32)
    velocity = np.full((1, 8), 2.0, np.float32)
    inp = device(TASK, private={"class_embeddings": kept, "class_velocity": velocity})
    for start in ("mean_feature", "random"):
        loss = LocalLoss(loss="softmax", class_start=start)
        objective = own_classes(inp, TINY.runtime(), loss, StepRule(), keeps_velocity=True).objective
        np.testing.assert_array_equal(objective.private["class_embeddings"][0], kept[0])
        assert np.abs(objective.private["class_embeddings"][1]).max() > 0
        np.testing.assert_array_equal(objective.velocity["class_embeddings"], [velocity[0], np.zeros(8)])


# Validators.


def test_pairs_are_balanced_and_folds_share_nobody() -> None:
    labels = np.repeat(np.arange(9), 3).astype(np.int64)
    crops = np.concatenate([made_up_crops(3, seed=k) for k in range(9)])
    faces = validation_faces(crops, labels, num_folds=3, max_mated=24)
    assert faces.mated.sum() == (~faces.mated).sum() == 24
    people = [set(labels[faces.pairs[faces.folds == fold]].reshape(-1)) for fold in range(3)]
    assert not people[0] & people[1]
    assert not people[1] & people[2]
    np.testing.assert_array_equal(labels[faces.pairs[:, 0]] == labels[faces.pairs[:, 1]], faces.mated)
    with pytest.raises(ConfigError, match="fewer folds"):
        validation_faces(crops[:3], labels[:3], num_folds=1)


def every_pair(faces: ValidationFaces) -> set[tuple[int, ...]]:
    return {tuple(sorted(pair)) for pair in faces.pairs.tolist()}


def test_pairs_are_drawn_without_repeats_from_all_there_are() -> None:
    """Small folds give up every pair of the scarcer kind; a seed always draws the same, another one other pairs."""
    labels = np.array([3, 0, 1, 3, 0, 1, 7, 7, 3], np.int64)
    crops = np.zeros((len(labels), 1, 1, 3), np.uint8)
    faces = validation_faces(crops, labels, num_folds=1)
    same = {(i, j) for j in range(9) for i in range(j) if labels[i] == labels[j]}
    assert {tuple(sorted(pair)) for pair in faces.pairs[faces.mated].tolist()} == same
    assert len(every_pair(faces)) == len(faces.pairs) == 2 * len(same)
    np.testing.assert_array_equal(faces.pairs, validation_faces(crops, labels, num_folds=1).pairs)
    seen: set[tuple[int, ...]] = set()
    for seed in range(60):
        seen |= every_pair(validation_faces(crops, labels, num_folds=1, seed=seed))
    assert seen == {(i, j) for j in range(9) for i in range(j)}


def test_choosing_pairs_takes_memory_that_grows_with_the_pictures() -> None:
    num = 40_000
    labels = np.repeat(np.arange(num // 10), 10)
    crops = np.zeros((num, 1, 1, 3), np.uint8)
    tracemalloc.start()
    try:
        faces = own_faces(crops, labels)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 400 * num
    assert len(every_pair(faces)) == len(faces.pairs) == 2000
    np.testing.assert_array_equal(labels[faces.pairs[:, 0]] == labels[faces.pairs[:, 1]], faces.mated)


def test_a_validators_people_are_those_with_two_pictures() -> None:
    pictures = [2] + [1] * 9
    with pytest.raises(ConfigError, match=r"here are 1 people with two pictures or more, among 10 people with 11"):
        own_faces(np.zeros((11, 1, 1, 3), np.uint8), np.repeat(np.arange(10), pictures))
    for order in range(20):  # whoever they are among many with one picture: each fold gets two of the four
        pictures = np.random.default_rng(order).permutation([2] * 4 + [1] * 12).tolist()
        labels = np.repeat(np.arange(16), pictures)
        faces = own_faces(np.zeros((20, 1, 1, 3), np.uint8), labels)
        assert faces.mated.sum() == (~faces.mated).sum() == 4
        assert set(faces.folds.tolist()) == {0, 1}


def test_a_validator_sends_scores_only_and_keeps_its_statistics() -> None:
    labels = np.repeat(np.arange(4), 3).astype(np.int64)
    crops = np.concatenate([made_up_crops(3, seed=k) for k in range(4)])
    faces = validation_faces(crops, labels, num_folds=2)
    stage = find_method("pfm_fv").validation
    assert stage is not None
    candidates = (TINY.theta, TINY.theta * np.float32(0.5), -TINY.theta)
    for norm, kept in (("local_norm", set()), ("no_norm", set()), ("moving_norm", {"percent_statistics"})):
        task = replace(FV_TASK, options={"validation": norm})
        output = stage.validate(ValidationInput(task, candidates, faces), TINY.runtime())
        assert output.contribution.vector.shape == (2 + 3,)
        assert set(output.private) == kept
        assert "array" not in repr(output)
        assert "array" not in repr(faces)


def test_a_score_that_pairs_cannot_give_is_an_error() -> None:
    labels = np.repeat(np.arange(4), 2).astype(np.int64)
    faces = validation_faces(np.concatenate([made_up_crops(2, seed=k) for k in range(4)]), labels, num_folds=2)
    with pytest.raises(UndefinedMetricError, match="not measurable"):
        score(PfmFvOptions(score="tar", score_fmr=1e-4), TINY.runtime(), TINY.theta, faces)
