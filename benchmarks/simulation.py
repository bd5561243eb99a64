"""What an emulated phone costs in Mien's engines, beside bare torch, pfl-research and Flower in the same run.

All train the same small networks (10,432 and 989,312 trained parameters) above features that are at hand, on 5 images a
phone, in one local step or five, with 2 threads: so that bookkeeping is what is measured, and not faces. The bound is a
bare loop of torch that takes the same steps and does nothing else. Peers run as child processes, each in an environment
of its own, made on demand in the user's cache; where one cannot be had, the table says why and goes on.

Several local steps (`several_steps`) are SGD's with momentum: 1, 5 and 20 of 10^4, 10^6 and 10^7 parameters, in batches
of 8 and 32, beside pfl-research alone. `pfl_ratio_..._step` is the time of the fastest engine over pfl-research's at
10^6, the worst of those cases; `..._cpu` the same of processor time, which other programs disturb less.

Figures are of the best round; `over_...` are ratios of wall time. `fused_over_torch` is the throughput of one batched
pass for a whole cohort over that of plain training, not federated, on the same images: here of MobileFaceNet, trained
whole, since for the small networks the images are next to nothing (`fused_over_large_batch_...`).
`stacked_small_over_torch` is that of `stacked` on the small convolutional network of studies, over a bare loop of the
same steps. `..._cpu` is each of processor time. A full run also lets a thousand rounds pass and says by how much the
process grew. Quick: the same phones in fewer rounds, one local step, 100 rounds for memory, several steps of 10^6; the
engines and loops that the keys are of.
Peers come last, at the smaller size alone but for several steps: only where an earlier full run has made their
environments, and for as long as a quick run's time allows; what is left out says why.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks import _common
from benchmarks._peers.environment import PEERS, PFL, Figures, Peer, Unavailable, is_installed, measure
from benchmarks._peers.order import Order
from simulation.bench.cases import face_network, small, small_network
from simulation.bench.measure import LARGE, Row, best_engine, compare, row_of, select_s
from simulation.engines.base import Cohort
from simulation.engines.engine import rounds as run_rounds
from simulation.engines.stacked import StackedEngine
from simulation.phones.usage import resident_bytes

THREADS: Final = 2
SIZES: Final = ("1e4", "1e6")
IMAGES: Final = 5
CLIENTS: Final = 100
TURNS: Final = 5
PEER_TIMEOUT_S: Final = 400.0
QUICK_S: Final = 45.0
QUICK_WAYS: Final = ("torch, bare loop", LARGE, "stacked", "fused")
AIMS: Final = {
    "ms_per_client_1e4": 1.0,
    "ms_per_client_1e6": 6.0,
    "pfl_ratio_1_step": 0.8,
    "pfl_ratio_5_steps": 0.8,
    "pfl_ratio_20_steps": 0.8,
    "fused_over_torch": 0.9,
    "stacked_small_over_torch": 0.9,
    "select_1e6_s": 0.1,
}
MOMENTUM: Final = 0.9
BATCHES: Final = (8, 32)
# Local steps and phones a round by the network's size: what a larger one takes is many times a smaller one's.
SEVERAL_ROUNDS: Final = 4
SEVERAL: Final = {"1e4": (40, (5, 20)), "1e6": (10, (1, 5, 20)), "1e7": (3, (5, 20))}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("simulation", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--no-peers", action="store_true", help="Mien and bare torch alone")
    args = parser.parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    orders = _orders(args.quick)
    ours = {order: _ours(order, only=QUICK_WAYS if args.quick else ()) for order in orders}
    asked = [] if args.no_peers else orders[:1] if args.quick else orders
    first = {order.size: rows for order, rows in ours.items() if order.steps == 1}
    growth = memory_growth_mb(100 if args.quick else 1000)
    fused = fused_over_torch(threads=THREADS, rounds=TURNS)
    small_net = stacked_over_torch(threads=THREADS, rounds=TURNS)
    several = _several(args.quick)
    ours_of_several = {order: _ours(order, only=("stacked", "fused")) for order in several}
    until = started + QUICK_S if args.quick else None
    pfl = {} if args.no_peers else _peer(PFL, several, until)
    theirs = {order: _peers(order, until) for order in asked}
    result: dict[str, Any] = {
        "benchmark": "simulation",
        "quick": args.quick,
        **{f"ms_per_client_{size}": best_engine(first[size]).wall_ms for size in SIZES},
        **{f"cpu_ms_per_client_{size}": best_engine(first[size]).cpu_ms for size in SIZES},
        **{f"best_engine_{size}": best_engine(first[size]).engine for size in SIZES},
        **_over_loops(first),
        **_over_peers(ours, theirs),
        **_pfl_ratios(ours_of_several, pfl),
        "fused_over_torch": round(fused[0], 3),
        "fused_over_torch_cpu": round(fused[1], 3),
        "stacked_small_over_torch": round(small_net[0], 3),
        "stacked_small_over_torch_cpu": round(small_net[1], 3),
        "select_1e6_s": round(select_s(), 6),
        "rss_mb_per_1000_rounds": round(growth, 2),
        "aims": AIMS,
        "images": IMAGES,
        "threads": THREADS,
        "rows": [row.as_record() for rows in ours.values() for row in rows],
        "several_steps": [_several_record(order, rows, pfl.get(order)) for order, rows in ours_of_several.items()],
        "peers": [_peer_record(order, peer, found) for order, all_ in theirs.items() for peer, found in all_.items()],
    }
    return result | {
        "duration_s": round(time.monotonic() - started, 1),
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _orders(quick: bool) -> list[Order]:
    steps, rounds = ((1,), 5) if quick else ((1, 5), 7)
    return [Order(size, CLIENTS, rounds, IMAGES, number, THREADS) for size in SIZES for number in steps]


def _several(quick: bool) -> list[Order]:
    """Return the orders of local steps with momentum, on all of a phone's images each."""
    sizes = ("1e6",) if quick else tuple(SEVERAL)
    return [
        Order(size, clients, SEVERAL_ROUNDS, images, number, THREADS, MOMENTUM)
        for size in sizes
        for clients, steps in (SEVERAL[size],)
        for number in steps
        for images in BATCHES
    ]


