"""mien-coordinator privacy report, from the folder alone: the coordinator does not run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.store.database import sqlite_url
from coordinator.store.store import Store
from coordinator.store.tables import PRIVACY_EVENTS
from mien.errors import TABLE, CorruptDataError
from mien.shell.clock import Clock
from tests.coordinator.store.test_account import add_task, devices, opening, record
from tests.programs import Answer, run_as_is


def run(home: Path, *arguments: str) -> Answer:
    return run_as_is("mien-coordinator", *arguments, "--home", home)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("coordinator") / "home"
    assert run(home, "init", "--address", "localhost:7443").code == 0
    store = Store.open(sqlite_url(home / "coordinator.db"), Clock())
    add_task(store, "t1")
    for round_ in (1, 2):
        record(store, opening(round_), devices(round_))
    store.close()
    return home


def test_the_report_is_read_from_the_folder(home: Path) -> None:
    answer = run(home, "privacy", "report", "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    (task,), (population,) = result["tasks"], result["populations"]
    assert (task["task_id"], task["state"], task["reveals"]) == ("t1", "running", [])
    assert (population["verifies"], population["num_sums"]) == (True, 2)
    assert population["budgets"][0]["spent_rdp"] < population["budgets"][0]["epsilon"]


def test_the_report_speaks_in_words(home: Path) -> None:
    answer = run(home, "privacy", "report")
    assert answer.code == 0, answer.err
    for words in ("the ledger verifies", "of 8 is spent", "The coordinator adds the noise", "at most 4 sums"):
        assert words in answer.out


def test_a_changed_ledger_is_said_and_ends_in_an_exit_code(home: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(home, tmp_path / "changed"))
    store = Store.open(sqlite_url(home / "coordinator.db"), Clock())
    store.privacy(lambda db: db.execute(sa.delete(PRIVACY_EVENTS).where(PRIVACY_EVENTS.c.position == 0)))
    store.close()
    answer = run(home, "privacy", "report")
    assert answer.code == TABLE[CorruptDataError].exit_code
    assert "DOES NOT VERIFY" in answer.out
