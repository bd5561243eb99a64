"""Summed statistics: golden numbers by hand, sums equal to pooled computation, and what a sum cannot carry."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from mien.contribution import Contribution, Total
from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.layout import ParameterEntry, ParameterLayout, ParameterPart, Vector
from mien.methods import METHODS
from mien.methods.base import IN_TOTAL, Crops, DeviceInput, Embeddings, ServerState, Trained, TrainingJob, never_stop
from mien.methods.gate import GATE, responsibility
from mien.methods.statistics import (
    STATISTICS,
    dim_of,
    frozen,
    lane_scales,
    norm_bound,
    options_of,
    person_addends,
    within_noise,
    without_noise,
)
from mien.secagg.vector import ContributionMap
from mien.specs import AsynchronousSpec, CohortSpec, DpSpec, PrivacySpec, ServerSpec, TaskSpec

pytestmark = pytest.mark.numerics

DP = DpSpec("central_gaussian", noise_multiplier=1.0, epsilon=8.0, delta=1e-6, max_participations=1)
Features = NDArray[np.floating[Any]]


def part_of(dim: int) -> ParameterPart:
    """Return the adapter's part of a model with one tensor before it."""
    entries = (
        ParameterEntry("trunk.weight", (3,)),
        ParameterEntry("adapter.weight", (dim, dim)),
        ParameterEntry("adapter.bias", (dim,)),
    )
    return ParameterLayout(entries).part(("adapter.*",))


def theta_of(part: ParameterPart) -> Vector:
    """Return a model whose adapter has been trained before, so that it is not the identity."""
    return np.random.default_rng(5).standard_normal(part.layout.size).astype(np.float32)


@dataclass
class Given:
    """A runtime whose features are given; it notes the models that it was asked about."""

    given: Features
    asked: list[Vector] = field(default_factory=list)

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        raise AssertionError("statistics are of features as they are")

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        self.asked.append(theta)
        return np.asarray(self.given, np.float32)

    def train(self, job: TrainingJob, should_stop: object = never_stop) -> Trained:
        raise AssertionError("no phone trains")


def task_of(**changes: Any) -> TaskSpec:
    task = TaskSpec(
        "statistics",
        method="statistics",
        rounds=1,
        cohort=CohortSpec(size=1000, min_reports=3),
        privacy=PrivacySpec(min_cohort=3, reveals=("class_moment",)),
        options={"min_people": 3},
    )
    return replace(task, **changes)


def noised(form: str, dp: DpSpec = DP, **options: Any) -> TaskSpec:
    """Return the task under differential privacy."""
    privacy = PrivacySpec(min_cohort=3, max_weight=1, l2_clip=1.0, dp=dp)
    return task_of(privacy=privacy, trainable=("adapter.*",), options={"min_people": 3, "form": form, **options})


def phone(task: TaskSpec, features_ND: Features, labels: list[int] | None = None, seed: int = 0) -> Contribution:
    """Return what a phone with these features sends."""
    part = part_of(features_ND.shape[1])
    crops = np.zeros((len(features_ND), 1, 1, 3), np.uint8)
    own = None if labels is None else np.array(labels)
    inp = DeviceInput(task, part, features_ND.shape[1], theta_of(part), crops, own, seed=seed)
    return STATISTICS.device_round(inp, Given(features_ND)).contribution


def total_of(contributions: list[Contribution]) -> Total:
    total = Total.empty(contributions[0].layout)
    for each in contributions:
        total = total.plus(each)
    return total


def stepped(task: TaskSpec, total: Total, dim: int) -> ServerState:
    """Return the state after one cohort; raises ConfigError with what it lacks for a map."""
    part = part_of(dim)
    state = STATISTICS.server_step(task, part, STATISTICS.server_start(task, part, theta_of(part)), total, {})
    if state.lacks:
        raise ConfigError(state.lacks)
    return state


def adapter_of(state: ServerState, dim: int) -> tuple[Features, Features]:
    values = part_of(dim).gather(state.theta).astype(np.float64)
    return values[: dim * dim].reshape(dim, dim), values[dim * dim :]


# By hand: features of length 2 at most, three people, one of them with a single picture.

A = np.array([[1.0, 0.4], [1.0, -0.4]])
B = np.array([[-1.0, 0.0]])
C = np.array([[0.0, 1.0], [0.4, 1.0]])
BY_HAND = {"min_people": 3, "longest": 2.0, "max_people": 1, "shrinkage": 0.0}


def test_one_persons_addends_by_hand() -> None:
    """m = (0.5, 0), W = diag(0, 0.08), in units of a quarter; off the diagonal stands the square root of 2."""
    found = person_addends(A / 2, 0.25)
    np.testing.assert_allclose(found["people"], [1.0, 1.0, 0.5])
    np.testing.assert_allclose(found["mean"], [0.5, 0.0])
    np.testing.assert_allclose(found["second"], [0.25, 0.0, 0.0])
    np.testing.assert_allclose(found["within"], [0.0, 0.0, 0.32], atol=1e-15)
    np.testing.assert_allclose(person_addends(C / 2, 0.25)["second"], [0.01, 0.05 * math.sqrt(2), 0.25])


def test_one_picture_counts_for_the_mean_and_not_for_the_scatter() -> None:
    found = person_addends(B / 2, 0.25)
    np.testing.assert_allclose(found["people"], [1.0, 0.0, 1.0])
    np.testing.assert_allclose(found["mean"], [-0.5, 0.0])
    np.testing.assert_array_equal(found["within"], 0.0)


