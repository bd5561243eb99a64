"""A server that tells a history of weights, made so that one trainer's update remains when it combines the sums."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from mien.methods.pfm_fv import options_of, own_weighting
from mien.methods.weightings import check_weightings, simplex_draw
from mien.specs import CohortSpec, PrivacySpec, TaskSpec

NUM_TRAINERS, NUM_CANDIDATES, NUM_ROUNDS = 19, 3, 1000
NAMES = [f"phone {i}" for i in range(NUM_TRAINERS)]
TASK = TaskSpec(
    name="chosen-weights",
    method="pfm_fv",
    rounds=NUM_ROUNDS + 1,
    cohort=CohortSpec(size=NUM_TRAINERS, min_reports=NUM_TRAINERS),
    privacy=PrivacySpec(),
    options={"candidates": NUM_CANDIDATES, "first_weighting": "uniform"},
)
SECRETS = [bytes([i]) * 32 for i in range(NUM_TRAINERS)]
VICTIM = 3

Floats = NDArray[np.float64]


def weights(history: NDArray[np.float32], secrets: list[bytes]) -> Floats:
    """Return what each trainer's update is multiplied by in each sum (T, n)."""
    own = [own_weighting(TASK, name, history, 5, secret) for name, secret in zip(NAMES, secrets, strict=True)]
    return np.stack(own, axis=1)


def history_of(gain_R: Floats) -> NDArray[np.float32]:
    """Return a history in which the second candidate won every round, with these gains (R,)."""
    keep = np.full(len(gain_R), 1 - options_of(TASK).mixing)
    return np.stack([np.ones(len(gain_R)), keep, gain_R], axis=1).astype(np.float32)


def public_draws() -> Floats:
    """Return the second candidate's draws of each round (R, n), which follow from the task where none is secret."""
    seed = hashlib.sha256(f"pfm_fv/{TASK.name}/{TASK.seed}".encode()).digest()
    return np.array([[simplex_draw(seed, index, 1, name) for name in NAMES] for index in range(NUM_ROUNDS)])


@pytest.fixture(scope="module")
def planned() -> tuple[NDArray[np.float32], Floats]:
    """A history and a combination y of the sums (T,) that leave the victim alone, by the draws of the task alone."""
    public = [b""] * NUM_TRAINERS
    keep = float(np.float32(1 - options_of(TASK).mixing))
    later_R = keep ** np.arange(NUM_ROUNDS - 1, -1, -1)
    fresh = weights(history_of(np.zeros(NUM_ROUNDS)), public)
    # c = w_1 + y_2 w_2 + y_3 w_3 is 0 but for the victim, 1 there; w_1 is linear in gains that are 0 or more.
    gains_nR, rest_n2 = (public_draws() * later_R[:, None]).T, fresh[1:].T
    found = linprog(
        np.zeros(NUM_ROUNDS + NUM_CANDIDATES - 1),
        A_eq=np.hstack([gains_nR, rest_n2]),
        b_eq=np.eye(NUM_TRAINERS)[VICTIM] - fresh[0],
        bounds=[(0, None)] * NUM_ROUNDS + [(None, None)] * (NUM_CANDIDATES - 1),
    )
    assert found.status == 0, found.message
    return history_of(found.x[:NUM_ROUNDS]), np.concatenate([[1.0], found.x[NUM_ROUNDS:]])


def others_beside_the_victim(combined_n: Floats) -> float:
    """Return the weight of all others' updates over the victim's, as lengths of independent updates add up."""
    return float(np.linalg.norm(np.delete(combined_n, VICTIM)) / abs(combined_n[VICTIM]))


def test_whoever_foresees_the_draws_leaves_one_trainer_alone(planned: tuple[NDArray[np.float32], Floats]) -> None:
    """The attack: a task that the planner permits, and a history that every check of a trainer lets pass."""
    history, y_T = planned
    check_weightings(TASK, NUM_CANDIDATES)
    assert others_beside_the_victim(y_T @ weights(history, [b""] * NUM_TRAINERS)) < 1e-4


def test_of_trainers_with_secrets_the_same_history_leaves_all(planned: tuple[NDArray[np.float32], Floats]) -> None:
    """The same words on phones: nobody but each of them could foresee what they make of its weights."""
    history, y_T = planned
    weight_Tn = weights(history, SECRETS)
    assert others_beside_the_victim(y_T @ weight_Tn) > 1
    # Nor would the best combination for it, if the server learned all weights afterwards.
    best_T = np.linalg.solve(weight_Tn @ weight_Tn.T, weight_Tn[:, VICTIM])
    assert others_beside_the_victim(best_T @ weight_Tn) > 1


def test_a_servers_friends_know_their_own_draws_alone(planned: tuple[NDArray[np.float32], Floats]) -> None:
    """One trainer tells the server its secret: what the others weigh follows from theirs."""
    history, _ = planned
    before = weights(history, SECRETS)
    told = [b"told the server" if i == 0 else secret for i, secret in enumerate(SECRETS)]
    after = weights(history, told)
    np.testing.assert_array_equal(before[:, 1:], after[:, 1:])
    assert (before[:, 0] != after[:, 0]).all()


def test_two_tasks_of_one_name_draw_otherwise() -> None:
    nothing = np.zeros((0, 3), np.float32)
    mine = own_weighting(TASK, NAMES[0], nothing, 5, SECRETS[0])
    assert (own_weighting(replace(TASK, seed=TASK.seed + 1), NAMES[0], nothing, 5, SECRETS[0])[1:] != mine[1:]).all()
