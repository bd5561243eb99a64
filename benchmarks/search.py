"""Identification among 100,000 templates, beside exact numpy; and what it costs to make a gallery's templates ready.

A gallery's templates are decrypted and turned back once, then every search is one exact product; the reference is
numpy's product and argmax on the same numbers, both with one thread: of several that wait for each other beside other
programs the ratio was 0.5 to 1.6. A gallery of that size would hold 4 GB of crops, so reading is timed on
2,000 people (quick: 300) with a crop each, and turning back on all. Embeddings are drawn at random: speed does not
depend on them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import _common
from device_sdk.people.enrolled import BackedUp, References, Template
from device_sdk.people.gallery import Gallery
from device_sdk.storage.keystore import FileKeyStore
from mien.specs import FaceInputSpec
from mien.template_protection import rotate, unrotate
from simulation.bench.turns import in_turns, mean_of, over, timed

NUM_TEMPLATES: Final = 100_000
DIM: Final = 128
MODEL: Final = "0" * 64
TURNS: Final = 15
TURN_S: Final = 0.03
_THREADS: Final = "OPENBLAS_NUM_THREADS"


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("search", (__doc__ or "").split("\n\n")[0]).parse_args()
    if os.environ.get(_THREADS) != "1":  # read when numpy is loaded, which it is
        again = [sys.executable, "-m", "benchmarks.search", *sys.argv[1:]]
        sys.exit(subprocess.run(again, env={**os.environ, _THREADS: "1"}, check=False).returncode)
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    rng = np.random.default_rng(0)
    unit_ND = _unit(rng, NUM_TEMPLATES)
    references = References(MODEL, tuple(str(number) for number in range(NUM_TEMPLATES)), unit_ND)
    probes = _unit(rng, 20)
    searches: Mapping[str, Callable[[], object]] = {
        "ours": lambda: references.nearest(probes[0]),
        "exact": lambda: int(np.argmax(unit_ND @ probes[0])),
    }
    ways = {name: partial(mean_of, partial(timed, search), TURN_S) for name, search in searches.items()}
    found = in_turns(ways, TURNS)
    ours, exact = (min(wall_s for wall_s, _ in costs) for costs in found.values())
    assert all(references.nearest(probe)[0] == str(int(np.argmax(unit_ND @ probe))) for probe in probes)
    keys = [number.to_bytes(32, "big") for number in range(NUM_TEMPLATES)]
    stored = rotate(unit_ND, keys)
    people = 300 if args.quick else 2_000
    return {
        "benchmark": "search",
        "quick": args.quick,
        "num_templates": NUM_TEMPLATES,
        "dim": DIM,
        "search_ms": 1e3 * ours,
        "exact_numpy_ms": 1e3 * exact,
        "search_over_numpy": over(found["ours"], found["exact"])[1],
        "turn_back_s": _seconds(lambda: unrotate(stored, keys)),
        "read_ms_per_template": 1e3 * _reading_s(people) / people,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _unit(rng: np.random.Generator, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    vectors = rng.standard_normal((count, DIM))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _reading_s(people: int) -> float:
    """Return how long it takes to read the templates of so many people out of an encrypted gallery."""
    rng = np.random.default_rng(1)
    spec, unit_ND = FaceInputSpec(dim=DIM), _unit(rng, people)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        gallery = Gallery.open(home / "device.db", FileKeyStore(home / "keys"))
        crops = np.zeros((1, 112, 112, 3), np.uint8)
        gallery.restore(
            [
                (BackedUp(f"person {number}", 0, None, (crops,)), [Template(unit_ND[number], 1, MODEL, spec)])
                for number in range(people)
            ]
        )
        seconds = _seconds(lambda: gallery.references(MODEL))
        gallery.close()
    return seconds


if __name__ == "__main__":
    main()
