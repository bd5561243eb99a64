"""FedGC's choices over whole rounds: what is shown, what stays, identities that are shared, new, or too many."""

from __future__ import annotations

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods import METHODS
from mien.methods.base import ONE_CLASS, DeviceInput
from mien.methods.fedgc import FEDGC, W, corrected, options_of
from mien.methods.proxies import random_classes
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, Run, run_task
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY, DIM = tiny_cnn(8), 8
CROPS = {f"client{i}": np.concatenate([made_up_crops(2, seed=10 * i + k) for k in range(2)]) for i in range(4)}
LABELS = {name: np.array([0, 0, 1, 1]) for name in CROPS}
PUBLIC = PublicFaces(np.concatenate([made_up_crops(2, seed=70 + k) for k in range(3)]), np.repeat(np.arange(3), 2))
REVEALS = ("class_embeddings",)
COSFACE = {"kind": "cosface", "scale": 8.0, "margin": 0.1}


def task_of(options: dict[str, object], *, reveals: tuple[str, ...] = (), rounds: int = 2, size: int = 4) -> TaskSpec:
    return TaskSpec(
        name="gc",
        method="fedgc",
        rounds=rounds,
        cohort=CohortSpec(size=size, min_reports=3),
        local=LocalSpec(lr=0.1, flip=False),
        privacy=PrivacySpec(reveals=reveals, min_cohort=3),
        options={"identities": 2, **options},
    )


def run(task: TaskSpec) -> Run:
    cohort = Cohort(CROPS, public=PUBLIC, labels=LABELS)
    return run_task(task, TINY.part(), DIM, TINY.theta, cohort, TINY.runtime())


def embeddings(finished: Run) -> dict[str, Vector]:
    return {name: arrays[W].reshape(2, DIM) for name, arrays in finished.state.revealed.items()}


@pytest.mark.parametrize("head", [{"kind": "softmax"}, COSFACE, {"kind": "arcface", "scale": 8.0, "margin": 0.1}])
def test_fixed_embeddings_stay_where_they_were_drawn(head: dict[str, object]) -> None:
    options = {"correction": {"kind": "none"}, "fixed": True, "head": head}
    first, last = run(task_of(options, rounds=1)), run(task_of(options, rounds=3))
    for name in CROPS:
        np.testing.assert_array_equal(first.cohort.private[name][W], last.cohort.private[name][W])
    assert not np.array_equal(first.state.theta, last.state.theta)


@pytest.mark.parametrize("is_unit", [False, True])
def test_random_starts_are_those_of_linear_layers(is_unit: bool) -> None:
    drawn = random_classes(200, 50, 3, at_length_1=is_unit)
    lengths = np.linalg.norm(drawn, axis=1)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(lengths, 1.0 if is_unit else 0.01 * np.sqrt(50), rtol=1e-5 if is_unit else 0.4)


def test_fedpe_is_the_correction_of_strength_0() -> None:
    fedpe = run(task_of({"correction": {"kind": "none"}}))
    corrected_by_nothing = run(task_of({"correction": {"strength": 0.0}}, reveals=REVEALS))
    assert fedpe.state.revealed == {}
    np.testing.assert_allclose(fedpe.state.theta, corrected_by_nothing.state.theta, atol=1e-6)
    for name, w in embeddings(corrected_by_nothing).items():
        np.testing.assert_allclose(fedpe.cohort.private[name][W], w, atol=1e-6)


def test_heads_with_cosines_keep_embeddings_at_length_1() -> None:
    finished = run(task_of({"head": COSFACE, "correction": {"strength": 0.5}}, reveals=REVEALS))
    lengths = [np.linalg.norm(w, axis=1) for w in embeddings(finished).values()]
    np.testing.assert_allclose(lengths, 1.0, atol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "cosine"])
