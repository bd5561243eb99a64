"""A task's promise is refused, the field named, where something would break it."""

from __future__ import annotations

from typing import Any

import pytest

from mien.errors import ConfigError
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec, from_mapping, to_mapping

GOOD: dict[str, Any] = {
    "mechanism": "central_gaussian",
    "noise_multiplier": 1.0,
    "epsilon": 8.0,
    "delta": 1e-5,
    "max_participations": 4,
}


def task(privacy: dict[str, Any], **fields: Any) -> TaskSpec:
    return from_mapping(TaskSpec, {"name": "t", "trainable": ["head*"], "privacy": privacy, **fields})


def test_without_a_word_nothing_is_promised() -> None:
    assert not DpSpec().is_on
    assert TaskSpec("t").privacy.dp == DpSpec()


@pytest.mark.parametrize("mechanism", ["central_gaussian", "skellam"])
def test_a_promise_survives_its_file(mechanism: str) -> None:
    made = task({"max_weight": 1, "dp": {**GOOD, "mechanism": mechanism}})
    assert made.privacy.dp.is_on
    assert from_mapping(TaskSpec, to_mapping(made)) == made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 0.0),
        ("noise_multiplier", 1e6),
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("delta", 0.0),
        ("delta", 0.5),
        ("max_participations", 0),
        ("min_separation", -1),
        ("dishonest_share", 1.0),
        ("target_quantile", 1.0),
        ("clip_lr", 0.0),
    ],
)
def test_a_wrong_number_is_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"privacy.dp.{field}"):
        DpSpec(**{**GOOD, field: value})


@pytest.mark.parametrize("field", ["noise_multiplier", "epsilon", "delta", "max_participations", "target_quantile"])
def test_a_promise_without_a_mechanism_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"privacy.dp.{field}.*name a mechanism"):
        DpSpec(**{field: 1 if field == "max_participations" else 0.01})


def test_unknown_words_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.dp\.mechanism"):
        task({"max_weight": 1, "dp": {**GOOD, "mechanism": "laplace"}})
    with pytest.raises(ConfigError, match=r"privacy\.dp\.accounting"):
        task({"max_weight": 1, "dp": {**GOOD, "accounting": "shuffled"}})


def test_an_adaptive_clip_needs_a_coordinator_that_adds_noise() -> None:
    assert DpSpec(**{**GOOD, "target_quantile": 0.5}).is_adaptive
    with pytest.raises(ConfigError, match=r"privacy\.dp\.target_quantile needs mechanism central_gaussian"):
        DpSpec(**{**GOOD, "mechanism": "skellam", "target_quantile": 0.5})


@pytest.mark.parametrize(
    ("privacy", "named"),
    [
        ({}, "privacy.max_weight"),
        ({"max_weight": 1, "reveals": ["class_embeddings"]}, "privacy.reveals"),
        ({"max_weight": 1, "secure_aggregation": "off"}, "privacy.secure_aggregation"),
    ],
)
@pytest.mark.parametrize("mechanism", ["central_gaussian", "skellam"])
def test_nothing_may_leave_beside_noised_sums(privacy: dict[str, Any], named: str, mechanism: str) -> None:
    with pytest.raises(ConfigError, match=named):
        task({**privacy, "dp": {**GOOD, "mechanism": mechanism}})


def test_the_trained_part_is_named() -> None:
    with pytest.raises(ConfigError, match="trainable is empty"):
        TaskSpec("t", cohort=CohortSpec(20, 16), privacy=PrivacySpec(max_weight=1, dp=DpSpec(**GOOD)))
