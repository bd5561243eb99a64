"""Starts coordinators in an instant: `python -m tests.chaos.launcher`, one order as a line of JSON on its input each.

A coordinator takes a second of processor time to load, most of what a kill and a restart would take. This program
loads it once and forks; each child is a process of its own that serves like `mien-coordinator serve` (which the tests
of durability start as it is). Each order's answer is a line with the process's id; the child says so in the order's
pipe when it is ready. An order's `offset_s` is how wrong the child's wall clock is; SIGUSR1 sets it ten minutes
forward and SIGUSR2 back.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from coordinator import serve
from coordinator.home.home import CoordinatorHome
from coordinator.rounds import engine
from mien.errors import MienError
from mien.shell import logs
from mien.shell.clock import Clock
from mien.shell.lock import exclusive
from mien.shell.tls import refuse_tls12

JUMP_S: Final = 600.0
_PR_SET_PDEATHSIG: Final = 1

assert engine  # loaded before the first child, like everything that a coordinator needs


def main() -> None:
    """Take orders until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(json.loads(line)))
        print(pid, flush=True)


def _child(order: dict[str, Any]) -> int:
    """Serve, and return the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no coordinator outlives the tests
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    wrong_clock(float(order["offset_s"]))
    logs.configure(as_json=True)
    try:
        _serve(CoordinatorHome(Path(order["home"])), Path(order["ready"]))
    except MienError as error:  # as the command line has it
        print(error.message, file=sys.stderr, flush=True)
        return 1
    except BaseException:  # noqa: BLE001 - the last word of a process is the log's
        traceback.print_exc()
        return 1
    return 0


def _serve(home: CoordinatorHome, ready: Path) -> None:
    """Do what `coordinator.serve.serve` does, and say when it is ready."""
    os.umask(0o077)
    refuse_tls12()

    async def until_stopped() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with serve.running(home, home.resolve().config, Clock()):
            pipe = os.open(ready, os.O_WRONLY)
            os.write(pipe, b"r")
            os.close(pipe)
            await stop.wait()

    with exclusive(home.lock_path, program="mien-coordinator"):
        asyncio.run(until_stopped())


def wrong_clock(offset_s: float) -> None:
    """Have this process's wall clock go wrong by so much, and by ten minutes more at each signal."""
    right, offset = time.time, [offset_s]
    time.time = lambda: right() + offset[0]

    def jump(number: int, _frame: object) -> None:
        offset[0] += JUMP_S if number == signal.SIGUSR1 else -JUMP_S

    signal.signal(signal.SIGUSR1, jump)
    signal.signal(signal.SIGUSR2, jump)


if __name__ == "__main__":
    main()