def test_the_map_by_hand() -> None:
    """W = diag(0.01, 0.04), so W^(-1/2) = diag(10, 5), as long as I: times sqrt(2 / 125); mu = (1/30, 1/6)."""
    task = task_of(options={**BY_HAND, "form": "wccn"})
    state = stepped(task, total_of([phone(task, each) for each in (A, B, C)]), 2)
    weight, bias = adapter_of(state, 2)
    scale = math.sqrt(2 / 125)
    np.testing.assert_allclose(weight, np.diag([10 * scale, 5 * scale]), atol=1e-6)
    np.testing.assert_allclose(bias, [-10 * scale * 2 / 30, -5 * scale * 2 / 6], atol=1e-6)
    assert state.figures == {"people_in_total": 3.0, "phones_in_total": 3.0}
    assert state.rounds == 1


def test_between_people_by_hand_through_plda() -> None:
    """B = ((0.51, 0.05), (0.05, 0.25)) less 3 mu mu', halved, less W 2/3: ((0.74, 0.05), (0.05, 0.17)) / 3."""
    task = task_of(options={**BY_HAND, "form": "plda"})
    weight, _ = adapter_of(stepped(task, total_of([phone(task, each) for each in (A, B, C)]), 2), 2)
    root = np.diag([10.0, 5.0])
    values, vectors = np.linalg.eigh(root @ np.array([[0.74, 0.05], [0.05, 0.17]]) @ root / 3)
    wanted = (vectors * np.sqrt(values / (values + 1))) @ vectors.T @ root
    np.testing.assert_allclose(weight, wanted * math.sqrt(2) / np.linalg.norm(wanted), atol=1e-5)


def test_centring_moves_and_does_not_turn() -> None:
    task = task_of(options={**BY_HAND, "form": "centre"})
    weight, bias = adapter_of(stepped(task, total_of([phone(task, each) for each in (B, -B, C)]), 2), 2)
    np.testing.assert_array_equal(weight, np.eye(2))
    np.testing.assert_allclose(bias, [-0.2 / 3, -1.0 / 3], atol=1e-6)


# Sums equal what one place would compute.

DIM = 6


def people(count: int, *, seed: int = 0, dim: int = DIM) -> list[Features]:
    """Return features of so many people, of 1 to 5 pictures each, none longer than 20."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 2, (count, dim)) + np.linspace(0, 3, dim)
    pictures = (mean + rng.normal(0, 1, (1 + k % 5, dim)) @ _SPREAD[:dim, :dim] for k, mean in enumerate(means))
    return [each / np.maximum(1, np.linalg.norm(each, axis=1, keepdims=True) / 19.9) for each in pictures]


_SPREAD = np.diag(np.linspace(0.3, 1.5, DIM)) + 0.1


def pooled(everybody: list[Features]) -> tuple[Features, Features, Features]:
    """Return mu, W and B as textbooks have them, with the features of everybody in one place."""
    means = np.stack([each.mean(axis=0) for each in everybody])
    within = np.mean([np.cov(each.T) for each in everybody if len(each) > 1], axis=0)
    few = np.mean([1 / len(each) for each in everybody])
    return means.mean(axis=0), within, np.cov(means.T) - within * few


@pytest.mark.parametrize("form", ["centre", "wccn", "lda", "plda"])
def test_phones_sums_give_the_map_of_pooled_features(form: str) -> None:
    """Discriminants of B v = lambda W_r v by another solver: all cosines under the map are the same."""
    everybody, r, k = people(40), 0.1, 3
    options = {"form": form, "shrinkage": r, "rank": k, "min_people": 40, "max_people": 4}
    task = task_of(options=options)
    sent, start = [], 0
    while start < len(everybody):  # phones of one to four people
        held = everybody[start : start + 1 + len(sent) % 4]
        labels = [i for i, each in enumerate(held) for _ in each]
        sent.append(phone(task, np.concatenate(held), labels))
        start += len(held)
    weight, bias = adapter_of(stepped(task, total_of(sent), DIM), DIM)

    mu, within, between = pooled(everybody)
    shrunk = (1 - r) * within + r * np.trace(within) / DIM * np.eye(DIM)
    values, v = scipy.linalg.eigh(between, shrunk)
    gains = {"wccn": np.ones(DIM), "plda": np.sqrt(np.maximum(values, 0) / (np.maximum(values, 0) + 1))}
    gains |= {"lda": np.repeat([0.0, 1.0], [DIM - k, k])}
    others = np.random.default_rng(9).normal(0, 3, (30, DIM))
    wanted = others - mu if form == "centre" else (others - mu) @ v * gains[form]
    np.testing.assert_allclose(_cosines(others @ weight.T + bias), _cosines(wanted), atol=2e-4)


def _cosines(x: Features) -> Features:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def test_a_phone_of_many_people_counts_as_many_as_the_task_says() -> None:
    task = task_of(options={"min_people": 3, "max_people": 2})
    held = people(5)
    labels = [i for i, each in enumerate(held) for _ in each]
    one, same, other = (phone(task, np.concatenate(held), labels, seed) for seed in (1, 1, 2))
    assert one.summed[one.layout.slices["people"]][0] == 1.0  # two people, in units of two
    np.testing.assert_array_equal(one.vector, same.vector)
    assert not np.array_equal(one.vector, other.vector)


def test_features_are_those_of_the_model_before_its_adapter() -> None:
    part = part_of(2)
    runtime = Given(A)
    inp = DeviceInput(task_of(), part, 2, theta_of(part), np.zeros((2, 1, 1, 3), np.uint8))
    STATISTICS.device_round(inp, runtime)
    (asked,) = runtime.asked
    np.testing.assert_array_equal(part.gather(asked), [1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(asked[:3], inp.theta[:3])
    assert frozen(part, asked) is asked, "a runtime keeps the very model loaded"


@pytest.mark.parametrize("seed", range(5))
def test_no_phone_adds_more_than_the_bound(seed: int) -> None:
    """Whatever its pictures are: features of any length and any scatter, one person or several."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(0, 1, (9, DIM))
    features = (
        direction / np.linalg.norm(direction, axis=1, keepdims=True) * rng.choice([1e-3, 4.0, 19.0, 300.0], (9, 1))
    )
    features[:5] *= min(1.0, 19.0 / np.linalg.norm(features[:5], axis=1).max())
    options = {"min_people": 3, "max_people": 3}
    for task in (task_of(options=options), *(noised(form, **options) for form in ("centre", "wccn", "plda"))):
        sent = phone(task, features, [0, 0, 0, 1, 1, 1, 2, 2, 2])
        addends = ContributionMap(sent.layout).addends(sent)
        assert addends.metrics == ()
        assert np.linalg.norm(addends.update) <= norm_bound(task) * (1 + 1e-6)
        assert np.abs(addends.update).max() <= 1 + 1e-6


