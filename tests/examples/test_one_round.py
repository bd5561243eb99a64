"""The example of a round with fakes runs, and prints what a round of FedAvg does to the tiny model."""

from __future__ import annotations

import pytest

from simulation.testing import LAYOUT, SPEC, THETA
from tests.examples.by_path import example


def test_the_trained_part_moves_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    example("one_round").main()
    assert capsys.readouterr().out.startswith(
        f"{LAYOUT.part(SPEC.trainable).size} of {THETA.size} parameters moved, by 0.0"
    )
