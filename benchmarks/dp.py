"""What noise does to the mean update, and how long it takes to draw: both mechanisms, exact integers, AES bytes.

The mean of n devices gets noise of L2 norm z S sqrt(d) / n, times sqrt(n / h) where h of them are counted on to make it
(Skellam). Here it is drawn and measured, for z = 1, in units of the clip S. Quick leaves out the larger sizes.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from benchmarks import _common
from mien.dp.mechanisms import discrete_gaussian, poisson, skellam_share
from mien.secagg.masks import WordStream

CENTRAL: Final = tuple((d, n) for d in (4_096, 11_264, 131_328, 1_061_888) for n in (100, 1000))
SKELLAM: Final = ((4_096, 90, 80), (11_264, 90, 80), (131_328, 18, 16))
QUICK_SIZE: Final = 20_000
SIGMA: Final = 2.0**18
"""Steps: S 2^f for S = 0.25 and 20 fraction bits."""


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("dp", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    largest = QUICK_SIZE if args.quick else math.inf
    rows = [_row("central", d, n, n, _central_noise(d)) for d, n in CENTRAL if d <= largest]
    rows += [_row("Skellam", d, n, h, _skellam_noise(d, n, h)) for d, n, h in SKELLAM if d <= largest]
    return {
        "benchmark": "dp",
        "quick": args.quick,
        "gaussian_draws_per_s": _rate(lambda size: discrete_gaussian(size, SIGMA, _bytes())),
        "poisson_draws_per_s": _rate(lambda size: poisson(size, SIGMA**2 / 100, _bytes())),
        "rows": rows,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def expected_noise(z: float, size: int, num_devices: int, num_honest: int) -> float:
    """Return the L2 norm of the noise in the mean of n devices over S: z sqrt(d n / h) / n; centrally h = n."""
    return z * math.sqrt(size * num_devices / num_honest) / num_devices


def _bytes() -> Any:
    """Return a source of AES-CTR bytes under a fresh key."""
    stream = WordStream(os.urandom(32))
    return lambda size: stream.take(-(-size // 4)).tobytes()[:size]


def _central_noise(size: int) -> float:
    return float(np.linalg.norm(discrete_gaussian(size, SIGMA, _bytes()).astype(np.float64)))


def _skellam_noise(size: int, num_devices: int, num_honest: int) -> float:
    total = np.zeros(size, np.int64)
    for _ in range(num_devices):
        total += skellam_share(size, SIGMA, num_honest, _bytes())
    return float(np.linalg.norm(total.astype(np.float64)))


def _row(mechanism: str, size: int, num_devices: int, num_honest: int, norm: float) -> dict[str, Any]:
    _common.progress(f"{mechanism}, {size} parameters, {num_devices} phones")
    return {
        "mechanism": mechanism,
        "size": size,
        "devices": num_devices,
        "noise_of_mean_over_clip": norm / SIGMA / num_devices,
        "expected": expected_noise(1.0, size, num_devices, num_honest),
    }


def _rate(draw: Any) -> float:
    """Return draws a second, the best of three runs of processor time."""
    size, times = 1 << 18, list[float]()
    for _ in range(3):
        began = time.process_time()
        draw(size)
        times.append(time.process_time() - began)
    return size / min(times)


if __name__ == "__main__":
    main()
