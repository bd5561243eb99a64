"""mien-coordinator audit, from the folder alone: the coordinator does not run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.commands.audit import _short
from coordinator.keys import pki
from coordinator.store.database import sqlite_url
from coordinator.store.store import Store
from coordinator.store.tables import AUDIT
from mien.errors import TABLE, ConfigError, CorruptDataError
from mien.shell.clock import Clock
from tests.coordinator.commands.test_privacy import run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coordinator's folder in which an operator was certified, and another renewed."""
    folder = tmp_path_factory.mktemp("coordinator")
    home = folder / "home"
    assert run(home, "init", "--address", "localhost:7443").code == 0
    (folder / "alice.csr").write_bytes(pki.create_csr(ec.generate_private_key(ec.SECP256R1())))
    sign = ("operator", "sign", str(folder / "alice.csr"), "--name", "alice", "--out", str(folder / "alice.pem"))
    assert run(home, *sign).code == 0
    assert run(home, "operator", "renew").code == 0
    return home


def test_who_certified_whom_is_listed(home: Path) -> None:
    entries = json.loads(run(home, "audit", "list", "--json").out)["entries"]
    assert [(e["position"], e["action"], e["subject"]) for e in entries] == [
        (1, "operator.certify", "alice"),
        (2, "operator.certify", "coordinator"),
    ]
    assert all(e["actor"].startswith("local:") for e in entries)
    pem = (home.parent / "alice.pem").read_bytes()
    assert entries[0]["detail"]["certificate_sha256"] == pki.fingerprint(pki.load_certificate(pem))
    assert [e["position"] for e in json.loads(run(home, "audit", "list", "--last", "1", "--json").out)["entries"]] == [
        2
    ]
    assert "operator.certify" in run(home, "audit", "list").out


def test_the_log_is_verified_also_against_an_anchor(home: Path) -> None:
    anchor = run(home, "audit", "head").out.strip()
    assert json.loads(run(home, "audit", "head", "--json").out)["anchor"] == anchor
    answer = run(home, "audit", "verify", "--anchor", anchor)
    assert answer.code == 0, answer.err
    assert "2 entries" in answer.out
    assert json.loads(run(home, "audit", "verify", "--json").out)["verifies"] is True
    assert run(home, "audit", "verify", "--anchor", "nonsense").code == TABLE[ConfigError].exit_code


def test_a_changed_log_ends_in_an_exit_code(home: Path, tmp_path: Path) -> None:
    anchor = run(home, "audit", "head").out.strip()
    home = Path(shutil.copytree(home, tmp_path / "changed"))
    store = Store.open(sqlite_url(home / "coordinator.db"), Clock())
    first = store.audit(lambda log, db: log.read(db))[0].anchor
    store.audit(lambda log, db: db.execute(sa.delete(log.entries).where(log.entries.c.position == 2)))
    answer = run(home, "audit", "verify")
    assert answer.code == TABLE[CorruptDataError].exit_code
    assert "written up to 2" in answer.err
    moved = sa.update(AUDIT.head).values(position=1, sha256=first.sha256)
    store.audit(lambda _, db: db.execute(moved))
    store.close()
    assert run(home, "audit", "verify").code == 0
    assert "before the anchor at 2" in run(home, "audit", "verify", "--anchor", anchor).err


def test_hashes_in_a_line_for_people_are_cut_and_words_are_not() -> None:
    assert _short("model " + "ab" * 32 + " of population spring") == "model abababababab of population spring"
    assert _short(17) == "17"