def test_a_scatter_that_is_too_long_is_cut() -> None:
    found = person_addends(np.array([[1.0, 0.0], [-1.0, 0.0]]), 0.25)
    assert np.linalg.norm(found["within"]) == pytest.approx(1.0)


def test_the_map_does_not_take_sides() -> None:
    """Turned features give the turned map, and adapting again from the same pictures the same one."""
    everybody, task = people(30, seed=4), task_of(options={"form": "plda", "shrinkage": 0.1, "min_people": 3})
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, DIM)))[0]
    weight, _ = adapter_of(stepped(task, total_of([phone(task, each) for each in everybody]), DIM), DIM)
    turned, _ = adapter_of(stepped(task, total_of([phone(task, each @ turn) for each in everybody]), DIM), DIM)
    np.testing.assert_allclose(turn @ turned @ turn.T, weight, atol=1e-4)
    assert np.linalg.norm(weight) == pytest.approx(math.sqrt(DIM), rel=1e-6)


# Behind a gate.


def gated_part() -> ParameterPart:
    """Return the adapter's part of a model with a gate, whose own population is N(0, I)."""
    sizes = {"population.weight": (DIM, DIM), "population.bias": (DIM,), "population.level": (1,)}
    sizes |= {"adapter.weight": (DIM, DIM), "adapter.bias": (DIM,)}
    sizes |= {"adapter.gate_weight": (1, DIM), "adapter.gate_bias": (1,), "adapter.level": (1,)}
    return ParameterLayout(tuple(ParameterEntry(*each) for each in sizes.items())).part(("adapter.*",))


def gated_theta(part: ParameterPart, *, scale: float) -> Vector:
    tensors = {name: np.zeros(part.layout.sizes[name], np.float32) for name in part.layout.sizes}
    tensors["population.weight"] = scale * np.eye(DIM, dtype=np.float32)
    values = np.concatenate([tensors[name].reshape(-1) for name in part.layout.sizes])
    return frozen(part, values.astype(np.float32))


def gated_steps(task: TaskSpec, cohorts: list[list[Features]], *, scale: float = 1.0) -> ServerState:
    """Return the state after these cohorts of phones of one person, whose network has a gate."""
    part = gated_part()
    theta = gated_theta(part, scale=scale)
    state = STATISTICS.server_start(task, part, theta)
    for cohort in cohorts:
        sent = []
        for features_ND in cohort:
            shown = np.concatenate([np.full_like(features_ND, 7), features_ND, np.full((len(features_ND), 1), 7)], 1)
            crops, reply = np.zeros((len(shown), 1, 1, 3), np.uint8), STATISTICS.reply(state, "")
            inp = DeviceInput(task, part, 2 * DIM + 1, theta, crops, reply=reply)
            sent.append(STATISTICS.device_round(inp, Given(shown)).contribution)
        # Every round begins from the task's first model.
        state = STATISTICS.server_step(task, part, replace(state, theta=theta), total_of(sent), {})
    return state


FAR = np.full(DIM, 6.0)
GATED_TASK = {"form": "wccn", "shrinkage": 0.1, "min_people": 3, "max_people": 1, "longest": 40.0}


def test_behind_a_gate_phones_add_the_recognisers_own_features() -> None:
    """The sum is that of a model with an adapter alone, and so is the map."""
    held = [each + FAR for each in people(30)]
    task = task_of(options=GATED_TASK)
    state = gated_steps(task, [held])
    plain = stepped(task, total_of([phone(task, each) for each in held]), DIM)
    np.testing.assert_array_equal(state.revealed[IN_TOTAL]["sum"], plain.revealed[IN_TOTAL]["sum"])
    values = gated_part().gather(state.theta)
    weight, bias = adapter_of(plain, DIM)
    np.testing.assert_allclose(values[: DIM * DIM + DIM], [*weight.reshape(-1), *bias], rtol=1e-6)


def test_a_gate_tells_phones_people_from_the_models_own() -> None:
    """Drawn pictures of both populations, each judged by the gate's sign; the level is a cosine."""
    held = [each + FAR for each in people(60)]
    values = gated_part().gather(gated_steps(task_of(options=GATED_TASK), [held]).theta)[DIM * DIM + DIM :]
    w, bias, level = values[:DIM], values[DIM], values[DIM + 1]
    own = np.random.default_rng(4).standard_normal((2000, DIM))
    assert np.mean(own @ w + bias < 0) > 0.99
    assert np.mean(np.concatenate([each + FAR for each in people(60, seed=1)]) @ w + bias > 0) > 0.99
    assert 0 < level < 1


def test_the_level_is_that_of_people_whom_the_map_was_not_made_of() -> None:
    """Two cohorts: the newest's strangers behind the map of the one before. One alone judges itself."""
    first, second = ([each + FAR for each in people(40, seed=seed)] for seed in (1, 2))
    task = task_of(options=GATED_TASK, rounds=2)
    part = gated_part()
    both = part.gather(gated_steps(task, [first, second]).theta)
    swapped = part.gather(gated_steps(task, [second, first]).theta)
    np.testing.assert_allclose(both[:-1], swapped[:-1], rtol=1e-4, atol=1e-5)
    assert both[-1] != swapped[-1]
    alone = part.gather(gated_steps(replace(task, rounds=1), [first + second]).theta)
    np.testing.assert_allclose(alone[:-1], both[:-1], rtol=1e-4, atol=1e-5)
    assert alone[-1] not in (both[-1], swapped[-1])


