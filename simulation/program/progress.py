"""Progress of a run: a bar with the time that is left on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mien.shell import cli
from mien.shell.doing import unseen

PERIOD_S: Final = 3600.0
"""Time whose rounds tell how long the others take: a bar's own 30 seconds hold not even two long ones."""


@dataclass(frozen=True)
class Watcher:
    """Prints events on stderr, above a bar where there is one; without it their text says itself how long it takes."""

    bar: Progress | None = None

    def tell(self, text: str) -> None:
        """Print a line."""
        cli.tell(text)

    def show(self, done: int, total: int) -> None:
        """Show how many rounds are done, and of how many."""
        if self.bar:
            self.bar.update(self.bar.task_ids[0], completed=done, total=total)


@contextlib.contextmanager
def said_when_interrupted(say: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C end the program with 130 and one line, which `say` returns: how far it is, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would cut the line
        cli.tell(say())
        sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def watching(title: str) -> Iterator[Watcher]:
    """Yield a watcher that draws a bar where stderr is a terminal, and prints lines elsewhere."""
    if not cli.ERR.is_terminal:
        yield Watcher()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds,"),
        TimeElapsedColumn(),
        TextColumn("passed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with (
        unseen(),
        Progress(*columns, console=cli.ERR, transient=True, speed_estimate_period=PERIOD_S) as progress,
    ):
        progress.add_task(title, total=None)
        yield Watcher(progress)
