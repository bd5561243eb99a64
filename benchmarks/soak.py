"""A thousand rounds on one coordinator: whether memory, open files, threads and its folder stay as they are.

Fake devices take part in two tasks of a tiny model, one of plain sums and one under secure aggregation, as fast as
rounds go; metrics are scraped meanwhile. Growth is the slope of a straight line through the samples after the first
two fifths of the rounds, for a thousand rounds. The database grows with the history that it keeps; its growth is told.
Quick: a hundred rounds, in all of which a process is still warming up, so that growth is left out, and only leftovers
are looked for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import _common
from mien.errors import MissingDependencyError

if TYPE_CHECKING:
    from tests.chaos.soak import Sample

ROUNDS: Final = 1000
QUICK_ROUNDS: Final = 100
AIMS: Final = {"rss_growth_mb_per_1000": 4.0, "fd_growth_per_1000": 2.0, "thread_growth_per_1000": 2.0}
"""A whole run holds when nothing grows faster; a quick one does not say."""

GROWTH: Final = {
    "rss_growth_mb_per_1000": ("rss_bytes", 1e6),
    "fd_growth_per_1000": ("open_files", 1.0),
    "thread_growth_per_1000": ("threads", 1.0),
    "file_growth_per_1000": ("files", 1.0),
    "database_growth_mb_per_1000": ("database_bytes", 1e6),
}
"""What of a sample grows, and its unit, by key."""

NO_GROWTH: Final = "not measured: in a hundred rounds a process is still warming up; run without --quick"


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("soak", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, quick: {QUICK_ROUNDS}")
    args = parser.parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json, holds=holds)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return how much everything grew."""
    try:
        from tests.chaos import soak
    except ImportError as error:
        raise MissingDependencyError(f"soak needs {error.name}; run it in a checkout after make setup") from error
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    _common.progress(f"{rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="mien-soak-") as folder:
        found = asyncio.run(soak.soak(Path(folder), rounds))
    first, last = found.samples[0], found.samples[-1]
    return {
        "rounds": found.rounds,
        "rounds_aborted": found.aborted,
        "seconds": found.seconds,
        **growth_of(found.samples, quick=args.quick),
        "rss_first_mb": round(first.rss_bytes / 1e6, 1),
        "rss_last_mb": round(last.rss_bytes / 1e6, 1),
        "open_files_last": last.open_files,
        "left_in_spool": found.left_in_spool,
        "surplus_models": found.surplus_models,
        "surplus_states": found.surplus_states,
        "errors": list(found.errors),
        "rss_mb": [[each.rounds, round(each.rss_bytes / 1e6, 1)] for each in found.samples],
        "aims": {} if args.quick else AIMS,
        "quick": args.quick,
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def growth_of(samples: Sequence[Sample], *, quick: bool) -> dict[str, Any]:
    """Return what grew by how much in a thousand rounds; of a quick run, that it says nothing of that."""
    from tests.chaos.soak import growth

    if quick:
        return {"growth": NO_GROWTH}
    return {key: round(growth(samples, name) / unit, 2) for key, (name, unit) in GROWTH.items()}


def holds(result: Mapping[str, Any]) -> bool:
    """Return whether nothing was left over and nothing grew faster than aimed at; a quick run tells no growth."""
    nothing_left = not (result["left_in_spool"] or result["surplus_models"] or result["surplus_states"])
    return nothing_left and (result["quick"] or all(result[name] <= aim for name, aim in AIMS.items()))


if __name__ == "__main__":
    main()
