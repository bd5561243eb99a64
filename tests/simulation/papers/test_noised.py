"""The study of noised sums: noise costs what it must, its tables say what is kept, and a lie is as long as passes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mien.errors import EmptyFolderError
from simulation.papers.noised import EPSILONS, main, measure, read_features, table

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
    assert f"| {100 * share:.0f} % ({100 * share:.0f} to {100 * share:.0f}) |" in text


def test_a_share_is_of_each_draw(figures: dict[str, float]) -> None:
    """A draw that keeps all and one that keeps half are three quarters on average, and the worse one is not hidden."""
    clear, released = figures["wccn_clear"], figures["released"]
    draws = [{**figures, "wccn_eps4": rate} for rate in (clear, (clear + released) / 2)]
    assert "| 75 % (50 to 100) |" in table(draws, 4000)


def test_the_command_reads_faces_and_prints_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick"])
    said = capsys.readouterr()
    assert "200 phones drawn of 12 people; draws: 1" in said.out
    assert re.search(r"\| released model \| \d+\.\d\d \(", said.out)
    told = dict(each.split() for each in said.err.split("draw 0: ")[1].strip().split(", "))
    assert 0 < float(told["wccn_clear"]) < float(told["released"]) < 0.5, (
        "a map of phones' own kind is better than none"
    )


def test_a_folder_of_too_few_people_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyFolderError):
        read_features(tmp_path, 16, 6)
