"""What an emulated phone costs in Mien's engines, beside bare torch, pfl-research and Flower in the same run.

All train the same small networks (10,432 and 989,312 trained parameters) above features that are at hand, on 5 images a
phone, in one local step or five, with 2 threads: so that bookkeeping is what is measured, and not faces. The bound is a
bare loop of torch that takes the same steps and does nothing else. Peers run as child processes, each in an environment
of its own, made on demand in the user's cache; where one cannot be had, the table says why and goes on.

Several local steps (`several_steps`) are SGD's with momentum: 1, 5 and 20 of 10^4, 10^6 and 10^7 parameters, in batches
of 8 and 32, beside pfl-research alone. `pfl_ratio_..._step` is the time of the fastest engine over pfl-research's at
10^6, the worst of those cases; `..._cpu` the same of processor time, which other programs disturb less.

Everybody takes turns, a peer's process too, which waits for a line before each of its rounds: a turn is a round, or as
many as take 0.05 s, right after the others', and counts as its mean. A ratio is the median over the turns of that of
their times, by the wall clock unless it is called `..._cpu`; milliseconds are of the best turn. On a machine that ten
programs shared, five turns' ratios differed by 3 to 11 % (standard deviation), those of least times by 6 to 45 %.
`fused_over_torch` is the throughput of one batched pass for a whole cohort over that of plain training, not federated,
on the same images: here of MobileFaceNet, trained whole, since for the small networks the images are next to nothing
(`fused_over_large_batch_...`).
`stacked_small_over_torch` is that of `stacked` on the small convolutional network of studies, over a bare loop of the
same steps. A full run also lets a thousand rounds pass and says by how much the process grew.

Quick: the same phones in fewer turns, one local step, 100 rounds for memory, several steps of 10^6; of the engines
`fused` alone, which has been the fastest of them, and the loops that the keys are of. pfl-research comes first, at the
smaller size alone but for several steps, and Flower last, for as long as a quick run's time allows: both only where an
earlier full run has made their environments. What is left out says why.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks import _common
from benchmarks._peers.environment import FLOWER, PFL, Guest, Peer, guest, is_installed
from benchmarks._peers.order import Order
from simulation.bench.cases import face_network, small, small_network
from simulation.bench.measure import LARGE, Row, best_engine, compare, row_of, select_s
from simulation.bench.turns import Way
from simulation.engines.base import Cohort
from simulation.engines.engine import rounds as run_rounds
from simulation.engines.stacked import StackedEngine
from simulation.phones.usage import resident_bytes

THREADS: Final = 2
SIZES: Final = ("1e4", "1e6")
IMAGES: Final = 5
CLIENTS: Final = 100
TURNS: Final = 5
WHOLE_TURNS: Final = 9
QUICK_TURNS: Final = {1: 7, 5: 5, 20: 4}
PEER_TIMEOUT_S: Final = 900.0
QUICK_S: Final = 38.0
STARTS_WITHIN_S: Final = 10.0
QUICK_WAYS: Final = ("torch, bare loop", LARGE, "fused")
BATCHED: Final = ("stacked", "fused")
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
    orders, several = _orders(args.quick), _several(args.quick)
    asked = orders[:1] if args.quick else orders
    # 1. Beside pfl-research, first, so that a quick run's time is left for it. While it starts, memory is looked at.
    with _guest(PFL, args) as pfl:
        growth = memory_growth_mb(100 if args.quick else 1000)
        fastest = BATCHED[-1:] if args.quick else BATCHED
        of_several = {order: _beside(PFL, pfl, order, only=fastest) for order in several}
        peers = {order: [_beside(PFL, pfl, order, only=fastest)] for order in asked}
    # 2. Beside loops of torch.
    ours = {order: _ours(order, only=QUICK_WAYS if args.quick else ()) for order in orders}
    first = {order.size: rows for order, rows in ours.items() if order.steps == 1}
    fused = fused_over_torch(threads=THREADS, turns=TURNS)
    small_net = stacked_over_torch(threads=THREADS, turns=TURNS)
    # 3. Beside Flower, for as long as a quick run's time allows.
    for order in asked:
        with _guest(FLOWER, args, started + QUICK_S if args.quick else None) as flower:
            peers[order].append(_beside(FLOWER, flower, order, only=(best_engine(ours[order]).engine,)))
    result: dict[str, Any] = {
        "benchmark": "simulation",
        "quick": args.quick,
        **{f"ms_per_client_{size}": best_engine(first[size]).wall_ms for size in SIZES},
        **{f"cpu_ms_per_client_{size}": best_engine(first[size]).cpu_ms for size in SIZES},
        **{f"best_engine_{size}": best_engine(first[size]).engine for size in SIZES},
        **_over_loops(first),
        **_over_peers(peers),
        **_pfl_ratios(of_several),
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
        "several_steps": [_several_record(order, beside) for order, beside in of_several.items()],
        "peers": [_peer_record(order, beside) for order, all_ in peers.items() for beside in all_],
    }
    return result | {
        "duration_s": round(time.monotonic() - started, 1),
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _orders(quick: bool) -> list[Order]:
    steps = (1,) if quick else (1, 5)
    return [Order(size, CLIENTS, _turns(number, quick), IMAGES, number, THREADS) for size in SIZES for number in steps]


def _several(quick: bool) -> list[Order]:
    """Return the orders of local steps with momentum, on all of a phone's images each."""
    sizes = ("1e6",) if quick else tuple(SEVERAL)
    return [
        Order(size, clients, _turns(number, quick), images, number, THREADS, MOMENTUM)
        for size in sizes
        for clients, steps in (SEVERAL[size],)
        for number in steps
        for images in BATCHES
    ]


