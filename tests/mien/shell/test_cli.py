"""What programs print for people: text of others is shown, and a terminal obeys none of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from mien.errors import ConfigError
from mien.shell import cli
from mien.shell.files import write_atomically

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


def test_a_file_in_a_folder_that_is_missing_is_told_by_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(tmp_path / "none" / "card.html", b"")
    assert missing.value.filename == str(tmp_path / "none" / "card.html")
    assert cli._refused(missing.value).message == f"there is no folder {tmp_path}/none; make it, or name another path"
    assert "name a path that can be used" in cli._refused(FileNotFoundError(2, "No such file", str(tmp_path))).message
