"""One process per folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import AlreadyExistsError
from mien.shell.lock import exclusive, held, lock_file

ROOT = Path(__file__).resolve().parents[3]
HOLD = (
    "import sys, time; from pathlib import Path; from mien.shell.lock import exclusive\n"
    "with exclusive(Path(sys.argv[1]), program='mien-test'): print('held', flush=True); time.sleep(600)"
)


def test_a_second_holder_is_refused_until_the_first_ends_even_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyExistsError, match="another mien-test"), exclusive(path, program="mien-test"):
            pass
        other.kill()
        other.wait()
    with exclusive(path, program="mien-test"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "lock"
    theirs.write_text("kept")
    for target in (theirs, tmp_path / "absent"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        for lock in (lock_file(link), exclusive(link, program="mien-test"), held(link)):
            with pytest.raises(AlreadyExistsError, match="is a link"), lock:
                pass
    assert theirs.read_text() == "kept"
    assert not (tmp_path / "absent").exists()
