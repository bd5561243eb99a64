"""How events are shown: a bar at a terminal, lines elsewhere, JSON for machines."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from device_sdk.program.cli import _narrator
from device_sdk.rounds.events import Event, Listener, Transfer
from mien.shell import cli as shell
from mien.shell.doing import VARIABLE, program

HALF = Event("progress", "Trained 3 of 6 steps.", {"steps_done": 3, "steps": 6})
WHOLE = Event("progress", "Trained 6 of 6 steps.", {"steps_done": 6, "steps": 6})


def show(monkeypatch: pytest.MonkeyPatch, *events: Event | Transfer, terminal: bool) -> str:
    """Return what people see of events."""
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=terminal, width=100, no_color=True)
    monkeypatch.setattr(shell, "ERR", console)
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setenv("TERM", "xterm")
    with program("", console), _narrator(as_json=False) as tell:
        for event in events:
            tell(event)
            ends_s = time.monotonic() + 120
            while terminal and isinstance(event, Transfer) and event.what not in seen.getvalue():
                assert time.monotonic() < ends_s
                time.sleep(0.001)
    return seen.getvalue()


def test_a_terminal_shows_how_far_training_and_transfers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    events = (Transfer("model", 1_000_000, 4_000_000), HALF, Event("paused", "It pauses."))
    seen = show(monkeypatch, *events, terminal=True)
    assert "1.0 of 4.0 MB" in seen
    assert "It pauses." in seen
    assert "Trained 3" not in seen


def test_a_bar_that_is_full_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = show(monkeypatch, HALF, WHOLE, WHOLE, Event("trained", "Trained."), terminal=True)
    assert "steps" not in seen.splitlines()[-1]
    assert "Trained." in seen


def test_a_file_gets_lines_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = show(monkeypatch, HALF, Transfer("model", 1, 4), Event("continued", "It goes on."), terminal=False)
    assert seen == "It goes on.\n"


def test_machines_get_progress_and_no_transfers(capsys: pytest.CaptureFixture[str]) -> None:
    with _narrator(as_json=True) as tell:
        _tell_all(tell, HALF, Transfer("model", 1, 4))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"event": "progress", "text": HALF.text, "steps_done": 3, "steps": 6}


def _tell_all(tell: Listener, *events: Event | Transfer) -> None:
    for event in events:
        tell(event)
