"""Exit and output of every program: one sentence for a user's mistake, JSON for machines, tables for people."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from rich.console import Console

from mien.errors import TABLE, ConfigError, MienError, NotFoundError
from mien.shell.memory import refuse_core_dumps

OUT = Console()
"""Console for results for people."""

ERR = Console(stderr=True)
"""Console for progress, warnings and errors."""


def run(app: typer.Typer, *, json_errors: bool | None = None) -> NoReturn:
    """Run a command line; a MienError becomes one sentence on stderr and its exit code, never a traceback.

    `json_errors` as in `fail`. Whatever happens, no core dump is written.
    """
    refuse_core_dumps()
    try:
        app(standalone_mode=True)
    except MienError as error:
        fail(error, as_json=json_errors)
    except RecursionError:
        fail(ConfigError("a file is nested too deeply to be what it should be; correct it"), as_json=json_errors)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(NotFoundError(f"{where}{error.strerror}; name a path that can be used"), as_json=json_errors)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(0)


def fail(error: MienError, *, as_json: bool | None = None) -> NoReturn:
    """Print an error as one sentence or one JSON object on stderr and end with its exit code.

    `as_json` None: JSON if the command line says --json.
    """
    if ("--json" in sys.argv[1:]) if as_json is None else as_json:
        print(json.dumps({"error": error.code, "message": error.message}), file=sys.stderr)
    else:
        ERR.print(f"[bold red]error[/] ({error.code}): ", end="", highlight=False)
        ERR.print(error.message, markup=False, highlight=False, soft_wrap=True)
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
