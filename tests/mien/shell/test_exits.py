"""What a program ends with when it, or what it writes to, is at fault: never with 0 or 1, which are answers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from mien.errors import TABLE, ConfigError, DiskFullError, MissingDependencyError, NotFoundError
from mien.shell.exits import EXIT_FAULT, EXIT_INTERRUPTED, EXIT_READER_GONE, end_with_parent

PROGRAM = r"""
import errno, sys
import typer
from mien.shell import cli

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

@app.command()
def answer(how: str, code: int = 0) -> None:
    told = "Match: \u0639\u0644\u06cc \udcff."
    if how == "raise":
        raise ValueError("a fault")
    if how == "exit with text":
        sys.exit("no answer")
    if how == "warn":
        cli.warn(told)
    if how == "disk":
        raise OSError(errno.ENOSPC, "No space left on device", "gallery.db")
    if how == "abort":
        raise typer.Abort
    if how == "print":
        print(told, flush=True)
    cli.emit({"told": told}, as_json=how == "json", human=lambda: cli.say(told))
    raise typer.Exit(code)

cli.run(app)
"""
PROGRAMS = {
    "mien-device": "from device_sdk.program import main",
    "mien-sim": "from simulation.program import main",
    "mien-coordinator": "from coordinator.commands import coordinator as main",
    "mien-registrar": "from coordinator.commands import registrar as main",
}
EXTRAS = ("coordinator", "device", "coordinator", "simulation")
"""What brings their packages, by the programs' names in order."""
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.is_char_device(), reason="this system has no /dev/full")
ANSWERS = [("say", 0), ("json", 1), ("print", 0)]


def ended(*arguments: str, program: str = PROGRAM, **how: Any) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a program that runs in a process of its own."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    command = [*options.pop("before", ()), sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, timeout=120, check=False, **options)
    return done.returncode, *((text or b"").decode("utf-8", "replace") for text in (done.stdout, done.stderr))


