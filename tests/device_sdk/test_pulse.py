"""The sign of life while nothing happens."""

from __future__ import annotations

import time

from device_sdk.participate import Event, Transfer
from device_sdk.pulse import Pulse


def test_it_speaks_only_when_nothing_else_did_and_says_what_was_last() -> None:
    told: list[Event | Transfer] = []
    with Pulse(told.append, every_s=0.2) as pulse:
        for done in range(4):
            time.sleep(0.05)
            pulse(Transfer("update", done, 4))
        pulse(Event("reported", "Waiting for others."))
        assert [type(event) for event in told] == [Transfer] * 4 + [Event]
        time.sleep(0.5)
    beats = [event for event in told if isinstance(event, Event) and event.kind == "alive"]
    assert 1 <= len(beats) <= 2
    assert beats[0].text.endswith("the last was: Waiting for others.")
    ended = len(told)
    time.sleep(0.3)
    assert len(told) == ended


def test_progress_is_told_but_is_not_seen_everywhere_so_it_is_no_sign_of_life() -> None:
    told: list[Event | Transfer] = []
    with Pulse(told.append, every_s=0.2) as pulse:
        until_s = time.monotonic() + 20.0
        while not any(isinstance(event, Event) and event.kind == "alive" for event in told):
            assert time.monotonic() < until_s
            pulse(Event("progress", "Trained 3 of 9 steps."))
            time.sleep(0.01)
    alive = next(event for event in told if isinstance(event, Event) and event.kind == "alive")
    assert alive.text.endswith("the last was: Trained 3 of 9 steps.")
