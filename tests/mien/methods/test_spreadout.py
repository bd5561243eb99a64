"""Spread-out against loops in float64, finite differences and the geometry that it promises."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ConfigError, NonFiniteError
from mien.methods import spreadout
from mien.methods.spreadout import PAPER, RELEASED_CODE, SpreadOutSpec, hinge_spread_out, normalise, spread_out

pytestmark = pytest.mark.numerics

Matrix = NDArray[np.float64]


def crowd(num_classes: int, dim: int, *, seed: int = 0) -> Matrix:
    """Return class vectors that share a direction, as a shifted population's do."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((num_classes, dim)) + 2.0
    unit: Matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def loss_by_loops(w: Matrix, distance_margin: float) -> float:
    """Return FedFace eq 9 as it is printed, with d = 1 - cos."""
    total = 0.0
    for c in range(len(w)):
        for other in range(len(w)):
            if other != c:
                total += max(0.0, distance_margin - (1.0 - float(w[c] @ w[other]))) ** 2
    return total


def highest_cosine(w: Matrix) -> float:
    cosines = w @ w.T
    np.fill_diagonal(cosines, -1.0)
    return float(cosines.max())


def test_two_vectors_by_hand() -> None:
    """cos 0.6 exceeds 0.3 by 0.3, counted for both orders: 0.18; gradient 4 x 0.3 x the other vector."""
    w = np.array([[1.0, 0.0], [0.6, 0.8]])
    loss, gradient = hinge_spread_out(w, 0.3)
    assert loss == pytest.approx(0.18)
    np.testing.assert_allclose(gradient, [[0.72, 0.96], [1.2, 0.0]])
    mean_loss, mean_gradient = hinge_spread_out(w, 0.3, "mean")
    assert mean_loss == pytest.approx(0.09)
    np.testing.assert_allclose(mean_gradient, gradient / 2)


def test_the_loss_is_equation_9(monkeypatch: pytest.MonkeyPatch) -> None:
    w = crowd(9, 4)
    expected = loss_by_loops(w, 0.7)
    assert hinge_spread_out(w, 0.3)[0] == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(spreadout, "CHUNK_ROWS", 4)  # 4 + 4 + 1 rows
    loss, gradient = hinge_spread_out(w, 0.3)
    assert loss == pytest.approx(expected, rel=1e-12)
    monkeypatch.undo()
    np.testing.assert_allclose(gradient, hinge_spread_out(w, 0.3)[1], rtol=1e-12)


def test_the_gradient_agrees_with_finite_differences() -> None:
    w, step = crowd(6, 5, seed=1), 1e-6
    _, gradient = hinge_spread_out(w, 0.3)
    for c, d in np.ndindex(w.shape):
        up, down = w.copy(), w.copy()
        up[c, d] += step
        down[c, d] -= step
        slope = (hinge_spread_out(up, 0.3)[0] - hinge_spread_out(down, 0.3)[0]) / (2 * step)
        assert gradient[c, d] == pytest.approx(slope, abs=1e-6)


def test_vectors_that_are_far_apart_stay() -> None:
    axes = np.eye(4)
    assert hinge_spread_out(axes, 0.3)[0] == 0.0
    np.testing.assert_allclose(spread_out(axes, SpreadOutSpec()), axes, atol=1e-7)


def test_a_single_vector_has_no_pairs() -> None:
    one = np.array([[0.6, 0.8]])
    assert hinge_spread_out(one, 0.3, "mean")[0] == 0.0
    np.testing.assert_allclose(spread_out(one, SpreadOutSpec()), one, atol=1e-7)


def test_the_steps_are_momentum_sgd_at_length_1() -> None:
    spec = SpreadOutSpec(margin=0.2, lr=0.5, steps=3, momentum=0.8, reduction="mean")
    w = crowd(5, 3, seed=2)
    expected, velocity = w.copy(), np.zeros_like(w)
    for _ in range(3):
        gradient = np.zeros_like(w)
        for c in range(5):
            for other in range(5):
                if other != c:
                    gradient[c] += 4 * max(0.0, float(expected[c] @ expected[other]) - 0.2) * expected[other] / 20
        velocity = 0.8 * velocity + gradient
        expected = expected - 0.5 * velocity
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    result = spread_out(w, spec)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_the_default_separates_a_crowd_and_keeps_length_1() -> None:
    w = crowd(10, 32)
    before, after = highest_cosine(w), spread_out(w, SpreadOutSpec())
    for _ in range(9):
        after = spread_out(after, SpreadOutSpec())
    assert before > 0.7
    assert highest_cosine(after.astype(np.float64)) < 0.4
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1.0, atol=1e-6)


def test_presets_say_what_paper_and_code_say() -> None:
    assert (PAPER.reduction, PAPER.lr, PAPER.steps, PAPER.momentum, PAPER.margin) == ("sum", 10.0, 1, 0.0, 0.3)
    assert (RELEASED_CODE.reduction, RELEASED_CODE.lr, RELEASED_CODE.steps) == ("mean", 0.01, 10)
    assert RELEASED_CODE.momentum == 0.9


@pytest.mark.parametrize(
    ("field", "value"), [("margin", 1.0), ("margin", -1.1), ("lr", -0.1), ("steps", 0), ("momentum", 1.0)]
)
def test_settings_are_checked(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match="spread_out"):
        SpreadOutSpec(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_vector_without_direction_is_refused(bad: float) -> None:
    with pytest.raises(NonFiniteError, match="direction"):
        normalise(np.full((1, 3), bad))
