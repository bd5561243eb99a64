"""The demo's stage: options, folders, programs, people, task; and what makes it leave nothing behind."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from rich.markup import escape

from mien.errors import AlreadyExistsError
from mien.shell import cli
from mien.shell.files import make_folder
from mien.shell.lock import exclusive
from mien.specs import TaskSpec
from simulation.demo.guard import LOCK
from simulation.demo.people import DemoPeople
from simulation.demo.programs import Programs
from simulation.faces.models import Model, read_model

MARKER: Final = ".mien-demo"
KEPT: Final = "kept"
"""What the marker of a fleet says that is to stay."""


@dataclass(frozen=True)
class DemoOptions:
    """A person's options: see `mien-sim demo --help`."""

    out: Path
    faces: Path | None = None
    num_phones: int = 10
    rounds: int | None = None
    task: Path | None = None
    seed: int = 0
    keep: bool = False


@dataclass(frozen=True)
class Stage:
    """The demo's stage: folders, addresses, child processes, people, task."""

    options: DemoOptions
    folder: Path
    programs: Programs = field(repr=False)
    people: DemoPeople = field(repr=False)
    task: TaskSpec

    def home(self, name: str) -> str:
        """Return the state folder of a program."""
        return str(self.folder / name)

    def operator(self, *arguments: str) -> Any:
        """Return the answer of an operator's command on the coordinator."""
        return self.programs.call("mien-coordinator", *arguments, "--home", self.home("coordinator"))

    def phone(self, name: str, *arguments: str, answers: Collection[int] = (0,)) -> Any:
        """Return the answer of a command on a phone, with one of the exit codes `answers`."""
        return self.programs.call("mien-device", *arguments, "--home", self.home(f"phones/{name}"), answers=answers)

    def exported(self, model_id: str, name: str) -> Model:
        """Return a model as the coordinator exports it."""
        out = self.folder / "models" / name
        out.parent.mkdir(exist_ok=True)
        self.operator("model", "export", model_id, str(out))
        model = read_model(out)
        shutil.rmtree(out)
        return model


@contextmanager
def state_folder(out: Path, program: str = "mien-sim demo", *, keep: bool = False) -> Iterator[Path]:
    """An empty folder for the programs' state; one `program` at a time has it.

    It is removed afterwards, unless `keep` and the block ended well: then it stays, and is nobody's to empty.
    """
    make_folder(out)
    with exclusive(out / LOCK, program=program, option="--out"):
        folder = _fresh_state(out)
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder)
            raise
        if keep:
            (folder / MARKER).write_text(KEPT, encoding="ascii")
        else:
            shutil.rmtree(folder)


def _fresh_state(out: Path) -> Path:
    """Return an empty folder for the programs' state; only a folder that a demo made is ever emptied."""
    folder = out / "state"
    if folder.exists() or folder.is_symlink():
        if folder.is_symlink() or not (folder / MARKER).is_file():
            raise AlreadyExistsError(f"{folder} was not made by the demo; name another folder with --out")
        if (folder / MARKER).read_text(encoding="ascii") == KEPT:
            raise AlreadyExistsError(f"{folder} holds a fleet that --keep left; name another --out, or remove it")
        shutil.rmtree(folder)
    make_folder(folder)
    (folder / MARKER).touch()
    (folder / "phones").mkdir()
    return folder


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as an exception does, so that it cleans up after itself.

    A signal that is ignored stays so: `nohup mien-sim demo` outlives its terminal.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        cli.ERR.print(
            f"Stopped by {signal.Signals(number).name}: ending every program; their logs stay.", highlight=False
        )
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the title of a step, and how long it took."""
    started = time.monotonic()
    cli.ERR.print(f"[bold cyan]>[/] {escape(title)} …", highlight=False, soft_wrap=True)
    yield
    cli.ERR.print(f"    done in {time.monotonic() - started:.1f} s", style="dim", highlight=False)
