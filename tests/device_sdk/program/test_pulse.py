"""The sign of life while nothing happens."""

from __future__ import annotations

import time

from device_sdk.program.pulse import Pulse
from device_sdk.rounds.events import Event, Transfer


def test_it_speaks_only_when_nothing_else_did_and_says_what_was_last() -> None:
    told: list[Event | Transfer] = []
    with Pulse(told.append, every_s=0.3) as pulse:
        for done in range(20):
            time.sleep(0.05)
            pulse(Transfer("update", done, 20))
        pulse(Event("reported", "Waiting for others."))
        wait_for_beat(told, "the last was: Waiting for others.")
    # A machine that stalls for as long may hear one between two transfers; none comes sooner.
    assert all(float(str(event.facts["idle_s"])) >= 0.3 for event in beats(told))
    ended = len(told)
    time.sleep(0.5)
    assert len(told) == ended


def beats(told: list[Event | Transfer]) -> list[Event]:
    """Return the signs of life."""
    return [event for event in list(told) if isinstance(event, Event) and event.kind == "alive"]


def wait_for_beat(told: list[Event | Transfer], end: str) -> None:
    """Return once there was a sign of life whose words end so."""
    until_s = time.monotonic() + 60.0
    while not any(event.text.endswith(end) for event in beats(told)):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_progress_is_told_but_is_not_seen_everywhere_so_it_is_no_sign_of_life() -> None:
    told: list[Event | Transfer] = []
    with Pulse(told.append, every_s=0.2) as pulse:
        until_s = time.monotonic() + 60.0
        while not any(event.text.endswith("the last was: Trained 3 of 9 steps.") for event in beats(told)):
            assert time.monotonic() < until_s
            pulse(Event("progress", "Trained 3 of 9 steps."))
            time.sleep(0.01)
