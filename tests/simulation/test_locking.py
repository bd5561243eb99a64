"""One writer a folder: the second waits for a moment, then says who writes; a killed writer holds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import AlreadyExistsError
from simulation.locking import only_writer

HOLD = (
    "import sys, time; from pathlib import Path; from simulation.locking import only_writer\n"
    "with only_writer(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
)


def test_a_second_writer_is_told_who_writes_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(AlreadyExistsError, match=f"process {first.pid};.*--out"), only_writer(tmp_path, wait_s=0):
            pass
        first.kill()
    with only_writer(tmp_path, wait_s=60):
        pass
    with only_writer(tmp_path, wait_s=0):
        pass