def _ours(order: Order, *, only: tuple[str, ...] = ()) -> list[Row]:
    _common.progress(f"{order.size} parameters, {order.steps} local steps of {order.images} images: Mien and torch")
    case = small(order.size, clients=order.clients, images=order.images, steps=order.steps, momentum=order.momentum)
    return compare(case, threads=order.threads, rounds=order.rounds, only=only)


def fused_over_torch(*, threads: int, rounds: int, clients: int = 8) -> tuple[float, float]:
    """Return the throughput of one pass for a whole cohort over that of plain training on the same images.

    By wall clock and by processor time.

    The network is MobileFaceNet, trained whole: by default 8 phones of 4 images, in plain training one batch of 32.
    """
    case = face_network("mobilefacenet", clients=clients, images=4)
    rows = compare(case, threads=threads, rounds=rounds, only=("fused", LARGE))
    fused, plain = (row_of(rows, name) for name in ("fused", LARGE))
    assert fused is not None
    assert plain is not None
    return fused.images_per_s / plain.images_per_s, plain.cpu_ms / fused.cpu_ms


def stacked_over_torch(*, threads: int, rounds: int, clients: int = 8) -> tuple[float, float]:
    """Return the throughput of stacked phones over that of a bare loop of torch, which takes the same steps.

    By wall clock and by processor time.

    The network is the small convolutional one of studies from the first layer on: 4 steps of 32 images a phone.
    """
    only = ("stacked", "torch, bare loop")
    rows = compare(small_network(clients=clients), threads=threads, rounds=rounds, only=only)
    stacked, plain = (row_of(rows, name) for name in only)
    assert stacked is not None
    assert plain is not None
    return stacked.images_per_s / plain.images_per_s, plain.cpu_ms / stacked.cpu_ms


