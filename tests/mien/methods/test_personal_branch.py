"""The personal branch: the paper's loss and its gradients, and a judgement that is made on what was left out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mien.errors import ConfigError, NonFiniteError
from mien.evaluation.intervals import upper_bound
from mien.methods.personal_branch import (
    Branch,
    BranchSpec,
    Judgement,
    PersonalThreshold,
    fit,
    judge,
    loss_and_gradients,
    template,
)
from mien.objectives.heads import cosines, personalise
from mien.objectives.losses import dfc_loss

pytestmark = pytest.mark.numerics

SPEC = BranchSpec()
Floats = NDArray[np.float32]
Labelled = tuple[Floats, NDArray[np.int64]]


def unit(vectors: NDArray[np.floating]) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def pictures(people: NDArray[np.float64], each: int, seed: int, noise: float = 0.2) -> Labelled:
    """Return so many pictures of each person, and whose they are."""
    shown = np.repeat(people, each, axis=0)
    noisy = shown + noise * np.random.default_rng(seed).standard_normal(shown.shape)
    return unit(noisy), np.repeat(np.arange(len(people)), each)


def population(count: int, seed: int) -> NDArray[np.float64]:
    """Return people who have something in common and differ in some dimensions more than in others."""
    return np.eye(32)[0] + np.random.default_rng(seed).standard_normal((count, 32)) * np.exp(-0.15 * np.arange(32))


def test_the_loss_and_its_gradients_are_torchs() -> None:
    rng = np.random.default_rng(3)
    faces, omega = unit(rng.standard_normal((7, 5))).astype(float), rng.standard_normal((2, 5))
    target = np.array([[1, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0]], float)
    weight = rng.uniform(0.1, 1.0, 7)
    weight /= weight.sum()
    values = [np.eye(5) + 0.1 * rng.standard_normal((5, 5)), 0.1 * rng.standard_normal(5), omega, np.array([0.3, -0.2])]
    loss, gradients = loss_and_gradients(faces, target, weight, values, SPEC)
    pi, pi_bias, w, bias = (torch.tensor(value, requires_grad=True) for value in values)
    expected = dfc_loss(
        cosines(personalise(torch.tensor(faces), pi, pi_bias), w),
        torch.tensor(target),
        bias,
        scale=SPEC.scale,
        margin=SPEC.margin,
        exponent=SPEC.exponent,
        balance=SPEC.balance,
        sample_weight_B=torch.tensor(weight),
    )
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(float(expected.detach()), rel=1e-9)
    for gradient, value in zip(gradients, (pi, pi_bias, w, bias), strict=True):
        assert value.grad is not None
        np.testing.assert_allclose(gradient, value.grad.numpy(), atol=1e-10)


def test_one_step_by_hand() -> None:
    """One person at (1, 0), one public face at (0, 1): after one step Omega has turned away from the public face."""
    spec = replace(SPEC, steps=1, momentum=0.0, hold=0.0)
    own, public = np.array([[1, 0]], np.float32), np.array([[0, 1]], np.float32)
    branch = fit(own, np.zeros(1, np.int64), public, spec)
    # Own: cos 1, g 1, z+ = 30 * 0.6 = 18: no gradient. Public: cos 0, g = 2 / 8 - 1, z- = 30 * (-0.75 + 0.4) = -10.5.
    d_cos = 0.5 * 0.3 / 30 / (1 + math.exp(10.5)) * 30 * 3 * 0.25
    expected = np.eye(2)
    expected[0, 1] -= spec.lr * d_cos
    np.testing.assert_allclose(branch.weight, expected, atol=1e-7)


def test_a_branch_that_gives_no_direction_is_an_error() -> None:
    with pytest.raises(NonFiniteError, match="personalise"):
        Branch(np.zeros((2, 2), np.float32), np.zeros(2, np.float32))(np.ones((1, 2), np.float32))


def judged_pair(noise: float) -> tuple[Judgement, Labelled, float]:
    """Return what is judged of two people, their pictures, and the released threshold: one false match in a hundred."""
    own, label = pictures(population(2, seed=1), 6, 2, noise)
    public, public_label = pictures(population(60, seed=3), 5, 4, noise)
    strangers, _ = pictures(population(300, seed=5), 2, 6, noise)
    threshold = float(np.quantile([strangers @ template(own[label == k]) for k in range(2)], 0.99))
    return judge(own, label, public, public_label, threshold, SPEC, seed=0), (own, label), threshold


def test_a_branch_that_is_called_better_is_so_on_pictures_and_people_that_nobody_has_seen() -> None:
    judged, (own, label), threshold = judged_pair(noise=0.2)
    assert judged.is_better
    probes, probe_label = pictures(population(2, seed=1), 40, 7)
    strangers, _ = pictures(population(300, seed=15), 2, 16)
    for k, at in enumerate(judged.thresholds):
        released = template(own[label == k])
        (personal,) = judged.branch(released[None])
        assert (at.num_mated, at.num_false, at.num_public, at.fmr_upper) == (6, 0, 30, 0.1)
        hits = (judged.branch(probes[probe_label == k]) @ personal >= at.value).mean()
        assert hits >= (probes[probe_label == k] @ released >= threshold).mean() > 0.9
        assert (judged.branch(strangers) @ personal >= at.value).mean() < at.fmr_upper


def test_a_branch_that_overfits_is_not_called_better() -> None:
    """Pictures of one person differ as much as people do: what six of them have in common is chance."""
    judged, _, _ = judged_pair(noise=0.4)
    assert judged.gain < 0
    assert not judged.is_better


def test_a_threshold_that_chance_made_low_does_not_choose_itself() -> None:
    """One person and the same pictures, whichever public faces a model brings: the judgement knows nothing of how many
    strangers the threshold will let pass. Judged by who measures it, the two are correlated by 0.9.
    """
    own, label = pictures(population(1, seed=2), 3, 2000, noise=0.25)
    strangers, _ = pictures(population(1500, seed=900), 1, 901, noise=0.25)
    released = template(own)
    threshold = float(np.quantile(strangers @ released, 0.99))
    gains, passing = [], []
    for draw in range(30):
        public, public_label = pictures(population(60, seed=3000 + draw), 5, 4000 + draw, noise=0.25)
        judged = judge(own, label, public, public_label, threshold, SPEC, seed=0)
        gains.append(judged.gain)
        (personal,) = judged.branch(released[None])
        passing.append((judged.branch(strangers) @ personal >= judged.thresholds[0].value).mean())
    assert abs(np.corrcoef(gains, passing)[0, 1]) < 0.5


def test_the_judgement_names_what_is_missing() -> None:
    own, label = pictures(population(1, seed=1), 2, seed=2)
    public, public_label = pictures(population(60, seed=3), 2, seed=4)
    with pytest.raises(ConfigError, match="needs 3 pictures of each person"):
        judge(own, label, public, public_label, 0.5, SPEC, 0)
    own, label = pictures(population(1, seed=1), 4, seed=2)
    with pytest.raises(ConfigError, match="20 people, the released model brings 19"):
        judge(own, label, public[:38], public_label[:38], 0.5, SPEC, 0)


@pytest.mark.parametrize("num_public", [60, 1000])
def test_a_model_to_which_all_public_faces_look_alike_is_an_error_with_words(num_public: int) -> None:
    own, label = pictures(population(1, seed=1), 4, 2)
    same = np.repeat(own[:1], num_public, axis=0)
    with pytest.raises(ConfigError, match="look alike"):
        judge(own, label, same, np.arange(num_public), 0.5, SPEC, 0)


def test_how_sure_a_threshold_is() -> None:
    assert upper_bound(0, 300) == 0.01
    # Wilson, z = 1.645: (0.1 + 1.645^2 / 200 + 1.645 sqrt(0.1 * 0.9 / 100 + (1.645 / 200)^2)) / (1 + 1.645^2 / 100)
    assert upper_bound(10, 100) == pytest.approx(0.16036, abs=1e-5)
    text = str(PersonalThreshold(0.5, 0, 300, 0.01, 1, 2, 5))
    assert text == (
        "0.500, personal: 0 of 300 public people above it (false match rate below 0.01), 1 of 5 own pictures below it"
    )


@pytest.mark.parametrize("change", [{"scale": 0.0}, {"lr": -1.0}, {"steps": 0}, {"balance": 1.0}])
def test_settings_that_cannot_be_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        replace(SPEC, **change)  # type: ignore[arg-type]