def test_corrections_bring_clients_apart_but_not_their_own_identities(kind: str) -> None:
    options = options_of(task_of({"head": COSFACE, "correction": {"kind": kind, "strength": 2.0}}))
    w = np.array([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.8, 0.0, 0.6]])
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    exclusive = np.not_equal.outer([0, 0, 1], [0, 0, 1])
    moved = corrected(w, exclusive, np.ones(3, bool), options, lr=0.1)
    assert moved[0] @ moved[2] < w[0] @ w[2]
    assert moved[1] @ moved[2] < w[1] @ w[2]
    alone = corrected(w[:2], exclusive[:2, :2], np.ones(2, bool), options, lr=0.1)
    np.testing.assert_allclose(alone, w[:2])


def test_a_softmax_over_a_clients_own_classes_sees_nothing_of_fedcos() -> None:
    """Its push is one vector for all classes of a client, so that FedCos trains FedPE's model; eq 5 does not."""
    none, cosine, softmax = (
        {"start": "mean_feature", "correction": {"kind": kind, "strength": 5.0}}
        for kind in ("none", "cosine", "softmax")
    )
    fedpe = run(task_of(none, rounds=3))
    fedcos = run(task_of(cosine, reveals=REVEALS, rounds=3))
    fedgc = run(task_of(softmax, reveals=REVEALS, rounds=3))
    np.testing.assert_allclose(fedcos.state.theta, fedpe.state.theta, atol=1e-5)
    assert np.abs(fedgc.state.theta - fedpe.state.theta).max() > 1e-4
    for name, w in embeddings(fedcos).items():
        (one, other), trained = w, fedpe.cohort.private[name][W].reshape(2, DIM)
        assert np.abs(w - trained).max() > 0.01
        np.testing.assert_allclose(one - other, trained[0] - trained[1], atol=1e-5)


def test_absent_clients_push_and_stay() -> None:
    options = options_of(task_of({"correction": {"strength": 1.0}}))
    w = np.array([[1.0, 0.0], [0.8, 0.6]])
    moved = corrected(w, ~np.eye(2, dtype=bool), np.array([True, False]), options, lr=0.1)
    np.testing.assert_array_equal(moved[1], w[1])
    assert moved[0] @ w[1] < w[0] @ w[1]


def test_near_twins_are_taken_for_the_same_person_where_a_task_says_so() -> None:
    options = options_of(task_of({"correction": {"strength": 1.0, "duplicate_cosine": 0.9}}))
    w = np.array([[1.0, 0.0], [0.995, 0.1], [0.6, 0.8]])
    moved = corrected(w, ~np.eye(3, dtype=bool), np.ones(3, bool), options, lr=0.1)
    without_twin = corrected(w[[0, 2]], ~np.eye(2, dtype=bool), np.ones(2, bool), options, lr=0.1)
    # The twin adds nothing to the push on the first vector but its place in the third's denominator.
    assert np.linalg.norm(moved[0] - w[0]) < np.linalg.norm(without_twin[0] - w[0])


def test_a_shared_identity_has_one_embedding_everywhere() -> None:
    shared = [[["client0", 1], ["client2", 0]], [["client3", 0], ["stranger", 0]]]
    w = embeddings(run(task_of({"shared": shared}, reveals=REVEALS)))
    np.testing.assert_array_equal(w["client0"][1], w["client2"][0])
    assert not np.array_equal(w["client0"][0], w["client2"][0])


def test_a_new_identity_starts_beside_those_that_are_kept() -> None:
    task = task_of({"correction": {"kind": "none"}, "start": "mean_feature"}, rounds=1)
    kept = np.random.default_rng(0).normal(size=(1, DIM)).astype(np.float32)
    inp = DeviceInput(
        task,
        TINY.part(),
        DIM,
        TINY.theta,
        CROPS["client0"],
        LABELS["client0"],
        reply={W: np.concatenate([kept, np.zeros((1, DIM), np.float32)]).reshape(-1)},
    )
    after = FEDGC.device_round(inp, TINY.runtime()).private[W]
    assert after.shape == (2, DIM)
    assert np.linalg.norm(after[0] - kept[0]) < 0.5
    assert np.linalg.norm(after[1]) > 0.5  # from its mean feature, of length 1, not from the zeros of the reply


