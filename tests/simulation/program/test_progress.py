"""How far a run is: lines in a log, a bar with the time that is left on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mien.shell import cli
from simulation.program.progress import watching


def test_logs_get_lines_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(cli, "ERR", Console(file=text, width=20, force_terminal=False))
    with watching("a run") as watcher:
        assert watcher.bar is None
        watcher.show(1, 4)
        watcher.tell("round 1/4: [bold] is no markup, and long lines are not wrapped")
    assert text.getvalue() == "round 1/4: [bold] is no markup, and long lines are not wrapped\n"


def test_a_terminal_gets_a_bar_below_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(cli, "ERR", Console(file=text, force_terminal=True, width=100))
    with watching("[a] run") as watcher:
        watcher.tell("round 1/4: done")
        watcher.show(1, 4)
        watcher.show(3, 4)
    shown = text.getvalue()
    assert "round 1/4: done" in shown
    assert "[a] run" in shown
    assert "3/4" in shown
    assert "left" in shown
