"""The registry, and laws that every method in it keeps."""

from __future__ import annotations

import dataclasses
from dataclasses import fields

import numpy as np
import pytest

from mien.contribution import Total
from mien.errors import ConfigError, NonFiniteError
from mien.methods import METHODS, find_method
from mien.methods.base import DeviceInput, Method
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
PART = TINY.part()
PUBLIC = np.concatenate([made_up_crops(3, seed=100 + k) for k in range(4)])
LABELS = np.repeat(np.arange(4), 3)


TRAINING = {name: method for name, method in METHODS.items() if method.is_minimised}
"""Methods whose devices train; tests/golden/test_fleet_evaluation.py is about the one that measures, and
test_statistics.py about the one whose devices embed only."""

# What a method cannot do without.
OPTIONS: dict[str, dict[str, object]] = {
    "fedfr": {"public_classes": 4},
    "fedgc": {"identities": 2},
    "fedfr_uda": {"clustering": {"distance": 0.01}},  # one cluster would leave its head nothing to tell apart
    "pfm_fv": {"validation": "off", "loss": "positive"},  # no validators here, and one identity
}
# A softmax over one identity alone has nothing to learn.
TWO_IDENTITIES = {"fedgc"}
# Methods that take the plain mean of their devices' models.
UNWEIGHTED = {"fedfr_uda", "scaffold"}
# Methods whose server does more, or keeps no momentum of its own; their golden tests pin their steps.
OWN_SERVER_STEP = {"mime", "pfm_fv", "scaffold"}


def weight_of(method: Method, num_images: int) -> float:
    """Return what a device of so many images weighs, before the cap."""
    return 1.0 if method.name in UNWEIGHTED else float(num_images)


def task_of(method: Method, **changes: object) -> TaskSpec:
    task = TaskSpec(
        name="law",
        method=method.name,
        options=OPTIONS.get(method.name, {}),
        cohort=CohortSpec(size=3, min_reports=2),
        local=LocalSpec(lr=0.1),
        privacy=PrivacySpec(min_cohort=2, max_weight=4, secure_aggregation="off"),
    )
    return dataclasses.replace(task, **changes)  # type: ignore[arg-type]


def input_of(task: TaskSpec, num_images: int = 3, seed: int = 1) -> DeviceInput:
    return DeviceInput(
        task=task,
        part=PART,
        dim=8,
        theta=TINY.theta,
        crops=made_up_crops(num_images, seed=seed),
        labels=np.arange(num_images) % 2 if task.method in TWO_IDENTITIES else None,
        public_crops=PUBLIC,
        public_labels=LABELS,
        seed=seed,
    )


def test_the_registry_knows_each_method_by_its_own_name() -> None:
    assert {"fedavg", "fedface", "fedfr", "fixed_embedding"} <= set(METHODS)
    assert all(method.name == name for name, method in METHODS.items())
    assert find_method("fedface") is METHODS["fedface"]


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedface'"):
        find_method("fedfaces")
    with pytest.raises(ConfigError, match="known methods: fedavg, "):
        find_method("quantum")


@pytest.fixture(params=list(TRAINING.values()), ids=list(TRAINING))
def method(request: pytest.FixtureRequest) -> Method:
    chosen: Method = request.param
    return chosen


def test_a_contribution_has_the_announced_form_and_its_addends(method: Method) -> None:
    task = task_of(method)
    output = method.device_round(input_of(task), TINY.runtime())
    layout = method.contribution_layout(task, PART, 8)
    assert output.contribution.layout.sha256 == layout.sha256
    assert layout.revealed == ()
    total = Total.empty(layout).plus(output.contribution)
    assert (total["count"][0], total["weight"][0]) == (1.0, weight_of(method, 3))
    assert total.mean("loss_before")[0] == pytest.approx(output.metrics["loss_before"], rel=1e-6)
    assert total.mean("loss_after")[0] == pytest.approx(output.metrics["loss_after"], rel=1e-6)
    assert np.abs(total["delta"]).max() > 0