def test_what_leaves_in_clear_is_only_what_the_task_names() -> None:
    private, shown = task_of({}), task_of({}, reveals=REVEALS)
    layouts = [FEDGC.contribution_layout(task, TINY.part(), DIM) for task in (private, shown)]
    assert layouts[0].revealed == ()
    assert [(lane.name, lane.size) for lane in layouts[1].revealed] == [(W, 2 * DIM)]
    assert [METHODS["fedgc"].requirements(task).public_faces for task in (private, shown)] == [True, False]
    assert not FEDGC.requirements(task_of({"correction": {"kind": "none"}})).public_faces


@pytest.mark.parametrize(
    ("options", "reveals", "match"),
    [
        ({"identities": 0}, (), r"options\.identities"),
        ({"identities": 1}, (), "holds 2 identities"),
        ({"fixed": True}, (), r"options\.fixed"),
        ({"shared": [[["client0", 1]], [["client0", 1]]]}, REVEALS, "twice"),
        ({"shared": [[["client0", 2]]]}, REVEALS, "beyond"),
        ({"correction": {"kind": "none"}}, REVEALS, "do not need"),
        ({"correction": {"strength": -1.0}}, (), "strength"),
        ({"correction": {"duplicate_cosine": 0.0}}, (), "duplicate_cosine"),
        ({"head": {"scale": 0.0}}, (), r"options\.head"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], reveals: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run(task_of(options, reveals=reveals))


def test_one_identity_a_client_is_allowed_and_warned_of() -> None:
    """The paper's clients may hold one each; a classifier over one class has no gradient, so that theta stays."""
    task, crops = task_of({"identities": 1}), {name: CROPS[name][:2] for name in CROPS}
    assert "identities is 1" in FEDGC.requirements(task).caution
    assert not FEDGC.requirements(task_of({})).caution
    finished = run_task(task, TINY.part(), DIM, TINY.theta, Cohort(crops, public=PUBLIC), TINY.runtime())
    np.testing.assert_array_equal(finished.state.theta, TINY.theta)
    assert {record.warning for record in finished.records} == {
        f"the model did not move: of 4 clients none trained anything ({ONE_CLASS})"
    }
    assert {record.warning for record in run(task_of({})).records} == {""}


def test_some_clients_of_one_identity_are_counted() -> None:
    labels = {name: LABELS[name] for name in list(CROPS)[:3]}
    finished = run_task(
        task_of({}), TINY.part(), DIM, TINY.theta, Cohort(CROPS, public=PUBLIC, labels=labels), TINY.runtime()
    )
    assert finished.records[0].warning == f"1 of 4 clients trained nothing, each because {ONE_CLASS}"


def test_shared_identities_stay_at_home_in_the_private_form_and_are_pushed_from_nobody() -> None:
    """They are in no moment, and no moment moves them; what the clients hold alone is as it would be."""
    moment = {"correction": {"kind": "none"}, "moment": {"every": 1, "lr": 0.5}, "head": COSFACE}
    shared = [[["client0", 0], ["client1", 0]], [["client0", 1], ["client1", 1]]]
    reveals = ("class_moment",)
    with_moment = run(task_of({**moment, "shared": shared}, reveals=reveals, rounds=2))
    without = run(task_of({"correction": {"kind": "none"}, "head": COSFACE}, rounds=2))
    for name, is_same in {"client0": True, "client1": True, "client2": False}.items():
        kept = [finished.cohort.private[name][W] for finished in (with_moment, without)]
        assert np.allclose(*kept, atol=1e-6) == is_same, name
    assert not with_moment.cohort.private["client0"]["own_moment"].any()
    assert with_moment.cohort.private["client2"]["own_moment"].any()


def test_the_private_correction_without_public_faces_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="model import --public"):
        run_task(task_of({}), TINY.part(), DIM, TINY.theta, Cohort(CROPS, labels=LABELS), TINY.runtime())
