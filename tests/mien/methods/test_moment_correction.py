"""FedGC's correction against everybody: what is summed, told, taken out, and refused, and how near it is to eq 5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.contribution import Arrays, Total
from mien.errors import ConfigError, CorruptDataError
from mien.layout import Vector
from mien.methods.base import DeviceInput, DeviceOutput, ServerState, shared_words
from mien.methods.fedgc import FEDGC, W
from mien.methods.moment_correction import COUNT, addends
from mien.methods.spreadout import (
    Matrix,
    device_moment,
    moment_regulariser,
    normalise,
    packed_size,
    softmax_regulariser,
)
from mien.specs import CohortSpec, DpSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import SequentialEngine
from simulation.engines.engine import Cohort, Run, run_task
from simulation.engines.sums import Sums
from tests.mien.methods.test_fedface import Watched
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY, DIM = tiny_cnn(8), 8
PART = TINY.part()
CROPS = {f"client{i}": np.concatenate([made_up_crops(2, seed=10 * i + k) for k in range(2)]) for i in range(4)}
LABELS = {name: np.array([0, 0, 1, 1]) for name in CROPS}
MOST = 3
TASK = TaskSpec(
    name="everybody",
    method="fedgc",
    rounds=3,
    cohort=CohortSpec(size=4, min_reports=3),
    local=LocalSpec(lr=0.1, flip=False),
    privacy=PrivacySpec(reveals=("class_moment",), min_cohort=3),
    options={
        "identities": MOST,
        "start": "mean_feature",
        "head": {"kind": "cosface", "scale": 8.0, "margin": 0.1},
        "correction": {"strength": 2.0},
    },
)


def of(task: TaskSpec = TASK, **changes: Any) -> TaskSpec:
    """Return the task with some of its options changed."""
    return replace(task, options={**task.options, **changes})


def run(task: TaskSpec, sums: Sums = "exact") -> Run:
    cohort = Cohort(CROPS, labels=LABELS)
    return run_task(task, PART, DIM, TINY.theta, cohort, SequentialEngine(TINY.runtime()), sums=sums)


def input_of(name: str, state: ServerState, private: Arrays | None = None, task: TaskSpec = TASK) -> DeviceInput:
    reply = FEDGC.reply(state, name)
    return DeviceInput(task, PART, DIM, state.theta, CROPS[name], LABELS[name], private or {}, reply, device=name)


def opened(names: tuple[str, ...] = tuple(CROPS), task: TaskSpec = TASK) -> tuple[ServerState, dict[str, DeviceOutput]]:
    """Return the state after a first round of these clients, and what each of them made."""
    state = FEDGC.server_start(task, PART, TINY.theta)
    outputs = {name: FEDGC.device_round(input_of(name, state, task=task), TINY.runtime()) for name in names}
    total = Total.empty(FEDGC.contribution_layout(task, PART, DIM))
    for output in outputs.values():
        total = total.plus(output.contribution)
    return FEDGC.server_step(task, PART, state, total, {}), outputs


def begun_with(inp: DeviceInput) -> Vector:
    """Return the class embeddings with which a client's training begins."""
    runtime = Watched(TINY.runtime())
    FEDGC.device_round(inp, runtime)
    ((_, objective),) = runtime.asked
    return objective.private[W]


def moments_of(others: Vector | Matrix) -> tuple[int, Matrix, Matrix]:
    """Return how many vectors these are, their mean and their covariance."""
    w_CD = others.astype(np.float64)
    return len(w_CD), w_CD.mean(axis=0), np.asarray(np.cov(w_CD.T, bias=True), np.float64)


