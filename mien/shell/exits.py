"""End of every program: no fault of it, or of where it writes to, ends with the exit code of an answer (0 or 1)."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, NoReturn

from mien.errors import TABLE, MissingDependencyError

_OWN: Final = ("mien", "coordinator", "device_sdk", "simulation")

_EXTRAS: Final[list[str]] = []
"""The extra that brings the packages of the program that `start` runs, once it does."""

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)

EXIT_FAULT: Final = 70
"""Exit code of a fault of the program itself, whose traceback is on stderr (EX_SOFTWARE of sysexits.h)."""

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code after Ctrl-C, and where a question was answered with "no"."""

EXIT_READER_GONE: Final = 128 + signal.SIGPIPE
"""Exit code when nobody reads what the program prints any more, as shells give it."""


def start(module: str, *, extra: str = "") -> NoReturn:
    """Run `main` of a program's module; one that cannot even be imported ends as every other fault does.

    All programs come with every installation: one whose packages were not installed names the `extra` that brings them.
    """
    # typer reads options by pydantic, which would look through every installed package for plug-ins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _EXTRAS.append(extra)
    with faults_end_apart():
        try:
            importlib.import_module(module).main()
        except ModuleNotFoundError as error:
            fail_without(error)
    sys.exit(0)


def end_with_parent() -> None:
    """Have this process end when the one that started it ends, however that ends.

    One that multiprocessing started watches its parent in a thread: whichever thread there submitted the first work may
    end early. Any other is killed by the system, Linux alone, with the thread that started it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
        return
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def fail_without(error: ModuleNotFoundError) -> NoReturn:
    """End for want of a package with one sentence on stderr; raises the error itself where no extra brings it.

    Not by `mien.shell.cli.fail`: what that prints with may be what is missing.
    """
    package, extra = (error.name or "").partition(".")[0], _EXTRAS[-1] if _EXTRAS else ""
    if not extra or package in ("", *_OWN):
        raise error
    lacks = MissingDependencyError(
        f"{Path(sys.argv[0]).name} needs {package}, which is not installed; run: "
        f"pip install '.[{extra}]' in Mien's folder"
    )
    as_json = json.dumps({"error": lacks.code, "message": lacks.message})
    sys.stderr.write(f"{as_json if '--json' in sys.argv[1:] else f'error ({lacks.code}): {lacks.message}'}\n")
    sys.exit(TABLE[MissingDependencyError].exit_code)


@contextlib.contextmanager
def faults_end_apart() -> Iterator[None]:
    """A block in which a program runs; what no one expected ends it with EXIT_FAULT and a traceback on stderr."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, Python would end with 1, which is an answer
        with contextlib.suppress(OSError, ValueError):  # stderr may be what went wrong
            traceback.print_exc()
        discard_output()
        sys.exit(EXIT_FAULT)


def prepare_output() -> None:
    """Make stdout and stderr take every text, and writing to a stdout that was closed fail.

    A terminal or file that is not UTF-8 gets what it cannot show as escapes. The number of a closed output is taken:
    the next file that the program opens would get it, and what a library prints would land there.
    """
    for number, name, flags in ((1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def reader_is_gone() -> bool:
    """Whether stdout or stderr is a pipe from which nobody reads any more."""
    outputs = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a stream without a file
            outputs.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in outputs.poll(0))


def discard_output() -> None:
    """Let what could not be written go nowhere: Python writes it out once more as it ends, and then ends with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
