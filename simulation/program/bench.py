"""Measurements and output of `mien-sim bench`: the engines on this machine, and which to use."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.table import Table

from device_sdk.runtimes.torch_runtime import DeviceName
from mien.errors import MissingDependencyError
from mien.shell import cli
from simulation.bench.cases import Case, face_network, small
from simulation.bench.measure import DRAWN, LARGE, REGISTERED, Row, best_engine, compare, select_s

PHONES = 100
QUICK_PHONES = 20
GPU_PHONES = 1000
GPU_NETWORKS = ("mobilefacenet", "iresnet18")


def bench(*, clients: int | None, threads: int | None, device: DeviceName, quick: bool, as_json: bool) -> None:
    """Measure and print, telling on stderr what is done; raises MissingDependencyError for a GPU that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingDependencyError("this machine or this torch has no CUDA; leave --device out to measure the CPU")
    found = measure(
        clients=phones_of(clients, quick=quick), threads=threads or _cores(), device=device, quick=quick, tell=cli.tell
    )
    cli.emit(found, as_json=as_json, human=lambda: _print(found))


def phones_of(clients: int | None, *, quick: bool) -> int:
    """Return the number of phones a round: `clients`, or by default as many as the time allows."""
    return clients or (QUICK_PHONES if quick else PHONES)


def measure(
    *, clients: int, threads: int, device: DeviceName, quick: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return the table as a record: rows, ratios, the machine and the engine to use for each case."""
    started = time.monotonic()
    groups = []
    for case in _cases(clients, device, quick):
        tell(f"{case.name}, {case.clients} phones x {case.images} images, local steps: {case.steps}")
        groups.append(compare(case, threads=threads, turns=2 if quick else 5, device=device, tell=tell))
    return {
        "cases": [_record(rows) for rows in groups],
        "recommended": best_engine(groups[-1]).engine,
        "select_1e6_s": select_s(),
        "cores": _cores(),
        "threads": threads,
        "device": device,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": platform.processor() or platform.machine(),
        "duration_s": round(time.monotonic() - started, 1),
    }


def _cases(clients: int, device: DeviceName, quick: bool) -> list[Case]:
    steps = (1,) if quick else (1, 5)
    cases = [small(size, clients=clients, steps=number) for size in ("1e4", "1e6") for number in steps]
    if device == "cuda":
        cases += [face_network(name, clients=GPU_PHONES) for name in GPU_NETWORKS]
    return cases


def _record(rows: list[Row]) -> dict[str, Any]:
    best = best_engine(rows)
    loops = {row.engine: row for row in rows if row.engine.startswith("torch")}
    return {
        "best": best.engine,
        "ms_per_client": best.wall_ms,
        "cpu_ms_per_client": best.cpu_ms,
        "over_bare_loop": round(best.over_row(loops["torch, bare loop"])[0], 3),
        "over_resident_model": round(best.over_row(loops["torch, resident model"])[0], 3),
        "throughput_over_large_batch": round(loops[LARGE].over_row(best)[0] * best.steps, 3),
        "rows": [row.as_record() for row in rows],
    }


def _print(found: dict[str, Any]) -> None:
    table = Table("trained", "steps", "how", "ms a phone", "CPU ms", "images/s", "to bare")
    for case in found["cases"]:
        bare = next(row["wall_ms"] for row in case["rows"] if row["engine"] == "torch, bare loop")
        for row in case["rows"]:
            table.add_row(
                f"{row['parameters']:,}",
                str(row["steps"]),
                row["engine"] + (" <" if row["engine"] == case["best"] else ""),
                f"{row['wall_ms']:.3f}",
                f"{row['cpu_ms']:.3f}",
                f"{row['images_per_s']:,.0f}",
                f"{row['wall_ms'] / bare:.2f}",
            )
            if row.get("gpu"):
                busy = row["gpu"]["busy"]
                share = "" if busy is None else f", busy {busy:.0%}"
                table.add_row("", "", f"  GPU: peak {row['gpu']['peak_mb']:,.0f} MB{share}", "", "", "", "")
        table.add_section()
    cli.OUT.print(table)
    where = found["gpu"] if found["device"] == "cuda" else f"{found['threads']} of {found['cores']} cores"
    lines = (
        f"On {where}; < marks the fastest engine of a case. For networks like the last use {found['recommended']}.",
        f"{DRAWN} of {REGISTERED:,} registered phones are drawn in {found['select_1e6_s'] * 1e3:.2f} ms",
    )
    cli.say("\n".join(lines))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