def expected_step(w: Vector, others: Vector) -> Vector:
    """Return rows after the correction against others' rows, whose moments are taken here."""
    _, gradient = moment_regulariser(w.astype(np.float64), *moments_of(others))
    return normalise(w - 2.0 * 0.1 * gradient).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_of_gaussian_classes_it_is_nearly_equation_5(scale: float) -> None:
    """612 classes about a common direction, 36 clients: the gradients of both differ by their normalisers alone."""
    rng = np.random.default_rng(0)
    w = normalise(rng.normal(size=(612, 32)) * np.exp(-np.arange(32) / 20) + 0.5 * np.eye(32)[3])
    client = np.arange(len(w)) % 36
    _, exact = softmax_regulariser(w, w, client[:, None] != client[None, :], scale=scale)
    ours = np.zeros_like(w)
    for number in range(36):
        others = w[client != number]
        ours[client == number] = moment_regulariser(w[client == number], *moments_of(others), scale=scale)[1]
    assert np.linalg.norm(ours - exact) < 0.15 * np.linalg.norm(exact)
    cosines = (ours * exact).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.mean() > 0.99


def test_the_gradient_is_that_of_its_loss_but_for_the_own_logit() -> None:
    rng = np.random.default_rng(1)
    w, mean, root = rng.normal(size=(2, 4)), rng.normal(size=4), rng.normal(size=(4, 4))
    given = (5, mean, root @ root.T / 4)
    own = (w**2).sum(axis=1)

    def loss(moved: Matrix) -> float:
        # The own logit stays that of `w`: a margin makes up for the change of the length.
        return sum(
            moment_regulariser(row[None], *given, scale=1.5, margin=0.2 + float(row @ row - at))[0]
            for row, at in zip(moved, own, strict=True)
        )

    value, gradient = moment_regulariser(w, *given, scale=1.5, margin=0.2)
    assert value == pytest.approx(loss(w))
    for k, d in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[k, d] = 1e-6
        assert gradient[k, d] == pytest.approx((loss(w + step) - loss(w - step)) / 2e-6, rel=1e-5, abs=1e-8)


def test_a_contribution_holds_sums_over_classes_and_nothing_else() -> None:
    layout = FEDGC.contribution_layout(TASK, PART, DIM)
    assert layout.revealed == ()
    assert [(lane.name, lane.size) for lane in layout.summed][-3:] == [
        ("moment_classes", 1),
        ("moment_mean", DIM),
        ("moment", packed_size(DIM)),
    ]
    _, outputs = opened()
    w = outputs["client0"].private[W]
    vector = outputs["client0"].contribution.vector
    lanes = {name: vector[place] for name, place in layout.slices.items()}
    assert lanes["moment_classes"] == pytest.approx(2 / MOST)
    np.testing.assert_allclose(lanes["moment_mean"], w.sum(axis=0) / MOST, atol=1e-6)
    np.testing.assert_allclose(lanes["moment"], device_moment(w) * 2 / MOST, atol=1e-6)


@pytest.mark.parametrize("held", range(MOST + 1))
def test_a_client_changes_the_sums_by_a_bounded_length(held: int) -> None:
    w = np.tile(np.eye(DIM, dtype=np.float32)[0], (held, 1))
    length = np.linalg.norm(np.concatenate(list(addends(w, MOST).values())))
    assert length == pytest.approx(np.sqrt(3) * held / MOST)


def test_nobody_needs_public_people_and_no_class_is_told() -> None:
    requirements = FEDGC.requirements(TASK)
    assert not requirements.public_faces
    assert requirements.why_synchronous
    finished = run(TASK)
    assert not finished.state.revealed
    assert set(FEDGC.reply(finished.state, "client0")) == set(requirements.shared_reply)
    replies = [FEDGC.reply(finished.state, name) for name in ("client0", "client1")]
    assert shared_words(replies[0], requirements.shared_reply) == shared_words(replies[1], requirements.shared_reply)


