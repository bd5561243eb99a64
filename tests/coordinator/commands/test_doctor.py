"""What doctor says of evaluation sets and of the release key: what would otherwise show at the next gate or release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.commands.checks import FolderChecks
from coordinator.commands.doctor import CoordinatorChecks
from coordinator.commands.registrar_doctor import RegistrarChecks
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from coordinator.service.revocations import Revocations
from coordinator.store.database import open_engine, schema_revision
from coordinator.store.store import Store
from mien.errors import NotFoundError
from mien.evaluation.rollout_spec import RollOutSpec
from mien.models import bundles
from mien.models.bundles import BundleFile
from mien.protocol.canonical import model_to_json
from mien.protocol.rounds import BlobId
from mien.rounds.records import BundleRecord, ModelRecord
from mien.rounds.rollouts import held
from mien.shell.clock import Clock
from simulation.testing import LAYOUT, SPEC

NOW = datetime.now(UTC)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., CoordinatorHome]:
    """What makes a coordinator's folder with some settings."""

    def make(**settings: Any) -> CoordinatorHome:
        config = CoordinatorConfig("localhost:7443", **settings)
        home = CoordinatorHome.create(tmp_path / "C", config, NOW)
        home.trust(pki.create_authority("registrar", NOW).certificate_pem, replace=False)
        return home

    return make


def finding(home: CoordinatorHome, name: str) -> tuple[bool, str]:
    """Return whether a check is good, and what it says."""
    (found,) = [found for found in asyncio.run(CoordinatorChecks(home, lambda: NOW).examine()) if found.name == name]
    return found.error is None, found.detail


@pytest.mark.parametrize("checks", [CoordinatorChecks, RegistrarChecks])
def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path, checks: type[FolderChecks[Any]]) -> None:
    home = (CoordinatorHome if checks is CoordinatorChecks else RegistrarHome)(tmp_path / "none")
    with pytest.raises(NotFoundError, match=rf"there is no {home.name} in .*none; run mien-{home.name} init"):
        asyncio.run(checks(home, lambda: NOW).examine())
    assert not home.folder.exists()


@pytest.mark.parametrize("program", ["coordinator", "registrar"])
def test_a_database_that_is_not_there_is_told_and_not_made(
    made: Callable[..., CoordinatorHome], tmp_path: Path, program: str
) -> None:
    checks: FolderChecks[Any]
    if program == "coordinator":
        home = made()
        checks = CoordinatorChecks(home, lambda: NOW)
    else:
        config = RegistrarConfig("localhost:7444", "localhost:7443")
        registrar = RegistrarHome.create(tmp_path / "R", config, NOW)
        checks = RegistrarChecks(registrar, lambda: NOW)
    database = checks._home.database_path
    database.unlink(missing_ok=True)
    told = {found.name: found.detail for found in asyncio.run(checks.examine())}
    assert not database.exists()
    assert "there is no database" in told["audit log"]


def test_an_empty_database_is_told_and_stays_empty(made: Callable[..., CoordinatorHome], postgres_url: str) -> None:
    home = made(database_url=postgres_url)
    told = {found.name: found.detail for found in asyncio.run(CoordinatorChecks(home, lambda: NOW).examine())}
    assert "the database is empty" in told["database"]
    assert "the database is empty" in told["audit log"]
    engine = open_engine(postgres_url)
    try:
        assert schema_revision(engine) is None
    finally:
        engine.dispose()


def test_evaluation_sets(made: Callable[..., CoordinatorHome], tmp_path: Path) -> None:
    folder = tmp_path / "faces"
    home = made(evaluation_sets=(f"public={folder}",))
    assert finding(home, "evaluation sets")[0] is False
    assert "set 'public' has no folder" in finding(home, "evaluation sets")[1]
    folder.mkdir()
    assert "no folder of a person" in finding(home, "evaluation sets")[1]
    (folder / "ada").mkdir()
    assert finding(home, "evaluation sets") == (True, "public: their folders are there")


def test_neither_set_nor_key_is_no_fault(made: Callable[..., CoordinatorHome]) -> None:
    home = made()
    assert finding(home, "evaluation sets")[0]
    assert finding(home, "release key")[0]


def test_an_unsigned_release_under_a_release_key(made: Callable[..., CoordinatorHome]) -> None:
    home = made(release_key=bundles.name_of(KEY))
    store = Store.open(home.database_url(home.resolve().config), Clock())
    try:
        model, theta = "a" * 64, BlobId("b" * 64, 4 * LAYOUT.size)
        spec_json = model_to_json(SPEC, LAYOUT)
        store.add_model(ModelRecord(model, spec_json, LAYOUT.sha256, theta, 1), actor="alice")
        assert finding(home, "release key")[0]
        store.release(model, population=None, actor="alice")
        good, detail = finding(home, "release key")
        assert not good
        assert "model aaaaaaaaaaaa is in force" in detail
        for key, is_good in ((Ed25519PrivateKey.generate(), False), (KEY, True)):
            files = [BundleFile(bundles.THETA, theta.sha256, theta.size_bytes)]
            sequence = 1 + is_good
            data = bundles.manifest_of(spec_json, model, files, sequence=sequence).to_json()
            store.release(
                model,
                population=None,
                actor="alice",
                bundle=BundleRecord(sequence, model, data, bundles.sign(key, data), spec_json),
            )
            assert finding(home, "release key")[0] is is_good
    finally:
        store.close()


def test_a_registrar_that_forgot_or_contradicts_what_it_revoked(made: Callable[..., CoordinatorHome]) -> None:
    home, now = made(), datetime.now(UTC)
    registrar = pki.create_authority("registrar", now)
    home.trusted_ca_path.write_bytes(pki.to_pem(registrar.certificate))
    revocations = Revocations(home.crl_path, registrar.certificate, Clock(), max_age_s=float("inf"))

    def give(number: int, *serials: int) -> tuple[bool, str]:
        crl_der = pki.build_crl(registrar, [pki.Revocation(serial, now) for serial in serials], number, now)
        revocations.accept(pki.load_crl(crl_der, registrar.certificate))
        return finding(home, "revocations")

    assert give(4, 7)[0]
    assert "contradicts an earlier one" in give(4, 8)[1]
    assert "forgot that 1 certificates are revoked" in give(5, 8)[1]
    assert give(6, 7, 8)[0]


def test_a_roll_out_that_is_held(made: Callable[..., CoordinatorHome]) -> None:
    home = made()
    store = Store.open(home.database_url(home.resolve().config), Clock())
    try:
        for model in ("a" * 64, "c" * 64):
            store.add_model(ModelRecord(model, b"{}", LAYOUT.sha256, BlobId(model, 4), 1), actor="alice")
        store.release("a" * 64, population=None, actor="alice")
        begun = store.start_roll_out("c" * 64, RollOutSpec(), population=None, actor="alice")
        assert finding(home, "roll-outs") == (True, "1 under way, none held")
        store.move_roll_out(begun, held(begun, "phones cannot be asked: no threshold"), actor="system:coordinator")
        good, detail = finding(home, "roll-outs")
        assert not good
        assert "model cccccccccccc is held at 0.01 of the phones: phones cannot be asked: no threshold" in detail
    finally:
        store.close()
