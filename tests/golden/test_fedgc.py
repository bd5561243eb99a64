"""FedGC's formulas and Algorithm 1 by plain float64 loops, beside the product's two halves.

The recogniser is linear on the 12 means over a crop's quarters; this file shares no arithmetic with `mien`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.methods.spreadout import cosine_regulariser, softmax_regulariser
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from tests.golden.test_fedface import quarters, unit
from tests.tiny import made_up_crops, tiny_linear

pytestmark = pytest.mark.numerics

Matrix = NDArray[np.float64]
Rows = dict[tuple[str, int], Matrix]

LR, PRIVATE_LR, LAMBDA = 0.05, 0.2, 3.0
PEOPLE = {"ada": 2, "bo": 2, "cy": 1, "di": 2}
CROPS = {
    name: np.concatenate([made_up_crops(2 + k, seed=10 * i + k) for k in range(n)])
    for i, (name, n) in enumerate(PEOPLE.items())
}
LABELS = {name: np.repeat(np.arange(n), [2 + k for k in range(n)]) for name, n in PEOPLE.items()}
SHARED = (("ada", 1), ("bo", 0))
PUBLIC = PublicFaces(np.concatenate([made_up_crops(2, seed=90 + k) for k in range(3)]), np.repeat(np.arange(3), 2))


def equation_5(moving: Matrix, anchors: Matrix, clients: list[int]) -> float:
    """Return eq 5 as it is printed, the primed vectors given apart because no gradient flows through them."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        own = math.exp(anchor @ anchor)
        others = sum(math.exp(w @ anchor) for w, z in zip(moving, clients, strict=True) if z != clients[i])
        total -= math.log(own / (own + others))
    return total


def gradient_5(rows: Rows, exclusive: dict[tuple[str, int], list[tuple[str, int]]], kind: str) -> Rows:
    """Return eq 5's gradient by hand: each anchor w' pushes a class of another client by its softmax share of w'."""
    gradient = {key: np.zeros_like(w) for key, w in rows.items()}
    for a, anchor in rows.items():
        shares = {c: math.exp(rows[c] @ anchor) for c in exclusive[a]}
        total = math.exp(anchor @ anchor) + sum(shares.values())
        for c, share in shares.items():
            gradient[c] += (share / total if kind == "softmax" else 1.0) * anchor
    return gradient


@pytest.fixture
def vectors() -> Matrix:
    return np.random.default_rng(4).normal(size=(6, 4))


CLIENTS = [0, 0, 1, 2, 2, 2]


def test_the_loss_is_equation_5_and_its_gradient_the_finite_difference(vectors: Matrix) -> None:
    exclusive = np.not_equal.outer(CLIENTS, CLIENTS)
    loss, gradient = softmax_regulariser(vectors, vectors, exclusive)
    assert loss == pytest.approx(equation_5(vectors, vectors, CLIENTS), rel=1e-12)
    for c, d in np.ndindex(vectors.shape):
        step = np.zeros_like(vectors)
        step[c, d] = 1e-6
        slope = equation_5(vectors + step, vectors, CLIENTS) - equation_5(vectors - step, vectors, CLIENTS)
        assert gradient[c, d] == pytest.approx(slope / 2e-6, abs=1e-8)


def test_one_class_a_client_is_pushed_by_every_other_anchors_share(vectors: Matrix) -> None:
    keys = [(str(i), 0) for i in range(6)]
    rows = dict(zip(keys, vectors, strict=True))
    expected = gradient_5(rows, {a: [c for c in keys if c != a] for a in keys}, "softmax")
    gradient = softmax_regulariser(vectors, vectors, ~np.eye(6, dtype=bool))[1]
    np.testing.assert_allclose(gradient, [expected[key] for key in keys], rtol=1e-12)


def test_cosine_regulariser_by_hand() -> None:
    w = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    exclusive = np.not_equal.outer([0, 0, 1], [0, 0, 1])
    loss, gradient = cosine_regulariser(w, w, exclusive)
    assert loss == pytest.approx(2 * (0.0 + 0.8))  # both orders of the pairs (0, 2) and (1, 2)
    np.testing.assert_allclose(gradient, [[0.0, 1.0], [0.0, 1.0], [1.6, 0.8]])


