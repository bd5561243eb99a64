"""What monitoring is told of budgets: the ledger's own figures, computed again only where it grew."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.store import report
from coordinator.store.account import read
from coordinator.store.database import sqlite_url
from coordinator.store.report import Budgets
from coordinator.store.store import Store
from mien.shell.clock import Clock
from mien.specs import DpSpec
from tests.coordinator.store.test_account import add_task, devices, opening, record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(sqlite_url(tmp_path / "c.db"), Clock())
    add_task(store, "t1")
    yield store
    store.close()


def test_what_is_spent_is_the_ledgers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Budgets()
    assert store.privacy(told) == ()
    record(store, opening(1), devices(1))
    (first,) = store.privacy(told)
    assert (first.population, first.epsilon, first.delta) == ("default", 8.0, 1e-5)
    assert first.spent == store.privacy(lambda db: read(db, "default").epsilon(1e-5))
    record(store, opening(3), devices(3))  # far enough apart for one device to be in both
    (second,) = store.privacy(told)
    assert first.spent < second.spent < 8
    monkeypatch.setattr(report, "read", lambda *_: pytest.fail("nothing was added to the ledger"))
    assert store.privacy(told) == (second,)


def test_a_population_without_a_promise_has_no_budget(store: Store) -> None:
    add_task(store, "t2", DpSpec())
    record(store, opening(1, task="t2", dp=DpSpec()), devices(1))
    assert store.privacy(Budgets()) == ()
    assert math.isinf(store.privacy(lambda db: read(db, "default").epsilon(1e-5)))