def test_centring_has_a_gate_too() -> None:
    values = gated_part().gather(
        gated_steps(task_of(options={**GATED_TASK, "form": "centre"}), [[each + FAR for each in people(40)]]).theta
    )
    np.testing.assert_array_equal(values[: DIM * DIM].reshape(DIM, DIM), np.eye(DIM))
    assert values[DIM * DIM + DIM : -2].any()


def test_phones_of_the_models_own_population_keep_the_model() -> None:
    state = gated_steps(task_of(options=GATED_TASK), [people(40)], scale=0.2)
    assert "taken for the other population's" in state.lacks
    np.testing.assert_array_equal(state.theta, gated_theta(gated_part(), scale=0.2))


# Phones that hold people of both populations.

MIXED = task_of(rounds=4, options={**GATED_TASK, "mixture": True, "min_people": 30})


def drawn(count: int, *, seed: int, mean: Features | float = 0.0) -> list[Features]:
    """Return four pictures of each of so many people, all of whose pictures together have covariance I."""
    rng = np.random.default_rng(seed)
    return [mean + rng.normal(0, 0.8, DIM) + rng.normal(0, 0.6, (4, DIM)) for _ in range(count)]


def mixture(own: int, new: int, *, seed: int) -> list[Features]:
    return drawn(own, seed=seed) + drawn(new, seed=seed + 100, mean=FAR)


def shares(state: ServerState, held: list[Features]) -> Features:
    """Return the responsibility of each of these people under what the state's next cohort is told."""
    (odds,) = STATISTICS.reply(state, "").values()
    return np.array([responsibility(odds, each.mean(axis=0) / GATED_TASK["longest"]) for each in held])


def gates_of(state: ServerState, held: list[Features]) -> Features:
    """Return the share of the adapter in the embedding of each of these people's pictures."""
    part = gated_part()
    found = dict(zip(GATE, np.split(part.gather(state.theta)[-DIM - 2 :], [DIM, DIM + 1]), strict=True))
    log_odds_N = np.concatenate(held) @ found[GATE[0]] + found[GATE[1]]
    return 1 / (1 + np.exp(-log_odds_N.astype(np.float64)))


def test_a_persons_addends_are_as_many_times_their_weight_by_hand() -> None:
    """m = (0.5, 0), so that 4 m_1 - 2 + log 3 are log odds of 3 to 1: 0.1 + 0.9 * 3 / 4 of what a person adds."""
    sizes = {"population.weight": (2, 2), "population.bias": (2,), "population.level": (1,)}
    sizes |= {"adapter.weight": (2, 2), "adapter.bias": (2,)}
    sizes |= {"adapter.gate_weight": (1, 2), "adapter.gate_bias": (1,), "adapter.level": (1,)}
    part = ParameterLayout(tuple(ParameterEntry(*each) for each in sizes.items())).part(("adapter.*",))
    task = task_of(rounds=2, options={**BY_HAND, "mixture": True})
    shown = np.concatenate([np.full((2, 2), 9.0), A, np.full((2, 1), 9.0)], axis=1)
    crops = np.zeros((2, 1, 1, 3), np.uint8)
    inp = DeviceInput(task, part, 5, np.zeros(part.layout.size, np.float32), crops)
    whole = STATISTICS.device_round(inp, Given(shown)).contribution
    inp = replace(inp, reply={"mixture_odds": np.array([4, 0, -2 + math.log(3)], np.float32)})
    found = STATISTICS.device_round(inp, Given(shown)).contribution
    np.testing.assert_allclose(found.vector[:2], 1.0)
    np.testing.assert_allclose(found.vector[2:], 0.775 * whole.vector[2:], rtol=1e-6)
    np.testing.assert_allclose(found.vector[2:5], [0.775, 0.775, 0.3875], rtol=1e-6)


def test_a_mixture_finds_phones_own_population_and_makes_its_map() -> None:
    """The first cohort tells whom to look for and is forgotten; then own people count a tenth, and the gate is open."""
    cohorts = [mixture(30, 60, seed=seed) for seed in range(3)]
    first = gated_steps(MIXED, cohorts[:1])
    assert "next cohort is told whom to look for" in first.lacks
    assert shares(first, drawn(200, seed=50)).max() < 0.01
    assert shares(first, drawn(200, seed=51, mean=FAR)).min() > 0.99
    found = gated_steps(MIXED, cohorts)
    assert not found.lacks
    assert found.figures == {"people_in_total": pytest.approx(126, abs=0.5), "phones_in_total": 270.0}
    assert gates_of(found, drawn(200, seed=52)).max() < 0.01
    assert gates_of(found, drawn(200, seed=53, mean=FAR)).min() > 0.99
    blurred = gated_steps(task_of(options=GATED_TASK, rounds=2), cohorts[1:])
    assert "taken for the other population's" in blurred.lacks


def test_phones_of_new_people_alone_make_the_map_of_every_cohort_but_the_first() -> None:
    cohorts = [mixture(0, 60, seed=seed) for seed in range(3)]
    found = gated_steps(MIXED, cohorts)
    plain = gated_steps(task_of(options=GATED_TASK, rounds=2), cohorts[1:])
    np.testing.assert_allclose(gated_part().gather(found.theta), gated_part().gather(plain.theta), atol=1e-4)