@pytest.mark.parametrize(
    ("reveals", "options", "public"),
    [
        (("class_moment",), {}, False),
        (("class_moment",), {"private_form": "public"}, True),
        (("class_moment",), {"moment": {"every": 1}}, True),
        ((), {}, True),
        (("class_embeddings",), {}, False),
    ],
    ids=["moments", "named", "moments for steps", "nothing", "embeddings"],
)
def test_what_a_task_agreed_to_chooses_the_form(
    reveals: tuple[str, ...], options: dict[str, Any], public: bool
) -> None:
    task = replace(of(**options), privacy=PrivacySpec(reveals=reveals, min_cohort=3))
    assert FEDGC.requirements(task).public_faces == public
    lanes = {lane.name for lane in FEDGC.contribution_layout(task, PART, DIM).summed}
    assert (COUNT in lanes) == (reveals == ("class_moment",) and not options)


def test_a_first_round_corrects_nothing() -> None:
    state = FEDGC.server_start(TASK, PART, TINY.theta)
    uncorrected = replace(of(correction={"kind": "none"}), privacy=PrivacySpec(min_cohort=3))
    ours, theirs = (begun_with(input_of("client0", state, task=task)) for task in (TASK, uncorrected))
    np.testing.assert_array_equal(ours, theirs)


def test_a_client_steps_against_the_others_without_its_own_part() -> None:
    state, outputs = opened()
    others = np.concatenate([outputs[name].private[W] for name in CROPS if name != "client1"])
    w = begun_with(input_of("client1", state, outputs["client1"].private))
    np.testing.assert_allclose(w, expected_step(outputs["client1"].private[W], others), atol=1e-6)
    assert np.abs(w - outputs["client1"].private[W]).max() > 1e-2


def test_a_client_that_is_not_in_the_sum_steps_against_all_of_it() -> None:
    state, outputs = opened(("client0", "client1", "client2"))
    kept = np.random.default_rng(3).normal(size=(2, DIM)).astype(np.float32)
    private = {W: normalise(kept).astype(np.float32), "own_moment_number": np.array([0], np.float32)}
    others = np.concatenate([outputs[f"client{i}"].private[W] for i in range(3)])
    w = begun_with(input_of("client3", state, private))
    np.testing.assert_allclose(w, expected_step(private[W], others), atol=1e-6)


def test_a_client_that_cannot_tell_whether_it_is_in_the_sum_steps_later() -> None:
    """Somebody of it has left: what was of all together is gone, the others' class embeddings are not."""
    state, outputs = opened()
    kept = {W: outputs["client1"].private[W]}
    np.testing.assert_array_equal(begun_with(input_of("client1", state, kept)), kept[W])


def test_an_identity_that_is_new_is_not_corrected_before_it_was_trained() -> None:
    state, outputs = opened()
    private = {**outputs["client1"].private, W: outputs["client1"].private[W][:1]}
    both, one = (begun_with(input_of("client1", state, kept)) for kept in (private, {W: private[W]}))
    np.testing.assert_array_equal(both[1], one[1])
    assert np.abs(both[0] - one[0]).max() > 1e-3


def test_identities_that_others_hold_too_are_in_no_sum_and_stay() -> None:
    task = of(shared=[[["client0", 0], ["client1", 0]]])
    state, outputs = opened(task=task)
    assert state.arrays[COUNT][0] == pytest.approx((1 + 1 + 2 + 2) / MOST)
    others = np.concatenate([outputs[name].private[W][name == "client0" :] for name in CROPS if name != "client1"])
    kept = outputs["client1"].private
    w = begun_with(input_of("client1", state, kept, task))
    np.testing.assert_array_equal(w[0], kept[W][0])
    np.testing.assert_allclose(w[1], expected_step(kept[W], others)[1], atol=1e-6)


def test_the_cosine_correction_is_the_published_one() -> None:
    """FedCos moves by the sum of all others: one moment says all of it, and the server need not see them."""
    private = of(correction={"kind": "cosine", "strength": 0.3})
    published = replace(private, privacy=PrivacySpec(reveals=("class_embeddings",), min_cohort=3))
    ours, theirs = run(private), run(published)
    assert np.abs(ours.state.theta - TINY.theta).max() > 1e-2
    np.testing.assert_allclose(ours.state.theta, theirs.state.theta, atol=1e-5)


