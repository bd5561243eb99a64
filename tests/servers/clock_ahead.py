"""The coordinator's program with a clock that SIGUSR1 puts forward, so that stages run out when a test wants them to.

Python runs it by its path in the place of `-m coordinator.commands.cli`. The clock is the process's monotonic one, by
which its server reads the time and its event loop keeps its timers; nothing else of the coordinator is changed.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Final

AHEAD_S: Final = 180.0
"""How far one signal puts the clock forward, in seconds: longer than a stage of the tests' tasks takes."""


def main() -> None:
    """Run mien-coordinator."""
    of_the_machine, ahead_s = time.monotonic, 0.0

    def put_forward(_number: int, _frame: FrameType | None) -> None:
        nonlocal ahead_s
        ahead_s += AHEAD_S

    time.monotonic = lambda: of_the_machine() + ahead_s
    signal.signal(signal.SIGUSR1, put_forward)

    from coordinator.commands import cli

    cli.main()


if __name__ == "__main__":
    main()
