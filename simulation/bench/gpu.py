"""A GPU's load during a round, and its peak memory."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from device_sdk.runtimes.torch_runtime import DeviceName

_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class Gpu:
    """Peak memory of torch in megabytes; mean share of the time in which the GPU worked, where its driver says so."""

    peak_mb: float
    busy: float | None


@contextlib.contextmanager
def watched_gpu(device: DeviceName) -> Iterator[Callable[[], Gpu | None]]:
    """Watch the GPU while the block runs; yields a function that tells what was seen, None on a CPU."""
    if device == "cpu":
        yield lambda: None
        return
    torch.cuda.reset_peak_memory_stats()
    stop, shares = threading.Event(), list[float]()
    watcher = threading.Thread(target=_sample, args=(stop, shares))
    watcher.start()
    try:
        yield lambda: Gpu(
            round(torch.cuda.max_memory_allocated() / 1e6, 1), round(statistics.mean(shares), 3) if shares else None
        )
    finally:
        stop.set()
        watcher.join()


def _sample(stop: threading.Event, shares: list[float]) -> None:
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    if shutil.which(query[0]) is None:
        return
    while not stop.wait(_EVERY_S):
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=10)
        first = done.stdout.strip().splitlines()[:1]
        if done.returncode == 0 and first and first[0].isdecimal():
            shares.append(int(first[0]) / 100)
