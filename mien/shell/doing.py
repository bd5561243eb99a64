"""What a program is doing, said on stderr once it has been silent for a moment, and gone when that is done.

`mien.shell.cli.run` shows that a command is at work; `doing` names a step of it, and how far it is where the end is
known::

    with doing("Reading the faces", total=len(files)) as step:
        for path in files:
            read(path)
            step.advance()

A terminal gets one line that moves, and that is taken away; a log or pipe gets a plain line, once, and again each
minute while a step with an end goes on or others of its name follow. Outside of a program `doing` shows nothing, so
that libraries may use it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

AFTER_S: Final = 2.0
"""Silence after which a program says what it is doing."""

AGAIN_S: Final = 60.0
"""Time after which a log is told again how far a step is."""

VARIABLE: Final = "MIEN_PROGRESS_AFTER_S"
"""The environment's word for another time than `AFTER_S`; `inf` for never."""

COMPUTING: Final = "Computing the faces' features"
"""Step of every engine that embeds faces."""

_RELAY_S: Final = 0.2


@dataclass(frozen=True)
class Other:
    """What another program does: its innermost step, with `total` None where its end is not known."""

    text: str
    done: int
    total: int | None
    amount: str


class Step:
    """Something that a program does; leaving its block, or `end`, says that it is over."""

    def __init__(self, text: str, total: int | None = None) -> None:
        self.text, self.done, self.total, self.amount = text, 0, total, ""
        self.told = ""
        self._display = _shown
        if self._display is not None:
            self._display.begin(self)

    def advance(self) -> None:
        """Count one more part as done."""
        self.show(done=self.done + 1)

    def show(
        self, *, text: str | None = None, done: int | None = None, total: int | None = None, amount: str | None = None
    ) -> None:
        """Say what is being done now, or how many parts of how many are; `amount` says that in words."""
        self.text = self.text if text is None else text
        self.done = self.done if done is None else done
        self.total = self.total if total is None else total
        self.amount = self.amount if amount is None else amount
        if self._display is not None:
            self._display.changed(self)

    def follow(self, other: Other) -> None:
        """Show what another program does, whose step may have no end where the one before it had one."""
        self.total = other.total
        self.show(text=other.text, done=other.done, amount=other.amount)

    def show_bytes(self, done: int) -> None:
        """Say how many bytes are done, of the step's total."""
        self.show(done=done, amount=f"{done / 1e6:.1f} of {(self.total or 0) / 1e6:.1f} MB")

    def end(self) -> None:
        """Take it away."""
        if self._display is not None:
            self._display.end(self)

    def line(self) -> str:
        """Return it as a line of a log."""
        how_far = self.amount or (f"{self.done} of {self.total}" if self.total and self.done else "")
        return f"{self.text}: {how_far} …" if how_far else f"{self.text} …"

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def doing(text: str, *, total: int | None = None) -> Step:
    """Begin a step, such as "Reading the faces"; `total` is how many parts it has, where that is known."""
    return Step(text, total)


def counting(text: str, items: Sequence[T]) -> Iterator[T]:
    """Yield items, and show as a step how many of them are behind."""
    with doing(text, total=len(items)) as step:
        for item in items:
            yield item
            step.advance()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """A block in which nothing is shown but steps that begin in it: somebody is asked, or sees a display of its own."""
    with Step(""):
        yield
    hide()  # the silence in which somebody thought is none of the program's


def hide() -> None:
    """Take away what is shown, for something else is printed; it is shown again after another silence."""
    if _shown is not None:
        _shown.hide()


def answered() -> None:
    """Show nothing more: the command has printed its answer, and what it does after that is waited for by nobody."""
    if _shown is not None:
        _shown.mute()


@contextlib.contextmanager
def program(text: str, console: Console, *, for_machines: bool = False, relays: bool = False) -> Iterator[None]:
    """A block in which steps are shown on `console`, and `text` where there is none.

    Where stderr is read by a machine (`for_machines`) only a terminal is told. A program that `relays` prints every
    step at once as a line of JSON, which `relayed` reads in the program that started it.
    """
    global _shown
    display: _Display
    if relays:
        display = _Relay()
    elif console.is_terminal and not console.is_dumb_terminal:
        display = _Line(console, _after_s())
    else:
        display = _Log(console, math.inf if for_machines else _after_s())
    _shown = display
    try:
        with Step(text if not relays else ""):
            yield
    finally:
        _shown = None
        display.close()


def relayed(line: str) -> Other | None:
    """Return what a line of a program that relays says of its steps; None for other lines."""
    if not line.startswith('{"doing":'):
        return None
    try:
        told = json.loads(line)
        return Other(told["doing"], told["done"], told["total"], told["amount"])
    except (ValueError, KeyError):
        return None


def _after_s() -> float:
    try:
        return max(0.0, float(os.environ.get(VARIABLE, AFTER_S)))
    except ValueError:
        return AFTER_S


