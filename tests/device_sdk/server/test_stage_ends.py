"""No stream keeps a phone for ever, however steadily it drips; the JVM client's `StageEndsTest` asks the same."""

from __future__ import annotations

import itertools
import math

import pytest

from device_sdk.server.stage_ends import StageEnds
from mien.errors import LateError
from mien.protocol.rounds import Stage
from tests.device_sdk.clocks import HandClock

MINUTE_S = 60.0


def test_a_round_may_use_all_its_deadlines() -> None:
    clock = HandClock()
    ends = StageEnds(clock)
    for stage in (Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.UNMASK):
        for left in range(60, -1, -1):
            ends.hear(stage, left * MINUTE_S)
            clock.advance(MINUTE_S)


@pytest.mark.parametrize("told_s", [MINUTE_S, 0.0, -1.0, math.inf])
@pytest.mark.parametrize("stages", [[Stage.TRAINING], [None], list(Stage)])
def test_the_same_events_again_and_again_end(told_s: float, stages: list[Stage | None]) -> None:
    def drip() -> None:
        for stage in itertools.islice(itertools.cycle(stages), 100_000):
            ends.hear(stage, told_s)
            clock.advance(20 * MINUTE_S)

    clock = HandClock()
    ends = StageEnds(clock)
    with pytest.raises(LateError, match="did not end a stage by its own deadline"):
        drip()
    assert clock.monotonic_s() < (len(Stage) + 1) * 8 * 86400