def test_the_softmax_correction_leads_near_the_published_ones_model() -> None:
    """A fifth of the way that the correction makes, at most."""
    published = replace(TASK, privacy=PrivacySpec(reveals=("class_embeddings",), min_cohort=3))
    uncorrected = replace(of(correction={"kind": "none"}), privacy=PrivacySpec(min_cohort=3))
    exact, ours, none = (run(task).state.theta for task in (published, TASK, uncorrected))
    assert np.linalg.norm(ours - exact) < 0.2 * np.linalg.norm(none - exact)


def test_masked_sums_give_the_same_model() -> None:
    exact, ring = run(TASK), run(TASK, "ring")
    moved = np.abs(exact.state.theta - TINY.theta).max()
    np.testing.assert_allclose(ring.state.theta, exact.state.theta, atol=1e-2 * moved)


def test_noised_sums_tell_how_many_classes_they_are_of() -> None:
    """Under differential privacy single numbers are not sent: the second moment of unit vectors tells their number."""
    plain = PrivacySpec(reveals=("class_moment",), min_cohort=3, max_weight=1, l2_clip=50.0, coordinate_clip=2.0)
    noise = DpSpec("central_gaussian", noise_multiplier=1e-6, epsilon=1e3, delta=1e-5, max_participations=3)
    clear = replace(of(private_form="everybody"), trainable=("*",), privacy=plain)
    noised = replace(clear, privacy=replace(plain, reveals=(), dp=noise))
    expected, found = run(clear, "ring"), run(noised, "ring")
    assert found.state.arrays[COUNT][0] == pytest.approx(8 / MOST, abs=1e-2)
    moved = np.abs(expected.state.theta - TINY.theta).max()
    np.testing.assert_allclose(found.state.theta, expected.state.theta, atol=1e-2 * moved)


@pytest.mark.parametrize("left_out", ["moment", "moment_mean", "moment_classes"])
def test_a_server_that_keeps_a_sum_to_itself_is_left(left_out: str) -> None:
    state, outputs = opened()
    inp = input_of("client0", state, outputs["client0"].private)
    told = {name: values for name, values in inp.reply.items() if name != left_out}
    with pytest.raises(CorruptDataError, match="not what they are"):
        FEDGC.device_round(replace(inp, reply=told), TINY.runtime())


def test_a_sum_of_nobody_else_is_refused() -> None:
    state, outputs = opened(("client0",))
    with pytest.raises(CorruptDataError, match="nobody else"):
        FEDGC.device_round(input_of("client0", state, outputs["client0"].private), TINY.runtime())


def test_a_number_of_classes_that_cannot_be_makes_no_infinite_step() -> None:
    state, outputs = opened()
    inp = input_of("client0", state, outputs["client0"].private)
    w = begun_with(replace(inp, reply={**inp.reply, COUNT: np.array([-5], np.float32)}))
    assert np.isfinite(w).all()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"privacy": PrivacySpec(min_cohort=3)}, {}, r'agree with privacy\.reveals = \["class_moment"\]'),
        (
            {"privacy": PrivacySpec(reveals=("class_moment",), min_cohort=2, secure_aggregation="off")},
            {},
            "Turn secure aggregation on",
        ),
        (
            {
                "privacy": PrivacySpec(reveals=("class_moment",), min_cohort=3, groups=2),
                "cohort": CohortSpec(size=8, min_reports=6),
            },
            {},
            r"set privacy\.groups to 1",
        ),
        ({"rounds": 1}, {}, "Set it to 2 or more"),
        ({}, {"moment": {"every": 1}}, r"leave options\.moment out"),
        ({}, {"correction": {"kind": "none"}}, "name a correction"),
        ({}, {"correction": {"duplicate_cosine": 0.9}}, "set it to 1"),
    ],
    ids=["unsaid", "plain", "groups", "one round", "moment", "no correction", "duplicates"],
)
def test_tasks_that_would_show_more_or_do_nothing_are_refused(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        FEDGC.contribution_layout(replace(of(private_form="everybody", **options), **changes), PART, DIM)