def _turns(steps: int, quick: bool) -> int:
    """Return in how many turns an order is measured: fewer of the longer ones, where the time is short."""
    return QUICK_TURNS[steps] if quick else WHOLE_TURNS


def _ours(order: Order, *, only: tuple[str, ...] = (), beside: Mapping[str, Way] | None = None) -> list[Row]:
    who = " and ".join(["Mien", *(beside or ["torch"])])
    _common.progress(f"{order.size} parameters, {order.steps} local steps of {order.images} images: {who}")
    case = small(order.size, clients=order.clients, images=order.images, steps=order.steps, momentum=order.momentum)
    return compare(case, threads=order.threads, turns=order.turns, only=only, beside=beside)


@contextlib.contextmanager
def _guest(peer: Peer, args: argparse.Namespace, until: float | None = None) -> Iterator[Guest]:
    """Have a peer take rounds beside a block: `until`, on the monotonic clock, or for as long as a whole run takes."""
    left_s = PEER_TIMEOUT_S if until is None else until - time.monotonic()
    if args.no_peers:
        yield Guest.none("--no-peers")
    elif args.quick and not is_installed(peer):
        yield Guest.none("its environment is not there yet, and a quick run makes none; run without --quick once")
    elif left_s < STARTS_WITHIN_S:
        yield Guest.none("no time was left for it in a quick run; run without --quick")
    else:
        with guest(peer, threads=THREADS, timeout_s=left_s) as found:
            yield found


@dataclass(frozen=True)
class Beside:
    """Engines beside a peer, in turns: their rows, the peer's among them where it took one, or why it took none."""

    peer: Peer
    rows: Sequence[Row]
    version: str
    unavailable: str

    @property
    def theirs(self) -> Row | None:
        """The peer's row."""
        return row_of(self.rows, self.peer.name)

    def ours_over_theirs(self) -> tuple[float, float] | None:
        """Return the best engine's time over the peer's by wall time and by processor time."""
        return best_engine(self.rows).over_row(self.theirs) if self.theirs else None


def _beside(peer: Peer, visitor: Guest, order: Order, *, only: tuple[str, ...]) -> Beside:
    if visitor.reason:
        return Beside(peer, _ours(order, only=only), visitor.version, visitor.reason)
    rows = _ours(order, only=only, beside={peer.name: visitor.rounds_of(order)})
    return Beside(peer, rows, visitor.version, visitor.reason)