def test_phones_of_the_models_own_people_alone_keep_the_model() -> None:
    """Nobody else is to be found: whoever looks like a population of their own is too near, and the state says so."""
    task = replace(MIXED, options={**MIXED.options, "min_people": 5})
    state = gated_steps(task, [drawn(90, seed=seed) for seed in range(4)])
    assert "taken for the other population's" in state.lacks
    np.testing.assert_array_equal(state.theta, gated_theta(gated_part(), scale=1.0))


def test_a_cohort_of_the_models_own_people_leaves_what_is_told_and_says_so() -> None:
    """Each of them counts a tenth, which tells nothing of others: later cohorts make a map."""
    cohorts = [mixture(30, 60, seed=1), drawn(60, seed=2), mixture(30, 60, seed=3)]
    empty = gated_steps(MIXED, cohorts[:2])
    assert "the total is of 6 people, and options.min_people is 30" in empty.lacks
    before, after = (STATISTICS.reply(state, "")["mixture_odds"] for state in (gated_steps(MIXED, cohorts[:1]), empty))
    np.testing.assert_array_equal(after, before)
    found = gated_steps(MIXED, cohorts)
    assert not found.lacks
    assert found.figures["people_in_total"] == pytest.approx(69, abs=0.5)


@pytest.mark.parametrize("deviation", [1e-3, 0.1, 1.0, 10.0, 1e3])
def test_noise_leaves_a_mixture_finite_odds_or_none(deviation: float) -> None:
    """Under differential privacy sums are what noise makes of them: what is told is finite, or a reason is."""
    task = replace(noised("plda", mixture=True, max_people=1, longest=40.0), rounds=4)
    part, rng = gated_part(), np.random.default_rng(7)
    theta = gated_theta(part, scale=1.0)
    state = STATISTICS.server_start(task, part, theta)
    for seed in range(3):
        crops, reply = np.zeros((4, 1, 1, 3), np.uint8), STATISTICS.reply(state, "")
        sent = []
        for each in mixture(20, 40, seed=seed):
            shown = np.concatenate([each, each, each[:, :1]], axis=1)
            inp = DeviceInput(task, part, 2 * DIM + 1, theta, crops, reply=reply)
            sent.append(STATISTICS.device_round(inp, Given(shown)).contribution)
        total = total_of(sent)
        total.vector[2:] += deviation * rng.standard_normal(len(total.vector) - 2)
        state = STATISTICS.server_step(task, part, replace(state, theta=theta), total, {})
        assert np.isfinite(state.theta).all()
        assert all(np.isfinite(odds).all() for odds in STATISTICS.reply(state, "").values())
        assert state.lacks or deviation < 10


def test_what_a_mixture_needs() -> None:
    with pytest.raises(ConfigError, match="no gate between them: import it with --gate"):
        STATISTICS.contribution_layout(MIXED, part_of(DIM), DIM)
    gated = gated_part()
    with pytest.raises(ConfigError, match=r"rounds is 1: set it to 2 or more, or options\.mixture to false"):
        STATISTICS.contribution_layout(replace(MIXED, rounds=1), gated, 2 * DIM + 1)
    auto = replace(MIXED, rounds=2, options={**MIXED.options, "form": "auto"})
    with pytest.raises(ConfigError, match="rounds is 2: set it to 3 or more, or name"):
        STATISTICS.contribution_layout(auto, gated, 2 * DIM + 1)
    few = replace(MIXED, rounds=2, cohort=CohortSpec(size=20, min_reports=3))
    with pytest.raises(ConfigError, match=r"1 cohorts that count times cohort\.size 20"):
        STATISTICS.contribution_layout(few, gated, 2 * DIM + 1)
    needed, plain = STATISTICS.requirements(MIXED), STATISTICS.requirements(task_of())
    assert (needed.shared_reply, needed.fewest(16)) == (("mixture_odds",), 160)
    assert (plain.shared_reply, plain.fewest(16)) == ((), 16)


@pytest.mark.parametrize("more", [{}, {"mixture": True}])
def test_a_gate_needs_second_moments(more: dict[str, Any]) -> None:
    """Under differential privacy some forms send none, and of nothing a gate would be made."""
    for form, is_enough in (("centre", False), ("wccn", False), ("lda", True), ("plda", True), ("auto", True)):
        task = replace(noised(form, rank=2, **more), rounds=3)
        STATISTICS.contribution_layout(replace(noised(form, rank=2), rounds=3), part_of(DIM), DIM)
        if is_enough:
            STATISTICS.contribution_layout(task, gated_part(), 2 * DIM + 1)
        else:
            with pytest.raises(ConfigError, match=f'form {form} sends none: set options.form to "plda" or "lda"'):
                STATISTICS.contribution_layout(task, gated_part(), 2 * DIM + 1)


def test_a_gated_model_of_another_width() -> None:
    with pytest.raises(ConfigError, match="adapter maps 6 numbers"):
        STATISTICS.contribution_layout(task_of(), gated_part(), DIM)


