"""Exit and output of every program: one sentence for a user's mistake, JSON for machines, tables for people."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mien.errors import TABLE, ConfigError, DiskFullError, FileAccessError, MienError, NotFoundError
from mien.shell import doing, exits
from mien.shell.memory import refuse_core_dumps

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Console(Console):
    """rich's console, but for what a terminal obeys, a reader that has gone, and a line that shows what is being done.

    Names of files and data sets and the terms of models come from others: they could clear the screen, or write into
    it. For a reader that has gone rich ends the program with 1, which is an answer. Results are not written into the
    line of `mien.shell.doing`, and the cursor stays: a program that is killed could not bring it back.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        if not (self.stderr and self.is_terminal):  # there a line is printed above the one that moves
            doing.hide()
        super().print(*objects, **options)

    def show_cursor(self, show: bool = True) -> bool:
        """Show the cursor; it is never hidden."""
        return super().show_cursor() if show else False

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


def run(
    app: typer.Typer,
    *,
    json_errors: bool | None = None,
    relays: bool = False,
    wording: Callable[[str], str] = str,
) -> NoReturn:
    """Run a command line; a MienError becomes one sentence on stderr and its exit code, never a traceback.

    `json_errors` and `wording` as in `fail`. Whatever happens, no core dump is written, and only what a command answers
    ends with 0 or 1: not an answer that could not be written, nor a fault of the program (`mien.shell.exits`). A
    command that is silent for a moment says on stderr what it does (`mien.shell.doing`), at once and as JSON if it
    `relays`.
    """
    refuse_core_dumps()
    exits.prepare_output()
    with exits.faults_end_apart():
        try:
            for_machines = _for_machines(json_errors)
            with doing.program(_at_work(app, sys.argv), ERR, for_machines=for_machines, relays=relays):
                code = _called(app, for_machines=for_machines)
            sys.exit(code)
        except MienError as error:
            fail(error, as_json=json_errors, wording=wording)
        except ModuleNotFoundError as error:  # where a command loads what it needs
            exits.fail_without(error)
        except RecursionError:
            fail(ConfigError("a file is nested too deeply to be what it should be; correct it"), as_json=json_errors)
        except OSError as error:
            fail(_refused(error), as_json=json_errors)
        except KeyboardInterrupt:
            sys.exit(exits.EXIT_INTERRUPTED)


def _for_machines(as_json: bool | None) -> bool:
    return "--json" in sys.argv[1:] if as_json is None else as_json


def _at_work(app: typer.Typer, arguments: Sequence[str]) -> str:
    """Return a command line's program and command, and what that does by the first sentence of its help."""
    words, said = [Path(arguments[0]).name], ""
    for word in arguments[1:]:
        groups = {group.name: group.typer_instance for group in app.registered_groups}
        commands = {
            each.name or each.callback.__name__.replace("_", "-"): each
            for each in app.registered_commands
            if each.callback is not None
        }
        if group := groups.get(word):
            words, app = [*words, word], group
        elif command := commands.get(word):
            words, said = [*words, word], command.help or inspect.getdoc(command.callback) or ""
            break
        else:
            break
    first = re.split(r"[.:;](?:\s|$)", said.strip(), maxsplit=1)[0]
    sentence = f": {first[:1].lower()}{first[1:]}" if first else ""
    return " ".join(words) + re.sub(r"\s+", " ", sentence)


def _called(app: typer.Typer, *, for_machines: bool) -> int:
    """Return the exit code of what the command line asks for, once all that it prints is written.

    Raises ConfigError for a mistake in a command line that is `for_machines`; people are shown how it is used.
    """
    streams = sys.stdout, sys.stderr
    try:
        ended = app(standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
    except typer.Abort:
        tell("Aborted!")
        return exits.EXIT_INTERRUPTED
    except typer.TyperException as error:  # a mistake in the command line
        if for_machines and (message := error.format_message()):
            raise ConfigError(f"{message.rstrip('.')}; --help says how the command is used") from error
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
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FileAccessError(f"{where}{error.strerror}; check its owner, permissions and disk, or name another path")
    if error.errno == errno.EBADF and not where:
        return NotFoundError("nothing can be printed: the output is closed; leave it open, or name a file")
    if error.errno == errno.ENOENT and isinstance(error.filename, str | Path):
        folder = Path(error.filename).parent
        if not folder.is_dir():
            return NotFoundError(f"there is no folder {folder}; make it, or name another path")
    return NotFoundError(f"{where}{error.strerror}; name a path that can be used")


def fail(error: MienError, *, as_json: bool | None = None, wording: Callable[[str], str] = str) -> NoReturn:
    """Print an error as one sentence or one JSON object on stderr and end with its exit code.

    `as_json` None: JSON if the command line says --json. `wording` returns the message in the command line's words.
    """
    with contextlib.suppress(OSError):  # the exit code says it too
        if _for_machines(as_json):
            print(json.dumps({"error": error.code, "message": wording(error.message)}), file=sys.stderr)
        else:
            ERR.print(f"[bold red]error[/] ({error.code}): ", end="", highlight=False)
            ERR.print(wording(error.message), markup=False, highlight=False, soft_wrap=True)
    exits.discard_output()
    sys.exit(TABLE[type(error)].exit_code)


def emit(value: Any, *, as_json: bool, human: Callable[[], object]) -> None:
    """Print `value`, a command's answer, as one line of JSON, or let `human` draw it."""
    doing.answered()
    if as_json:
        print(json.dumps(value, sort_keys=True, allow_nan=False))
    else:
        human()


def emit_event(value: Any) -> None:
    """Print one of several lines of JSON at once, before the answer."""
    doing.hide()
    print(json.dumps(value, sort_keys=True, allow_nan=False), flush=True)


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
