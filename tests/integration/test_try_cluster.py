"""`deploy/try_cluster` as somebody runs it: a round through HAProxy, and Ctrl-C that leaves nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.programs import call
from tests.servers import haproxy, postgres, s3

LACKING = postgres.missing() or s3.missing() or haproxy.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(LACKING), reason=LACKING or "all is here")]


def running(session: int) -> set[str]:
    """Return the names of the processes of a session that have not ended."""
    names = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, rest = stat.read_text(encoding="utf-8", errors="replace").split("(", 1)[1].rsplit(")", 1)
            state, _, _, its_session = rest.split()[:4]
            if int(its_session) == session and state != "Z":
                names.add(name)
    return names


def test_a_cluster_runs_a_round_and_ends_by_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "deploy/try_cluster")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = ""
        for line in process.stdout:
            told += line
            if "Ctrl-C stops all" in line:
                break
        assert re.search(r"It closed, with model [0-9a-f]{12}\.", told), told
        (home,) = re.findall(r"mien-coordinator replica list --home (.+)", told)
        replicas = call("mien-coordinator", "replica", "list", "--home", home)["replicas"]
        assert len(replicas) == 2
        (runner,) = [each["address"] for each in replicas if "first" in each["populations"]]
        (pid,) = re.findall(r"with kill (\d+),", told)
        of_runner = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        folder = Path(of_runner[of_runner.index("--home") + 1])
        assert runner in (folder / "coordinator.toml").read_text(encoding="utf-8")
        assert "doctor" not in told, "there is no registrar, of which it would be told"
        assert {"postgres", "haproxy"} <= running(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everything hears it
        rest = process.stdout.read()
        assert process.wait(120) == 0, rest
        assert "nothing is left" in rest
        end = time.monotonic() + 60
        while left := running(process.pid):
            assert time.monotonic() < end, left
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