# What is refused, by one sentence.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": PrivacySpec(min_cohort=3, secure_aggregation="off")}, "people's templates"),
        ({"privacy": PrivacySpec(min_cohort=3)}, 'privacy.reveals = \\["class_moment"\\]'),
        ({"privacy": PrivacySpec(min_cohort=3, groups=2, reveals=("class_moment",)),
          "cohort": CohortSpec(size=8, min_reports=6)}, "privacy.groups"),
        ({"privacy": PrivacySpec(min_cohort=3, l2_clip=1.0, reveals=("class_moment",))}, "would be clipped"),
        ({"privacy": PrivacySpec(min_cohort=3, coordinate_clip=0.5, reveals=("class_moment",))}, "would be clipped"),
        ({"privacy": PrivacySpec(min_cohort=3, max_weight=1, dp=replace(DP, max_participations=2)),
          "trainable": ("adapter.*",)}, "in one sum of a task"),
        ({"privacy": PrivacySpec(min_cohort=3, max_weight=1, dp=DP), "trainable": ("adapter.*",)},
         "noise is in units of the clip: set it to 1"),
        ({"privacy": PrivacySpec(min_cohort=3, max_weight=1, l2_clip=1.0, dp=replace(DP, target_quantile=0.5)),
          "trainable": ("adapter.*",)}, "target_quantile to 0"),
        ({"server": ServerSpec(momentum=0.9)}, "server.momentum"),
        ({"options": {"form": "qda"}}, "form"),
        ({"options": {"form": "auto", "min_people": 3}}, "rounds is 1"),
        ({"options": {"shrinkage": 1.5}}, "options.shrinkage"),
        ({"options": {"rank": 0}}, "options.rank"),
        ({"options": {"min_people": 2}}, "options.min_people"),
        ({"options": {"max_people": 0}}, "options.max_people"),
        ({"options": {"longest": 0.0}}, "options.longest"),
        ({"options": {"within_clip": 0.0}}, "options.within_clip"),
        ({"options": {"form": "lda", "rank": DIM}}, "must be below"),
        ({"cohort": CohortSpec(size=24, min_reports=3), "options": {}}, "24 times options.max_people 4 are 96: ev"),
    ],
)  # fmt: skip
def test_a_task_that_would_show_too_much_or_say_nothing(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        STATISTICS.contribution_layout(task_of(**changes), part_of(DIM), DIM)


def test_a_model_that_is_not_frozen() -> None:
    part = part_of(DIM)
    for patterns in (("*",), ("trunk.*",), ("adapter.weight",)):
        with pytest.raises(ConfigError, match="frozen but for its adapter"):
            STATISTICS.contribution_layout(task_of(), part.layout.part(patterns), DIM)
    with pytest.raises(ConfigError, match="embeddings have 7"):
        STATISTICS.contribution_layout(task_of(), part, 7)
    assert dim_of(part) == DIM


def test_features_that_are_longer_than_the_task_says() -> None:
    with pytest.raises(ConfigError, match=r"features are 39 long, and options\.longest is 20"):
        phone(task_of(), np.full((3, DIM), 39 / math.sqrt(DIM)))


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        ({"min_people": 50}, 40, "the total is of 40 people, and options.min_people is 50"),
        ({"min_people": 3, "form": "lda", "rank": 4}, 4, "span too little for options.rank 4"),
        ({"min_people": 3}, 1, "0 people in the total had two pictures"),
        ({"min_people": 3, "shrinkage": 0.0}, 5, "not positive definite with options.shrinkage 0"),
    ],
)
def test_a_sum_that_cannot_carry_the_form(options: dict[str, Any], count: int, words: str) -> None:
    """One picture a person leaves no scatter; the scatter of five people's ten pictures has not all directions."""
    task = task_of(options={"max_people": 1, **options})
    held = people(40) if count == 40 else [people(40)[0]] * 4 if count == 1 else people(count)
    held = [each[:2] for each in held] if count == 5 else held
    with pytest.raises(ConfigError, match=words):
        stepped(task, total_of([phone(task, each) for each in held]), DIM)


def test_a_sum_without_anybody() -> None:
    layout = STATISTICS.contribution_layout(task_of(), part_of(DIM), DIM)
    with pytest.raises(NonFiniteError, match="nobody's statistics"):
        stepped(task_of(), Total.empty(layout), DIM)


def test_pictures_that_do_not_differ_within_people() -> None:
    task = task_of(options={"min_people": 3, "max_people": 1})
    held = [np.repeat(each[:1], 2, axis=0) for each in people(10)]
    with pytest.raises(ConfigError, match="not positive definite"):
        stepped(task, total_of([phone(task, each) for each in held]), DIM)


def test_people_who_do_not_differ_have_no_discriminants() -> None:
    """Their means lie no further apart than pictures of one person do: nothing is left for plda."""
    task = task_of(options={"min_people": 3, "max_people": 1, "form": "plda", "shrinkage": 0.1})
    rng = np.random.default_rng(2)
    held = [each - each.mean(axis=0) for each in (rng.normal(0, 1, (4, DIM)) for _ in range(20))]
    with pytest.raises(ConfigError, match="do not differ by more"):
        stepped(task, total_of([phone(task, each) for each in held]), DIM)


# Cohorts add up.


def test_cohorts_make_the_map_of_one_cohort_of_all() -> None:
    """Whatever the adapter was set to by the cohorts before; sums are kept to the last bit of float64."""
    everybody, dim = people(90, seed=3), DIM
    task = task_of(rounds=3, options={"min_people": 60, "max_people": 1, "form": "plda", "shrinkage": 0.1})
    sent = [phone(task, each) for each in everybody]
    part = part_of(dim)
    state = start = STATISTICS.server_start(task, part, theta_of(part))
    told = []
    for first in (0, 30, 60):
        state = STATISTICS.server_step(task, part, state, total_of(sent[first : first + 30]), {})
        told.append((state.figures, bool(state.lacks), np.array_equal(state.theta, start.theta)))
    assert [(figures["people_in_total"], figures["phones_in_total"]) for figures, _, _ in told] == [
        (30.0, 30.0),
        (60.0, 60.0),
        (90.0, 90.0),
    ]
    assert [(lacks, stays) for _, lacks, stays in told] == [(True, True), (False, False), (False, False)]
    kept = state.revealed[IN_TOTAL]
    assert (kept["sum"].dtype, int(kept["num_phones"][0])) == (np.float64, 90)
    np.testing.assert_allclose(kept["sum"], total_of(sent).vector, rtol=1e-12, atol=1e-12)
    whole = stepped(task, total_of(sent), dim)
    np.testing.assert_allclose(part.gather(state.theta), part.gather(whole.theta), atol=1e-6)
    assert state.rounds == 3


