"""Peers' virtual environments: made on demand in the user's cache from files of pinned versions with hashes.

Torch alone is the one that Mien runs on, so that everybody's arithmetic is the same: a peer's own packages come first
on its path, and Mien's environment last.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks import _common
from benchmarks._peers.order import Order, Timed

INSTALL_TIMEOUT_S: Final = 600
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


@dataclass(frozen=True)
class Unavailable:
    """Why there are no figures of a peer's."""

    reason: str


@dataclass(frozen=True)
class Figures:
    """A peer's version and times."""

    version: str
    timed: Timed


def is_installed(peer: Peer) -> bool:
    """Return whether the peer's environment exists with the versions of its file."""
    return (_folder(peer) / "complete").is_file()


def measure(peer: Peer, orders: Sequence[Order], *, timeout_s: float) -> dict[Order, Figures | Unavailable]:
    """Return what a peer needs for each order, all in one process, of as many threads as the first one asks for.

    Its environment is made the first time. What it measured before it failed, or `timeout_s` were over, counts.
    """
    printed, reason = "", "it printed no figures"
    try:
        python = _installed(peer)
        done = subprocess.run(
            [str(python), "-m", peer.module, *(json.dumps(asdict(order)) for order in orders)],
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout_s,
            cwd=_common.ROOT,
            env=_environment(orders[0].threads),
        )
        printed = done.stdout
    except subprocess.CalledProcessError as error:
        printed = error.stdout
        reason = f"{Path(error.cmd[0]).name} ended with {error.returncode}: {_last_line(error.stderr)}"
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode(errors="replace")  # bytes, whatever was asked for
        reason = f"it did not end within {error.timeout:.0f} s"
    except OSError as error:
        reason = f"{type(error).__name__}: {error}"
    measured = [found for line in printed.splitlines() if (found := _figures(line)) is not None]
    return {
        order: figures or Unavailable(reason)
        for order, figures in itertools.zip_longest(orders, measured[: len(orders)])
    }


def _figures(line: str) -> Figures | None:
    """Return the figures in a line that a peer's process printed, None where it is anything else."""
    try:
        found = json.loads(line)
        return Figures(found["version"], Timed(tuple(found["wall_ms"]), tuple(found["cpu_ms"])))
    except (json.JSONDecodeError, KeyError, TypeError):
        return None


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


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