def memory_growth_mb(num_rounds: int, *, clients: int = 10) -> float:
    """Return by how many megabytes a thousand rounds let the process grow: a line through all but the first 2/5.

    0 where the system does not tell a process's memory (/proc).
    """
    case = small("1e4", clients=clients)
    task = replace(case.task, rounds=num_rounds)
    engine = StackedEngine(case.runtime(1, "cpu"))
    work = case.work(case.cohort, 1)
    samples = []
    for step in run_rounds(task, case.part, work.dim, work.state, Cohort(work.cohort.crops), engine):
        if step.record.round > 0.4 * num_rounds and step.record.round % max(1, num_rounds // 50) == 0:
            gc.collect()
            samples.append((step.record.round, resident_bytes()))
    at, held = np.array(samples, np.float64).T
    return float(np.polyfit(at, held, 1)[0] * 1000 / 1e6)


def _peers(order: Order, until: float | None) -> dict[str, Figures | Unavailable]:
    return {peer.name: _peer(peer, [order], until)[order] for peer in PEERS}


def _peer(peer: Peer, orders: Sequence[Order], until: float | None) -> dict[Order, Figures | Unavailable]:
    """Return a peer's figures; `until`, on the monotonic clock, ends a quick run's time for all peers together."""
    if until is not None and not is_installed(peer):
        why = "its environment is not there yet, and a quick run makes none; run without --quick once"
        return dict.fromkeys(orders, Unavailable(why))
    left_s = PEER_TIMEOUT_S if until is None else until - time.monotonic()
    if left_s < 1:
        return dict.fromkeys(orders, Unavailable("no time was left for it in a quick run; run without --quick"))
    for order in orders:
        _common.progress(f"{order.size} parameters, {order.steps} local steps of {order.images} images: {peer.name}")
    return measure(peer, orders, timeout_s=left_s)


def _over_loops(first: Mapping[str, list[Row]]) -> dict[str, float | None]:
    """Return ratios to torch's loops; None for an engine that did not run."""
    found: dict[str, float | None] = {}
    for size, rows in first.items():
        bare, fused = row_of(rows, "torch, bare loop"), row_of(rows, "fused")
        large = row_of(rows, "torch, large batch")
        assert bare is not None
        assert large is not None
        found[f"over_bare_loop_{size}"] = round(best_engine(rows).wall_ms / bare.wall_ms, 3)
        found[f"fused_over_large_batch_{size}"] = round(fused.images_per_s / large.images_per_s, 3) if fused else None
    return found


def _over_peers(
    ours: Mapping[Order, list[Row]], theirs: Mapping[Order, Mapping[str, Figures | Unavailable]]
) -> dict[str, float]:
    """Return what a peer needs over what the best engine needs, by wall time and by CPU time."""
    found: dict[str, float] = {}
    for order, peers in theirs.items():
        best = best_engine(ours[order])
        for name, figures in peers.items():
            if isinstance(figures, Figures):
                key = f"{name.lower().replace('-', '_')}_over_mien_{order.size}_{order.steps}_steps"
                found[key] = round(min(figures.timed.wall_ms) / best.wall_ms, 2)
                found[f"{key}_cpu"] = round(min(figures.timed.cpu_ms) / best.cpu_ms, 2)
    return found


def _pfl_ratios(ours: Mapping[Order, list[Row]], pfl: Mapping[Order, Figures | Unavailable]) -> dict[str, float]:
    """Return the best engine's time over pfl-research's at 10^6 by local steps, the worst of their batches."""
    found: dict[str, float] = {}
    for order, figures in pfl.items():
        if order.size == "1e6" and isinstance(figures, Figures):
            key = f"pfl_ratio_{order.steps}_step{'s' * (order.steps > 1)}"
            for name, ratio in zip((key, f"{key}_cpu"), _over_pfl(ours[order], figures), strict=True):
                found[name] = max(found.get(name, 0.0), ratio)
    return found


def _over_pfl(rows: list[Row], figures: Figures) -> tuple[float, float]:
    """Return the best engine's time over pfl-research's, by wall time and by processor time."""
    best, timed = best_engine(rows), figures.timed
    return round(best.wall_ms / min(timed.wall_ms), 3), round(best.cpu_ms / min(timed.cpu_ms), 3)


def _several_record(order: Order, rows: list[Row], pfl: Figures | Unavailable | None) -> dict[str, Any]:
    """Return a case of several steps: both engines' milliseconds a phone, and what pfl-research takes."""
    record: dict[str, Any] = {"case": order.size, "steps": order.steps, "images": order.images}
    for row in rows:
        record |= {f"{row.engine}_ms": row.wall_ms, f"{row.engine}_cpu_ms": row.cpu_ms}
    if isinstance(pfl, Figures):
        record |= {"pfl_ms": round(min(pfl.timed.wall_ms), 3), "pfl_cpu_ms": round(min(pfl.timed.cpu_ms), 3)}
        record["pfl_ratio"], record["pfl_ratio_cpu"] = _over_pfl(rows, pfl)
    elif pfl is not None:
        record["unavailable"] = pfl.reason
    return record


def _peer_record(order: Order, peer: str, found: Figures | Unavailable) -> dict[str, Any]:
    about = {"peer": peer, "case": order.size, "steps": order.steps, "clients": order.clients}
    if isinstance(found, Unavailable):
        return about | {"unavailable": found.reason}
    wall, cpu = min(found.timed.wall_ms), min(found.timed.cpu_ms)
    return about | {"version": found.version, "wall_ms": round(wall, 3), "cpu_ms": round(cpu, 3)}


if __name__ == "__main__":
    main()
