"""Flower's SecAgg+ beside ours: its own virtual environment, its functions' times, and a round made up of them.

Flower is no dependency of Mien and never in its lock file: it is installed once, by pip, into a folder of the user's
cache, and runs as a child process. Where that fails, the benchmark says why and goes on without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import _common

VERSION: Final = "1.42.0"
INSTALL_TIMEOUT_S: Final = 300
RUN_TIMEOUT_S: Final = 600
_PIP_OPTIONS: Final = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15")
_WORKER: Final = Path(__file__).with_name("_flower_primitives.py")


@dataclass(frozen=True)
class Shape:
    """A round: devices, threshold, how many are lost after sharing, parameters."""

    n: int
    t: int
    lost: int
    size: int

    @property
    def survivors(self) -> int:
        """Devices whose vectors are in the sum."""
        return self.n - self.lost


@dataclass(frozen=True)
class Unavailable:
    """Why there are no figures of Flower's."""

    reason: str


def measure(shape: Shape, small: Shape, *, repetitions: int) -> Mapping[str, float] | Unavailable:
    """Return CPU seconds of Flower's functions at `shape`, and of a whole round at `small`; see the worker's names."""
    try:
        python = _installed()
        order = json.dumps({**asdict(shape), "repetitions": repetitions, "small": asdict(small)})
        done = subprocess.run(
            [str(python), "-I", str(_WORKER), order],
            capture_output=True,
            text=True,
            check=True,
            timeout=RUN_TIMEOUT_S,
            env=_environment(),
        )
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return Unavailable(f"{Path(error.cmd[0]).name} ended with {error.returncode}: {_last_line(error.stderr)}")
    except subprocess.TimeoutExpired as error:
        return Unavailable(f"{Path(error.cmd[0]).name} did not end within {error.timeout:.0f} s")
    except (OSError, IndexError, json.JSONDecodeError) as error:
        return Unavailable(f"{type(error).__name__}: {error}")
    return figures


def composed(found: Mapping[str, float], shape: Shape) -> dict[str, Any]:
    """Return what a round of `shape` costs Flower in CPU seconds, made up of its measured functions, with the counts.

    As its workflow runs: the server combines all shares that survivors send, removes a self mask for each survivor, and
    agrees on and expands a mask with **every** other device for each one that was lost.
    """
    n, others = shape.n, shape.n - 1
    pair_masks = shape.lost * others
    server = {
        "uploads_s": shape.survivors * (found["unpack_s"] + found["add_s"]),
        "combine_s": shape.lost * found["combine_key_s"] + shape.survivors * found["combine_seed_s"],
        "agree_s": pair_masks * found["agree_s"],
        "masks_s": (pair_masks + shape.survivors) * (found["mask_s"] + found["add_s"]),
    }
    device = {
        "keys_s": 2 * found["key_pair_s"] + 2 * others * found["agree_s"],
        "shares_s": found["share_key_s"] + found["share_seed_s"] + others * (found["encrypt_s"] + found["decrypt_s"]),
        "quantise_s": found["quantise_s"],
        "masks_s": n * (found["mask_s"] + found["add_s"]) + found["mod_s"] + found["pack_s"],
    }
    return {
        "flower_server_s": round(sum(server.values()), 2),
        "flower_device_s": round(sum(device.values()), 3),
        "flower_server_parts": {name: round(value, 3) for name, value in server.items()},
        "flower_device_parts": {name: round(value, 4) for name, value in device.items()},
        "flower_counts": {
            "uploads": shape.survivors,
            "keys_combined": shape.lost,
            "seeds_combined": shape.survivors,
            "agreements": pair_masks,
            "masks": pair_masks + shape.survivors,
            "device_masks": n,
            "device_agreements": 2 * others,
        },
    }


def _installed() -> Path:
    """Return the interpreter of Flower's environment, which is made the first time."""
    folder = _cache() / f"flwr-{VERSION}"
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    _common.progress(f"installing flwr {VERSION} into {folder}: once, 300 MB")
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", *_PIP_OPTIONS, f"flwr=={VERSION}"],
    )
    for command in commands:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S)
    (folder / "complete").touch()
    _common.progress(f"installed in {time.monotonic() - started:.0f} s")
    return python


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mien" / "benchmarks"


def _environment() -> dict[str, str]:
    """Return the child's environment: nothing of ours but where its home is, and no telemetry."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "FLWR_TELEMETRY_ENABLED": "0"}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
