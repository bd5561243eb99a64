"""The sign of life while nothing happens."""

from __future__ import annotations

import time

from device_sdk.participate import Event, Transfer
from device_sdk.pulse import Pulse


def test_it_speaks_only_when_nothing_else_did_and_says_what_was_last() -> None:
    told: list[Event | Transfer] = []
    with Pulse(told.append, every_s=0.3) as pulse:
        for done in range(20):
            time.sleep(0.05)
            pulse(Transfer("update", done, 20))
        pulse(Event("reported", "Waiting for others."))
        beats = wait_for_beat(told, after="reported")
    # A machine that stalls for as long may hear one between two transfers; none comes sooner.
    every = [event for event in told if isinstance(event, Event) and event.kind == "alive"]
    assert all(float(str(event.facts["idle_s"])) >= 0.3 for event in every)
    assert beats[0].text.endswith("the last was: Waiting for others.")
    ended = len(told)
    time.sleep(0.5)
    assert len(told) == ended


def wait_for_beat(told: list[Event | Transfer], *, after: str) -> list[Event]:
    """Return the signs of life after an event of that kind, once there is one."""
    end = time.monotonic() + 60.0
    while True:
        events = [event for event in list(told) if isinstance(event, Event)]
        begin = next((number for number, event in enumerate(events) if event.kind == after), len(events))
        if beats := [event for event in events[begin:] if event.kind == "alive"]:
            return beats
        assert time.monotonic() < end
        time.sleep(0.01)


def test_progress_is_told_but_is_not_seen_everywhere_so_it_is_no_sign_of_life() -> None:
    told: list[Event | Transfer] = []
    with Pulse(told.append, every_s=0.2) as pulse:
        until_s = time.monotonic() + 60.0
        while not any(isinstance(event, Event) and event.kind == "alive" for event in told):
            assert time.monotonic() < until_s
            pulse(Event("progress", "Trained 3 of 9 steps."))
            time.sleep(0.01)
    alive = next(event for event in told if isinstance(event, Event) and event.kind == "alive")
    assert alive.text.endswith("the last was: Trained 3 of 9 steps.")
