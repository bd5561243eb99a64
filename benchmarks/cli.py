"""What a command costs: processor time and wall time of programs' `--help`, and of commands that are typed often.

Each is run by itself as its user runs it, from the start of Python to its end. The median of the repetitions counts,
and the first run, which may read from disk, does not. `task list` and `invite` ask servers of `mien-coordinator
quickstart` on this machine, `verify-pair` compares two of the shipped faces. Quick: one repetition of each.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import _common
from benchmarks._quick_start import LAST_WORDS, PROGRAMS, quick_start
from mien.errors import UnreachableError
from simulation.synthetic import committed_faces

REPETITIONS: Final = 5


@dataclass(frozen=True)
class Cost:
    """Processor time (user and system, of the command and its children) and wall time of a command, in seconds."""

    cpu_s: float
    wall_s: float


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("cli", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    repetitions = 1 if args.quick else REPETITIONS
    with tempfile.TemporaryDirectory(prefix="mien-cli-") as name, quick_start(Path(name)) as fleet:
        rows = [
            {"command": _told(line, Path(name)), **_median(line, repetitions, answers=answers)}
            for line, answers in commands(fleet, Path(name) / "phone")
        ]
    if not args.json:
        for row in rows:
            print(f"{row['cpu_s']:7.2f} s of processor time, {row['wall_s']:6.2f} s: {row['command']}")
    return {
        "benchmark": "cli",
        "quick": args.quick,
        "repetitions": repetitions,
        "rows": rows,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def commands(fleet: Path, phone: Path) -> list[tuple[str, Collection[int]]]:
    """Return what is measured, with the exit codes that are answers; `fleet` is a quick start's folder that serves."""
    one, other = list(committed_faces("test").values())[:2]
    coordinator, operator = f"--home {fleet / 'coordinator'}", f"--operator {fleet / 'operator'}"
    return [
        *((f"{program} --help", (0,)) for program in ("mien-coordinator", "mien-registrar", "mien-device", "mien-sim")),
        (f"mien-coordinator task list {coordinator}", (0,)),
        (f"mien-coordinator device invite {coordinator} {operator}", (0,)),
        (f"mien-registrar invite --home {fleet / 'operator'}", (0,)),
        (f"mien-device status --home {phone}", (0,)),
        (f"mien-device verify-pair {one[0]} {other[0]}", (0, 1)),
    ]


def cost_of(line: str, *, answers: Collection[int] = (0,)) -> Cost:
    """Return what one run of a command costs; raises UnreachableError where its exit code is none of `answers`."""
    program, *words = shlex.split(line)
    began = time.monotonic()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [str(PROGRAMS / program), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        ) as child,
    ):
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in answers:
            said.seek(0)
            words_of_it = said.read().decode(errors="replace").strip()[-LAST_WORDS:]
            raise UnreachableError(f"{line} ended with {child.returncode}: {words_of_it}")
    return Cost(usage.ru_utime + usage.ru_stime, wall_s)


def _median(line: str, repetitions: int, *, answers: Collection[int]) -> dict[str, float]:
    _common.progress(line)
    costs = [cost_of(line, answers=answers) for _ in range(repetitions + 1)][1:]
    return {
        "cpu_s": round(statistics.median(cost.cpu_s for cost in costs), 3),
        "wall_s": round(statistics.median(cost.wall_s for cost in costs), 3),
    }


def _told(line: str, folder: Path) -> str:
    """Return a command without the folders of this one run."""
    return line.replace(f"{folder}/", "").replace(f"{Path.cwd()}/", "")


if __name__ == "__main__":
    main()
