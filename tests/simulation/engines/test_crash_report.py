"""What is said of a worker that ended: the line that names the reason, whatever stands around it."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayTaskError

from mien.errors import UnavailableError
from simulation.engines.crash_report import MAX_CHARACTERS, does_not_start, end_of

CUDA = (
    "CUDA error: out of memory\nCUDA kernel errors might be reported later: the trace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\nCompile with `TORCH_USE_CUDA_DSA`: device assertions."
)


class OddError(Exception):
    """An error whose message is of one's choice."""


def trace_of(message: str, *, caused: bool = False) -> list[str]:
    """Return a real traceback's lines."""
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise OddError(message) from (first if caused else None)
    except OddError as error:
        return "".join(traceback.format_exception(error)).splitlines()


@pytest.mark.parametrize("caused", [False, True])
@pytest.mark.parametrize("message", [CUDA, "one line", "one\n  indented\nTypeError: quoted\n", ""])
def test_an_exception_is_told_by_the_first_line_of_its_message(message: str, caused: bool) -> None:
    assert end_of(trace_of(message, caused=caused)).endswith(
        f"OddError: {message.splitlines()[0]}" if message else "Error"
    )


def test_a_failed_task_says_what_it_raised() -> None:
    lost = RayTaskError("train", "\n".join(trace_of(CUDA)), OddError(CUDA))  # type: ignore[no-untyped-call]
    told = does_not_start(lost)
    assert isinstance(told, UnavailableError)
    assert "OddError: CUDA error: out of memory. Look" in told.message


def test_a_crash_is_told_by_its_first_line() -> None:
    crash = "import faulthandler, numpy; faulthandler.enable(); faulthandler._sigabrt()"
    done = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True, timeout=240, check=False)
    lines = ["a warning", *trace_of("handled"), *done.stderr.splitlines(), "Extension modules: numpy (total: 1)"]
    assert end_of(lines) == "Fatal Python error: Aborted"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ""),
        (["", "  "], ""),
        (["first", "killed by\x1b[0m the system", ":actor_name:Worker", ""], "killed by?[0m the system"),
        (["x" * 1000], "x" * MAX_CHARACTERS),
        (['  File "cut.py", line 3'], 'File "cut.py", line 3'),
    ],
)
def test_else_the_last_line(lines: list[str], said: str) -> None:
    assert end_of(lines) == said