@contextlib.contextmanager
def pipe_without_reader() -> Iterator[int]:
    """The end to write to of a pipe from which nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize(("how", "code"), [("say", 0), ("say", 1)])
def test_an_answer_ends_with_its_code_and_an_output_of_another_encoding_shows_what_it_can(how: str, code: int) -> None:
    found, out, err = ended(how, "--code", str(code), env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (found, err) == (code, "")
    assert r"Match: \u0639\u0644\u06cc \udcff." in out


@pytest.mark.parametrize(("how", "code"), ANSWERS)
def test_a_reader_that_has_gone_got_no_answer(how: str, code: int) -> None:
    with pipe_without_reader() as gone:
        assert ended(how, "--code", str(code), stdout=gone) == (EXIT_READER_GONE, "", "")


def test_nor_did_one_of_warnings() -> None:
    with pipe_without_reader() as gone:
        assert ended("warn", stderr=gone)[0] == EXIT_READER_GONE


@needs_full
@pytest.mark.parametrize(("how", "code"), ANSWERS)
def test_an_answer_for_which_there_is_no_room_is_none(how: str, code: int) -> None:
    with FULL.open("wb") as full:
        found, _, err = ended(how, "--code", str(code), stdout=full)
    assert found == TABLE[DiskFullError].exit_code
    assert "No space left on device" in err
    assert "Traceback" not in err


@needs_full
@pytest.mark.parametrize(("how", "expected"), [("warn", TABLE[DiskFullError].exit_code), ("raise", EXIT_FAULT)])
def test_nor_is_there_one_where_stderr_is_full(how: str, expected: int) -> None:
    with FULL.open("wb") as full:
        assert ended(how, stderr=full)[0] == expected


def test_an_answer_to_a_closed_output_is_none() -> None:
    found, _, err = ended("say", before=("sh", "-c", 'exec "$@" >&-', "sh"))
    assert found == TABLE[NotFoundError].exit_code
    assert "the output is closed; leave it open" in err


def test_a_closed_stderr_keeps_no_answer_back() -> None:
    found, out, _ = ended("warn", before=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert found == 0
    assert "Match" in out


@pytest.mark.parametrize("how", ["raise", "exit with text"])
def test_a_fault_of_the_program_is_no_answer(how: str) -> None:
    code, _, err = ended(how)
    assert code == EXIT_FAULT
    assert ("ValueError: a fault" in err) == (how == "raise")


def test_a_program_that_cannot_be_imported_gives_no_answer() -> None:
    code, _, err = ended(program="from mien.shell.exits import start; start('no_such_module')")
    assert code == EXIT_FAULT
    assert "no_such_module" in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("disk",), TABLE[DiskFullError].exit_code),
        (("abort",), EXIT_INTERRUPTED),
        (("say", "--code", "none"), TABLE[ConfigError].exit_code),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_other_ends_are_no_answers(arguments: tuple[str, ...], code: int) -> None:
    found, out, err = ended(*arguments)
    assert (found, out) == (code, "")
    assert err


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_all_four_programs_end_so(name: str) -> None:
    with pipe_without_reader() as gone:
        assert ended("--help", program=f"{PROGRAMS[name]}; main()", stdout=gone) == (EXIT_READER_GONE, "", "")
    broken = f"import sys; sys.modules['mien.format'] = sys.modules['mien.shell.cli'] = None; {PROGRAMS[name]}; main()"
    assert ended("--help", program=broken)[0] == EXIT_FAULT


@pytest.mark.parametrize(("name", "extra"), list(zip(sorted(PROGRAMS), EXTRAS, strict=True)))
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["people", "machines"])
def test_a_program_without_its_packages_says_what_to_install(name: str, extra: str, words: tuple[str, ...]) -> None:
    lacking = f"import sys; sys.modules['rich'] = None; {PROGRAMS[name]}; main()"
    code, out, err = ended(*words, program=lacking)
    assert (code, out) == (TABLE[MissingDependencyError].exit_code, "")
    assert err.count("\n") == 1
    assert f"needs rich, which is not installed; run: pip install '.[{extra}]' in Mien's folder" in err
    assert err.startswith("{") == bool(words)


def test_what_a_command_loads_and_is_not_there_is_named_too() -> None:
    lacking = f"import sys; sys.modules['scipy'] = None; {PROGRAMS['mien-sim']}; main()"
    code, out, err = ended("reproduce", "fedface", "--quick", program=lacking)
    assert (code, out) == (TABLE[MissingDependencyError].exit_code, "")
    assert "needs scipy, which is not installed; run: pip install '.[simulation]' in Mien's folder" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_no_program_looks_for_plugins_of_others(name: str) -> None:
    refused = "import importlib.metadata; importlib.metadata.entry_points = lambda **_: sys.exit('looked')"
    code, _, err = ended("--help", program=f"import sys; {refused}; {PROGRAMS[name]}; main()")
    assert (code, err) == (0, "")


ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]]).wait()
"""
CHILD = """
import time
from mien.shell.exits import end_with_parent
end_with_parent()
print("up", flush=True)
time.sleep(600)
"""


def answers_twice(connection: Connection) -> None:
    """Say that this process is up and, once it is asked, that it still is."""
    end_with_parent()
    connection.send("up")
    connection.recv()
    connection.send("still up")


def test_a_process_of_a_pool_outlives_the_thread_that_started_it() -> None:
    ours, theirs = get_context("spawn").Pipe()
    child = get_context("spawn").Process(target=answers_twice, args=(theirs,))
    first: list[str] = []

    def begin() -> None:
        child.start()
        theirs.close()
        first.append(ours.recv())

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    ours.send("and now?")
    assert (first, ours.recv()) == (["up"], "still up")
    child.join()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems end no child with its parent")
def test_a_child_that_asks_for_it_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        parent.kill()
        assert parent.stdout.read() == "", "the child held this pipe open, and has ended"