def test_the_weight_is_capped(method: Method) -> None:
    output = method.device_round(input_of(task_of(method), num_images=7), TINY.runtime())
    assert Total.empty(output.contribution.layout).plus(output.contribution)["weight"][0] == weight_of(method, 4)


def test_equal_seeds_give_equal_contributions(method: Method) -> None:
    one, same = (method.device_round(input_of(task_of(method)), TINY.runtime()) for _ in range(2))
    np.testing.assert_array_equal(one.contribution.vector, same.contribution.vector)


@pytest.mark.parametrize("name", sorted(set(TRAINING) - OWN_SERVER_STEP))
def test_the_server_takes_a_momentum_step_on_the_weighted_mean(name: str) -> None:
    """Two rounds of the same two devices: v1 = d, theta1 = theta + lr d, v2 = mu d + d, theta2 = theta1 + lr v2."""
    method = METHODS[name]
    task = task_of(method, server=ServerSpec(lr=0.5, momentum=0.8))
    total = Total.empty(method.contribution_layout(task, PART, 8))
    updates = []
    for seed, num_images in ((1, 2), (2, 4)):
        contribution = method.device_round(input_of(task, num_images, seed), TINY.runtime()).contribution
        total = total.plus(contribution)
        delta = contribution.vector[contribution.layout.slices["delta"]].astype(np.float64)
        updates.append((weight_of(method, num_images), delta))
    mean = sum(delta for _, delta in updates) / sum(weight for weight, _ in updates)
    state = method.server_start(task, PART, TINY.theta)
    first = method.server_step(task, PART, state, total, {})
    second = method.server_step(task, PART, first, total, {})
    start = PART.gather(TINY.theta).astype(np.float64)
    np.testing.assert_allclose(PART.gather(first.theta), start + 0.5 * mean, atol=1e-7)
    np.testing.assert_allclose(PART.gather(second.theta), start + 0.5 * mean + 0.5 * 1.8 * mean, atol=1e-6)
    assert (first.rounds, second.rounds) == (1, 2)
    frozen = TINY.part("stem.*")
    np.testing.assert_array_equal(frozen.gather(second.theta), frozen.gather(TINY.theta))
    np.testing.assert_array_equal(state.arrays["momentum"], 0.0)  # the old state is as it was


def test_a_round_without_reports_is_no_round(method: Method) -> None:
    task = task_of(method)
    empty = Total.empty(method.contribution_layout(task, PART, 8))
    with pytest.raises(NonFiniteError, match="aborted"):
        method.server_step(task, PART, method.server_start(task, PART, TINY.theta), empty, {})


def test_faces_stay_out_of_the_repr(method: Method) -> None:
    output = method.device_round(input_of(task_of(method)), TINY.runtime())
    assert "array" not in repr(output)
    assert "array" not in repr(input_of(task_of(method)))
    assert "array" not in repr(method.server_start(task_of(method), PART, TINY.theta))


def test_a_wrong_option_is_named(method: Method) -> None:
    with pytest.raises(ConfigError, match=r"options\.margn"):
        method.device_round(input_of(task_of(method, options={"margn": 0.5})), TINY.runtime())


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if "margin" in {f.name for f in fields(m.options)}])
def test_a_margin_that_is_no_cosine_is_refused(name: str) -> None:
    task = task_of(METHODS[name], options={**OPTIONS.get(name, {}), "margin": 2.0})
    with pytest.raises(ConfigError, match=r"options\.margin"):
        METHODS[name].device_round(input_of(task), TINY.runtime())


@pytest.mark.parametrize("method", TRAINING.values(), ids=TRAINING)
def test_what_all_devices_are_told_is_agreed_on(method: Method) -> None:
    """Whatever the server carries is public, so each word of it is the same for all, and all devices agree on it."""
    state = method.server_start(task_of(method), PART, TINY.theta)
    assert method.reply(state, "one").keys() <= set(method.requirements(task_of(method)).shared_reply)
