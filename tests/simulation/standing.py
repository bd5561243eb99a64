"""mien-sim whose runs stand still in their second round, so that a kill finds them there however fast they are.

`python -m tests.simulation.standing` takes the arguments of mien-sim. A run stands still when the round's record is
written and the checkpoint is not: the records are a round ahead of what it goes on from.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulation.runs import grid, records
from simulation.runs.experiment import Job
from simulation.runs.records import num_rounds
from tests.helpers import ROOT

LIMIT_S = 240.0
_measure, _write = grid.measure_run, records.write_atomically


def killed_in_its_second_round(records: Path, *arguments: object) -> None:
    """Run mien-sim with these arguments, and kill it when a run's records hold two rounds."""
    command = [sys.executable, "-m", "tests.simulation.standing", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LIMIT_S
        while num_rounds(records) < 2:
            assert process.poll() is None, "the run ended too early"
            assert time.monotonic() < end, "the run did not come to its second round"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()


def measure_standing(job: Job, **options: Any) -> Mapping[str, Any]:
    """Measure a sweep's run, in the process that was started for it."""
    stand()
    return _measure(job, **options)


def stand() -> None:
    """Have runs of this process stand still."""
    records.write_atomically = _write_the_first


def _write_the_first(path: Path, data: bytes, *, private: bool = False) -> None:
    if path.name == "checkpoint.bin" and path.exists():
        time.sleep(600)
    _write(path, data, private=private)


if __name__ == "__main__":
    from simulation.program.cli import main

    stand()
    # A sweep's processes import this module by its name.
    from tests.simulation import standing

    grid.measure_run = standing.measure_standing
    main()