def local_step(a: Matrix, w: Matrix, x: Matrix, labels: NDArray[np.int64]) -> tuple[Matrix, Matrix]:
    """Return lines 6 and 7: one gradient step of eq 4 on A and W, with logits W A x."""
    gradient_a, gradient_w = np.zeros_like(a), np.zeros_like(w)
    for row, label in zip(x, labels, strict=True):
        z = a @ row
        logits = w @ z
        p = np.exp(logits - logits.max())
        p /= p.sum()
        p[label] -= 1.0
        gradient_w += np.outer(p, z) / len(x)
        gradient_a += np.outer(w.T @ p, row) / len(x)
    return a - LR * gradient_a, w - PRIVATE_LR * gradient_w


def server_correction(rows: Rows, present: tuple[str, ...], kind: str) -> Rows:
    """Return lines 12 to 14 with one shared identity; embeddings of absent clients stay."""
    here = [member for member in SHARED if member in rows and member[0] in present]
    group = [member for member in SHARED if member in rows]
    single = dict(rows)
    if group:
        mean = np.mean([rows[member] for member in here or group], axis=0)
        single = {key: w for key, w in rows.items() if key not in group} | {group[0]: mean}

    def holders(key: tuple[str, int]) -> set[str]:
        return {device for device, _ in group} if key in group else {key[0]}

    exclusive = {a: [c for c in single if not holders(a) & holders(c)] for a in single}
    gradient = gradient_5(single, exclusive, kind)
    moved = {key: w - LAMBDA * LR * gradient[key] if holders(key) & set(present) else w for key, w in single.items()}
    return {key: moved[group[0]] if key in group else moved[key] for key in rows}


def task(kind: str, **changes: object) -> TaskSpec:
    values: dict[str, object] = {
        "name": "golden",
        "method": "fedgc",
        "rounds": 3,
        "cohort": CohortSpec(size=3, min_reports=3),
        "local": LocalSpec(lr=LR, private_lr=PRIVATE_LR, flip=False),
        "server": ServerSpec(lr=1.0, momentum=0.0),
        "privacy": PrivacySpec(reveals=("class_embeddings",), min_cohort=3),
        "options": {
            "identities": 2,
            "start": "mean_feature",
            "correction": {"kind": kind, "strength": LAMBDA},
            "shared": [SHARED],
        },
    }
    return TaskSpec(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["softmax", "cosine"])
def test_three_rounds_of_algorithm_1_with_three_of_four_clients(kind: str) -> None:
    tiny = tiny_linear()
    run = run_task(task(kind), tiny.part("*"), 3, tiny.theta, Cohort(CROPS, labels=LABELS), tiny.runtime())
    assert len({record.devices for record in run.records}) > 1  # somebody else was absent
    a, rows = tiny.theta.astype(np.float64).reshape(3, 12), Rows()
    for record in run.records:
        local, images = {}, {}
        for name in record.devices:
            x, labels = quarters(CROPS[name]), LABELS[name]
            start = [rows.get((name, k)) for k in range(PEOPLE[name])]
            means = [unit(unit(x[labels == k] @ a.T).mean(axis=0)) for k in range(PEOPLE[name])]
            w = np.stack([m if s is None else s for s, m in zip(start, means, strict=True)])
            local[name], images[name] = local_step(a, w, x, labels), len(x)
        a = sum((images[n] * local[n][0] for n in sorted(local)), np.zeros_like(a)) / sum(images.values())
        rows |= {(name, k): w for name, (_, w_k) in local.items() for k, w in enumerate(w_k)}
        rows = server_correction(rows, record.devices, kind)
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), a, atol=3e-6)
    for (name, k), w in rows.items():
        shown = run.state.revealed[name]["class_embeddings"].reshape(2, 3)
        np.testing.assert_allclose(shown[k], w, atol=3e-6)
        assert not shown[PEOPLE[name] :].any()