def fused_over_torch(*, threads: int, turns: int, clients: int = 8) -> tuple[float, float]:
    """Return the throughput of one pass for a whole cohort over that of plain training on the same images.

    By wall clock and by processor time.

    The network is MobileFaceNet, trained whole: by default 8 phones of 4 images, in plain training one batch of 32.
    """
    case = face_network("mobilefacenet", clients=clients, images=4)
    rows = compare(case, threads=threads, turns=turns, only=("fused", LARGE))
    fused, plain = (row_of(rows, name) for name in ("fused", LARGE))
    assert fused is not None
    assert plain is not None
    return plain.over_row(fused)


def stacked_over_torch(*, threads: int, turns: int, clients: int = 8) -> tuple[float, float]:
    """Return the throughput of stacked phones over that of a bare loop of torch, which takes the same steps.

    By wall clock and by processor time.

    The network is the small convolutional one of studies from the first layer on: 4 steps of 32 images a phone.
    """
    only = ("stacked", "torch, bare loop")
    rows = compare(small_network(clients=clients), threads=threads, turns=turns, only=only)
    stacked, plain = (row_of(rows, name) for name in only)
    assert stacked is not None
    assert plain is not None
    return plain.over_row(stacked)


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


def _over_loops(first: Mapping[str, list[Row]]) -> dict[str, float | None]:
    """Return ratios to torch's loops; None for an engine that did not run."""
    found: dict[str, float | None] = {}
    for size, rows in first.items():
        bare, fused = row_of(rows, "torch, bare loop"), row_of(rows, "fused")
        large = row_of(rows, "torch, large batch")
        assert bare is not None
        assert large is not None
        found[f"over_bare_loop_{size}"] = round(best_engine(rows).over_row(bare)[0], 3)
        found[f"fused_over_large_batch_{size}"] = round(large.over_row(fused)[0], 3) if fused else None
    return found


def _over_peers(found: Mapping[Order, Sequence[Beside]]) -> dict[str, float]:
    """Return what a peer needs over what the best engine needs, by wall time and by CPU time."""
    ratios: dict[str, float] = {}
    for order, peers in found.items():
        for beside in peers:
            if (ratio := beside.ours_over_theirs()) is not None:
                name = beside.peer.name.lower().replace("-", "_")
                key = f"{name}_over_mien_{order.size}_{order.steps}_steps"
                ratios[key], ratios[f"{key}_cpu"] = (round(1 / each, 2) for each in ratio)
    return ratios


def _pfl_ratios(found: Mapping[Order, Beside]) -> dict[str, float]:
    """Return the best engine's time over pfl-research's at 10^6 by local steps, the worst of their batches."""
    ratios: dict[str, float] = {}
    for order, beside in found.items():
        ratio = beside.ours_over_theirs()
        if order.size == "1e6" and ratio is not None:
            key = f"pfl_ratio_{order.steps}_step{'s' * (order.steps > 1)}"
            for name, value in zip((key, f"{key}_cpu"), ratio, strict=True):
                ratios[name] = max(ratios.get(name, 0.0), round(value, 3))
    return ratios


def _several_record(order: Order, beside: Beside) -> dict[str, Any]:
    """Return a case of several steps: both engines' milliseconds a phone, and what pfl-research takes."""
    record: dict[str, Any] = {"case": order.size, "steps": order.steps, "images": order.images}
    for row in beside.rows:
        name = "pfl" if row is beside.theirs else row.engine
        record |= {f"{name}_ms": row.wall_ms, f"{name}_cpu_ms": row.cpu_ms}
    if (ratio := beside.ours_over_theirs()) is not None:
        record["pfl_ratio"], record["pfl_ratio_cpu"] = (round(each, 3) for each in ratio)
    return record | ({"unavailable": beside.unavailable} if beside.unavailable else {})


def _peer_record(order: Order, beside: Beside) -> dict[str, Any]:
    about = {"peer": beside.peer.name, "case": order.size, "steps": order.steps, "clients": order.clients}
    theirs = beside.theirs
    if theirs is None:
        return about | {"unavailable": beside.unavailable}
    return about | {"version": beside.version, "wall_ms": theirs.wall_ms, "cpu_ms": theirs.cpu_ms}


if __name__ == "__main__":
    main()