def test_a_total_of_another_model_is_refused_and_stays() -> None:
    task, part = task_of(rounds=2), part_of(DIM)
    sent = total_of([phone(task, each) for each in people(40)])
    state = STATISTICS.server_step(task, part, STATISTICS.server_start(task, part, theta_of(part)), sent, {})
    other = state.theta.copy()
    other[0] += 1.0  # the trunk's
    before = state.revealed[IN_TOTAL]["sum"].copy()
    with pytest.raises(CorruptDataError, match="of another model"):
        STATISTICS.server_step(task, part, replace(state, theta=other), sent, {})
    np.testing.assert_array_equal(state.revealed[IN_TOTAL]["sum"], before)
    again = STATISTICS.server_step(task, part, replace(state, theta=theta_of(part)), sent, {})
    assert again.figures["phones_in_total"] == 80.0, "its adapter is not of the frozen model"


@pytest.mark.parametrize("damage", ["nan", "float32", "nobody"])
def test_a_damaged_total_is_refused(damage: str) -> None:
    task, part = task_of(rounds=2), part_of(DIM)
    sent = total_of([phone(task, each) for each in people(40)])
    state = STATISTICS.server_step(task, part, STATISTICS.server_start(task, part, theta_of(part)), sent, {})
    kept = dict(state.revealed[IN_TOTAL])
    if damage == "nan":
        kept["sum"] = kept["sum"] * np.nan
    elif damage == "float32":
        kept["sum"] = kept["sum"].astype(np.float32)
    else:
        kept["num_phones"] = np.array([0])
    with pytest.raises(CorruptDataError, match="damaged"):
        STATISTICS.server_step(task, part, replace(state, revealed={IN_TOTAL: kept}), sent, {})


# The form is chosen by a cohort that no map was made of.


def auto(everybody: list[Features], size: int, theta: Vector | None = None, **options: Any) -> list[ServerState]:
    """Return the states after each cohort of so many phones of one person, with form auto."""
    task = task_of(rounds=9, options={"min_people": 3, "max_people": 1, "form": "auto", "rank": 3, **options})
    part = part_of(DIM)
    states = [STATISTICS.server_start(task, part, theta_of(part) if theta is None else theta)]
    for first in range(0, len(everybody), size):
        total = total_of([phone(task, each) for each in everybody[first : first + size]])
        states.append(STATISTICS.server_step(task, part, states[-1], total, {}))
    return states[1:]


def identity() -> Vector:
    """Return a model whose adapter does nothing."""
    return frozen(part_of(DIM), theta_of(part_of(DIM)))


def test_auto_waits_for_a_second_cohort_and_takes_what_separates_it() -> None:
    first, second, third = auto(people(360, seed=8), 120, identity())
    assert "waits for the second one" in first.lacks
    np.testing.assert_array_equal(first.theta, identity())
    for state in (second, third):
        predicted = state.evidence["predicted_eer"]
        assert not state.lacks
        assert set(predicted) == {"own", "centre 0", "wccn 0.5", "wccn 0.2", "plda 0.02", "lda 0.02"}
        name = f"{state.evidence['form']} {state.evidence['shrinkage']:g}"
        assert predicted[name] == min(predicted.values()) == state.evidence["eer"] < predicted["own"]
        assert state.evidence["people"] == 120.0
    chosen = task_of(
        options={key: third.evidence[key] for key in ("form", "shrinkage")}
        | {"min_people": 3, "max_people": 1, "rank": 3}
    )
    whole = stepped(chosen, total_of([phone(chosen, each) for each in people(360, seed=8)]), DIM)
    np.testing.assert_allclose(part_of(DIM).gather(third.theta), part_of(DIM).gather(whole.theta), atol=1e-6)


def test_a_population_for_which_nothing_helps_keeps_its_model() -> None:
    """Features without a direction that scatters, and centred already: any map is the model's own or worse."""
    rng = np.random.default_rng(11)
    held = [mean + rng.normal(0, 0.5, (3, DIM)) for mean in rng.normal(0, 1.5, (400, DIM))]
    for state in auto(held, 200, identity())[1:]:
        assert "clearly better than the task's model" in state.lacks
        np.testing.assert_array_equal(state.theta, identity())
        assert state.evidence == {}
        assert state.revealed[IN_TOTAL]["num_phones"].tolist() == [400]


def test_the_model_to_beat_is_the_tasks_own_adapter() -> None:
    """One that was adapted to these people before is as good as what can be made of them again."""
    everybody = people(600, seed=8)
    made = auto(everybody[:300], 150, identity())[-1].theta
    again = auto(everybody[300:], 150, made)[-1]
    assert "clearly better" in again.lacks
    np.testing.assert_array_equal(again.theta, made)


def test_noise_leaves_a_map_or_a_reason() -> None:
    """Under differential privacy a sum is not checked for what only honest sums have, but for what a map needs."""
    privacy = PrivacySpec(min_cohort=3, max_weight=1, dp=DP, l2_clip=1.0)
    task = task_of(privacy=privacy, trainable=("adapter.*",), options={"min_people": 3, "max_people": 1})
    total = total_of([phone(task, each) for each in people(40)])
    noise = np.random.default_rng(3).standard_normal(len(total.vector))
    noise[:2] = 0.0
    little, much = (replace(total, vector=total.vector + deviation * noise) for deviation in (1e-3, 10.0))
    assert np.isfinite(stepped(task, little, DIM).theta).all()
    with pytest.raises(ConfigError, match=r"people|positive definite"):
        stepped(task, much, DIM)


