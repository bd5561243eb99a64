"""How long others wait while one program attacks a port: registrar, operators' port, coordinator, dashboard.

The servers are real processes with their usual settings, attacker and others come from one address, which is the worst
case, since shares are by address. Others open a connection and make one call, again and again. The ratio is their 99th
percentile under an attack over the same port's without one, before all attacks and after them. All of it shares this
machine's cores. Quick takes fewer visits and leaves out variants of an attack that another port has.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from benchmarks import _common
from benchmarks._house import attacking, open_house

AIM: Final = 3.0
VISIT_S: Final = 8.0
SECONDS: Final = 10.0
QUICK_S: Final = 1.5
METHODS: Final = {
    "registrar": "/mien.v1.Registrar/Hello",
    "operators": "/mien.v1.RegistrarAdmin/ListDevices",
    "coordinator": "/mien.v1.Rounds/CheckIn",
    "dashboard": "/",
}
QUICK: Final = (
    *(("registrar", name) for name in ("silent_sockets", "idle_http2", "stalled_calls", "large_metadata", "bad_joins")),
    *(("registrar", name) for name in ("brief_calls", "reset_calls", "revocation_lists")),
    *(("operators", name) for name in ("half_handshakes", "stalled_calls")),
    *(("coordinator", name) for name in ("half_handshakes", "stalled_calls")),
    *(("dashboard", name) for name in ("silent_sockets", "idle_tls")),
)
REST: Final = (
    *(("registrar", name) for name in ("half_handshakes", "idle_tls")),
    *(("operators", name) for name in ("silent_sockets",)),
    *(("coordinator", name) for name in ("silent_sockets", "idle_tls", "idle_http2", "large_metadata")),
    *(("coordinator", name) for name in ("brief_calls", "reset_calls")),
    ("dashboard", "half_handshakes"),
)


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("hostile", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    seconds, attacks = (QUICK_S, QUICK) if args.quick else (SECONDS, (*QUICK, *REST))
    with tempfile.TemporaryDirectory() as folder, open_house(Path(folder)) as house:
        alone = {port: visits(visit, seconds) for port, visit in house.visits.items()}
        under = []
        for port, name in attacks:
            _common.progress(f"{port}: {name}")
            with attacking(name, house.targets[port], METHODS[port]):
                under.append(visits(house.visits[port], seconds))
        for port, visit in house.visits.items():  # again: a machine does not stay as quick as it was
            alone[port] += visits(visit, seconds)
        rows = [row(port, name, alone[port], took) for (port, name), took in zip(attacks, under, strict=True)]
    worst = max(rows, key=lambda each: float(each["p99_ratio"]))
    return {
        "benchmark": "hostile",
        "quick": args.quick,
        "attacks_tried": len(rows),
        "others_p99_ratio": worst["p99_ratio"],
        "worst": f"{worst['port']}: {worst['attack']}",
        "others_refused": sum(int(each["refused"]) for each in rows),
        "holds": bool(worst["p99_ratio"] <= AIM and not any(each["refused"] for each in rows)),
        "rows": rows,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def visits(visit: Callable[[float], None], seconds: float) -> list[float]:
    """Return how long each visit took, in seconds; infinite for one that failed."""
    took, ends = list[float](), time.monotonic() + seconds
    while time.monotonic() < ends or len(took) < 2:
        began = time.monotonic()
        try:
            visit(VISIT_S)
        except (grpc.RpcError, OSError):
            took.append(float("inf"))
        else:
            took.append(time.monotonic() - began)
    return took


def row(port: str, attack: str, alone: list[float], under: list[float]) -> dict[str, Any]:
    """Return one attack's figures; times in milliseconds, of visits that were answered."""
    before, answered = p99(alone), [each for each in under if each < float("inf")]
    after = p99(answered) if answered else VISIT_S
    return {
        "port": port,
        "attack": attack,
        "visits": len(under),
        "refused": len(under) - len(answered),
        "alone_p99_ms": round(1000 * before, 2),
        "p99_ms": round(1000 * after, 2),
        "p99_ratio": round(after / before, 2),
    }


def p99(took: list[float]) -> float:
    """Return the 99th percentile of times."""
    return float(np.quantile([each for each in took if each < float("inf")], 0.99))


if __name__ == "__main__":
    main()