def test_the_private_correction_takes_public_people_for_other_clients() -> None:
    """One round: the device's own rows take eq 5's step against public class means, all else stays on the device."""
    tiny = tiny_linear()
    private = task(
        "softmax",
        rounds=1,
        privacy=PrivacySpec(min_cohort=3),
        options={"identities": 2, "start": "mean_feature", "correction": {"strength": LAMBDA}},
    )
    cohort = Cohort(CROPS, labels=LABELS, public=PUBLIC)
    run = run_task(private, tiny.part("*"), 3, tiny.theta, cohort, tiny.runtime())
    assert not run.state.revealed
    a = tiny.theta.astype(np.float64).reshape(3, 12)
    public = unit(np.stack([unit(quarters(PUBLIC.crops[PUBLIC.labels == k]) @ a.T).mean(axis=0) for k in range(3)]))
    for name in run.records[0].devices:
        x, labels = quarters(CROPS[name]), LABELS[name]
        start = np.stack([unit(unit(x[labels == k] @ a.T).mean(axis=0)) for k in range(PEOPLE[name])])
        w = local_step(a, start, x, labels)[1]
        rows = {("own", k): row for k, row in enumerate(w)}
        length = np.linalg.norm(w, axis=1).mean()
        rows |= {(f"public{k}", 0): length * row for k, row in enumerate(public)}
        exclusive = {one: [other for other in rows if other[0] != one[0]] for one in rows}
        gradient = gradient_5(rows, exclusive, "softmax")
        expected = [w[k] - LAMBDA * LR * gradient["own", k] for k in range(len(w))]
        np.testing.assert_allclose(run.cohort.private[name]["class_embeddings"], expected, atol=3e-6)


def against_everybody(w: Matrix, others: list[Matrix], kind: str) -> Matrix:
    """Return own rows after the correction by two moments of others, as long as an own one on average."""
    length = np.linalg.norm(w, axis=1).mean()
    far = [length * unit(row) for row in others]
    n, mu = len(far), sum(far, np.zeros(3)) / len(far)
    covariance = sum((np.outer(v, v) for v in far), np.zeros((3, 3))) / n - np.outer(mu, mu)
    moved = []
    for row in w:
        everybody = n * math.exp(row @ mu + row @ covariance @ row / 2)
        share = everybody / (math.exp(row @ row) + everybody)
        push = share * (mu + covariance @ row) if kind == "softmax" else n * mu
        moved.append(row - LAMBDA * LR * push)
    return np.stack(moved)


@pytest.mark.parametrize(("kind", "size"), [("softmax", 4), ("softmax", 3), ("cosine", 3)])
def test_rounds_with_the_correction_against_everybody(kind: str, size: int) -> None:
    """Between two of its rounds a client takes the step against the others of the last sum, as they were trained."""
    tiny = tiny_linear()
    private = task(
        kind,
        rounds=5,
        cohort=CohortSpec(size=size, min_reports=3),
        privacy=PrivacySpec(reveals=("class_moment",), min_cohort=3),
        options={"identities": 2, "start": "mean_feature", "correction": {"kind": kind, "strength": LAMBDA}},
    )
    run = run_task(private, tiny.part("*"), 3, tiny.theta, Cohort(CROPS, labels=LABELS), tiny.runtime())
    assert size == len(CROPS) or len({record.devices for record in run.records}) > 1
    a, held, opened = tiny.theta.astype(np.float64).reshape(3, 12), dict[str, Matrix](), dict[str, Matrix]()
    for record in run.records:
        local, images = {}, {}
        for name in record.devices:
            x, labels = quarters(CROPS[name]), LABELS[name]
            if name in held:
                others = [row for peer, rows in opened.items() if peer != name for row in rows]
                w = against_everybody(held[name], others, kind)
            else:
                w = np.stack([unit(unit(x[labels == k] @ a.T).mean(axis=0)) for k in range(PEOPLE[name])])
            local[name], images[name] = local_step(a, w, x, labels), len(x)
        a = sum((images[n] * local[n][0] for n in sorted(local)), np.zeros_like(a)) / sum(images.values())
        opened = {name: w for name, (_, w) in local.items()}
        held |= opened
    assert not run.state.revealed
    np.testing.assert_allclose(run.state.theta.reshape(3, 12), a, atol=5e-6)
    for name, w in held.items():
        np.testing.assert_allclose(run.cohort.private[name]["class_embeddings"], w, atol=5e-6)
