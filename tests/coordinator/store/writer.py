"""A process that opens one sum after another and says so after each commit, until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.store.account import record_opening
from coordinator.store.database import sqlite_url
from coordinator.store.store import Store
from mien.shell.clock import Clock
from tests.coordinator.store.test_account import devices, opening


def main() -> None:
    """Write events of task t1 from the round after the last one on."""
    store = Store.open(sqlite_url(Path(sys.argv[1])), Clock())
    round_ = int(sys.argv[2])
    while True:
        store.privacy(lambda db, r=round_: record_opening(db, "default", opening(r), devices(r)))
        print(round_, flush=True)
        round_ += 1


if __name__ == "__main__":
    main()