def test_a_form_is_sent_what_it_needs_of_one_length() -> None:
    """Under differential privacy: of wccn no second moment leaves a phone, and the scatter is most of what does."""
    plain = phone(task_of(options={"min_people": 3, "max_people": 1}), A)
    for form, needed in (("centre", {"mean"}), ("wccn", {"mean", "within"}), ("plda", {"mean", "second", "within"})):
        task = noised(form, max_people=1)
        sent, scales = phone(task, A), lane_scales(task)
        assert sum(3 * s**2 if lane == "people" else s**2 for lane, s in scales.items()) == pytest.approx(1.0)
        for lane, scale in scales.items():
            np.testing.assert_allclose(
                sent.vector[sent.layout.slices[lane]], scale * plain.vector[plain.layout.slices[lane]], rtol=1e-6
            )
            assert (scale > 0) == (lane in needed | {"people"})
    assert lane_scales(noised("wccn"))["within"] > 0.9


def test_lanes_are_read_at_their_own_length() -> None:
    """Scaled and unscaled, the same map; the noise of a lane that the form does not need is no part of it."""
    everybody = people(60, seed=2)
    for form in ("centre", "wccn", "plda"):
        plain = task_of(options={"min_people": 3, "max_people": 1, "form": form})
        task = noised(form, replace(DP, noise_multiplier=1e-6), max_people=1)
        total = total_of([phone(task, each) for each in everybody])
        if form == "wccn":
            total.vector[total.layout.slices["second"]] = 1e3
        found = adapter_of(stepped(task, total, DIM), DIM)
        wanted = adapter_of(stepped(plain, total_of([phone(plain, each) for each in everybody]), DIM), DIM)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_what_the_noise_hides_is_made_level_and_what_stands_out_is_kept() -> None:
    """A direction that stands 3 above the level of others is seen at 3 + e^2 / 12, and kept at 3 - e^2 / 12."""
    edge = 0.4
    seen = 2.0 + 3.0 + edge**2 / 12
    others = 2.0 + np.linspace(-0.3, 0.3, 7)
    others -= others.sum() / 7 - 2.0 + (edge**2 / 12) / 7  # the trace says what is under all
    cut = without_noise(np.diag([seen, *others]), edge / 4)
    np.testing.assert_allclose(np.linalg.eigvalsh(cut), [2.0] * 7 + [5.0 - edge**2 / 12], atol=2e-3)
    np.testing.assert_array_equal(without_noise(np.diag(others), 0.0), np.diag(others))
    np.testing.assert_allclose(without_noise(np.diag(others), 1e-9), np.diag(others), atol=1e-6)


def test_the_cut_makes_a_better_map_of_a_noised_sum() -> None:
    """The scatter of 3,000 phones under epsilon 4, in 24 dimensions of which two stand out."""
    dim, size, rng = 24, 3000, np.random.default_rng(1)
    variances = np.concatenate([np.full(dim - 2, 2.5e-4), [2e-2, 1e-2]])
    within = np.linalg.qr(rng.standard_normal((dim, dim)))[0] * variances**0.5
    deviation = within_noise(noised("wccn", replace(DP, noise_multiplier=1.3)), size)
    noise = rng.standard_normal((dim, dim)) * deviation
    noise = (noise + noise.T) / 2 * 0.25 / size
    truth = within @ within.T
    seen = truth + noise
    cut = without_noise(seen, deviation * 0.25 / size)
    assert np.linalg.eigvalsh(seen)[0] < -2e-4, "no map can be made of it"
    np.testing.assert_allclose(np.linalg.eigvalsh(cut)[:-2], 2.5e-4, rtol=0.25)
    np.testing.assert_allclose(np.linalg.eigvalsh(cut)[-2:], [1e-2, 2e-2], rtol=0.1)


def test_phones_own_noise_is_as_much_as_they_make() -> None:
    """Skellam: h = 6 - 0.1 x 10 honest shares reach z, so ten make sqrt(10 / 5) of it; the coordinator makes z."""
    skellam = DpSpec("skellam", noise_multiplier=2.0, epsilon=8.0, delta=1e-6, max_participations=1)
    scale = math.sqrt(0.9)
    for dp, factor in ((DP, 1.0), (skellam, 2.0 * math.sqrt(2))):
        task = replace(noised("wccn", dp), cohort=CohortSpec(size=10, min_reports=6))
        assert within_noise(task, 10) == pytest.approx(factor / scale)
    assert within_noise(task_of(), 10) == within_noise(noised("centre"), 10) == 0.0


@pytest.mark.parametrize(
    ("lane", "place", "value", "words"),
    [
        ("people", 0, 99.0, "counts of people"),
        ("people", 1, 41.0, "counts of people"),
        ("people", 2, 0.0, "counts of pictures"),
        ("mean", 0, 30.0, "means of people"),
        ("second", 0, 99.0, "means of people"),
        ("second", 0, -5.0, "means of people"),
        ("within", 0, 99.0, "scatter within people"),
        ("within", 0, -2.0, "scatter within people"),
    ],
)
def test_a_sum_that_phones_cannot_have(lane: str, place: int, value: float, words: str) -> None:
    task = task_of(options={"min_people": 3, "max_people": 1})
    total = total_of([phone(task, each) for each in people(40)])
    total[lane][place] = value
    with pytest.raises(CorruptDataError, match=words):
        stepped(task, total, DIM)


def test_it_is_a_method_like_the_others() -> None:
    assert METHODS["statistics"] is STATISTICS
    assert STATISTICS.trains
    assert not STATISTICS.is_minimised
    needed = STATISTICS.requirements(task_of())
    assert (needed.objective, needed.public_faces, needed.other_models) == ("", False, ())
    assert needed.why_synchronous
    assert task_of(asynchronous=AsynchronousSpec()).asynchronous is not None
    with pytest.raises(ConfigError, match=r"options\.frm"):
        options_of(task_of(options={"frm": "lda"}))
    assert "array" not in repr(stepped(task_of(), total_of([phone(task_of(), each) for each in people(9)]), DIM))
