"""Exit and output of every program: one sentence for a user's mistake, JSON for machines, tables for people."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mien.errors import TABLE, ConfigError, DiskFullError, MienError, NotFoundError
from mien.shell import exits
from mien.shell.memory import refuse_core_dumps

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Console(Console):
    """rich's console, but for what a terminal obeys, and a reader that has gone.

    Names of files and data sets and the terms of models come from others: they could clear the screen, or write into
    it. For a reader that has gone rich ends the program with 1, which is an answer.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is to be shown, its text without control characters but for line ends and tabs."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_CONTROLS.sub("", segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Pass on the BrokenPipeError that is being handled."""
        raise


OUT = _Console()
"""Console for results for people."""

ERR = _Console(stderr=True)
"""Console for progress, warnings and errors."""


def run(app: typer.Typer, *, json_errors: bool | None = None) -> NoReturn:
    """Run a command line; a MienError becomes one sentence on stderr and its exit code, never a traceback.

    `json_errors` as in `fail`. Whatever happens, no core dump is written, and only what a command answers ends with 0
    or 1: not an answer that could not be written, nor a fault of the program (`mien.shell.exits`).
    """
    refuse_core_dumps()
    exits.prepare_output()
    with exits.faults_end_apart():
        try:
            sys.exit(_called(app))
        except MienError as error:
            fail(error, as_json=json_errors)
        except RecursionError:
            fail(ConfigError("a file is nested too deeply to be what it should be; correct it"), as_json=json_errors)
        except OSError as error:
            fail(_refused(error), as_json=json_errors)
        except KeyboardInterrupt:
            sys.exit(exits.EXIT_INTERRUPTED)


def _called(app: typer.Typer) -> int:
    """Return the exit code of what the command line asks for, once all that it prints is written."""
    streams = sys.stdout, sys.stderr
    try:
        ended = app(standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
    except typer.Abort:
        tell("Aborted!")
        return exits.EXIT_INTERRUPTED
    except typer.TyperException as error:  # a mistake in the command line
        error.show()  # type: ignore[attr-defined]
        return max(error.exit_code, TABLE[ConfigError].exit_code)
    except SystemExit as ended:
        sys.stdout, sys.stderr = streams  # typer puts others there, and ends with 1, when a reader has gone
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        code = ended.code if isinstance(ended.code, int) else exits.EXIT_FAULT if ended.code else 0
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _refused(error: OSError) -> MienError:
    """Return what the operating system refused as an error of ours; a reader that has gone ends the program."""
    if isinstance(error, BrokenPipeError) and exits.reader_is_gone():
        exits.discard_output()
        sys.exit(exits.EXIT_READER_GONE)
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{where}{error.strerror}; free some space, then run again")
    if error.errno == errno.EBADF and not where:
        return NotFoundError("nothing can be printed: the output is closed; leave it open, or name a file")
    return NotFoundError(f"{where}{error.strerror}; name a path that can be used")


def fail(error: MienError, *, as_json: bool | None = None) -> NoReturn:
    """Print an error as one sentence or one JSON object on stderr and end with its exit code.

    `as_json` None: JSON if the command line says --json.
    """
    with contextlib.suppress(OSError):  # the exit code says it too
        if ("--json" in sys.argv[1:]) if as_json is None else as_json:
            print(json.dumps({"error": error.code, "message": error.message}), file=sys.stderr)
        else:
            ERR.print(f"[bold red]error[/] ({error.code}): ", end="", highlight=False)
            ERR.print(error.message, markup=False, highlight=False, soft_wrap=True)
    exits.discard_output()
    sys.exit(TABLE[type(error)].exit_code)


def emit(value: Any, *, as_json: bool, human: Callable[[], object]) -> None:
    """Print `value` as one line of JSON, or let `human` draw it."""
    if as_json:
        print(json.dumps(value, sort_keys=True, allow_nan=False))
    else:
        human()


def say(text: str) -> None:
    """Print a line for people as it is."""
    OUT.print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """Print a line on stderr as it is: for progress."""
    ERR.print(text, highlight=False, markup=False, soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    ERR.print("[bold yellow]warning[/]: ", end="", highlight=False)
    ERR.print(message, markup=False, highlight=False, soft_wrap=True)
