"""`mien-coordinator log`: the log checked, and written out as anybody may check it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.commands.cli import app
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys.note_keys import log_signer
from coordinator.store import round_log
from mien.errors import NotFoundError
from mien.log.checkpoints import Checkpoint, Note
from mien.log.entries import certificate_entry, release_entry, round_entry, task_entry
from mien.log.monitor import examine


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    home = CoordinatorHome.create(tmp_path / "c", CoordinatorConfig("localhost:7443"), datetime.now(UTC))
    entries = [certificate_entry(f"{number:064x}") for number in range(5)]
    with home.store() as store:
        store.round_log(lambda db: round_log.append(db, 1, entries))
    return home


def run(home: CoordinatorHome, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["log", *words, "--home", str(home.folder)])
    return result.exit_code, result.output


def test_a_log_that_holds_is_said_to(home: CoordinatorHome) -> None:
    code, said = run(home, "verify", "--json")
    assert code == 0
    assert json.loads(said)["entries"] == 5


def test_a_round_over_a_model_that_nobody_made_is_named(home: CoordinatorHome) -> None:
    released, other, rest = (
        "a" * 64,
        "b" * 64,
        dict.fromkeys(("task_sha256", "layout_sha256", "statement_sha256"), "1" * 64),
    )
    honest = [release_entry(released, None, 1.0), task_entry("ab" * 16, released)]
    honest.append(round_entry("ab" * 16, 1, 1, model_sha256=released, **rest))
    with home.store() as store:
        store.round_log(lambda db: round_log.append(db, 1, honest))
    assert run(home, "verify")[0] == 0
    with home.store() as store:
        lie = round_entry("ab" * 16, 2, 1, model_sha256=other, **rest)
        store.round_log(lambda db: round_log.append(db, 1, [lie]))
    code, said = run(home, "verify")
    assert code == 47
    assert f"FAULT: entry 8: round {'ab' * 16}/2/1 trains model {other}" in said
    code, said = run(home, "verify", "--json")
    assert (code, json.loads(said)["verifies"], len(json.loads(said)["faults"])) == (47, False, 1)


def test_what_the_registrar_cosigned_is_written_out(home: CoordinatorHome, tmp_path: Path) -> None:
    signer = log_signer(home.authority())
    with home.store() as store:
        text = Checkpoint(signer.key.name, 4, store.round_log(lambda db: round_log.root(db, 4))).text
        signed = str(Note(text, (signer.sign(text),)))
        store.round_log(lambda db: round_log.keep_cosigned(db, signed, 4))
    code, said = run(home, "export", "--out", str(tmp_path / "out"))
    assert code == 0
    assert "Wrote 4 entries" in said
    lines = (tmp_path / "out/entries.jsonl").read_text().splitlines()
    entries = [json.loads(line).encode() for line in lines]
    found = examine(entries, (tmp_path / "out/checkpoint").read_text(), signer.key)
    assert (found.faults, found.counts) == ((), {"certificate": 4})
    assert (tmp_path / "out/key").read_text() == f"{signer.key}\n"


def test_before_the_registrar_cosigned_there_is_nothing_to_show(home: CoordinatorHome, tmp_path: Path) -> None:
    store = home.store()
    with store as opened:
        assert opened.round_log(round_log.read_head).cosigned == ""
    result = CliRunner().invoke(app, ["log", "export", "--out", str(tmp_path / "out"), "--home", str(home.folder)])
    assert isinstance(result.exception, NotFoundError)
    assert not (tmp_path / "out").exists()
