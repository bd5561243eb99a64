"""What programs print for people: text of others is shown, and a terminal obeys none of it."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from mien.errors import TABLE, ConfigError, FileAccessError
from mien.shell import cli
from mien.shell.files import storage_errors, write_atomically

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9bc\x08\x00\x7f"
SHOWN = "a[2J]0;titlebc"


@pytest.mark.parametrize("show", [cli.say, cli.tell, cli.warn])
def test_a_line_holds_nothing_that_a_terminal_obeys(show: object, capsys: pytest.CaptureFixture[str]) -> None:
    show(f"{HOSTILE}\nmore [red]{chr(0x2068)}x{chr(0x2069)}[/]")  # type: ignore[operator]
    printed = "".join(capsys.readouterr())
    assert f"{SHOWN}\nmore [red]\u2068x\u2069[/]\n" in printed
    assert "\x1b" not in printed


def test_so_with_errors_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.fail(ConfigError(HOSTILE), as_json=False)
    table = Table(HOSTILE)
    table.add_row(Text(HOSTILE))
    cli.OUT.print(table)
    printed = "".join(capsys.readouterr())
    assert printed.count(SHOWN) == 3
    assert "\x1b" not in printed


def test_colours_and_moving_bars_stay_where_there_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = cli._Console(force_terminal=True, width=60, record=True, color_system="standard")
    with console.capture() as captured:
        console.print(Text("red", "red"))
        with Progress(console=console) as progress:
            progress.add_task("moves", total=1)
    assert "\x1b[31mred" in captured.get()
    assert "\x1b[2K" in captured.get()
    assert "\x1b[?25l" not in captured.get(), "a program that is killed leaves the terminal without a cursor"


APP = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@APP.command()
def answer(number: int, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Print a number."""
    cli.emit(number, as_json=as_json, human=lambda: cli.say(str(number)))


@pytest.mark.parametrize("arguments", [("--numbr", "3"), ("three",), ()])
def test_a_wrong_command_line_is_told_to_machines_as_any_other_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    for flag in ((), ("--json",)):
        monkeypatch.setattr(sys, "argv", ["answer", *arguments, *flag])
        with pytest.raises(SystemExit) as ended:
            cli.run(APP)
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (TABLE[ConfigError].exit_code, "")
        if flag:
            told = json.loads(err)
            assert told["error"] == ConfigError.code
            assert "--help says how the command is used" in told["message"]
        else:
            assert err.startswith("Usage: ")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_what_may_not_be_written_is_no_matter_of_keys(tmp_path: Path, number: int) -> None:
    told = "disk is read-only" if number == errno.EROFS else "may not write"
    with pytest.raises(FileAccessError, match=told), storage_errors("a file"):
        raise OSError(number, os.strerror(number))
    refused = cli._refused(OSError(number, os.strerror(number), str(tmp_path)))
    assert (type(refused), str(tmp_path) in refused.message) == (FileAccessError, True)


def test_a_file_in_a_folder_that_is_missing_is_told_by_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(tmp_path / "none" / "card.html", b"")
    assert missing.value.filename == str(tmp_path / "none" / "card.html")
    assert cli._refused(missing.value).message == f"there is no folder {tmp_path}/none; make it, or name another path"
    assert "name a path that can be used" in cli._refused(FileNotFoundError(2, "No such file", str(tmp_path))).message
