"""The study of noised sums: noise costs what it must, its tables say what is kept, and a lie is as long as passes."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.papers.noised import EPSILONS, measure, table

pytestmark = pytest.mark.numerics

DIM = 8


def people(num: int) -> list[np.ndarray]:
    """Return features of people who differ in all directions, and whose pictures scatter in two of them."""
    rng = np.random.default_rng(3)
    scatter = np.array([4.0, 3.0, *[0.4] * (DIM - 2)])
    means = 6.0 + 1.2 * rng.standard_normal((num, DIM))
    return [mean / 2 + scatter / 2 * rng.standard_normal((6, DIM)) for mean in means]


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return measure(people(60), 4000, 0)


def test_a_sum_makes_a_map_and_noise_takes_of_it(figures: dict[str, float]) -> None:
    assert figures["wccn_clear"] < 0.8 * figures["released"]
    assert figures["wccn_eps8"] < 0.8 * figures["released"]
    assert figures["wccn_eps8"] <= figures["wccn_eps1"] + 0.02
    for epsilon in EPSILONS:  # by Renyi accounting, rounding counted in
        assert 0.97 * epsilon < figures[f"spent_eps{epsilon:g}"] <= epsilon


def test_a_lie_is_as_long_as_the_check_lets_it_be(figures: dict[str, float]) -> None:
    assert figures["lie_check"] >= figures["lie_clip"] - 1e-3
    assert 2.45 < figures["lie_check_length"] < 4000


def test_the_tables_say_what_is_kept(figures: dict[str, float]) -> None:
    text = table([figures, figures], 4000)
    assert "4000 phones drawn of 45 people; draws: 2" in text
    share = (figures["released"] - figures["wccn_eps4"]) / (figures["released"] - figures["wccn_clear"])
    assert f"`wccn` | {100 * figures['wccn_eps4']:.2f}" in text
    assert f"| {100 * share:.0f} % |" in text