class _Display:
    """Shows the innermost step from a thread of its own, once nothing was shown or printed for a while."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._silent_since_s = time.monotonic()
        self._steps: list[Step] = []
        self._is_over = False
        # Taken by itself, not by the condition, whose own code Ctrl-C could interrupt between taking it and the block.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="doing", daemon=True)
        if after_s < math.inf:
            self._thread.start()

    def begin(self, step: Step) -> None:
        with self._lock:
            self._steps.append(step)
            self._moved()

    def changed(self, step: Step) -> None:
        with self._lock:
            if step is self._inner():
                self._moved()

    def end(self, step: Step) -> None:
        with self._lock:
            if step in self._steps:
                self._steps.remove(step)
                self._moved()

    def hide(self) -> None:
        with self._lock:
            self._take_away()
            self._silent_since_s = time.monotonic()
            self._change.notify()

    def mute(self) -> None:
        with self._lock:
            self._is_over = True
            self._take_away()
            self._change.notify()

    def close(self) -> None:
        self.mute()
        if self._thread.is_alive():
            self._thread.join()

    def _inner(self) -> Step | None:
        return self._steps[-1] if self._steps else None

    def _run(self) -> None:
        with self._lock:
            while not self._is_over:
                step = self._inner()
                due_s = math.inf if step is None or not step.text else self._due_s(step)
                left_s = due_s - time.monotonic()
                if step is not None and left_s <= 0:
                    with contextlib.suppress(OSError, ValueError):  # nobody reads stderr: there is nobody to tell
                        self._put(step)
                    self._silent_since_s = time.monotonic()
                self._change.wait(min(max(0.0, left_s), threading.TIMEOUT_MAX))

    def _moved(self) -> None:
        """What is shown may be another step, or further: look again."""
        self._change.notify()

    def _due_s(self, step: Step) -> float:
        """Return when a step is to be shown, by the monotonic clock; `inf` where it is, was told, or never is."""
        return math.inf

    def _put(self, step: Step) -> None:
        """Show a step that is due."""

    def _take_away(self) -> None:
        """Nothing of what was told can be taken away here."""


class _Log(_Display):
    """Lines on a stderr that is no terminal."""

    def __init__(self, console: Console, after_s: float) -> None:
        self._console = console
        self._told_s = dict[str, float]()
        super().__init__(after_s)

    def _due_s(self, step: Step) -> float:
        if step.told == step.text and step.total is None:
            return math.inf
        # Steps of one name, as one a phone, are told as one that goes on: twenty such lines say no more than the first.
        again_s = self._told_s.get(step.text, -math.inf) + AGAIN_S
        return max(self._silent_since_s + self._after_s, again_s)

    def _put(self, step: Step) -> None:
        step.told, self._told_s[step.text] = step.text, time.monotonic()
        self._console.print(step.line(), highlight=False, markup=False, soft_wrap=True)


class _Line(_Display):
    """A line at the foot of a terminal, with a bar where the end is known."""

    def __init__(self, console: Console, after_s: float) -> None:
        self._console = console
        self._progress: Any = None
        super().__init__(after_s)

    def _due_s(self, step: Step) -> float:
        return math.inf if self._progress is not None else self._silent_since_s + self._after_s

    def _put(self, step: Step) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class Bar(BarColumn):
            def render(self, task: Task) -> Any:
                return Text() if task.total is None else super().render(task)

        self._progress = Progress(
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), Bar()),
            *(TextColumn("{task.fields[amount]}", markup=False), TimeElapsedColumn()),
            console=self._console,
            transient=True,
            redirect_stdout=False,
        )
        self._progress.add_task("", total=None, amount="")
        self._moved()
        self._progress.start()

    def _moved(self) -> None:
        step = self._inner()
        if self._progress is None:
            self._change.notify()
        elif step is None or not step.text:
            self.hide()
        else:
            (number,) = self._progress.task_ids
            amount = step.amount or (f"{step.done} of {step.total}" if step.total is not None else "")
            self._progress.update(number, description=step.text, total=step.total, completed=step.done, amount=amount)

    def _take_away(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            with contextlib.suppress(OSError, ValueError):
                progress.stop()


class _Relay(_Display):
    """Lines of JSON for the program that started this one, which decides what is shown when."""

    def __init__(self) -> None:
        self._last, self._last_text, self._last_s = "", "", -math.inf
        super().__init__(math.inf)

    def _moved(self) -> None:
        step = self._inner()
        if step is None or not step.text or self._is_over:
            return
        told = json.dumps({"doing": step.text, "done": step.done, "total": step.total, "amount": step.amount})
        is_due = step.text != self._last_text or step.done == step.total or time.monotonic() >= self._last_s + _RELAY_S
        if told != self._last and is_due:
            self._last, self._last_text, self._last_s = told, step.text, time.monotonic()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{told}\n")
                sys.stderr.flush()


_shown: _Display | None = None
