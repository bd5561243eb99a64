"""Peers' virtual environments: made on demand in the user's cache from files of pinned versions with hashes.

Torch alone is the one that Mien runs on, so that everybody's arithmetic is the same: a peer's own packages come first
on its path, and Mien's environment last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final, Self

import torch

from benchmarks import _common
from benchmarks._peers.order import Order
from simulation.bench.turns import Cost, Way

INSTALL_TIMEOUT_S: Final = 600
LEAVES_WITHIN_S: Final = 10
_PIP_OPTIONS: Final = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15")
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """Another simulator: its name for people, the file of its versions, the module that runs it."""

    name: str
    lock: str
    module: str


PFL: Final = Peer("pfl-research", "pfl.lock", "benchmarks._peers.run_pfl")
FLOWER: Final = Peer("Flower", "flower.lock", "benchmarks._peers.run_flower")
PEERS: Final = (PFL, FLOWER)


def is_installed(peer: Peer) -> bool:
    """Return whether the peer's environment exists with the versions of its file."""
    return (_folder(peer) / "complete").is_file()


class Guest:
    """A peer's process, which takes a round when it is asked to; `reason` says why it takes none, once it does not."""

    def __init__(self, process: subprocess.Popen[str] | None, said: IO[str] | None, reason: str = "") -> None:
        self.version, self.reason = "", reason
        self._process, self._said = process, said

    @classmethod
    def none(cls, reason: str) -> Self:
        """Return a peer that takes no round at all, and why."""
        return cls(None, None, reason)

    def rounds_of(self, order: Order) -> Way:
        """Return what takes a round of an order; the first one prepares it, and ends what was asked for before."""
        lines = iter([json.dumps(asdict(order))])
        return lambda: self._take(next(lines, ""))

    def end(self, reason: str) -> None:
        """End the peer's process, in the middle of a round if need be."""
        if self._process is not None:
            self.reason = self.reason or reason
            self._process.kill()

    def _take(self, line: str) -> Cost | None:
        if self.reason or self._process is None or self._process.stdin is None or self._process.stdout is None:
            return None
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        for answer in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):  # programs chatter
                found = json.loads(answer)
                self.version = str(found["version"])
                return float(found["wall_s"]), float(found["cpu_s"])
        code = self._process.wait()
        self.reason = self.reason or f"it ended with {code}: {self._last_line()}"
        return None

    def _last_line(self) -> str:
        if self._said is None:
            return ""
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


@contextlib.contextmanager
def guest(peer: Peer, *, threads: int, timeout_s: float) -> Iterator[Guest]:
    """Have a peer take rounds, of so many threads, beside a block, for `timeout_s` at most; the block goes on without.

    Its environment is made the first time.
    """
    try:
        python = _installed(peer)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        yield Guest.none(f"its environment was not made: {type(error).__name__}: {error}")
        return
    with tempfile.TemporaryFile("w+", errors="replace") as said, _program(python, peer, threads, said) as process:
        found = Guest(process, said)
        late = threading.Timer(timeout_s, found.end, [f"it did not end within {timeout_s:.0f} s"])
        late.start()
        try:
            yield found
        finally:
            _leave(process)
            late.cancel()


def _program(python: Path, peer: Peer, threads: int, said: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(python), "-m", peer.module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        cwd=_common.ROOT,
        env=_environment(threads),
    )


def _leave(process: subprocess.Popen[str]) -> None:
    """End a peer's process by the end of its input, and if it does not heed that, by force."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(LEAVES_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _installed(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment, which finds the torch of this program."""
    folder = _folder(peer)
    python = folder / "bin" / "python"
    if is_installed(peer):
        _lend_torch(folder)
        return python
    _common.progress(f"installing {peer.name} into {folder}: once")
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", *_PIP_OPTIONS, "--require-hashes", "-r", str(_HERE / peer.lock)],
    )
    for command in commands:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S)
    _lend_torch(folder)
    (folder / "complete").touch()
    _common.progress(f"installed in {time.monotonic() - started:.0f} s")
    return python


def _lend_torch(folder: Path) -> None:
    for packages in (folder / "lib").glob("python*/site-packages"):
        (packages / "zz-torch-of-mien.pth").write_text(f"{Path(torch.__file__).parents[1]}\n", encoding="utf-8")


def _folder(peer: Peer) -> Path:
    """Return where a peer's environment is, which is another one for other versions, or another torch."""
    versions = (_HERE / peer.lock).read_bytes() + torch.__version__.encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mien" / "benchmarks"
    return cache / f"{Path(peer.lock).stem}-{hashlib.sha256(versions).hexdigest()[:12]}"


def _environment(threads: int) -> dict[str, str]:
    """Return the child's environment: nothing of ours but where its home is, no telemetry, no look at a GPU."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(threads),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore",
    }
