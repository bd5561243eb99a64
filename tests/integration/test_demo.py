"""`mien-sim demo` from end to end, with fewer phones than by default: real processes, real faces."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(sys.executable).parent / "mien-sim"
DATA = os.environ.get("MIEN_DATA")
TRAINS = Path(__file__).resolve().parents[2] / "simulation" / "papers" / "demo" / "fedface.toml"
LIMIT_S = 840.0
KEYS = {
    "duration_s", "eer_after", "eer_before", "eer_control", "fte", "learned", "masked", "mated", "non_mated",
    "own_accuracy_after", "own_accuracy_before", "owner_accepted", "people", "phones", "report", "reveals", "rounds",
    "stranger_accepted",
}  # fmt: skip
# Keys, invites and their tokens, arrays and lists of numbers as embeddings are printed.
SECRETS = re.compile(r"PRIVATE KEY|mien://|token=|array\(|tensor\(|(?:-?\d\.\d{3,}(?:e-?\d+)?[,\s]+){4}")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Done:
    """A demo that has ended: its folder, exit code and what it printed."""

    out: Path
    exit_code: int
    stdout: str
    stderr: str

    @property
    def answer(self) -> dict[str, Any]:
        assert self.exit_code == 0, self.stderr[-2000:]
        (line,) = self.stdout.splitlines()
        value: dict[str, Any] = json.loads(line)
        return value

    @property
    def logs(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in (self.out / "logs").iterdir()}


def session_members(session: int) -> list[str]:
    """Return the command lines of all processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # A process may end while it is looked at.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, _, _, of_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of_session) == session and state != "Z":
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def environment(data: str | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
    return own | ({"MIEN_DATA": data} if data else {})


@contextlib.contextmanager
def started(out: Path, *arguments: object, data: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A demo in a session of its own, which is empty afterwards whatever the test does."""
    command = [str(PROGRAM), "demo", "--phones", "4", "--out", str(out), "--json", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(data),
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def demo(out: Path, *arguments: object, data: str | None = None) -> Done:
    """Run a demo to its end; nothing of it may be left running, nor its state on disk."""
    with started(out, *arguments, data=data) as process:
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        assert session_members(process.pid) == []
    assert not (out / "state").exists()
    return Done(out, process.returncode, stdout, stderr)


def test_shipped_faces(tmp_path: Path) -> None:
    """One run, looked at from all sides: running it for every question would cost a minute each."""
    done = demo(tmp_path / "demo")
    answer = done.answer
    assert set(answer) == KEYS
    counted = ("phones", "people", "rounds", "mated", "non_mated", "fte")
    assert tuple(answer[name] for name in counted) == (4, 8, 1, 900, 19000, 0)
    # simulation/synthetic/faces has it over three domains; here of two of them, through import, graphs and report.
    assert answer["eer_before"] == pytest.approx(0.178, abs=0.005)
    # Eight people on four phones: they reach what public people of another domain do not.
    assert answer["eer_after"] < answer["eer_control"] - 0.02 < answer["eer_before"]
    assert (answer["own_accuracy_before"], answer["own_accuracy_after"]) == (None, None)
    assert answer["masked"] is True
    assert answer["reveals"] == ["class_moment"]
    assert "opened one sum over 4 phones" in answer["learned"]
    assert answer["owner_accepted"] is True
    assert answer["stranger_accepted"] is False

    page = Path(answer["report"]).read_text()
    assert answer["report"] == str(tmp_path / "demo" / "report.html")
    before, after = re.findall(r"Model (?:before|after)<.*?([0-9a-f]{64})<", page, re.DOTALL)
    assert before != after
    for words in ("4 phones, 1 round, one recogniser", "MIEN_DATA names no folder", "Sums are masked", "statistics"):
        assert words in page, words
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [".lock", "logs", "report.html"]

    assert "Sums are masked" in done.stderr
    told = [line.strip().split(",")[0] for line in done.stderr.splitlines()]
    assert [line for line in told if line.startswith("round ")] == ["round 1/1: closed"]
    logs = done.logs
    assert {"registrar", "coordinator"} < set(logs)
    assert sum(name.startswith("phone-") for name in logs) == 4
    for name, text in {**logs, "stdout": done.stdout, "stderr": done.stderr}.items():
        assert (found := SECRETS.search(text)) is None, (name, found)
        assert len(text) < 100_000
        assert "Traceback" not in text, name
    for name, text in logs.items():
        if name.startswith("phone-"):
            words = " ".join(text.split())
            assert "the coordinator learns nothing but when it took part" in words
            assert "this phone's among them" in words


@pytest.mark.skipif(not DATA, reason="MIEN_DATA is unset: the demo does not run on CelebA (celeba112)")
def test_celeba_faces_and_the_released_models_own(tmp_path: Path) -> None:
    assert DATA
    done = demo(tmp_path / "demo", "--faces", Path(DATA) / "celeba112", data=DATA)
    answer = done.answer
    assert (answer["phones"], answer["rounds"]) == (4, 1)
    assert answer["mated"] > 1000
    assert 0 < answer["eer_before"] < 0.06  # pretrained on photographs such as these
    assert answer["owner_accepted"] is True
    assert answer["stranger_accepted"] is False
    assert answer["own_accuracy_before"] > 0.97  # LFW
    assert answer["own_accuracy_after"] > 0.5
    page = Path(answer["report"]).read_text()
    assert "celeba112" in page
    assert "research, non-commercial use" in page


@pytest.mark.skipif(not DATA, reason="MIEN_DATA is unset: the demo does not run on LFW (lfw/images)")
def test_lfw_faces(tmp_path: Path) -> None:
    """Raw photographs, some with several faces, of 4282 people, most of whom have one picture; phones train on them."""
    assert DATA
    done = demo(tmp_path / "demo", "--task", TRAINS, "--rounds", 1, "--faces", Path(DATA) / "lfw" / "images", data=DATA)
    answer = done.answer
    assert (answer["phones"], answer["rounds"]) == (4, 1)
    assert answer["mated"] > 1000
    assert 0 <= answer["eer_before"] < 0.03
    assert answer["owner_accepted"] is True
    assert answer["stranger_accepted"] is False
    assert answer["own_accuracy_before"] is None  # the phones hold these people
    assert "the phones hold people of LFW themselves" in Path(answer["report"]).read_text()


def test_demo_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """As soon as both servers run and phones join: keys are on disk, several programs at work."""
    out = tmp_path / "demo"
    with started(out) as process:
        deadline = time.monotonic() + 240
        while not list(out.glob("state/phones/*")):
            assert process.poll() is None, process.stderr and process.stderr.read()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(session_members(process.pid)) >= 3
        process.terminate()
        stdout, _ = process.communicate(timeout=120)
        assert session_members(process.pid) == []
    assert process.returncode == 128 + signal.SIGTERM
    assert stdout == ""
    assert sorted(path.name for path in out.iterdir()) == [".lock", "logs"]
