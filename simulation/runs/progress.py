"""Progress of a run: a bar with the time that is left on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mien.shell import cli


class Watcher(Protocol):
    """Receives progress events."""

    def tell(self, text: str) -> None:
        """Report one event."""
        ...

    def show(self, done: int, total: int) -> None:
        """Show how many rounds are done, and of how many."""
        ...


class Lines:
    """Prints events on stderr, for logs and pipes; their text says itself how long the rest will take."""

    def tell(self, text: str) -> None:
        """Print a line."""
        cli.ERR.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, done: int, total: int) -> None:
        """Show nothing."""


class _Bar:
    """Prints above a bar that stays at the terminal's end."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=None)

    def tell(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def said_when_interrupted(say: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C end the program with 130 and one line, which `say` returns: how far it is, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would cut the line
        Lines().tell(say())
        sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def watching(title: str) -> Iterator[Watcher]:
    """Yield a watcher that draws a bar where stderr is a terminal, and prints lines elsewhere."""
    if not cli.ERR.is_terminal:
        yield Lines()
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
    with Progress(*columns, console=cli.ERR, transient=True) as progress:
        yield _Bar(progress, title)
