"""What a silent program says it is doing: on stderr, once it has taken a moment, and gone afterwards."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mien.errors import ConfigError
from mien.shell import doing as shown
from mien.shell.doing import VARIABLE, Other, doing, program, relayed, unseen

# A program whose one command waits in a step for a line on its stdin: nothing here depends on how long anything takes.
PROGRAM = """
    import sys
    import typer
    from mien.errors import ConfigError
    from mien.shell import cli
    from mien.shell.doing import doing

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def main() -> None: ...

    @app.command("read-faces")
    def read_faces(as_json: bool = typer.Option(False, "--json"), fail: bool = False, steps: bool = True) -> None:
        \"\"\"Read the faces in a folder: all of them.

        And more.\"\"\"
        if not steps:
            sys.stdin.readline()
        else:
            with doing("Reading the faces", total=3) as step:
                step.advance()
                sys.stdin.readline()
        if fail:
            raise ConfigError("there are none")
        cli.emit({"faces": 3}, as_json=as_json, human=lambda: cli.say("3 faces"))
        sys.stdin.readline()

    cli.run(app)
"""
AT_WORK = "program.py read-faces: read the faces in a folder …\n"
STEP = "Reading the faces: 1 of 3 …\n"


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the program; it says what it does at once with `after` 0, never with `inf`."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")

    def start(*arguments: str, after: str = "0", stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(path), "read-faces", *arguments],
            env={**os.environ, VARIABLE: after, "TERM": "xterm"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    return start


def _read_until(line: str, process: subprocess.Popen[str]) -> str:
    """Return what a program says on stderr, up to a line."""
    assert process.stderr is not None
    said = ""
    while not said.endswith(line):
        more = process.stderr.readline()
        assert more, f"it ended, and said only {said!r}"
        said += more
    return said


def test_a_log_is_told_what_takes_long_and_stdout_is_not(started: Callable[..., subprocess.Popen[str]]) -> None:
    with started() as process:
        said = _read_until(STEP, process)
        printed, rest = process.communicate("\n\n")
    assert (printed, rest, process.returncode) == ("3 faces\n", "", 0)
    assert said.removesuffix(STEP) in ("", AT_WORK)


def test_a_command_without_steps_says_what_its_help_says(started: Callable[..., subprocess.Popen[str]]) -> None:
    with started("--no-steps") as process:
        said = _read_until(AT_WORK, process)
        assert process.communicate("\n\n") == ("3 faces\n", "")
    assert said == AT_WORK


@pytest.mark.parametrize(("arguments", "after"), [([], "3600"), ([], "inf"), (["--json"], "0")])
def test_nothing_is_said_of_what_is_quick_or_to_machines(
    started: Callable[..., subprocess.Popen[str]], arguments: list[str], after: str
) -> None:
    with started(*arguments, after=after) as process:
        printed, said = process.communicate("\n\n")
    assert said == ""
    assert printed == ('{"faces": 3}\n' if arguments else "3 faces\n")


def test_an_error_comes_after_it(started: Callable[..., subprocess.Popen[str]]) -> None:
    with started("--fail") as process:
        _read_until(STEP, process)
        _, said = process.communicate("\n\n")
    assert said == "error (config): there are none\n"
    assert process.returncode == 2


def test_a_terminal_gets_a_line_that_is_taken_away_and_keeps_its_cursor(
    started: Callable[..., subprocess.Popen[str]],
) -> None:
    master, slave = pty.openpty()
    with started(stderr=slave) as process:
        os.close(slave)
        assert process.stdin is not None
        assert process.stdout is not None
        seen = b""
        while b"1 of 3" not in seen:
            seen += os.read(master, 4096)
        assert b"Reading the faces" in seen
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "3 faces\n"
        process.stdin.close()
        while more := _read(master):
            seen += more
    os.close(master)
    assert b"\x1b[2K" in seen
    assert b"Reading" not in seen.rpartition(b"\x1b[2K")[2]
    assert b"\x1b[?25l" not in seen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # as Linux says that the program has gone
        return b""


class _Told:
    """A log in memory, and waiting until something is in it."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, width=80)

    def wait_for(self, text: str) -> str:
        ends_s = time.monotonic() + 120
        while text not in self.file.getvalue():
            assert time.monotonic() < ends_s, f"{text!r} is not in {self.file.getvalue()!r}"
            time.sleep(0.001)
        return self.file.getvalue()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> _Told:
    monkeypatch.setenv(VARIABLE, "0")
    return _Told()


def test_the_innermost_step_is_told_and_each_once(told: _Told) -> None:
    with program("at work", told.console):
        told.wait_for("at work …\n")
        with doing("outer"):
            told.wait_for("outer …\n")
            for name in ("first", "second"):
                with doing(name):
                    told.wait_for(f"{name} …\n")
        with doing("last"):
            told.wait_for("last …\n")
    assert told.file.getvalue().splitlines() == ["at work …", "outer …", "first …", "second …", "last …"]


