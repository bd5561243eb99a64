"""One process per folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import AlreadyExistsError
from mien.shell.lock import exclusive

ROOT = Path(__file__).resolve().parents[3]
HOLD = (
    "import sys, time; from pathlib import Path; from mien.shell.lock import exclusive\n"
    "with exclusive(Path(sys.argv[1]), program='mien-test'): print('held', flush=True); time.sleep(60)"
)


def test_a_second_holder_is_refused_until_the_first_ends_even_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyExistsError, match="another mien-test"), exclusive(path, program="mien-test"):
            pass
        other.kill()
        other.wait(20)
    with exclusive(path, program="mien-test"):
        assert path.stat().st_mode & 0o777 == 0o600
