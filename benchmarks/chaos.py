"""Rounds among kill -9, broken networks, failing disks and wrong clocks: what was lost, wrong or stuck.

Real coordinators, a registrar and, where a scenario says so, PostgreSQL and an object store serve tasks of plain sums,
under secure aggregation and in asynchronous mode. Devices keep their own account of what was acknowledged to them.
`lost` are acknowledged contributions that are in no sum although their round closed, or whose device never heard how
its round ended; `wrong` are models that are not the weighted mean of exactly their round's members, or accounts
(rounds, audit log, privacy ledger, what devices were told) that disagree; `stuck` are attempts that outlived their
deadlines. The exit code is 1 unless all three are 0. What is injected, and how the instants of kills are chosen:
docs/chaos.md.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import _common
from mien.errors import ConfigError, MissingDependencyError

QUICK_S = 32.0
"""How long a quick run goes on killing at most, on however busy a machine."""


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("chaos", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--scenario", help="play one scenario alone, by its name")
    parser.add_argument("--seed", type=int, help="of a run that is to be played again; default: a new one")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long, in calm")
    args = parser.parse_args()
    _common.run(
        lambda: benchmark(args),
        only_json=args.json,
        holds=lambda result: not (result["lost"] or result["wrong"] or result["stuck"]),
    )


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return counts over all scenarios, then what each has shown."""
    try:
        from tests.chaos import scenarios
    except ImportError as error:
        raise MissingDependencyError(f"chaos needs {error.name}; run it in a checkout after make setup") from error
    if args.scenario is not None and args.scenario not in scenarios.ALL:
        raise ConfigError(f"there is no scenario {args.scenario!r}; take one of {', '.join(scenarios.ALL)}")
    named = [scenarios.ALL[args.scenario]] if args.scenario is not None else list(scenarios.FULL.values())
    chosen = [scenarios.QUICK] if args.quick else named
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    until = time.monotonic() + (QUICK_S if args.quick else 60.0 * args.minutes)
    results, skipped = [], {}
    for scenario in chosen:
        if (reason := scenarios.missing(scenario)) or time.monotonic() > until:
            skipped[scenario.name] = reason or "the time was over"
            continue
        _common.progress(f"{scenario.name}, seed {seed}")
        results.append(scenarios.play_here(scenario, seed, until=until))
        _common.progress(_in_words(results[-1]))
    return _summary(results, skipped, seed, quick=args.quick)


def _in_words(result: Any) -> str:
    counts = ", ".join(f"{len(getattr(result, name))} {name}" for name in ("lost", "wrong", "stuck"))
    closed = sum(result.rounds_closed.values())
    return f"{result.kills} kills, {closed} rounds closed, {counts} in {result.seconds} s; again: {result.replay}"


def _summary(results: Sequence[Any], skipped: Mapping[str, str], seed: int, *, quick: bool) -> dict[str, Any]:
    return {
        "kills": sum(result.kills for result in results),
        "lost": sum(len(result.lost) for result in results),
        "wrong": sum(len(result.wrong) for result in results),
        "stuck": sum(len(result.stuck) for result in results),
        "rounds_closed": sum(sum(result.rounds_closed.values()) for result in results),
        "rounds_aborted": sum(sum(result.rounds_aborted.values()) for result in results),
        "acknowledged": sum(result.acknowledged for result in results),
        "seconds": round(sum(result.seconds for result in results), 1),
        "killed_at": _added(result.killed_at for result in results),
        "killed_how": _added(result.killed_how for result in results),
        "injected": _added(result.injected for result in results),
        "seed": seed,
        "skipped": dict(skipped),
        "scenarios": [asdict(result) for result in results],
        "quick": quick,
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _added(counts: Any) -> dict[str, int]:
    return dict(sum((Counter(each) for each in counts), Counter[str]()).most_common())


if __name__ == "__main__":
    main()