def test_a_step_that_does_something_else_is_told_anew(told: _Told) -> None:
    with program("at work", told.console), doing("loading") as step:
        told.wait_for("loading …\n")
        step.show(text="measuring", done=2, total=5)
        told.wait_for("measuring: 2 of 5 …\n")
        step.show(text="sending", total=9_000_000, amount="1.0 of 9.0 MB")
        told.wait_for("sending: 1.0 of 9.0 MB …\n")


def test_a_long_step_with_an_end_is_told_again(told: _Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "AGAIN_S", 0.001)
    with program("at work", told.console), doing("reading", total=9) as step:
        told.wait_for("reading …\n")
        step.show(done=7)
        told.wait_for("reading: 7 of 9 …\n")


def test_steps_of_one_name_are_told_as_one_that_goes_on(told: _Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "AGAIN_S", 3600.0)
    with program("at work", told.console):
        for _phone in range(50):
            with doing("reading", total=2):
                told.wait_for("reading …\n")
                time.sleep(0.01)  # a display that tells each step anew has the time to
    assert told.file.getvalue().count("reading") == 1


def test_nobody_is_told_while_they_are_asked_or_once_they_have_the_answer(told: _Told) -> None:
    with program("at work", told.console):
        with unseen(), doing("inside"):
            told.wait_for("inside …\n")
        told.wait_for("at work …\n")
        shown.answered()
        with doing("afterwards"):
            pass
        assert not [thread for thread in threading.enumerate() if thread.name == "doing" and _waits(thread)]
    assert "afterwards" not in told.file.getvalue()


def test_the_time_in_which_somebody_was_asked_is_not_silence(told: _Told, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic
    monkeypatch.setenv(VARIABLE, "3600")
    with program("at work", told.console), doing("waiting") as step:
        with unseen():
            monkeypatch.setattr(time, "monotonic", lambda: now_s() + 7200)
        for _ in range(20):
            step.advance()
            time.sleep(0.001)
    assert told.file.getvalue() == ""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_ctrl_c_in_the_midst_of_a_step_holds_nobody_up(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at every place, one after another, at which Python looks for it."""
    monkeypatch.setenv(VARIABLE, "0")
    for at in range(1000):
        left = at

        def interrupt(_frame: object, event: str, _value: object) -> None:
            nonlocal left
            left -= event in ("call", "c_return")
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
        try:
            with program("at work", console), doing("reading", total=9) as step:
                sys.setprofile(interrupt)
                step.advance()
                sys.setprofile(None)
                return
        except KeyboardInterrupt:
            assert not [thread for thread in threading.enumerate() if thread.name == "doing" and _waits(thread)]
    pytest.fail("a step took more than a thousand calls")


def _waits(thread: threading.Thread) -> bool:
    thread.join(120)
    return thread.is_alive()


def test_outside_of_a_program_nothing_is_shown(told: _Told, capsys: pytest.CaptureFixture[str]) -> None:
    with doing("in a library", total=2) as step:
        step.advance()
    assert (step.done, tuple(capsys.readouterr())) == (1, ("", ""))
    with pytest.raises(ConfigError), program("at work", told.console), doing("failing"):
        raise ConfigError("fails")
    assert shown._shown is None


def test_a_child_says_it_as_json_and_its_parent_reads_that(capsys: pytest.CaptureFixture[str]) -> None:
    with program("child", Console(stderr=True), relays=True), doing("reading", total=2) as step:
        step.advance()
        step.advance()
        with doing("pausing"):
            pass
    lines = [relayed(line) for line in capsys.readouterr().err.splitlines()]
    assert [each and (each.text, each.done, each.total) for each in lines] == [
        ("reading", 0, 2),
        ("reading", 2, 2),
        ("pausing", 0, None),
        ("reading", 2, 2),
    ]


def test_what_a_child_does_next_may_have_no_end(told: _Told) -> None:
    with program("parent", told.console), doing("starting") as step:
        step.follow(Other("reading", 2, 4, ""))
        told.wait_for("reading: 2 of 4 …\n")
        step.follow(Other("loading", 0, None, ""))
        told.wait_for("loading …\n")
        assert step.total is None


@pytest.mark.parametrize("after", ["1e10", "1e300", "inf"])
def test_nothing_is_said_after_a_time_that_never_comes(
    started: Callable[..., subprocess.Popen[str]], after: str
) -> None:
    with started(after=after) as process:
        assert process.communicate("\n\n") == ("3 faces\n", "")


@pytest.mark.parametrize("line", ["", "loading", '{"error": "x"}', '{"doing":', '{"doing": "x", "done": 1}'])
def test_other_lines_of_a_child_are_not_taken_for_it(line: str) -> None:
    assert relayed(line) is None
